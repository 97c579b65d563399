package vswitch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/prometheus/client_golang/prometheus"
)

const installedSchema = "/usr/share/openvswitch/vswitch.ovsschema"

// node is a switch in a directory of its own, on dummy devices.
type node struct {
	*testing.T
	cfg Config
	log *process.Ring
}

func newNode(t *testing.T) *node {
	t.Helper()
	if _, err := exec.LookPath("ovs-vswitchd"); err != nil {
		t.Skip("openvswitch-switch is not installed")
	}
	dir, err := os.MkdirTemp("", "fk-sw") // short: unix socket paths have 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{T: t, log: process.NewRing(process.KeptLog)}
	n.cfg = Config{
		RunDir: filepath.Join(dir, "run"), Database: filepath.Join(dir, "lib", "conf.db"), Schema: installedSchema, LogLevel: "off", HoldFlows: time.Minute,
		Logger: slog.New(slog.NewTextHandler(n.log, nil)), vswitchd: []string{"--enable-dummy=override", "--disable-system"},
	}
	return n
}

// start runs the switch until the returned function is called.
func (n *node) start() (stop func()) {
	n.Helper()
	ctx, cancel := context.WithCancel(n.Context())
	n.cfg.Health, n.cfg.Registerer = new(process.Health), prometheus.NewRegistry()
	for _, part := range []string{"ovsdb-server", "ovs-vswitchd"} {
		n.cfg.Health.SetReady(part, "not begun")
	}
	done := make(chan error, 1)
	go func() { done <- Run(ctx, &n.cfg) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			n.Errorf("the switch: %v", err)
		}
	})
	n.Cleanup(stop)
	n.await("the switch to be ready", func() bool { return n.cfg.Health.NotReady() == "" })
	return stop
}

func (n *node) await(what string, is func() bool) {
	n.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !is() {
		if time.Now().After(deadline) {
			n.Fatalf("waited in vain for %s:\n%s", what, n.log.Text())
		}
		<-time.After(10 * time.Millisecond)
	}
}

// run is one of Open vSwitch's own programs, as somebody beside the switch would run it.
func (n *node) run(name string, args ...string) string {
	n.Helper()
	out, err := n.cfg.tool(n.Context(), name, args...)
	if err != nil {
		n.Fatal(err)
	}
	return out
}

func (n *node) vs(args ...string) string {
	n.Helper()
	return n.run("ovs-vsctl", append([]string{"--db=unix:" + n.cfg.socket(), "--timeout=60"}, args...)...)
}

func (n *node) pid(program string) int {
	n.Helper()
	text, err := os.ReadFile(filepath.Join(n.cfg.RunDir, program+".pid"))
	if err != nil {
		n.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		n.Fatal(err)
	}
	return pid
}

func (n *node) kill(program string) {
	n.Helper()
	old := n.pid(program)
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		n.Fatal(err)
	}
	n.await(program+" to be another", func() bool {
		text, _ := os.ReadFile(filepath.Join(n.cfg.RunDir, program+".pid"))
		return len(text) > 0 && strings.TrimSpace(string(text)) != fmt.Sprint(old)
	})
	n.await("the switch to be ready again", func() bool { return n.cfg.Health.NotReady() == "" })
}

// addBridge makes what netplugin makes.
func (n *node) addBridge() {
	n.vs("add-br", "fk0", "--", "set", "bridge", "fk0", "datapath_type=dummy", "fail-mode=secure", "protocols=OpenFlow13",
		"external_ids:owner=flowkeep", "other_config:disable-in-band=true")
}

func (n *node) flow(command, flow string) {
	n.run("ovs-ofctl", "-OOpenFlow13", command, "unix:"+filepath.Join(n.cfg.RunDir, "fk0.mgmt"), flow)
}

func (n *node) held() bool {
	return n.vs("--no-wait", "--if-exists", "get", "Open_vSwitch", ".", "other_config:"+restoring) == `"true"`
}

func TestTheSwitchComesBack(t *testing.T) {
	n := newNode(t)
	stop := n.start()
	if n.held() {
		t.Error("flows are held on a node that had none")
	}
	id := n.vs("get", "Open_vSwitch", ".", "external_ids:system-id")
	if !strings.HasPrefix(n.vs("get", "Open_vSwitch", ".", "ovs_version"), `"`) || len(id) < 30 {
		t.Errorf("the database says %s", n.vs("list", "Open_vSwitch"))
	}
	n.addBridge()
	n.flow("add-flow", "priority=1,actions=drop")

	n.kill("ovsdb-server")
	if got := n.vs("list-br"); got != "fk0" {
		t.Errorf("after ovsdb-server was killed there are bridges %q", got)
	}
	if n.held() {
		t.Error("flows are held although ovs-vswitchd has them all")
	}

	n.kill("ovs-vswitchd")
	if !n.held() {
		t.Error("ovs-vswitchd came back without its flows, and the kernel's were not held")
	}
	n.flow("add-flow", "priority=1,actions=drop") // as netplugin does
	n.await("flows to be let go", func() bool { return !n.held() })
	n.await("the log of that", func() bool { return strings.Contains(n.log.Text(), "the switch has its flows") })

	stop()
	if _, err := os.Stat(n.cfg.socket()); err == nil {
		t.Error("ovsdb-server's socket is still there")
	}
	n.start() // as by an upgrade
	if !n.held() {
		t.Error("after an upgrade flows are not held")
	}
	if got := n.vs("--no-wait", "get", "Open_vSwitch", ".", "external_ids:system-id"); got != id {
		t.Errorf("the switch is another: %s, was %s", got, id)
	}
	n.flow("add-flow", "priority=1,actions=drop")
	n.await("flows to be let go", func() bool { return !n.held() })
	n.await("the log of each time that they were held", func() bool { return strings.Count(n.log.Text(), "the switch has its flows") >= 2 })
	if log := n.log.Text(); strings.Count(log, "the switch has its flows") != 2 || strings.Contains(log, "netplugin has not installed") {
		t.Error(log)
	}
}

// A node that has started anew has nothing to hold, and a hold ends when nobody comes.
func TestAHoldEnds(t *testing.T) {
	n := newNode(t)
	stop := n.start()
	n.addBridge()
	stop()
	if err := os.RemoveAll(n.cfg.RunDir); err != nil { // as when the node starts
		t.Fatal(err)
	}
	stop = n.start()
	if n.held() {
		t.Error("flows are held although the node has started anew")
	}
	stop()
	n.cfg.HoldFlows = 500 * time.Millisecond
	stop = n.start()
	n.await("the hold to end", func() bool { return strings.Contains(n.log.Text(), "netplugin has not installed") && !n.held() })
	stop()
	n.cfg.HoldFlows = 0
	n.start()
	if n.held() {
		t.Error("flows are held although nobody asked for that")
	}
}

func TestAnotherSwitchIsLeftAlone(t *testing.T) {
	n := newNode(t)
	n.start()
	pid := n.pid("ovsdb-server")
	second := n.cfg
	second.Registerer, second.Health = prometheus.NewRegistry(), new(process.Health)
	if err := Run(t.Context(), &second); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second one: %v", err)
	}
	if n.pid("ovsdb-server") != pid || n.cfg.Health.NotReady() != "" {
		t.Error("the first one did not go on")
	}
}

// schema writes the installed schema under another version; without a column, if one is named.
func (n *node) schema(version, without string) string {
	n.Helper()
	data, err := os.ReadFile(installedSchema)
	if err != nil {
		n.Fatal(err)
	}
	var s map[string]any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&s); err != nil {
		n.Fatal(err)
	}
	s["version"] = version
	if without != "" {
		columns := s["tables"].(map[string]any)["Interface"].(map[string]any)["columns"].(map[string]any)
		if _, there := columns[without]; !there {
			n.Fatalf("the schema has no column %s", without)
		}
		delete(columns, without)
	}
	if data, err = json.Marshal(s); err != nil {
		n.Fatal(err)
	}
	file := filepath.Join(n.TempDir(), "schema")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		n.Fatal(err)
	}
	return file
}

// An upgrade and a downgrade of Open vSwitch keep what is in the database, but for what the older one has no word for.
func TestTheDatabaseIsConvertedForthAndBack(t *testing.T) {
	n := newNode(t)
	n.cfg.Schema = n.schema("8.2.0", "mtu_request")
	version := func(want string) {
		t.Helper()
		if err := n.cfg.prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := n.run("ovsdb-tool", "db-version", n.cfg.Database); got != want {
			t.Errorf("the database has schema %s, not %s", got, want)
		}
	}
	version("8.2.0")
	n.run("ovsdb-tool", "transact", n.cfg.Database, `["Open_vSwitch", {"op": "insert", "table": "Open_vSwitch", "row": {"external_ids": ["map", [["kept", "yes"]]]}}]`)
	old, newer := n.cfg.Schema, n.schema("9.0.0", "")
	n.cfg.Schema = newer
	version("9.0.0")
	n.cfg.Schema = old
	version("8.2.0")
	version("8.2.0")
	if got := n.run("ovsdb-tool", "query", n.cfg.Database, `["Open_vSwitch", {"op": "select", "table": "Open_vSwitch", "where": []}]`); !strings.Contains(got, `"kept"`) {
		t.Errorf("lost on the way: %s", got)
	}
	for _, kept := range []string{"8.2.0", "9.0.0"} {
		if _, err := os.Stat(n.cfg.Database + "-" + kept); err != nil {
			t.Errorf("the database of before was not kept: %v", err)
		}
	}
}

func TestADatabaseThatCannotBeRead(t *testing.T) {
	n := newNode(t)
	if err := n.cfg.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.cfg.Database, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.cfg.Database+".new", []byte("of a start that was killed"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	aside, _ := filepath.Glob(n.cfg.Database + "-unreadable-*")
	if len(aside) != 1 || !strings.Contains(n.log.Text(), aside[0]) {
		t.Errorf("set aside: %v\n%s", aside, n.log.Text())
	}
	if got := n.vs("list-br"); got != "" {
		t.Errorf("bridges %q", got)
	}
}

// TestPrecedence: every thread of the switch has the niceness that it has by Open vSwitch's own scripts, in later lives too, and nobody else has.
func TestPrecedence(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may give precedence")
	}
	n := newNode(t)
	n.start()
	shown := func(program string) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", n.pid(program)))
		if err != nil || len(threads) == 0 {
			t.Fatalf("threads of %s: %d, %v", program, len(threads), err)
		}
		for _, file := range threads {
			if got, ok := nicenessIn(t, file); ok && got != niceness {
				t.Errorf("%s of %s: niceness %d, want %d", file, program, got, niceness)
			}
		}
	}
	shown("ovsdb-server")
	shown("ovs-vswitchd")
	n.kill("ovs-vswitchd")
	shown("ovs-vswitchd")
	own, err := filepath.Glob("/proc/self/task/*/stat")
	if err != nil || len(own) == 0 {
		t.Fatal(len(own), err)
	}
	for _, file := range own {
		if got, _ := nicenessIn(t, file); got == niceness {
			t.Errorf("%s: we took precedence ourselves", file)
		}
	}
}

// nicenessIn is the 19th figure (proc_pid_stat(5)), the third after the name being the first that is counted here;
// false: the thread has ended.
func nicenessIn(t *testing.T, file string) (int, bool) {
	t.Helper()
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return 0, false
	} else if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	got, err := strconv.Atoi(fields[19-3])
	if err != nil {
		t.Fatal(err)
	}
	return got, true
}

func TestPauses(t *testing.T) {
	var pause time.Duration
	for i, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		if pause = pauseAfter(time.Second, pause); pause != want*time.Millisecond {
			t.Errorf("pause %d is %s", i, pause)
		}
	}
	if pause = pauseAfter(shortLife, pause); pause != 0 {
		t.Errorf("after a long life %s", pause)
	}
	if pause = pauseAfter(0, pause); pause != firstPause {
		t.Errorf("then %s", pause)
	}
}
