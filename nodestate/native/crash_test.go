package native

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/vishvananda/netlink"
)

const crashFirst = `
interfaces:
- {name: v0, type: veth, state: up, mtu: 1450, veth: {peer: v1}, ipv4: {enabled: true, address: [{ip: 192.0.2.1, prefix-length: 24}]}}
- {name: m0, type: mac-vlan, state: up, mac-vlan: {base-iface: v0, mode: bridge}, ipv4: {enabled: true, address: [{ip: 198.51.100.1, prefix-length: 24}]}}
routes: {config: [{destination: 203.0.113.0/24, next-hop-interface: m0, next-hop-address: 198.51.100.254}]}
`

const crashSecond = `
interfaces:
- {name: v0, mtu: 1300, ipv4: {enabled: true, address: [{ip: 192.0.2.9, prefix-length: 24}]}}
- {name: m0, mac-vlan: {mode: private}}
- {name: br1, type: linux-bridge, state: up, bridge: {port: [{name: v1}]}}
- {name: x1, type: vxlan, state: up, vxlan: {id: 7, remote: 192.0.2.77, base-iface: v0}}
routes: {config: [{destination: 203.0.113.0/24, next-hop-interface: v0, next-hop-address: 192.0.2.254}]}
route-rules: {config: [{ip-from: 10.0.0.0/8, route-table: 99}]}
`

// dying does steps as the kernel does, until it kills its own process.
type dying struct {
	system
	left int
}

func (d *dying) do(ctx context.Context, s Step) error {
	if d.left == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	d.left--
	return d.system.do(ctx, s)
}

// A process that is killed after any of its steps leaves a journal from which another process brings back what was.
func TestKilledInTheMiddle(t *testing.T) {
	if journal := os.Getenv("FLOWKEEP_TEST_JOURNAL"); journal != "" {
		dieInTheMiddle(t, journal)
		return
	}
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	b.apply(crashFirst)
	before := b.show()
	steps, err := b.Plan(b.ctx(), state(t, crashSecond))
	if err != nil || len(steps) < 8 {
		t.Fatalf("%d steps are too few to die between: %v", len(steps), err)
	}
	for left := range len(steps) + 1 {
		journal := filepath.Join(t.TempDir(), "journal")
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledInTheMiddle$") // in this thread's network namespace
		cmd.Env = append(os.Environ(), "FLOWKEEP_TEST_JOURNAL="+journal, "FLOWKEEP_TEST_STEPS="+strings.Repeat("x", left))
		out, err := cmd.CombinedOutput()
		killed := err != nil && cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
		if killed != (left < len(steps)) {
			t.Fatalf("with %d steps to live: %v\n%s", left, err, out)
		}
		raw, err := os.ReadFile(journal)
		if err != nil {
			t.Fatal(err)
		}
		var change nodestate.Change
		if err := json.Unmarshal(raw, &change); err != nil {
			t.Fatal(err)
		}
		b.rolledBack(change, before)
	}
}

func dieInTheMiddle(t *testing.T, journal string) {
	b := New(Config{Bridge: "fk0"})
	b.system = &dying{system: b.system, left: len(os.Getenv("FLOWKEEP_TEST_STEPS"))}
	_, err := b.Apply(t.Context(), state(t, crashSecond), nodestate.Order{Volatile: true, Journal: func(c nodestate.Change) error {
		raw, err := json.Marshal(c)
		return errors.Join(err, os.WriteFile(journal, raw, 0o600))
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// Another failure than death: the step in the middle is refused, and the caller rolls back.
func TestJournalThatCannotBeWritten(t *testing.T) {
	f := newFake()
	b := onFake(f)
	_, err := b.Apply(t.Context(), state(t, "interfaces: [{name: d0, type: dummy, state: up}]"), nodestate.Order{Volatile: true, Journal: func(nodestate.Change) error {
		return errors.New("the disk is full")
	}})
	if err == nil || errors.Is(err, nodestate.ErrRefused) || f.steps != 0 {
		t.Errorf("%v after %d steps", err, f.steps)
	}
}

func TestRollbackOfOthersAndNothing(t *testing.T) {
	b := onFake(newFake())
	if err := b.Rollback(t.Context(), nodestate.Change{Backend: Name}); err != nil {
		t.Error(err)
	}
	if err := b.Rollback(t.Context(), nodestate.Change{Backend: "nmstatectl", Before: []byte("{}")}); err == nil {
		t.Error("another backend's change was rolled back")
	}
	if err := b.Rollback(t.Context(), nodestate.Change{Backend: Name, Before: []byte("}")}); err == nil {
		t.Error("nonsense was rolled back")
	}
}

// Roll-back touches nothing but what the change did: what others did meanwhile stays.
func TestRollbackLeavesOthersAlone(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	b.apply("interfaces: [{name: v0, type: veth, state: up, veth: {peer: v1}, ipv4: {enabled: true, address: [{ip: 192.0.2.1, prefix-length: 24}]}}]")
	c := b.apply("interfaces: [{name: v0, mtu: 1400}, {name: br1, type: linux-bridge, state: up}]")
	b.apply(`
interfaces: [{name: w0, type: veth, state: up, veth: {peer: w1}, ipv4: {enabled: true, address: [{ip: 198.51.100.1, prefix-length: 24}]}}]
routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: w0, next-hop-address: 198.51.100.9}]}
`)
	if err := b.Rollback(b.ctx(), c); err != nil {
		t.Fatal(err)
	}
	b.inSync(state(t, `
interfaces:
- {name: v0, mtu: 1500, state: up, ipv4: {enabled: true, address: [{ip: 192.0.2.1, prefix-length: 24}]}}
- {name: br1, state: absent}
- {name: w0, state: up}
routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: w0, next-hop-address: 198.51.100.9}]}
`))
}

// Addresses that the kernel gives or takes by itself, and that are not yet usable, make no difference.
func TestAddressesThatComeByThemselves(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	const desired = `
interfaces:
- {name: v0, type: veth, state: up, veth: {peer: v1}, mac-address: "02:00:00:AA:BB:CC",
   ipv6: {enabled: true, address: [{ip: "2001:0DB8:0:0::1", prefix-length: 64}]}}
`
	b.apply(desired) // the address is tentative now
	v0, err := netlink.LinkByName("v0")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []netlink.Addr{
		{IPNet: &net.IPNet{IP: net.ParseIP("2001:db8::99"), Mask: net.CIDRMask(64, 128)}, ValidLft: 600, PreferedLft: 300}, // as of an advertisement
		{IPNet: &net.IPNet{IP: net.ParseIP("fe80::1234"), Mask: net.CIDRMask(64, 128)}},
	} {
		if err := netlink.AddrAdd(v0, &a); err != nil {
			t.Fatal(err)
		}
	}
	b.inSync(state(t, desired))
	if steps, err := b.Plan(b.ctx(), state(t, desired)); err != nil || len(steps) > 0 {
		t.Errorf("to %s, %v", texts(steps), err)
	}
	if text := indent(b.show()); strings.Contains(text, "fe80::1234") || strings.Contains(text, "2001:db8::99") {
		t.Error("what comes by itself is shown")
	}
}

// A drift is brought back by the steps it takes, and by no others.
func TestDrift(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	b.apply(crashFirst)
	v0, err := netlink.LinkByName("v0")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(netlink.LinkSetMTU(v0, 1400), netlink.LinkSetDown(v0)); err != nil {
		t.Fatal(err)
	}
	c := b.apply(crashFirst)
	for _, s := range c.Steps {
		if !strings.Contains(s, "v0") && !strings.Contains(s, "m0") {
			t.Errorf("%s", s)
		}
	}
}

// Many interfaces are read at once.
func TestShowMany(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	const pairs = 750
	for i := range pairs {
		a := attrs("v" + number(i+1))
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "w" + number(i+1)}); err != nil {
			t.Fatal(err)
		}
	}
	s := b.show()
	if n := len(s.Interfaces()); n < 2*pairs {
		t.Errorf("%d interfaces are shown", n)
	}
	if diff := nmstate.Diff(state(t, "interfaces: [{name: v750, type: veth, veth: {peer: w750}, state: down}]"), s); len(diff) > 0 {
		t.Error(diff)
	}
}

func BenchmarkShow1500(b *testing.B) {
	b.ReportAllocs()
	netns.New(b).Enter(b)
	for i := range 750 {
		veth := &netlink.Veth{LinkAttrs: attrs("v" + number(i+1)), PeerName: "w" + number(i+1)}
		if err := netlink.LinkAdd(veth); err != nil {
			b.Fatal(err)
		}
	}
	backend := New(Config{Bridge: "fk0"})
	for b.Loop() {
		if _, err := backend.Show(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// What cannot come back does not keep the rest from coming back: a card that is unplugged, with what lies upon it.
func TestRollbackWithoutACard(t *testing.T) {
	f := newFake()
	b := onFake(f)
	if _, err := b.Apply(t.Context(), state(t, `interfaces: [{name: eth2.7, type: vlan, state: down, vlan: {base-iface: eth2, id: 7}}]`), volatile); err != nil {
		t.Fatal(err)
	}
	c, err := b.Apply(t.Context(), state(t, `
interfaces:
- {name: d0, type: dummy, state: up}
- {name: eth1, mtu: 1300}
- {name: eth2, mtu: 1300}
- {name: eth2.7, mtu: 1300}
- {name: br1, type: linux-bridge, state: up, bridge: {port: [{name: eth1}]}}
`), volatile)
	if err != nil {
		t.Fatal(err)
	}
	delete(f.Links, "eth2")
	delete(f.Links, "eth2.7")
	if err = b.Rollback(t.Context(), c); err != nil { // no change took the card out
		t.Error(err)
	}
	if f.Links["d0"] != nil || f.Links["br1"] != nil || f.Links["eth1"].MTU != 1500 || f.Links["eth1"].Controller != "" {
		t.Errorf("not rolled back: %v, eth1 %+v", f.names(), f.Links["eth1"])
	}
}

// A pod that came to a bridge meanwhile does not keep the bridge.
func TestRollbackUnderAPod(t *testing.T) {
	f := newFake()
	b := onFake(f)
	c, err := b.Apply(t.Context(), state(t, `interfaces: [{name: br1, type: linux-bridge, state: up}, {name: eth1, mtu: 1300}]`), volatile)
	if err != nil {
		t.Fatal(err)
	}
	f.Links["cali1"] = &link{Name: "cali1", Type: typeVeth, Up: true, MTU: 1500, Controller: "br1", BridgePort: &bridgePortSpec{}, Protected: "cali1 leads into another network namespace"}
	if err := b.Rollback(t.Context(), c); err != nil {
		t.Error(err)
	}
	if f.Links["br1"] != nil || f.Links["cali1"] == nil || f.Links["eth1"].MTU != 1500 {
		t.Errorf("not rolled back: %v, eth1 %+v", f.names(), f.Links["eth1"])
	}
}

// What stands in the way is told, and all else is undone.
func TestRollbackWhereANameIsTaken(t *testing.T) {
	f := newFake()
	b := onFake(f)
	if _, err := b.Apply(t.Context(), state(t, "interfaces: [{name: b0, type: bond, state: up, link-aggregation: {mode: active-backup}}]"), volatile); err != nil {
		t.Fatal(err)
	}
	c, err := b.Apply(t.Context(), state(t, "interfaces: [{name: b0, state: absent}, {name: eth1, mtu: 1300}]"), volatile)
	if err != nil {
		t.Fatal(err)
	}
	f.Links["b0"] = &link{Name: "b0", Type: typeEthernet, MTU: 1500, MAC: "02:00:00:00:01:09"} // a card of that name came in
	if err := b.Rollback(t.Context(), c); err == nil || !strings.Contains(err.Error(), "b0") {
		t.Errorf("b0 is no bond again: %v", err)
	}
	if f.Links["eth1"].MTU != 1500 {
		t.Errorf("eth1 is not as it was: %+v", f.Links["eth1"])
	}
}

// A node that forwards packets takes router advertisements with accept_ra 2, and has that back.
func TestRollbackOfAdvertisements(t *testing.T) {
	for _, c := range []struct {
		autoconf bool
		accept   int
	}{{true, 2}, {true, 1}, {false, 2}, {false, 0}} {
		f := newFake()
		b := onFake(f)
		f.Links["eth1"].Autoconf, f.Links["eth1"].AcceptRA = c.autoconf, c.accept
		desired := "interfaces: [{name: eth1, ipv6: {enabled: true, autoconf: true}}]"
		if c.autoconf {
			desired = "interfaces: [{name: eth1, ipv6: {enabled: true, autoconf: false}}]"
		}
		change, err := b.Apply(t.Context(), state(t, desired), volatile)
		if err != nil || f.Links["eth1"].Autoconf == c.autoconf || c.autoconf && f.Links["eth1"].AcceptRA != 0 {
			t.Fatalf("%+v: %v: %+v", c, err, f.Links["eth1"])
		}
		if err := b.Rollback(t.Context(), change); err != nil || f.Links["eth1"].Autoconf != c.autoconf || f.Links["eth1"].AcceptRA != c.accept {
			t.Errorf("%+v: %v: %+v", c, err, f.Links["eth1"])
		}
	}
}

// A server of Open vSwitch that was killed leaves its socket: all but its bridges is read, changed and rolled back as ever.
func TestSwitchThatWasKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	s := &switches{endpoint: "unix:" + path}
	if !s.runs() {
		t.Error("it does not run")
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	if topology, err := s.topology(t.Context()); topology != nil || !errors.Is(err, errNoSwitch) || s.runs() {
		t.Errorf("%v, %v; runs: %v", topology, err, s.runs())
	}
}
