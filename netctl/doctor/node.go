package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Names of what netplugin makes.
const (
	gateway = "fk-gw"
	bridge  = "fk0"
)

// NodeFacts are what was read on a node.
type NodeFacts struct {
	Host        string
	TrafficMode string // that is wanted: route, geneve or auto
	Services    string // what is to translate Services for pods: kube-proxy or ovs
	Kernel      Fact[string]
	Modules     []Module
	Switch      Switch
	Links       Fact[[]Link]
	Ways        []Way
	CNI         Fact[NetConfDir]
	BinDir      string // where CNI plugins are to be
	Runtimes    []Runtime
	Chains      []Chains
	Clock       Clock
	Sockets     Fact[[]Socket]
	Sysctls     []Sysctl
	State       Fact[Room]
	Numbers     Numbers
	Contested   Contested
	NFT         string // where the program is; empty: it is not there
}

// Module is a part of the kernel.
type Module struct {
	Name  string
	State Fact[ModuleState]
}

// ModuleState is whether the kernel has it.
type ModuleState string

// States of modules.
const (
	ModuleThere    ModuleState = "there"    // loaded, or built in
	ModuleLoadable ModuleState = "loadable" // not yet
	ModuleAbsent   ModuleState = "absent"
)

// Switch is the node's Open vSwitch.
type Switch struct {
	Program  Fact[string] // what ovs-vswitchd --version says; empty: it is not installed
	Database Fact[Database]
	Answers  Fact[string]   // the version of the ovs-vswitchd that runs, by itself; empty: none runs
	Started  *time.Duration // how long after the kernel it was started; nil: not known
	Absent   bool           // there is no socket of ovsdb-server
	Socket   string
}

// Database is what Open vSwitch tells of itself there.
type Database struct {
	Version   string
	Datapaths []string
	Ifaces    []string // types of interfaces
	Bridges   []string
	Waits     bool // other_config:flow-restore-wait is true
}

// Link is an interface of the node.
type Link struct {
	Name string
	MTU  int
}

// Way is one to other nodes.
type Way struct {
	To   string // an address, or what stands for it
	Hop  Fact[Hop]
	IPv6 bool
}

// Hop is where a way begins.
type Hop struct {
	Device string
	MTU    int
}

// Chains are names of chains or tables that a program lists.
type Chains struct {
	Tool    string
	Absent  bool
	Listing Fact[[]string]
	Drops   []Hook
}

// Clock is how the node's compares.
type Clock struct {
	Synchronised Fact[bool] // by the kernel's word
	API          *Fact[Offset]
}

// Offset is how far a clock is ahead of the API server's, give or take.
type Offset struct{ Ahead, Give time.Duration }

// Sysctl is a setting of the kernel's.
type Sysctl struct {
	Name  string // as sysctl(8) has it
	Want  string // empty: any value will do
	Value Fact[string]
	None  bool // the kernel has none of this name
	Fixed bool // nobody can write it
}

// Room is how much there is for files.
type Room struct {
	Path     string // which was looked at: the directory, or what is there of the way to it
	Free     uint64 // bytes
	Inodes   uint64
	Counted  bool // whether the file system counts inodes
	ReadOnly bool
}

// Node judges a node.
func Node(f *NodeFacts) Report {
	var b book
	b.kernel(&f.Kernel)
	b.modules(f)
	b.openvswitch(&f.Switch)
	b.mtu(f)
	b.cni(&f.CNI, &f.Links)
	b.runtimes(f)
	b.leftovers(f)
	b.services(&f.Links, f.Services)
	b.numbers(&f.Numbers)
	b.protocol(&f.Numbers, &f.Links)
	b.contested(&f.Contested)
	b.chains(f.Chains)
	b.firewall(f.Chains)
	b.clock(&f.Clock)
	b.ports(&f.Sockets, f.TrafficMode)
	b.forwarding(f.Sysctls)
	b.conntrack(f.Sysctls)
	b.room(&f.State)
	b.programs(f.NFT)
	return b.report("node", f.Host)
}

// version returns the first two numbers of a version, such as v1.36.3 or 6.1.0-18-amd64.
func version(text string) (major, minor int, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(text, "v"), ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	major, err := strconv.Atoi(parts[0])
	if err != nil || major < 0 {
		return 0, 0, false
	}
	digits := parts[1]
	if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		digits = digits[:end]
	}
	minor, err = strconv.Atoi(digits)
	return major, minor, err == nil
}

func older(major, minor, wantMajor, wantMinor int) bool {
	return major < wantMajor || major == wantMajor && minor < wantMinor
}

func (b *book) kernel(release *Fact[string]) {
	const check = "kernel"
	if !release.known() {
		b.unknown(check, "the kernel's release", release.Error, "")
		return
	}
	major, minor, ok := version(release.Value)
	switch {
	case !ok:
		b.add(check, Unknown, fmt.Sprintf("%q is no release that could be understood", release.Value), "")
	case older(major, minor, 4, 15):
		b.add(check, Problem, "Linux "+release.Value+" is older than 4.15", "install a newer kernel, or run with netplugin --datapath-type netdev")
	case older(major, minor, 6, 1):
		b.add(check, Note, "Linux "+release.Value+" is older than any that Flowkeep is tested with (6.1)", "")
	default:
		b.ok(check, "Linux %s", release.Value)
	}
}

// modules: what of them is missed depends on the datapath and the traffic mode.
func (b *book) modules(f *NodeFacts) {
	const check = "modules"
	for i := range f.Modules {
		m := &f.Modules[i]
		if !m.State.known() {
			b.unknown(check, "whether the kernel has "+m.Name, m.State.Error, "modprobe "+m.Name)
			continue
		}
		switch {
		case m.State.Value == ModuleThere:
			b.ok(check, "%s is there", m.Name)
		case m.State.Value == ModuleLoadable:
			b.ok(check, "%s is there to be loaded, which happens by itself", m.Name)
		case m.Name == "nf_tables":
			b.add(check, Problem, "the kernel has no nf_tables, which the node's own rules are made of: netplugin does not get ready", "install a kernel with the module nf_tables")
		case m.Name == "openvswitch":
			b.add(check, Warning, "the kernel has no openvswitch: packets are forwarded in userspace", "install the distribution's package with the kernel's further modules (linux-modules-extra on Ubuntu, kernel-modules-core on Fedora), or take that it is slower")
		case m.Name == "geneve" && !tunnels(f.TrafficMode):
			b.add(check, Note, "the kernel has no geneve; traffic mode route needs none", "")
		case m.Name == "geneve":
			b.add(check, Warning, "the kernel has no geneve: only Open vSwitch's own datapath in userspace makes tunnels here", "install the kernel's module geneve, run with netplugin --datapath-type netdev, or use --traffic-mode route")
		default:
			b.add(check, Problem, "the kernel has no "+m.Name, "install a kernel with the module "+m.Name)
		}
	}
}

func (b *book) openvswitch(s *Switch) {
	const check = "openvswitch"
	start := "systemctl enable --now openvswitch-switch (openvswitch on Fedora)"
	switch {
	case s.Absent && s.Program.known() && s.Program.Value == "":
		b.add(check, Note, "none is installed on this node", "leave it to Flowkeep's image openvswitch, or apt install openvswitch-switch")
		return
	case s.Absent:
		b.add(check, Warning, "ovsdb-server does not run: there is no "+s.Socket, start+"; or leave it to Flowkeep's image openvswitch")
		return
	case !s.Database.known():
		b.unknown(check, "ovsdb-server's database at "+s.Socket, s.Database.Error,
			start+", and run this as root; where it does not answer: ps -o state,wchan -C ovsdb-server")
		return
	}
	switch {
	case !s.Answers.known():
		b.unknown(check, "whether ovs-vswitchd answers", s.Answers.Error, "ovs-appctl version")
	case s.Answers.Value == "":
		b.add(check, Problem, "ovsdb-server runs, but ovs-vswitchd does not", start)
	}
	d := &s.Database.Value
	if d.Waits {
		b.add(check, Problem, "Open vSwitch's database has other_config:flow-restore-wait=true: an ovs-vswitchd that "+
			"has started since handles no upcalls; a script of Open vSwitch runs, or has ended early",
			"if no such script runs: ovs-vsctl remove Open_vSwitch . other_config flow-restore-wait")
	}
	text := d.Version
	if s.Answers.known() && s.Answers.Value != "" {
		text = s.Answers.Value
	}
	b.switchVersion(text)
	b.switchStart(text, s.Started)
	if len(d.Datapaths) > 0 {
		b.ok(check, "datapaths: %s; bridges: %s", some(d.Datapaths), none(some(d.Bridges)))
	}
	if len(d.Ifaces) > 0 && !slices.Contains(d.Ifaces, "geneve") {
		b.add(check, Warning, "this Open vSwitch knows no interfaces of type geneve", "use --traffic-mode route")
	}
	for _, name := range d.Bridges {
		if name == "br-int" || name == "br-ex" {
			b.add("other-networks", Warning, "Open vSwitch has a bridge "+name+", as OVN, Antrea and Kube-OVN make it", "ovs-vsctl show; if that network is gone: ovs-vsctl del-br "+name)
		}
	}
}

func (b *book) switchVersion(text string) {
	const check = "openvswitch"
	major, minor, ok := version(text)
	switch {
	case !ok:
		b.add(check, Unknown, fmt.Sprintf("Open vSwitch does not tell its version, but %q", text), "ovs-vswitchd --version")
	case older(major, minor, 3, 1):
		b.add(check, Problem, "Open vSwitch "+text+" is older than 3.1, from which on a single connection can be forgotten (NXT_CT_FLUSH)", "install Open vSwitch 3.1 or later, or leave it to Flowkeep's image openvswitch")
	default:
		b.ok(check, "Open vSwitch %s", text)
	}
}

// countsProcessors is how old the kernel is when ovs-vswitchd 3.1.0 counts processors at first. A switch of the kernel's datapath that was started before
// takes no packets, until it is started again.
const countsProcessors = 10 * time.Second

func (b *book) switchStart(version string, after *time.Duration) {
	if after == nil || *after >= countsProcessors || version != "3.1.0" {
		return
	}
	b.add("openvswitch", Warning, fmt.Sprintf("Open vSwitch 3.1.0 was started %.1f s after the kernel: with a bridge of the kernel's datapath there already, it finds no processors, and every packet without a flow is lost", after.Seconds()),
		"systemctl restart openvswitch-switch; and for the next start of the node, see docs/troubleshooting.md, \"The switch is not connected\"")
}

func none(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// leastIPv6 is what any link of IPv6 must take (RFC 8200, 5).
const leastIPv6 = 1280

func (b *book) mtu(f *NodeFacts) {
	const check = "mtu"
	if len(f.Ways) == 0 {
		b.add(check, Note, "there is no default route, and no other node was named: the MTU was not looked at", "netctl doctor node --peer ADDRESS, with another node's address")
	}
	made := 0 // what netplugin has set
	for _, l := range f.Links.Value {
		if l.Name == gateway {
			made = l.MTU
		}
	}
	for i := range f.Ways {
		w := &f.Ways[i]
		if !w.Hop.known() {
			b.unknown(check, "the way to "+w.To, w.Hop.Error, "ip route get "+w.To)
			continue
		}
		overhead, pods := 50, w.Hop.Value.MTU
		if w.IPv6 {
			overhead = 70
		}
		if tunnels(f.TrafficMode) {
			pods -= overhead
		}
		seen := fmt.Sprintf("the way to %s is by %s with an MTU of %d: pods have %d in traffic mode %s", w.To, w.Hop.Value.Device, w.Hop.Value.MTU, pods, f.TrafficMode)
		larger := fmt.Sprintf("ip link set %s mtu %d, where the network takes it", quoted(w.Hop.Value.Device), leastIPv6+overhead)
		switch {
		case pods < 576:
			b.add(check, Problem, seen+", less than the 576 that any host must take", larger)
		case pods < leastIPv6:
			b.add(check, Warning, seen+", less than the 1280 that IPv6 needs", larger)
		case made > pods:
			b.add(check, Warning, fmt.Sprintf("%s, and netplugin's interface %s has %d: what is larger is lost", seen, gateway, made), "leave netplugin's --mtu out (the ConfigMap's mtu: 0), or give it the least of all nodes; pods that run keep theirs until they are started again")
		case pods < 1500:
			b.add(check, Note, seen, "nothing, if all nodes have the same; else give netplugin the least of all: --mtu")
		default:
			b.ok(check, "%s", seen)
		}
	}
}

func (b *book) leftovers(f *NodeFacts) {
	const check = "other-networks"
	if !f.Links.known() {
		b.unknown(check, "the node's interfaces", f.Links.Error, "")
		return
	}
	var names []string
	for _, l := range f.Links.Value {
		names = append(names, l.Name)
	}
	order, by := grouped(byLink, names)
	for _, n := range order {
		b.add(check, Warning, fmt.Sprintf("interfaces as %s makes them: %s", n, some(by[n])), "remove "+n+" as its guide says, then ip link delete what is left, or restart the node")
	}
	if len(order) == 0 {
		b.ok(check, "no interface of another network that is known, among %d", len(names))
	}
}

// services adds findings about interfaces that have Services' addresses. Open vSwitch translates what pods send to
// these before the node has it. Interfaces that are unknown are a finding of leftovers.
func (b *book) services(links *Fact[[]Link], translator string) {
	const check = "kube-proxy"
	for _, l := range links.Value {
		switch name := l.Name; {
		case name == "kube-ipvs0" && translator == "ovs":
			b.ok(check, "kube-ipvs0 is there: kube-proxy in mode ipvs serves the node itself and clients outside")
		case name == "nodelocaldns" && translator == "ovs":
			b.add(check, Note, "nodelocaldns is there: a NodeLocal DNSCache; what pods send to the address of the DNS "+
				"Service goes to its endpoints and not to the cache",
				"for pods to use the cache have the kubelets' clusterDNS name its link-local address, and allow that "+
					"in egress policies by an ipBlock")
		case name == "kube-ipvs0":
			b.add(check, Warning, "kube-ipvs0 is there: kube-proxy is, or was, in mode ipvs, which makes Services' addresses the node's own; Flowkeep is made for nftables and iptables, and not tried with it",
				"set mode: nftables in ConfigMap kube-system/kube-proxy, restart kube-proxy, then ip link delete kube-ipvs0")
		case name == "nodelocaldns":
			b.add(check, Warning, "nodelocaldns is there: a NodeLocal DNSCache, which Flowkeep is not tried with; what pods ask of it they ask of the node and not of the pods that policies name",
				"have the kubelets' clusterDNS name the Service kube-dns, and remove the DaemonSet node-local-dns")
		}
	}
}

func (b *book) chains(list []Chains) {
	const check = "rules"
	for _, c := range list {
		switch {
		case c.Absent:
			b.add(check, Note, c.Tool+" is not installed: rules that only it shows were not looked at", "")
			continue
		case !c.Listing.known():
			b.unknown(check, "what "+c.Tool+" lists", c.Listing.Error, "run netctl doctor node as root")
			continue
		}
		order, by := grouped(byChain, c.Listing.Value)
		for _, n := range order {
			b.add(check, Warning, fmt.Sprintf("%s shows what %s makes: %s", c.Tool, n, some(by[n])), "remove "+n+" as its guide says; the rules go when the node is started again")
		}
		if len(order) == 0 {
			b.ok(check, "%s shows nothing of another network that is known", c.Tool)
		}
	}
}

// How far clocks may be apart.
const (
	skewTold   = 5 * time.Second
	skewBreaks = 5 * time.Minute // certificates are made valid so much earlier
)

func (b *book) clock(c *Clock) {
	const check = "clock"
	mend := "timedatectl set-ntp true, or see to chrony"
	switch {
	case !c.Synchronised.known():
		b.unknown(check, "whether the clock is synchronised", c.Synchronised.Error, "timedatectl")
	case !c.Synchronised.Value && c.API == nil:
		b.add(check, Note, "the kernel reports that the clock is not synchronised (the host does it for some virtual machines)", mend)
	case c.Synchronised.Value:
		b.ok(check, "the kernel says that the clock is kept")
	}
	switch {
	case c.API == nil:
		b.add(check, Note, "the clock was not compared with the API server's: no kubeconfig was given", "netctl doctor node --kubeconfig /etc/kubernetes/kubelet.conf")
	case !c.API.known():
		b.unknown(check, "the API server's time", c.API.Error, "")
	default:
		b.skew("this node's clock", c.API.Value, mend)
	}
}

// skew judges what a clock shows; what may be the measuring's is not laid to it.
func (b *book) skew(whose string, o Offset, mend string) {
	const check = "clock"
	sure := max(o.Ahead.Abs()-o.Give, 0)
	way := "ahead of"
	if o.Ahead < 0 {
		way = "behind"
	}
	seen := fmt.Sprintf("%s is %v %s the API server's", whose, o.Ahead.Abs().Round(time.Second), way)
	switch {
	case sure >= skewBreaks:
		b.add(check, Problem, seen, mend)
	case sure >= skewTold:
		b.add(check, Warning, seen, mend)
	default:
		b.ok(check, "%s agrees with the API server's, to %v", whose, (o.Ahead.Abs() + o.Give).Round(time.Second/10))
	}
}

// Names of sysctls of the connection tracker.
const (
	ConntrackCount = "net.netfilter.nf_conntrack_count"
	ConntrackMax   = "net.netfilter.nf_conntrack_max"
)

// conntrack reports how near the connections of the node are to the most that the kernel tracks. Beyond it new ones are
// dropped.
func (b *book) conntrack(list []Sysctl) {
	const check = "conntrack"
	const full = 75 // %
	numbers := map[string]int{}
	for i := range list {
		s := &list[i]
		if s.Name != ConntrackCount && s.Name != ConntrackMax || s.None {
			continue
		}
		n, err := strconv.Atoi(s.Value.Value)
		if !s.Value.known() || err != nil {
			b.unknown(check, s.Name, cmp.Or(s.Value.Error, "no number: "+s.Value.Value), "sysctl "+s.Name)
			return
		}
		numbers[s.Name] = n
	}
	most, there := numbers[ConntrackMax]
	count := numbers[ConntrackCount]
	switch {
	case !there:
		b.add(check, Note, "the connection tracker is not loaded yet", "")
	case most == 0:
		b.ok(check, "%d connections are tracked, without a limit", count)
	case count*100 >= most*full:
		do := "sysctl -w %s=%d, in a file of /etc/sysctl.d too, or kube-proxy's --conntrack-max-per-core"
		b.add(check, Warning, fmt.Sprintf("%d of at most %d connections are tracked", count, most),
			fmt.Sprintf(do, ConntrackMax, 2*most))
	default:
		b.ok(check, "%d of at most %d connections are tracked", count, most)
	}
}

func (b *book) forwarding(list []Sysctl) {
	const check = "forwarding"
	for i := range list {
		s := &list[i]
		switch {
		case s.Want == "":
		case s.None:
			b.add(check, Note, "the kernel has no "+s.Name+": there is no IPv6 on this node", "")
		case !s.Value.known():
			b.unknown(check, s.Name, s.Value.Error, "sysctl "+s.Name)
		case s.Value.Value == s.Want:
			b.ok(check, "%s is %s", s.Name, s.Value.Value)
		case s.Fixed:
			b.add(check, Problem, fmt.Sprintf("%s is %s, and cannot be written here", s.Name, s.Value.Value), fmt.Sprintf("sysctl -w %s=%s, in a file of /etc/sysctl.d too", s.Name, s.Want))
		default:
			b.add(check, Note, fmt.Sprintf("%s is %s; netplugin sets it to %s", s.Name, s.Value.Value, s.Want), "see that nothing in /etc/sysctl.d sets it back")
		}
	}
}

func (b *book) room(state *Fact[Room]) {
	const check = "state-directory"
	const least, enough = 16 << 20, 256 << 20
	if !state.known() {
		b.unknown(check, "the state directory", state.Error, "")
		return
	}
	r := &state.Value
	seen := fmt.Sprintf("%s has %d MiB free", r.Path, r.Free>>20)
	if r.Counted {
		seen += fmt.Sprintf(", and room for %d files", r.Inodes)
	}
	switch {
	case r.ReadOnly:
		b.add(check, Problem, r.Path+" is read-only", "give Flowkeep another directory: --state-dir")
	case r.Free < least || r.Counted && r.Inodes < 100:
		b.add(check, Problem, seen, "df -h "+quoted(r.Path)+", and make room")
	case r.Free < enough || r.Counted && r.Inodes < 1000:
		b.add(check, Warning, seen, "df -h "+quoted(r.Path)+", and make room")
	default:
		b.ok(check, "%s", seen)
	}
}

func (b *book) programs(nft string) {
	if nft == "" {
		b.add("programs", Note, "nft is not installed on this node; a netplugin that is started by hand needs it", "apt install nftables, where netplugin does not run from Flowkeep's image")
		return
	}
	b.ok("programs", "nft is %s", nft)
}

// tunnels reports whether nodes need tunnels in a traffic mode.
func tunnels(mode string) bool { return mode == "geneve" || mode == "auto" }
