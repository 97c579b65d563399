// Package ovstest boots a real Open vSwitch for tests: ovsdb-server and ovs-vswitchd of this machine in a directory of
// their own, with the dummy datapath, so that no device of the machine is touched, or with another in the network
// namespace that the test is in.
package ovstest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Switch is a running Open vSwitch.
type Switch struct {
	Dir    string
	Bridge string
}

const schema = "/usr/share/openvswitch/vswitch.ovsschema"

// Start boots a switch with a bridge br0 and the given number of dummy ports p1… with OpenFlow numbers 1…; it ends with
// the test. The test is skipped where Open vSwitch is not installed.
func Start(t testing.TB, ports int) *Switch {
	t.Helper()
	s := start(t, "--enable-dummy=override", "--disable-system")
	names := make([]string, ports)
	for i := range names {
		names[i] = fmt.Sprintf("p%d", i+1)
	}
	s.addBridge(t, "dummy", "dummy", names)
	return s
}

// StartOn boots a switch with a bridge br0 of a datapath type, "netdev" or "system", in the network namespace of the
// calling thread, where the ports are interfaces; their OpenFlow numbers are 1…
func StartOn(t testing.TB, datapath string, ports []string) *Switch {
	t.Helper()
	var args []string
	if datapath != "system" {
		args = append(args, "--disable-system")
	}
	s := start(t, args...)
	s.addBridge(t, datapath, "system", ports)
	return s
}

// NeedKernelDatapath skips the test where the kernel has no datapath of Open vSwitch.
func NeedKernelDatapath(t testing.TB) {
	t.Helper()
	if _, err := os.Stat("/sys/module/openvswitch"); err != nil {
		t.Skip("this kernel has no module openvswitch (scripts/kernel runs this test on one that has)")
	}
}

// newSwitch returns a switch that does not run yet. What runs of it at the end of the test is ended then.
func newSwitch(t testing.TB) *Switch {
	t.Helper()
	if _, err := exec.LookPath("ovs-vswitchd"); err != nil {
		t.Skip("openvswitch-switch is not installed")
	}
	dir, err := os.MkdirTemp("", "fk-ovs") // short: unix socket paths have 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	s := &Switch{Dir: dir, Bridge: "br0"}
	t.Cleanup(func() { s.stop(t) })
	return s
}

func start(t testing.TB, args ...string) *Switch {
	t.Helper()
	s := newSwitch(t)
	db := s.path("conf.db")
	s.run(t, "ovsdb-tool", "create", db, schema)
	s.run(t, "ovsdb-server", db, "--remote=punix:"+s.path("db.sock"), "--pidfile="+s.path("ovsdb-server.pid"),
		"--detach", "--no-chdir",
		"--log-file="+s.path("ovsdb-server.log"), "-vconsole:off")
	s.VSCtl(t, "--no-wait", "init")
	s.run(t, "ovs-vswitchd",
		append([]string{s.OVSDB(), "--pidfile=" + s.path("ovs-vswitchd.pid"), "--detach", "--no-chdir",
			"--log-file=" + s.path("ovs-vswitchd.log"), "-vconsole:off"}, args...)...)
	return s
}

func (s *Switch) addBridge(t testing.TB, datapath, kind string, ports []string) {
	t.Helper()
	args := []string{"add-br", s.Bridge, "--", "set", "bridge", s.Bridge, "datapath_type=" + datapath,
		"fail-mode=secure", "protocols=OpenFlow13"}
	for i, name := range ports {
		args = append(args, "--", "add-port", s.Bridge, name, "--", "set", "interface", name, "type="+kind,
			fmt.Sprintf("ofport_request=%d", i+1))
	}
	s.VSCtl(t, args...)
}

func (s *Switch) path(name string) string { return filepath.Join(s.Dir, name) }

// OVSDB returns the endpoint of ovsdb-server.
func (s *Switch) OVSDB() string { return "unix:" + s.path("db.sock") }

// Management returns the path of the bridge's management socket.
func (s *Switch) Management() string { return s.path(s.Bridge + ".mgmt") }

// VSCtl runs ovs-vsctl.
func (s *Switch) VSCtl(t testing.TB, args ...string) string {
	t.Helper()
	return s.run(t, "ovs-vsctl", append([]string{"--db=" + s.OVSDB(), "--timeout=120"}, args...)...)
}

// OFCtl runs ovs-ofctl with COMMAND on the bridge.
func (s *Switch) OFCtl(t testing.TB, command string, args ...string) string {
	t.Helper()
	return s.run(t, "ovs-ofctl", append([]string{"-OOpenFlow13", command, "unix:" + s.Management()}, args...)...)
}

// AppCtl runs ovs-appctl on ovs-vswitchd.
func (s *Switch) AppCtl(t testing.TB, args ...string) string {
	t.Helper()
	return s.run(t, "ovs-appctl",
		append([]string{"--target=" + s.path("ovs-vswitchd."+s.pid("ovs-vswitchd")+".ctl")}, args...)...)
}

// Sent returns the number of packets that left by the port pN.
func (s *Switch) Sent(t testing.TB, port int) int {
	t.Helper()
	_, sent := s.Counts(t, fmt.Sprintf("p%d", port))
	return sent
}

// Counts returns the numbers of packets that came in by a port and that left by it.
func (s *Switch) Counts(t testing.TB, port string) (received, sent int) {
	t.Helper()
	text := s.OFCtl(t, "dump-ports", port)
	for _, c := range []struct {
		column string
		into   *int
	}{{"rx pkts=", &received}, {"tx pkts=", &sent}} {
		_, value, _ := strings.Cut(text, c.column)
		n, _, _ := strings.Cut(value, ",")
		var err error
		if *c.into, err = strconv.Atoi(n); err != nil {
			t.Fatalf("packets of port %s: %v\n%s", port, err, text)
		}
	}
	return received, sent
}

func (s *Switch) pid(program string) string {
	text, _ := os.ReadFile(s.path(program + ".pid"))
	return strings.TrimSpace(string(text))
}

func (s *Switch) run(t testing.TB, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+s.Dir, "OVS_LOGDIR="+s.Dir, "OVS_DBDIR="+s.Dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// stop ends the switch's processes by their pids, and waits for them.
func (s *Switch) stop(t testing.TB) {
	for _, program := range []string{"ovs-vswitchd", "ovsdb-server"} {
		for _, pid := range s.processes(program) {
			end(pid)
		}
	}
	if !t.Failed() || os.Getenv("FLOWKEEP_KEEP") == "" {
		os.RemoveAll(s.Dir)
	}
}

// processes returns the pids of the processes that run a program with the switch's directory. A daemon that is just
// starting has no pid file yet.
func (s *Switch) processes(program string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		args := strings.Split(string(text), "\x00")
		if filepath.Base(args[0]) != program || !slices.Contains(args, "--pidfile="+s.path(program+".pid")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// end ends a process, also one that is stopped or does not respond to SIGTERM.
func end(pid int) {
	_ = syscall.Kill(pid, syscall.SIGTERM)
	_ = syscall.Kill(pid, syscall.SIGCONT)
	deadline := time.Now().Add(5 * time.Second)
	for Runs(pid) && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	if Runs(pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// Runs reports whether a process is running. A process that has ended remains a zombie until its parent reaps it. The
// parent of a daemon is process 1, which in some containers reaps every two seconds only.
func Runs(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(text), ") ") // proc(5): before it is the program's name
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}
