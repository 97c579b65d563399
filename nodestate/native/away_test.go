package native

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/stopwatch"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/ofctl/dptype"
)

// enforcing is an Open vSwitch with Flowkeep's bridge, which has a port that nobody knows by its name, and another bridge.
func enforcing(t *testing.T) (endpoint string) {
	t.Helper()
	endpoint = openVSwitch(t)
	b := newBench(t, Config{OVSDB: endpoint})
	b.apply("interfaces: [{name: v0, type: veth, state: up, veth: {peer: v1}}, {name: w0, type: veth, state: up, veth: {peer: w1}}]")
	kind, err := dptype.Choose(dptype.Auto, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("ovs-vsctl", "--db="+endpoint, "--timeout=20", "add-br", "fk0", "--", "set", "bridge", "fk0", "datapath_type="+kind,
		"--", "add-port", "fk0", "v1", "--", "add-port", "fk0", "fk-gw", "--", "set", "interface", "fk-gw", "type=internal").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return endpoint
}

// server is the process of ovsdb-server.
func server(t *testing.T, endpoint string) (pid int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(strings.TrimPrefix(endpoint, "unix:")), "ovsdb-server.pid"))
	if err == nil {
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// startServer has ovsdb-server serve the database beside the endpoint.
func startServer(t *testing.T, endpoint string) {
	t.Helper()
	socket := strings.TrimPrefix(endpoint, "unix:")
	dir := filepath.Dir(socket)
	cmd := exec.Command("ovsdb-server", filepath.Join(dir, "conf.db"), "--remote=punix:"+socket, "--pidfile="+filepath.Join(dir, "ovsdb-server.pid"),
		"--detach", "--no-chdir", "--log-file="+filepath.Join(dir, "db.log"), "-vconsole:off")
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+dir, "OVS_LOGDIR="+dir, "OVS_DBDIR="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ovsdb-server: %v\n%s", err, out)
	}
}

func stopServer(t *testing.T, endpoint string) {
	t.Helper()
	stop(t, filepath.Join(filepath.Dir(strings.TrimPrefix(endpoint, "unix:")), "ovsdb-server.pid"))
}

// While ovsdb-server is away the ports of Flowkeep's bridge are as much protected as ever: by this process, and by one that is started
// meanwhile. All else can be changed, and is shown as before.
func TestPortsAreProtectedWhileTheServerIsAway(t *testing.T) {
	netns.New(t).Enter(t)
	endpoint, dir := enforcing(t), t.TempDir()
	b := newBench(t, Config{OVSDB: endpoint, StateDir: dir})
	before := b.show()
	stopServer(t, endpoint)
	for b.ovs.open.Connected() { // until the connection is seen to be broken
		runtime.Gosched()
	}
	for _, who := range []*bench{b, newBench(t, Config{OVSDB: endpoint, StateDir: dir})} {
		if _, err := who.Show(t.Context()); err != nil {
			t.Fatal(err)
		}
		who.refused("interfaces: [{name: v1, mtu: 1300}]", "was a port of Flowkeep's bridge")
		who.refused("interfaces: [{name: br2, type: linux-bridge, bridge: {port: [{name: v1}]}}]", "was a port of Flowkeep's bridge")
		who.refused("interfaces: [{name: w, type: mac-vlan, mac-vlan: {base-iface: v1}}]", "was a port of Flowkeep's bridge")
		who.refused("interfaces: [{name: v0, state: absent}]", "v1") // its other end
		who.refused("interfaces: [{name: b9, type: ovs-bridge, state: up}]", "Open vSwitch does not run here")
		who.same(before, who.show())
	}
	c := b.apply("interfaces: [{name: w0, mtu: 1400}]")
	b.rolledBack(c, before)

	startServer(t, endpoint) // and all is as it was, by the same process
	b.refused("interfaces: [{name: v1, mtu: 1300}]", "is a port of Flowkeep's bridge")
	c = b.apply("interfaces: [{name: b9, type: ovs-bridge, state: up}]")
	b.rolledBack(c, before)
}

// Where Flowkeep is, and nobody has ever seen its bridge's ports, everything may be one.
func TestApply_UnknownPortsChangeNothing(t *testing.T) {
	netns.New(t).Enter(t)
	endpoint := enforcing(t)
	stopServer(t, endpoint)
	for name, text := range map[string]string{"none": "", "torn": `{"bridge":"fk0","po`, "another bridge's": `{"bridge":"fk1","ports":[]}`, "empty": "{}"} {
		dir := t.TempDir()
		if text != "" {
			if err := os.WriteFile(filepath.Join(dir, "ports.json"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		b := newBench(t, Config{OVSDB: endpoint, StateDir: dir})
		for _, link := range []string{"v1", "w0"} {
			b.refused("interfaces: [{name: "+link+", mtu: 1300}]", "ovsdb-server does not answer: cannot determine whether "+link+" is a port of fk0")
		}
		b.refused("interfaces: [{name: br2, type: linux-bridge, bridge: {port: [{name: w0}]}}]", "whether w0 is a port of fk0")
		b.refused("routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: w0}]}", "whether w0 is a port of fk0")
		if _, shown := b.show().Interface("w0"); !shown {
			t.Errorf("%s: what cannot be told is not shown", name)
		}
		c := b.apply("interfaces: [{name: br2, type: linux-bridge, state: up}]") // a new one is nobody's port
		if err := b.Rollback(b.ctx(), c); err != nil {
			t.Error(err)
		}
	}
}

// A server that hangs is waited for once, and then left out: all but Open vSwitch's part is read, changed and rolled back.
func TestServerThatHangs(t *testing.T) {
	netns.New(t).Enter(t)
	endpoint, dir := enforcing(t), t.TempDir()
	b := newBench(t, Config{OVSDB: endpoint, StateDir: dir})
	before := b.show()
	c := b.apply(`
interfaces:
- {name: w0, mtu: 1400}
- {name: br1, type: ovs-bridge, state: up, bridge: {port: [{name: w1}, {name: in1}]}}
- {name: in1, type: ovs-interface, state: up}
`)
	pid := server(t, endpoint)
	hang := func(signal syscall.Signal) {
		if err := syscall.Kill(pid, signal); err != nil {
			t.Fatal(err)
		}
	}
	hang(syscall.SIGSTOP)
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	next := newBench(t, Config{OVSDB: endpoint, StateDir: dir}) // an agent that was started meanwhile
	watch := stopwatch.Start(t)
	for who, limit := range map[*bench]time.Duration{b: answerLimit, next: openLimit} {
		began := watch.Elapsed()
		err := who.Rollback(t.Context(), c)
		took := watch.Elapsed() - began
		if err == nil || !strings.Contains(err.Error(), "ovsdb-server does not answer") || took >= 2*limit { // it waits once
			t.Errorf("after %v: %v", took, err)
		}
		if i, _ := who.show().Interface("w0"); fmt.Sprint(i["mtu"]) != "1500" {
			t.Errorf("what Open vSwitch has no part in was not rolled back: %v", i["mtu"])
		}
		until := time.Now().Add(time.Hour) // the test may be slow
		who.ovs.silent = until
		if _, err := who.Show(t.Context()); err != nil || !who.ovs.silent.Equal(until) {
			t.Errorf("it is waited for again: %v", err)
		}
		who.refused("interfaces: [{name: v1, mtu: 1300}]", "Flowkeep's bridge")
		who.refused("interfaces: [{name: b9, type: ovs-bridge, state: up}]", "ovsdb-server does not answer")
		if slices.Contains(who.Capabilities(), "ovs-bridge") {
			t.Error("ovs-bridge is a capability")
		}
	}
	hang(syscall.SIGCONT)
	b.ovs.silent = time.Time{} // its time is over
	b.rolledBack(c, before)
}

// Nobody who accepts and says nothing holds anybody up, nor does a server that is gone after it was read.
func TestServerThatNeverAnswers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	s := &switches{endpoint: "unix:" + path, ports: &ports{}, log: slog.New(slog.DiscardHandler)}
	t.Cleanup(s.close)
	given, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	n := &network{Links: map[string]*link{}}
	if err := s.show(given, n); err == nil || !s.silent.IsZero() {
		t.Errorf("%v: given up by who was in a hurry", err)
	}
	watch := stopwatch.Start(t)
	if err := s.show(t.Context(), n); err != nil || n.Away == nil ||
		!strings.Contains(n.Away.Error(), "no answer within 8s") || watch.Elapsed() >= 2*openLimit { // it waits once
		t.Errorf("%v after %v: %v", err, watch.Elapsed(), n.Away)
	}
	until := time.Now().Add(time.Hour) // the test may be slow
	s.silent = until
	if err := s.show(t.Context(), n); err != nil || n.Away == nil || !s.silent.Equal(until) || s.runs() {
		t.Errorf("it is waited for again: %v", err)
	}
}

func TestPortsOnDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	p, err := openPorts(dir, "fk0")
	if err != nil || p.known || p.has("eth5") {
		t.Fatalf("%v: %+v", err, p)
	}
	for _, names := range [][]string{{"eth7", "eth5"}, nil, {"eth5"}} {
		if err := p.learn("fk0", slices.Clone(names)); err != nil {
			t.Fatal(err)
		}
		again, err := openPorts(dir, "fk0")
		if err != nil || !again.known || again.has("eth5") != slices.Contains(names, "eth5") || again.has("eth7") != slices.Contains(names, "eth7") || again.has("eth") {
			t.Errorf("%q: %v: %+v", names, err, again)
		}
	}
	written, err := os.Stat(p.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.learn("fk0", []string{"eth5"}); err != nil {
		t.Fatal(err)
	}
	if now, err := os.Stat(p.path); err != nil || !os.SameFile(now, written) {
		t.Errorf("no news, and it was written: %v", err)
	}
	if other, err := openPorts(dir, "fk1"); err != nil || other.known {
		t.Errorf("another bridge's are taken: %v: %+v", err, other)
	}
	if err := os.Truncate(p.path, 9); err != nil {
		t.Fatal(err)
	}
	if torn, err := openPorts(dir, "fk0"); err == nil || torn.known {
		t.Errorf("a torn file is taken: %+v", torn)
	}
}

func FuzzPorts(f *testing.F) {
	for _, text := range []string{`{"bridge":"fk0","ports":["eth5","a"]}`, `{"bridge":"fk0"}`, `{"bridge":"fk0","ports":null}`, "", "[]"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p := &ports{}
		if err := p.decode(text, "fk0"); err != nil && p.known {
			t.Errorf("%q is wrong, and taken", text)
		}
		for _, name := range p.names {
			if !p.has(name) {
				t.Errorf("%q has %q, and it is not found", text, name)
			}
		}
	})
}

// A change of what Open vSwitch keeps is not rolled back while nobody can tell what is there; all else is.
func TestRollBackWithoutOpenVSwitchSaysSo(t *testing.T) {
	f := newFake()
	b := onFake(f)
	c, err := b.Apply(t.Context(), state(t, "interfaces: [{name: eth1, mtu: 1400}, {name: br1, type: ovs-bridge, state: up, bridge: {port: [{name: eth2}]}}]"), volatile)
	if err != nil {
		t.Fatal(err)
	}
	there := f.clone()
	f.drop("br1")
	f.Away = errors.New("ovsdb-server does not answer")
	if err := b.Rollback(t.Context(), c); err == nil || !strings.Contains(err.Error(), "what was changed in Open vSwitch: ovsdb-server does not answer") {
		t.Error(err)
	}
	if f.Links["eth1"].MTU != 1500 {
		t.Error("what Open vSwitch has no part in is as it was changed")
	}
	there.Links["eth1"].MTU = 1500
	f.network = there
	if err := b.Rollback(t.Context(), c); err != nil || f.Links[bridgeKey("br1")] != nil || f.Links["eth2"].Controller != "" {
		t.Errorf("%v: %+v", err, f.Links["eth2"])
	}
}

// drop has Open vSwitch's bridge out of sight, as when ovsdb-server is away.
func (f *fake) drop(bridge string) {
	for _, name := range f.ports(bridgeKey(bridge)) {
		f.Links[name].Controller, f.Links[name].OVSPort = "", nil
	}
	delete(f.Links, bridgeKey(bridge))
}
