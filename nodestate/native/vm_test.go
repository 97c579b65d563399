package native

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/ofctl/dptype"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The tests of this file need more of a kernel than some have: scripts/kernel runs them in a virtual machine.

// The example of the design, as it stands there: a dummy that is there gets an MTU.
func TestKernelDummy(t *testing.T) {
	netns.New(t).Enter(t)
	needKind(t, &netlink.Dummy{LinkAttrs: attrs("probe")})
	b := newBench(t, Config{})
	b.apply("interfaces: [{name: dummy0, type: dummy, state: up}]")
	before := b.show()
	c := b.apply(`
interfaces:
- name: dummy0
  state: up
  type: dummy
  mtu: 1450
`)
	if len(c.Steps) != 1 || c.Steps[0] != "set mtu of dummy0 to 1450 (was 1500)" {
		t.Errorf("steps: %q", c.Steps)
	}
	b.rolledBack(c, before)
}

func TestKernelBondVLAN(t *testing.T) {
	netns.New(t).Enter(t)
	bond := netlink.NewLinkBond(attrs("probe"))
	bond.Mode = netlink.BOND_MODE_ACTIVE_BACKUP
	needKind(t, bond)
	b := newBench(t, Config{})
	b.apply(`
interfaces:
- {name: d0, type: dummy, state: up, ipv4: {enabled: true, address: [{ip: 192.0.2.1, prefix-length: 24}]}}
- {name: d1, type: dummy, state: up, mtu: 1400}
`)
	before := b.show()
	c := b.apply(`
interfaces:
- {name: bond0, type: bond, state: up, link-aggregation: {mode: active-backup, port: [d0, d1], options: {miimon: '140', primary: d1}},
   ipv6: {enabled: true, address: [{ip: "2001:db8::1", prefix-length: 64}]}}
- {name: d0, ipv4: {enabled: false}}
- {name: bond0.10, type: vlan, state: up, vlan: {base-iface: bond0, id: 10}, ipv4: {enabled: true, address: [{ip: 198.51.100.1, prefix-length: 24}]}}
- {name: bond0.20, type: vlan, state: down, vlan: {base-iface: bond0, id: 20, protocol: 802.1ad}}
routes: {config: [{destination: 203.0.113.0/24, next-hop-interface: bond0.10, next-hop-address: 198.51.100.254}]}
`)
	middle := b.show()
	again := b.apply(`
interfaces:
- {name: bond0, type: bond, state: up, mtu: 1300, link-aggregation: {mode: 802.3ad, port: [d1], options: {lacp_rate: fast, xmit_hash_policy: layer3+4}}}
- {name: bond0.10, vlan: {base-iface: bond0, id: 11}}
`)
	b.rolledBack(again, middle)
	b.rolledBack(c, before)
}

func TestKernelVRF(t *testing.T) {
	netns.New(t).Enter(t)
	needKind(t, &netlink.Vrf{LinkAttrs: attrs("probe"), Table: 99})
	b := newBench(t, Config{})
	b.apply(`
interfaces:
- {name: v0, type: veth, state: up, veth: {peer: v1}, ipv4: {enabled: true, address: [{ip: 192.0.2.1, prefix-length: 24}]}, ipv6: {enabled: true, address: [{ip: "2001:db8::1", prefix-length: 64}]}}
`)
	before := b.show()
	c := b.apply(`
interfaces:
- {name: red, type: vrf, state: up, vrf: {port: [v0], route-table-id: 100}}
routes: {config: [{destination: 203.0.113.0/24, next-hop-interface: v0, next-hop-address: 192.0.2.254, table-id: 100}]}
`)
	b.rolledBack(c, before)
}

func TestKernelVLANFiltering(t *testing.T) {
	netns.New(t).Enter(t)
	on := true
	err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs("probe"), VlanFiltering: &on})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel's bridges do not filter by VLAN (scripts/kernel runs this test on one that does)")
	}
	b := newBench(t, Config{})
	b.apply(`
interfaces:
- {name: v0, type: veth, state: up, veth: {peer: v1}}
- {name: w0, type: veth, state: up, veth: {peer: w1}}
- {name: br1, type: linux-bridge, state: up, bridge: {port: [{name: v0}, {name: w0}], options: {stp: {enabled: true, forward-delay: 4}}}}
`)
	before := b.show()
	c := b.apply(`
interfaces:
- name: br1
  bridge:
    port:
    - {name: v0, stp-hairpin-mode: true, stp-path-cost: 50, vlan: {mode: access, tag: 30}}
    - {name: w0, vlan: {mode: trunk, enable-native: true, tag: 7, trunk-tags: [{id: 100}, {id-range: {min: 200, max: 205}}]}}
`)
	b.apply("interfaces: [{name: br1, bridge: {port: [{name: v0}, {name: w0, vlan: {mode: trunk, trunk-tags: [{id: 9}]}}]}}]")
	b.rolledBack(c, before)
}

// openVSwitch boots one whose devices are in the network namespace that the test is in, and tells its endpoint.
func openVSwitch(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("ovs-vswitchd"); err != nil {
		t.Skip("openvswitch-switch is not installed")
	}
	dir, err := os.MkdirTemp("", "fk-ovs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...) // a child of this thread, and so in its network namespace
		cmd.Env = append(os.Environ(), "OVS_RUNDIR="+dir, "OVS_LOGDIR="+dir, "OVS_DBDIR="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	run("ovsdb-tool", "create", at("conf.db"), "/usr/share/openvswitch/vswitch.ovsschema")
	startServer(t, "unix:"+at("db.sock"))
	t.Cleanup(func() { stop(t, at("ovsdb-server.pid")) })
	run("ovs-vsctl", "--db=unix:"+at("db.sock"), "--no-wait", "init")
	run("ovs-vswitchd", "unix:"+at("db.sock"), "--pidfile="+at("ovs-vswitchd.pid"), "--detach", "--no-chdir", "--log-file="+at("vswitchd.log"), "-vconsole:off")
	t.Cleanup(func() { stop(t, at("ovs-vswitchd.pid")) })
	return "unix:" + at("db.sock")
}

func stop(t *testing.T, pidfile string) {
	text, _ := os.ReadFile(pidfile)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil { // it has ended
		return
	}
	defer unix.Close(process)
	_ = unix.PidfdSendSignal(process, unix.SIGTERM, nil, 0)
	ended := []unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}
	for deadline := time.Now().Add(2 * time.Minute); ended[0].Revents == 0; {
		left := time.Until(deadline)
		if left <= 0 {
			t.Errorf("process %d does not end", pid)
			_ = unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0)
			return
		}
		if _, err := unix.Poll(ended, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			t.Errorf("wait for process %d: %v", pid, err)
			return
		}
	}
}

// On a kernel without Open vSwitch this is its datapath in userspace.
func TestOpenVSwitch(t *testing.T) {
	netns.New(t).Enter(t)
	endpoint := openVSwitch(t)
	b := newBench(t, Config{OVSDB: endpoint})
	kind, err := dptype.Choose(dptype.Auto, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("datapath %s", kind)
	b.apply("interfaces: [{name: v0, type: veth, state: up, veth: {peer: v1}}]")
	before := b.show()
	c := b.apply(`
interfaces:
- {name: br1, type: ovs-bridge, state: up, bridge: {options: {fail-mode: secure, mcast-snooping-enable: true}, port: [{name: br1}, {name: v0, vlan: {mode: access, tag: 5}}, {name: in1}]}}
- {name: br1, type: ovs-interface, state: up, mtu: 1400, ipv4: {enabled: true, address: [{ip: 192.0.2.1, prefix-length: 24}]}}
- {name: in1, type: ovs-interface, state: up, mac-address: "02:00:00:00:00:11", ipv6: {enabled: true, address: [{ip: "2001:db8::1", prefix-length: 64}]}}
routes: {config: [{destination: 203.0.113.0/24, next-hop-interface: br1, next-hop-address: 192.0.2.254}]}
`)
	middle := b.show()
	next := b.apply(`
interfaces:
- {name: br1, type: ovs-bridge, bridge: {options: {stp: true, fail-mode: standalone}, port: [{name: br1}, {name: v0, vlan: {mode: trunk, trunk-tags: [{id-range: {min: 3, max: 5}}]}}]}}
- {name: br1, type: ovs-interface, mtu: 1450, mac-address: "02:00:00:00:00:12"}
- {name: in1, type: ovs-interface, state: absent}
`)
	b.rolledBack(next, middle)
	b.refused("interfaces: [{name: fk0, type: ovs-bridge, state: up}]", "Flowkeep")
	b.refused("interfaces: [{name: br1, type: ovs-bridge, mtu: 1400}]", "ovs-interface of the same name")
	b.rolledBack(c, before)
}

// What Flowkeep's own bridge has is neither shown nor changed.
func TestFlowkeepsSwitchIsLeftAlone(t *testing.T) {
	netns.New(t).Enter(t)
	endpoint := openVSwitch(t)
	b := newBench(t, Config{OVSDB: endpoint})
	kind, err := dptype.Choose(dptype.Auto, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	b.apply("interfaces: [{name: v0, type: veth, state: up, veth: {peer: v1}}]")
	before := b.show()
	out, err := exec.Command("ovs-vsctl", "--db="+endpoint, "--timeout=20", "add-br", "fk0", "--", "set", "bridge", "fk0", "datapath_type="+kind,
		"--", "add-port", "fk0", "v1", "--", "add-port", "fk0", "fk-gw", "--", "set", "interface", "fk-gw", "type=internal").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	after := b.show()
	for _, name := range []string{"fk0", "fk-gw", "v1"} {
		if _, shown := after.Interface(name); shown {
			t.Errorf("%s is shown", name)
		}
		b.refused("interfaces: [{name: "+name+", mtu: 1300}]", "Flowkeep")
		b.refused("interfaces: [{name: br2, type: linux-bridge, bridge: {port: [{name: "+name+"}]}}]", "Flowkeep")
		b.refused("routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: "+name+"}]}", "Flowkeep")
	}
	b.refused("interfaces: [{name: v0, state: absent}]", "v1")
	_ = before
}

// Without Open vSwitch its types are refused, and all else works.
func TestNoOpenVSwitch(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{OVSDB: "unix:" + filepath.Join(t.TempDir(), "none.sock")})
	b.refused("interfaces: [{name: br1, type: ovs-bridge, state: up}]", "start openvswitch-switch")
	b.apply("interfaces: [{name: br1, type: linux-bridge, state: up}]")
	for _, c := range b.Capabilities() {
		if strings.HasPrefix(c, "ovs-") {
			t.Errorf("%s is a capability without Open vSwitch", c)
		}
	}
}

// TestKernelSwitch_PortIsFree: a link that was a port of Open vSwitch becomes one of another bridge at once, also where
// Open vSwitch is slow. Its datapath in userspace does not hold links.
func TestKernelSwitch_PortIsFree(t *testing.T) {
	netns.New(t).Enter(t)
	endpoint := openVSwitch(t)
	b := newBench(t, Config{OVSDB: endpoint})
	b.apply("interfaces: [{name: eth1, type: veth, state: up, veth: {peer: far1}}]")
	b.apply("interfaces: [{name: br9, type: ovs-bridge, state: up, bridge: {port: [{name: eth1}]}}]")
	text, err := os.ReadFile(filepath.Join(filepath.Dir(strings.TrimPrefix(endpoint, "unix:")), "ovs-vswitchd.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resumed := make(chan error, 1)
	time.AfterFunc(time.Second, func() { resumed <- unix.Kill(pid, unix.SIGCONT) })
	b.apply("interfaces: [{name: br9, type: ovs-bridge, state: absent}, {name: br8, type: linux-bridge, state: up, bridge: {port: [{name: eth1}]}}]")
	if err := <-resumed; err != nil {
		t.Fatal(err)
	}
}
