package clean

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/node/install"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// machine is a node: a network namespace that this goroutine's thread is in, with a real Open vSwitch in it.
type machine struct {
	t    *testing.T
	dir  string
	cfg  Config
	kind string // of the bridge's datapath
	stop func() // ends Open vSwitch
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	const schema = "/usr/share/openvswitch/vswitch.ovsschema"
	for _, program := range []string{"ovs-vswitchd", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(program + " is not installed")
		}
	}
	netns.New(t).EnterWithMounts(t)
	dir, err := os.MkdirTemp("", "fk-clean")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	m := &machine{t: t, dir: dir, kind: "netdev", cfg: Config{CNIConfDir: dir + "/net.d", CNIBinDir: dir + "/bin", OVSDB: "unix:" + dir + "/db.sock", OVSRunDir: dir + "/ovs", OVSControl: dir + "/vswitchd.ctl", Bridge: "fk0",
		CNISocket: dir + "/run/flowkeep/cni.sock", NetworkdDir: dir + "/net.d", NetworkManagerDir: dir + "/net.d", StateDir: dir + "/lib/flowkeep", State: true}}
	for _, sub := range []string{"net.d", "bin", "run", "lib", "ovs"} {
		if err := os.MkdirAll(dir+"/"+sub, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.run("ovsdb-tool", "create", dir+"/conf.db", schema)
	server := m.start("ovsdb-server", dir+"/conf.db", "--remote=punix:"+dir+"/db.sock", "--unixctl="+dir+"/ovsdb.ctl", "-vconsole:off")
	m.run("ovs-vsctl", "--db="+m.cfg.OVSDB, "--retry", "--no-wait", "--timeout=20", "init")
	vswitchd := m.start("ovs-vswitchd", m.cfg.OVSDB, "--unixctl="+m.cfg.OVSControl, "-vconsole:off")
	m.stop = func() {
		for _, p := range []*exec.Cmd{vswitchd, server} {
			_ = p.Process.Signal(unix.SIGTERM)
			_ = p.Wait()
		}
	}
	t.Cleanup(m.end)
	m.run("ovs-vsctl", "--db="+m.cfg.OVSDB, "--timeout=20", "add-br", "others", "--", "set", "bridge", "others", "datapath_type=netdev") // somebody else's, and stays
	m.run("nft", "add", "table", "inet", "others")
	m.run("nft", "add chain inet others out { type filter hook output priority raw; }; add rule inet others out udp dport 9001 ct zone set 65521; add rule inet others out udp dport 9002 ct zone set 65522; add rule inet others out udp dport 9004 notrack")
	m.run("nft", "add chain inet others in { type filter hook input priority 0; }; add rule inet others in ct state new accept") // has connections tracked
	// Of no zone, and stays, however long the test takes.
	if err := os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", []byte("3600"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	m.send(9003)
	m.run("ip", "rule", "add", "pref", "70", "from", "192.0.2.77", "lookup", "77")
	for name, text := range map[string]string{"net.d/87-others.conflist": "{}", "bin/macvtap": "not ours", "bin/bridge": "x"} {
		m.write(name, text)
	}
	return m
}

// end ends Open vSwitch.
func (m *machine) end() {
	if m.stop != nil {
		m.stop()
	}
	m.stop = nil
}

func (m *machine) start(name string, args ...string) *exec.Cmd {
	m.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+m.dir, "OVS_LOGDIR="+m.dir, "OVS_DBDIR="+m.dir)
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	return cmd
}

func (m *machine) run(name string, args ...string) string {
	m.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

func (m *machine) write(name, text string) {
	m.t.Helper()
	path := filepath.Join(m.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		m.t.Fatal(err)
	}
}

// send has the kernel track a connection.
func (m *machine) send(port int) {
	m.t.Helper()
	m.sendTo(fmt.Sprintf("127.0.0.1:%d", port))
}

func (m *machine) sendTo(address string) {
	m.t.Helper()
	conn, err := net.Dial("udp", address)
	if err != nil {
		m.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil {
		m.t.Fatal(err)
	}
}

// userspace are the connections that the datapath in userspace tracks.
func (m *machine) userspace() string {
	out, _ := exec.Command("ovs-appctl", "--timeout=20", "-t", m.cfg.OVSControl, "dpctl/dump-conntrack", "netdev@ovs-netdev").Output() // none without a bridge
	return string(out)
}

// tracks has the bridge track a connection in each of its zones.
func (m *machine) tracks() {
	m.t.Helper()
	m.run("ovs-ofctl", "-O", "OpenFlow13", "--timeout=20", "add-flow", m.dir+"/fk0.mgmt", "udp,actions=ct(commit,zone=65521),ct(commit,zone=65522)")
	m.run("ip", "addr", "add", "198.18.0.1/30", "dev", "fk0")
	m.run("ip", "link", "set", "fk0", "up")
	m.run("ip", "neigh", "add", "198.18.0.2", "lladdr", "02:00:00:00:00:02", "dev", "fk0")
	for deadline := time.Now().Add(time.Minute); !m.tracked(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("the bridge tracks %q", m.picture())
		}
		m.sendTo("198.18.0.2:9004")
	}
}

// tracked tells whether the bridge tracks a connection in each of its zones.
func (m *machine) tracked() bool {
	if m.kind == "netdev" {
		return strings.Count(m.userspace(), "zone=6552") >= 2
	}
	seen := map[uint16]bool{}
	for _, f := range m.kernels() {
		if f.Forward.DstPort == 9004 && slices.Contains(zones, f.Zone) {
			seen[f.Zone] = true
		}
	}
	return len(seen) == 2
}

// kernels are the connections that the kernel tracks.
func (m *machine) kernels() []*netlink.ConntrackFlow {
	m.t.Helper()
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	if err != nil {
		m.t.Fatal(err)
	}
	return flows
}

// picture is all that Flowkeep has a hand in on the node, and what is beside it.
func (m *machine) picture() string {
	m.t.Helper()
	var out []string
	list, err := rtnl.Dump(netlink.LinkList)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, l := range list {
		out = append(out, "link "+l.Attrs().Name)
	}
	for _, f := range m.kernels() {
		out = append(out, fmt.Sprintf("connection to port %d in zone %d", f.Forward.DstPort, f.Zone))
	}
	for line := range strings.Lines(m.userspace()) {
		out = append(out, "connection in userspace "+line)
	}
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(m.run("ip", family, "rule")) {
			out = append(out, "rule "+family+" "+strings.Join(strings.Fields(line), " "))
		}
		for line := range strings.Lines(m.run("ip", family, "route", "show", "table", "all", "proto", "102")) {
			out = append(out, "route "+family+" "+line)
		}
	}
	out = append(out, strings.Split(m.run("nft", "list", "ruleset"), "\n")...)
	datapaths, err := kernelDatapaths()
	if err != nil {
		m.t.Fatal(err)
	}
	for _, d := range datapaths {
		out = append(out, fmt.Sprintf("datapath %s with %v", d.name, d.ports))
	}
	if m.stop != nil {
		out = append(out, strings.Split(m.run("ovs-vsctl", "--db="+m.cfg.OVSDB, "--timeout=20", "show"), "\n")...)
	}
	_ = filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, _ error) error {
		if !strings.HasPrefix(filepath.Base(path), ".conf.db") && filepath.Dir(path) != m.dir {
			out = append(out, "file "+path)
		}
		return nil
	})
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// flowkeep puts all of it there, as netplugin does.
func (m *machine) flowkeep(pod bool) {
	m.t.Helper()
	db, err := ovsdb.Open(m.t.Context(), m.cfg.OVSDB)
	if err != nil {
		m.t.Fatal(err)
	}
	defer db.Close()
	_, err = db.EnsureBridge(m.t.Context(), ovsdb.BridgeSpec{Name: m.cfg.Bridge, DatapathType: m.kind})
	errs := []error{err}
	for _, name := range hostnet.Devices {
		_, err := db.EnsurePort(m.t.Context(), ovsdb.PortSpec{Bridge: m.cfg.Bridge, Name: name, Internal: true})
		errs = append(errs, err)
	}
	if pod {
		m.run("ip", "link", "add", hostnet.PodPrefix+"1234", "type", "veth", "peer", "name", "inpod")
		_, err := db.EnsurePort(m.t.Context(), ovsdb.PortSpec{Bridge: m.cfg.Bridge, Name: hostnet.PodPrefix + "1234"})
		errs = append(errs, err)
	}
	cidrs := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:1::/64")}
	errs = append(errs, hostnet.Setup(&hostnet.Config{Self: policy.NodeInfo{Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.11")}, PodCIDRs: cidrs},
		ClusterCIDRs: cidrs, GatewayMAC: [6]byte{2, 0, 0, 0, 0, 1}, WireMAC: [6]byte{2, 0, 0, 0, 0, 2},
		OutMAC: [6]byte{2, 0, 0, 0, 0, 3}, ServiceMAC: [6]byte{2, 0xf1, 0, 0, 0, 0x53}, MTU: 1400}))
	if err := errors.Join(errs...); err != nil {
		m.t.Fatal(err)
	}
	m.tracks()
	m.send(9001)
	m.send(9002)
	for _, name := range []string{"net.d/" + install.ConfigurationFile, "net.d/." + install.ConfigurationFile + ".new", "net.d/10-flowkeep.network", "net.d/10-flowkeep.conf", "bin/flowkeep-cni", "bin/flowkeep-portmap", "bin/.flowkeep-cni.new",
		"lib/flowkeep/rules.db", "lib/flowkeep-node-state/undo.json", "lib/flowkeep-macvtap/devices.json", "lib/flowkeep/endpoints/a@eth0.json",
		"run/flowkeep/cni.sock", "run/flowkeep/rules.stale", "run/flowkeep/ready", "run/flowkeep/deleted/c1@eth0",
		"run/flowkeep/rules.stale.new", "ovs/flowkeep-switch"} {
		m.write(name, "x")
	}
}

func (m *machine) clean(change func(*Config)) (string, error) {
	m.t.Helper()
	cfg := m.cfg
	if change != nil {
		change(&cfg)
	}
	var out strings.Builder
	err := Node(m.t.Context(), &cfg, &out)
	return out.String(), err
}

// Afterwards the node is as it was before Flowkeep came, to the last file, and what others have is untouched.
func TestNothingIsLeft(t *testing.T) {
	m := newMachine(t)
	before := m.picture()
	m.flowkeep(false)
	full := m.picture()
	for _, want := range []string{"link fk0", "link fk-gw", "table inet flowkeep", "table arp flowkeep", "lookup 26214", "route -4 10.244.1.0/24", "Bridge fk0", "rules.db", "in zone 65521", "in zone 65522", "port 9003 in zone 0"} {
		if !strings.Contains(full, want) {
			t.Errorf("before cleaning there is no %q", want)
		}
	}
	const would = "would remove bridge fk0 with its flows and 4 ports (fk-gw, fk-out, fk-wire, fk0)"
	out, err := m.clean(func(c *Config) { c.DryRun = true })
	if err != nil || !strings.Contains(out, would) || m.picture() != full {
		t.Errorf("a dry run: %v\n%s", err, out)
	}
	if out, err = m.clean(nil); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if after := m.picture(); after != before {
		t.Errorf("after cleaning there is\n%s\nand before there was\n%s", after, before)
	}
	for _, want := range []string{install.ConfigurationFile, "flowkeep-cni", "bridge fk0", "table inet flowkeep", "policy rule 60 of IPv6", "cni.sock", "state directory", "2 tracked connections of IPv4"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say that it removed %q:\n%s", want, out)
		}
	}
	if out, err := m.clean(nil); err != nil || out != "nothing of Flowkeep's is on this node\n" {
		t.Errorf("again: %v: %s", err, out)
	}
}

// Where the bridge is the only one of its datapath, that goes with it, and the connections it tracked.
func TestTheOnlyBridge(t *testing.T) {
	m := newMachine(t)
	m.run("ovs-vsctl", "--db="+m.cfg.OVSDB, "--timeout=20", "del-br", "others")
	before := m.picture()
	m.flowkeep(true)
	out, err := m.clean(func(c *Config) { c.Force = true })
	if err != nil || !strings.Contains(out, "removed tracked connections of the userspace datapath, zone=65521\n") {
		t.Errorf("%v\n%s", err, out)
	}
	if after := m.picture(); after != before {
		t.Errorf("after cleaning there is\n%s\nand before there was\n%s", after, before)
	}
	if out, err := m.clean(nil); err != nil || out != "nothing of Flowkeep's is on this node\n" {
		t.Errorf("again: %v: %s", err, out)
	}
}

// While netplugin runs or a pod is wired nothing is touched, unless it is forced.
func TestRefused(t *testing.T) {
	m := newMachine(t)
	before := m.picture()
	m.flowkeep(true)
	os.Remove(m.cfg.CNISocket)
	l, err := net.Listen("unix", m.cfg.CNISocket)
	if err != nil {
		t.Fatal(err)
	}
	full := m.picture()
	var refused *Refused
	if out, err := m.clean(nil); !errors.As(err, &refused) || len(refused.Reasons) != 2 || !strings.Contains(err.Error(), "netplugin runs") || !strings.Contains(err.Error(), "wired by fkp1234") || m.picture() != full {
		t.Errorf("%v\n%s", err, out)
	}
	l.Close()
	if _, err := m.clean(nil); !errors.As(err, &refused) || len(refused.Reasons) != 1 || m.picture() != full && there(m.cfg.CNISocket) {
		t.Errorf("%v", err)
	}
	if out, err := m.clean(func(c *Config) { c.Force = true }); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if after := m.picture(); after != before {
		t.Errorf("after cleaning there is\n%s\nand before there was\n%s", after, before)
	}
}

// The state stays unless it was asked for; so does a bridge of the name that somebody else made.
func TestWhatStays(t *testing.T) {
	m := newMachine(t)
	m.flowkeep(false)
	if _, err := m.clean(func(c *Config) { c.State = false }); err != nil || !there(m.cfg.StateDir+"/rules.db") {
		t.Errorf("%v", err)
	}
	m.run("ovs-vsctl", "--db="+m.cfg.OVSDB, "--timeout=20", "add-br", "fk0", "--", "set", "bridge", "fk0", "datapath_type=netdev")
	if _, err := m.clean(nil); err == nil || !strings.Contains(err.Error(), "did not make: it stays") || !strings.Contains(m.picture(), "Bridge fk0") || there(m.cfg.StateDir) {
		t.Errorf("%v", err)
	}
	m.run("ovs-vsctl", "--db="+m.cfg.OVSDB, "--timeout=20", "del-br", "fk0")
	m.write("home/letter", "x")
	if _, err := m.clean(func(c *Config) { c.StateDir = m.dir + "/home" }); err == nil || !strings.Contains(err.Error(), "does not look like") || !there(m.dir+"/home/letter") {
		t.Errorf("%v", err)
	}
}

// Without Open vSwitch the rest goes all the same; a database that does not answer is told, and the rest goes.
func TestWithoutASwitch(t *testing.T) {
	m := newMachine(t)
	m.flowkeep(false)
	m.end()
	os.Remove(m.dir + "/db.sock")
	if out, err := m.clean(nil); err != nil || strings.Contains(out, "bridge fk0") || !strings.Contains(out, "table inet flowkeep") || there(m.cfg.StateDir) {
		t.Errorf("%v\n%s", err, out)
	}
	killed, err := net.ListenUnix("unix", &net.UnixAddr{Name: m.dir + "/db.sock", Net: "unix"}) // whose socket stays
	if err != nil {
		t.Fatal(err)
	}
	killed.SetUnlinkOnClose(false)
	killed.Close()
	if out, err := m.clean(nil); err != nil || out != "nothing of Flowkeep's is on this node\n" {
		t.Errorf("%v\n%s", err, out)
	}
	os.Remove(m.dir + "/db.sock")
	silent, err := net.Listen("unix", m.dir+"/db.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	m.write("net.d/"+install.ConfigurationFile, "x")
	began := time.Now()
	out, err := m.clean(nil)
	if err == nil || !strings.Contains(err.Error(), "look for the bridge") || there(m.cfg.CNIConfDir+"/"+install.ConfigurationFile) {
		t.Errorf("after %v: %v\n%s", time.Since(began), err, out)
	}
}

// Of a plugin named macvtap only what was built from this module goes.
func TestWhoseMacvtap(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "macvtap")
	if err := os.WriteFile(other, []byte("\x7fELF"), 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if ours(other) || ours(dir) || ours(dir+"/none") || !ours(self) {
		t.Error(fmt.Sprint(ours(other), ours(dir), ours(dir+"/none"), ours(self)))
	}
}
