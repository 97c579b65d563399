package doctor

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// wellNode has nothing to object to.
func wellNode() *NodeFacts {
	return &NodeFacts{Host: "node1", TrafficMode: "geneve", Kernel: Known("6.12.3"),
		Modules: []Module{{"openvswitch", Known(ModuleThere)}, {"nf_conntrack", Known(ModuleThere)}, {"geneve", Known(ModuleLoadable)}},
		Switch:  Switch{Program: Known("ovs-vswitchd (Open vSwitch) 3.1.0"), Answers: Known("3.1.0"), Database: Known(Database{Version: "3.1.0", Datapaths: []string{"netdev", "system"}, Ifaces: []string{"geneve", "internal"}})},
		Links:   Known([]Link{{"lo", 65536}, {"eth0", 9000}}), Ways: []Way{{To: "192.0.2.12", Hop: Known(Hop{"eth0", 9000})}},
		CNI: Known(NetConfDir{Path: "/etc/cni/net.d"}), BinDir: "/opt/cni/bin", Chains: []Chains{{Tool: "iptables-save", Listing: Known([]string{"INPUT", "KUBE-SERVICES"})}},
		Clock: Clock{Synchronised: Known(true), API: &Fact[Offset]{Value: Offset{time.Second / 2, time.Second}}}, Sockets: Known([]Socket{{Protocol: "tcp", Port: 22}}),
		Sysctls: append(tracked("10", "1000"), Sysctl{Name: "net.ipv4.ip_forward", Want: "1", Value: Known("1")}),
		State:   Known(Room{Path: "/var/lib", Free: 1 << 40, Inodes: 1 << 20, Counted: true}), NFT: "/usr/sbin/nft",
		Numbers: Numbers{Table: 26214, Priority: 50}}
}

// The number of connections is a warning from three quarters of the limit on.
func TestConntrack_NearItsLimit(t *testing.T) {
	for _, c := range []struct {
		count, most, seen string
		level             Level
	}{
		{"800", "1000", "800 of at most 1000", Warning},
		{"700", "1000", "700 of at most 1000", OK},
		{"800", "0", "without a limit", OK},
		{"800", "many", "no number: many", Unknown},
	} {
		f := wellNode()
		f.Sysctls = tracked(c.count, c.most)
		if r := Node(f); !slices.ContainsFunc(r.Findings, func(x Finding) bool {
			return x.Check == "conntrack" && x.Level == c.level && strings.Contains(x.Seen, c.seen)
		}) {
			t.Errorf("%s of %s: %+v", c.count, c.most, r.Findings)
		}
	}
}

// tracked is what the kernel has of its connection tracker.
func tracked(count, most string) []Sysctl {
	return []Sysctl{{Name: ConntrackCount, Value: Known(count)}, {Name: ConntrackMax, Value: Known(most)}}
}

// wellCluster too.
func wellCluster() *ClusterFacts {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	return &ClusterFacts{Server: "https://192.0.2.1:6443", Date: Known(now), Version: Known("v1.36.3"),
		Nodes:      Known([]NodeObject{{"node1", "linux", []string{"10.244.1.0/24", "fd00:244:1::/64"}, []string{"192.0.2.11"}}, {"node2", "linux", []string{"10.244.2.0/24"}, []string{"192.0.2.12"}}}),
		Leases:     Known([]Lease{{"node1", now.Add(-3 * time.Second), now.Add(-3 * time.Second)}, {"node2", now.Add(-9 * time.Second), time.Time{}}}),
		DaemonSets: Known([]Workload{{"kube-system", "kube-proxy"}, {"shop", "log"}}), APIService: Known(Service{}), CRDs: Known([]CRD{}), Lint: Known(Lint{Policies: 3})}
}

func TestNothingToObjectTo(t *testing.T) {
	c := wellCluster()
	c.FrontProxy.Value.CA = realAuthority(t)
	for _, r := range []Report{Node(wellNode()), Cluster(c)} {
		if r.Worst() != OK || r.Counts[OK] != len(r.Findings) || len(r.Findings) == 0 {
			t.Errorf("%s: %+v", r.Of, r)
		}
	}
}

// Each row spoils one thing; that is found, with the level, and nothing else of the kind that matters.
func TestNodes(t *testing.T) {
	conf := func(c ...NetConf) func(*NodeFacts) {
		return func(f *NodeFacts) { f.CNI.Value.Conf = c }
	}
	drops := func(h Hook) func(*NodeFacts) { return func(f *NodeFacts) { f.Chains[0].Drops = []Hook{h} } }
	runs := func(r ...Runtime) func(*NodeFacts) { return func(f *NodeFacts) { f.Runtimes = r } }
	for name, row := range map[string]struct {
		spoil func(*NodeFacts)
		check string
		level Level
		seen  string
	}{
		"old kernel":               {func(f *NodeFacts) { f.Kernel = Known("4.14.9-200.el7") }, "kernel", Problem, "older than 4.15"},
		"kernel of before":         {func(f *NodeFacts) { f.Kernel = Known("5.15.0-91-generic") }, "kernel", Note, "older than any"},
		"kernel of no number":      {func(f *NodeFacts) { f.Kernel = Known("gnu") }, "kernel", Unknown, "no release"},
		"kernel unread":            {func(f *NodeFacts) { f.Kernel = Fact[string]{Error: "permission denied"} }, "kernel", Unknown, "permission denied"},
		"no openvswitch":           {func(f *NodeFacts) { f.Modules[0].State = Known(ModuleAbsent) }, "modules", Warning, "userspace"},
		"no conntrack":             {func(f *NodeFacts) { f.Modules[1].State = Known(ModuleAbsent) }, "modules", Problem, "nf_conntrack"},
		"no geneve":                {func(f *NodeFacts) { f.Modules[2].State = Known(ModuleAbsent) }, "modules", Warning, "geneve"},
		"no geneve by route":       {func(f *NodeFacts) { f.TrafficMode, f.Modules[2].State = "route", Known(ModuleAbsent) }, "modules", Note, "needs none"},
		"modules unread":           {func(f *NodeFacts) { f.Modules[0].State = Fact[ModuleState]{Error: "no such directory"} }, "modules", Unknown, "no such directory"},
		"no switch at all":         {func(f *NodeFacts) { f.Switch = Switch{Absent: true} }, "openvswitch", Note, "none is installed"},
		"switch stopped":           {func(f *NodeFacts) { f.Switch.Absent = true }, "openvswitch", Warning, "does not run"},
		"vswitchd stopped":         {func(f *NodeFacts) { f.Switch.Answers = Known("") }, "openvswitch", Problem, "ovs-vswitchd does not"},
		"vswitchd hangs":           {func(f *NodeFacts) { f.Switch.Answers = Fact[string]{Error: "it does not answer"} }, "openvswitch", Unknown, "does not answer"},
		"ovsdb hangs":              {func(f *NodeFacts) { f.Switch.Database = Fact[Database]{Error: "it does not answer"} }, "openvswitch", Unknown, "does not answer"},
		"old switch":               {func(f *NodeFacts) { f.Switch.Answers = Known("2.17.9") }, "openvswitch", Problem, "older than 3.1"},
		"switch of a young kernel": {func(f *NodeFacts) { f.Switch.Started = new(6 * time.Second) }, "openvswitch", Warning, "started 6.0 s after the kernel"},
		"switch of no number":      {func(f *NodeFacts) { f.Switch.Answers = Known("three") }, "openvswitch", Unknown, "three"},
		"switch with no tunnel":    {func(f *NodeFacts) { f.Switch.Database.Value.Ifaces = []string{"internal"} }, "openvswitch", Warning, "geneve"},
		"bridge of others":         {func(f *NodeFacts) { f.Switch.Database.Value.Bridges = []string{"br-int", "fk0"} }, "other-networks", Warning, "br-int"},
		"MTU of 1500":              {func(f *NodeFacts) { f.Ways[0].Hop.Value.MTU = 1500 }, "mtu", Note, "pods have 1450"},
		"MTU for no IPv6":          {func(f *NodeFacts) { f.Ways[0].IPv6, f.Ways[0].Hop.Value.MTU = true, 1349 }, "mtu", Warning, "pods have 1279"},
		"MTU for IPv6":             {func(f *NodeFacts) { f.Ways[0].IPv6, f.Ways[0].Hop.Value.MTU = true, 1350 }, "mtu", Note, "pods have 1280"},
		"MTU for nothing":          {func(f *NodeFacts) { f.Ways[0].Hop.Value.MTU = 600 }, "mtu", Problem, "pods have 550"},
		"no way":                   {func(f *NodeFacts) { f.Ways[0].Hop = Fact[Hop]{Error: "network is unreachable"} }, "mtu", Unknown, "unreachable"},
		"no default route":         {func(f *NodeFacts) { f.Ways = nil }, "mtu", Note, "not looked at"},
		"Calico first":             {conf(ParseNetConf("05-calico.conflist", []byte(`{"plugins": [{"type": "calico"}, {"type": "portmap"}]}`))), "cni", Problem, "Calico and comes before"},
		"unknown plugin first":     {conf(ParseNetConf("00.conf", []byte(`{"type": "acme"}`))), "cni", Problem, "the plugin acme"},
		"bridge after":             {conf(ParseNetConf("87-podman.conflist", []byte(`{"plugins": [{"type": "bridge"}]}`))), "cni", Warning, "not used"},
		"Multus":                   {conf(ParseNetConf("00-multus.conf", []byte(`{"type": "multus"}`))), "cni", Note, "Multus"},
		"junk":                     {conf(ParseNetConf("00.conf", []byte("\x7fELF\x00\x01"))), "cni", Warning, "it is no text"},
		"half a file":              {conf(ParseNetConf("00.conf", []byte(`{"plugins": [{"type": "cali`))), "cni", Warning, "no CNI configuration"},
		"no plugin":                {conf(ParseNetConf("00.conf", []byte(`{"name": "x"}`))), "cni", Warning, "names no plugin"},
		"ours without netplugin":   {conf(ParseNetConf("10-flowkeep.conflist", []byte(`{"plugins": [{"type": "flowkeep-cni"}]}`))), "cni", Problem, "cannot be started"},
		"too many files":           {func(f *NodeFacts) { f.CNI.Value.More = 7 }, "cni", Warning, "7 files more"},
		"directory unread":         {func(f *NodeFacts) { f.CNI.Error = "permission denied" }, "cni", Unknown, "permission denied"},
		"interfaces left":          {func(f *NodeFacts) { f.Links.Value = append(f.Links.Value, Link{"cali12ab", 1500}, Link{"tunl0", 1480}) }, "other-networks", Warning, "Calico makes them: cali12ab, tunl0"},
		"IPVS":                     {func(f *NodeFacts) { f.Links.Value = append(f.Links.Value, Link{"kube-ipvs0", 1500}) }, "kube-proxy", Warning, "in mode ipvs"},
		"IPVS beside the switch": {func(f *NodeFacts) {
			f.Services, f.Links.Value = "ovs", append(f.Links.Value, Link{"kube-ipvs0", 1500})
		}, "kube-proxy", OK, "clients outside"},
		"DNSCache beside the switch": {func(f *NodeFacts) {
			f.Services, f.Links.Value = "ovs", append(f.Links.Value, Link{"nodelocaldns", 1500})
		}, "kube-proxy", Note, "to its endpoints and not to the cache"},
		"NodeLocal DNSCache": {func(f *NodeFacts) { f.Links.Value = append(f.Links.Value, Link{"nodelocaldns", 1500}) }, "kube-proxy", Warning, "a NodeLocal DNSCache"},
		"chains left": {func(f *NodeFacts) {
			f.Chains[0].Listing = Known(ParseChains(":INPUT ACCEPT [0:0]\n:cali-FORWARD - [0:0]\n"))
		}, "rules", Warning, "cali-FORWARD"},
		"forwards dropped": {drops(Hook{On: "forward", Chain: "inet wall through"}),
			"firewall", Warning, "inet wall through drops what is forwarded"},
		"iptables-nft drops": {drops(Hook{On: "forward", Chain: "ip filter FORWARD"}),
			"firewall", Note, "ip filter FORWARD drops what is forwarded"},
		"iptables-legacy drops": {drops(Hook{On: "forward", Chain: "legacy-ip filter FORWARD"}),
			"firewall", Warning, "legacy-ip filter FORWARD drops what is forwarded"},
		"forwards let through":   {drops(Hook{On: "forward", Chain: "inet x y", Lets: true}), "firewall", OK, "accepts Flowkeep's interfaces"},
		"input dropped":          {drops(Hook{On: "input", Chain: "ip filter INPUT"}), "firewall", Note, "to this node"},
		"firewalld":              {func(f *NodeFacts) { f.Chains[0].Listing = Known([]string{"firewalld"}) }, "firewall", Warning, "firewalld is active"},
		"no nf_tables":           {func(f *NodeFacts) { f.Modules = append(f.Modules, Module{"nf_tables", Known(ModuleAbsent)}) }, "modules", Problem, "no nf_tables"},
		"MTU of pods too large":  {func(f *NodeFacts) { f.Links.Value = append(f.Links.Value, Link{"fk-gw", 9000}) }, "mtu", Warning, "fk-gw has 9000"},
		"MTU of pods right":      {func(f *NodeFacts) { f.Links.Value = append(f.Links.Value, Link{"fk-gw", 8950}) }, "mtu", OK, "pods have 8950"},
		"runtime elsewhere":      {runs(Runtime{File: "k3s.toml", ConfDir: []string{"/k3s/net.d"}}), "cni", Problem, "by k3s.toml the container runtime looks for CNI configurations in /k3s/net.d, and not in /etc/cni/net.d"},
		"plugins elsewhere":      {runs(Runtime{File: "c.toml", BinDirs: []string{"/usr/lib/cni"}}), "cni", Problem, "CNI plugins in /usr/lib/cni, and not in /opt/cni/bin"},
		"two runtimes":           {runs(Runtime{File: "c.toml"}, Runtime{File: "d.toml", ConfDir: []string{"/x"}}), "cni", Note, "another runtime does"},
		"runtimes as usual":      {runs(Runtime{File: "c.toml"}, Runtime{File: "d.toml", BinDirs: []string{"/x", "/opt/cni/bin"}}), "cni", OK, "no network's configuration"},
		"runtime unread":         {runs(Runtime{File: "c.toml", Error: "permission denied"}), "cni", Unknown, "permission denied"},
		"iptables absent":        {func(f *NodeFacts) { f.Chains[0] = Chains{Tool: "iptables-save", Absent: true} }, "rules", Note, "not installed"},
		"iptables refused":       {func(f *NodeFacts) { f.Chains[0].Listing = Fact[[]string]{Error: "Permission denied"} }, "rules", Unknown, "Permission denied"},
		"nobody keeps the clock": {func(f *NodeFacts) { f.Clock = Clock{Synchronised: Known(false)} }, "clock", Note, "is not synchronised"},
		"clock ahead":            {func(f *NodeFacts) { f.Clock.API = &Fact[Offset]{Value: Offset{time.Minute, time.Second}} }, "clock", Warning, "1m0s ahead of"},
		"clock far behind":       {func(f *NodeFacts) { f.Clock.API = &Fact[Offset]{Value: Offset{-time.Hour, time.Second}} }, "clock", Problem, "1h0m0s behind"},
		"slow API server":        {func(f *NodeFacts) { f.Clock.API = &Fact[Offset]{Value: Offset{6 * time.Second, 4 * time.Second}} }, "clock", OK, "to 10s"},
		"API server away":        {func(f *NodeFacts) { f.Clock.API = &Fact[Offset]{Error: "connection refused"} }, "clock", Unknown, "connection refused"},
		"port held": {func(f *NodeFacts) {
			f.Sockets.Value = []Socket{{Protocol: "tcp", Port: 9441, Inode: 7, Program: "exporter (process 77)"}}
		}, "ports", Problem, "TCP/9441, for netplugin's metrics, is held by exporter (process 77)"},
		"port held by nobody": {func(f *NodeFacts) { f.Sockets.Value = []Socket{{Protocol: "tcp", Port: 7443, Inode: 7}} }, "ports", Warning, "an unknown program"},
		"port ours": {func(f *NodeFacts) {
			f.Sockets.Value = []Socket{{Protocol: "tcp", Port: 9441, Inode: 7, Program: "netplugin (process 77)"}}
		}, "ports", OK, "9441"},
		"Geneve held":       {func(f *NodeFacts) { f.Sockets.Value = []Socket{{Protocol: "udp", Port: 6081}} }, "ports", Problem, "the kernel"},
		"Geneve not needed": {func(f *NodeFacts) { f.TrafficMode, f.Sockets.Value = "route", []Socket{{Protocol: "udp", Port: 6081}} }, "ports", Note, "the kernel"},
		"sockets unread":    {func(f *NodeFacts) { f.Sockets.Error = "permission denied" }, "ports", Unknown, "permission denied"},
		"not forwarding":    {func(f *NodeFacts) { f.Sysctls[2].Value = Known("0") }, "forwarding", Note, "netplugin sets it"},
		"never forwarding":  {func(f *NodeFacts) { f.Sysctls[2].Value, f.Sysctls[2].Fixed = Known("0"), true }, "forwarding", Problem, "cannot be written"},
		"no IPv6": {func(f *NodeFacts) {
			f.Sysctls[2] = Sysctl{Name: "net.ipv6.conf.all.forwarding", Want: "1", None: true, Value: Fact[string]{Error: "no such file"}}
		}, "forwarding", Note, "no IPv6"},
		"conntrack not loaded": {func(f *NodeFacts) {
			f.Sysctls = []Sysctl{{Name: ConntrackMax, None: true, Value: Fact[string]{Error: "no such file"}}}
		}, "conntrack", Note, "not loaded"},
		"disk nearly full":   {func(f *NodeFacts) { f.State.Value.Free = 100 << 20 }, "state-directory", Warning, "100 MiB"},
		"disk full":          {func(f *NodeFacts) { f.State.Value.Free = 0 }, "state-directory", Problem, "0 MiB"},
		"no inodes":          {func(f *NodeFacts) { f.State.Value.Inodes = 0 }, "state-directory", Problem, "0 files"},
		"inodes not counted": {func(f *NodeFacts) { f.State.Value.Inodes, f.State.Value.Counted = 0, false }, "state-directory", OK, "MiB free"},
		"read-only":          {func(f *NodeFacts) { f.State.Value.ReadOnly = true }, "state-directory", Problem, "read-only"},
		"contested": {func(f *NodeFacts) { f.Contested.Problems = Known([]string{"rule 60 (by ip, started by foo)"}) },
			"host-network", Warning, "by ip, started by foo"},
		"netplugin does not run": {func(f *NodeFacts) { f.Contested = Contested{Absent: true, Socket: "/run/x"} },
			"host-network", Note, "does not listen on /run/x"},
		"socket refused": {func(f *NodeFacts) { f.Contested.Problems.Error = "permission denied" },
			"host-network", Unknown, "permission denied"},
		"no nft": {func(f *NodeFacts) { f.NFT = "" }, "programs", Note, "nft is not installed"},
		"switch that waits": {
			func(f *NodeFacts) { f.Switch.Database.Value.Waits = true }, "openvswitch", Problem,
			"flow-restore-wait=true",
		},
	} {
		f := wellNode()
		row.spoil(f)
		found(t, name, Node(f), row.check, row.level, row.seen)
	}
}

// found: there is such a finding, and none that matters more; what is not well says what to do, or why nothing is to do.
func found(t *testing.T, name string, r Report, check string, level Level, seen string) {
	t.Helper()
	if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Check == check && f.Level == level && strings.Contains(f.Seen, seen) }) {
		t.Errorf("%s: no %s of %s with %q in\n%s", name, level, check, seen, text(r))
	}
	if slices.Index(Levels, r.Worst()) < slices.Index(Levels, level) {
		t.Errorf("%s: the worst is %s, not %s:\n%s", name, r.Worst(), level, text(r))
	}
	for _, f := range r.Findings {
		if f.Why == "" || f.Level == OK && f.Do != "" || (f.Level == Problem || f.Level == Warning) && f.Do == "" && f.Check != "pod-cidrs" && f.Check != "nodes" {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func text(r Report) string {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s %s: %s\n", f.Level, f.Check, f.Seen)
	}
	return b.String()
}

func TestClusters(t *testing.T) {
	now := wellCluster().Date.Value
	for name, row := range map[string]struct {
		spoil func(*ClusterFacts)
		check string
		level Level
		seen  string
	}{
		"old Kubernetes":       {func(f *ClusterFacts) { f.Version = Known("v1.24.17") }, "kubernetes", Problem, "older than 1.25"},
		"Kubernetes of before": {func(f *ClusterFacts) { f.Version = Known("v1.29.1-gke.5") }, "kubernetes", Warning, "older than 1.30"},
		"newer Kubernetes":     {func(f *ClusterFacts) { f.Version = Known("v1.40.0+k3s1") }, "kubernetes", Note, "tested with"},
		"no Kubernetes":        {func(f *ClusterFacts) { f.Version = Known("") }, "kubernetes", Unknown, "no version"},
		"Windows":              {func(f *ClusterFacts) { f.Nodes.Value[1].OS = "windows" }, "nodes", Warning, "node2 (windows)"},
		"nodes unread":         {func(f *ClusterFacts) { f.Nodes = Fact[[]NodeObject]{Error: "forbidden"} }, "nodes", Unknown, "forbidden"},
		"no nodes":             {func(f *ClusterFacts) { f.Nodes.Value = nil }, "nodes", Warning, "none"},
		"no podCIDRs":          {func(f *ClusterFacts) { f.Nodes.Value[0].PodCIDRs = nil }, "pod-cidrs", Problem, "without podCIDRs: node1"},
		"podCIDRs of nonsense": {func(f *ClusterFacts) { f.Nodes.Value[0].PodCIDRs = []string{"many"} }, "pod-cidrs", Problem, `node1 ("many")`},
		"podCIDRs overlap":     {func(f *ClusterFacts) { f.Nodes.Value[1].PodCIDRs = []string{"10.244.0.0/16"} }, "pod-cidrs", Problem, "10.244.0.0/16 of node2 and 10.244.1.0/24 of node1"},
		"podCIDRs the same":    {func(f *ClusterFacts) { f.Nodes.Value[1].PodCIDRs = []string{"10.244.1.0/24"} }, "pod-cidrs", Problem, "overlap"},
		"pods elsewhere": {func(f *ClusterFacts) {
			f.PodRanges = Known("10.244.0.0/24, fd00::/16")
		}, "cluster-cidrs", Problem, "do not hold 10.244.1.0/24 of node1, 10.244.2.0/24 of node2"},
		"pods in two ranges": {func(f *ClusterFacts) {
			f.PodRanges = Known("10.42.0.0/16,10.244.0.0/16,fd00::/16")
		}, "cluster-cidrs", OK, "hold the podCIDRs of all Nodes"},
		"ConfigMap unread": {func(f *ClusterFacts) {
			f.PodRanges = Fact[string]{Error: "forbidden"}
		}, "cluster-cidrs", Unknown, "forbidden"},
		"node among pods":  {func(f *ClusterFacts) { f.Nodes.Value[1].Internal = []string{"10.244.1.9"} }, "pod-cidrs", Problem, "10.244.1.9 of node2 in 10.244.1.0/24 of node1"},
		"clock ahead":      {func(f *ClusterFacts) { f.Leases.Value[0].Renewed = now.Add(time.Minute) }, "clock", Warning, "node1 is 1m3s ahead of"},
		"clock far behind": {func(f *ClusterFacts) { f.Leases.Value[0].Renewed = now.Add(-time.Hour) }, "clock", Problem, "node1 is 59m57s behind"},
		"ahead, by Date":   {func(f *ClusterFacts) { f.Leases.Value[1].Renewed = now.Add(10 * time.Minute) }, "clock", Problem, "node2 is 10m0s ahead of"},
		"old, by Date":     {func(f *ClusterFacts) { f.Leases.Value[1].Renewed = now.Add(-time.Minute) }, "clock", Warning, "more than 40 seconds: node2"},
		"node silent":      {func(f *ClusterFacts) { f.Leases.Value[0] = Lease{"node1", now.Add(-time.Hour), now.Add(-time.Hour)} }, "clock", Warning, "more than 40 seconds: node1"},
		"leases unread":    {func(f *ClusterFacts) { f.Leases = Fact[[]Lease]{Error: "forbidden"} }, "clock", Unknown, "forbidden"},
		"date unread":      {func(f *ClusterFacts) { f.Date = Fact[time.Time]{Error: "no date"} }, "clock", Unknown, "no date"},
		"Cilium": {func(f *ClusterFacts) {
			f.DaemonSets.Value = append(f.DaemonSets.Value, Workload{"kube-system", "cilium"})
		}, "other-networks", Problem, "Cilium runs"},
		"Antrea on Windows": {func(f *ClusterFacts) {
			f.DaemonSets.Value = append(f.DaemonSets.Value, Workload{"kube-system", "antrea-agent-windows"})
		}, "other-networks", Problem, "Antrea runs"},
		"no kube-proxy":  {func(f *ClusterFacts) { f.DaemonSets.Value = nil }, "kube-proxy", Note, "may run on the nodes"},
		"no front proxy": {func(f *ClusterFacts) { f.FrontProxy.Value.CA = "" }, "aggregation", Problem, "no front proxy"},
		"front proxy expired": {func(f *ClusterFacts) {
			f.Date = Known(time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC))
			f.Leases.Value = nil
		}, "aggregation", Problem, "expired on"},
		"front proxy of junk": {func(f *ClusterFacts) {
			f.FrontProxy.Value.CA = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
		}, "aggregation", Problem, "can be read"},
		"APIService": {func(f *ClusterFacts) { f.APIService = Known(Service{true, "False", "no endpoints"}) }, "aggregation", Warning, "no endpoints"},
		"nmstate's": {func(f *ClusterFacts) {
			f.CRDs.Value = []CRD{{Name: "nodenetworkstates.nmstate.io", Versions: []string{"v1alpha1", "v1beta1"}, Stored: "v1beta1"}}
		}, "crds", Problem, "v1alpha1, v1beta1"},
		"two versions": {func(f *ClusterFacts) {
			f.CRDs.Value = []CRD{{Name: "policyoverrides.fleet.flowkeep.io", Versions: []string{"v1", "v1alpha1"}, Stored: "v1"}}
		}, "crds", Note, "stores v1"},
		"ours": {func(f *ClusterFacts) {
			f.CRDs.Value = []CRD{{Name: "policyoverrides.fleet.flowkeep.io", Versions: []string{"v1alpha1"}, Stored: "v1alpha1"}}
		}, "crds", OK, "1 of Flowkeep's 7"},
		"our two versions": {func(f *ClusterFacts) {
			f.CRDs.Value = []CRD{ofNmstateGroup("flowkeep")}
		}, "crds", OK, "1 of Flowkeep's 7"},
		"the two versions of kubernetes-nmstate": {func(f *ClusterFacts) {
			f.CRDs.Value = []CRD{ofNmstateGroup("")}
		}, "crds", Note, "Flowkeep's has v1, which it stores, and v1beta1"},
		"kubernetes-nmstate": {func(f *ClusterFacts) {
			f.DaemonSets.Value = append(f.DaemonSets.Value, Workload{"nmstate", "nmstate-handler"})
			f.Nmstate = []Foreign{{"nodenetworkconfigurationpolicies.nmstate.io", Known(3)}}
		}, "nmstate", Warning, "DaemonSet nmstate/nmstate-handler, 3 objects of nodenetworkconfigurationpolicies"},
		"kubernetes-nmstate's operator alone": {func(f *ClusterFacts) {
			f.Operators = Known([]Workload{{"nmstate", NmstateOperator}})
		}, "nmstate", Warning, "kubernetes-nmstate is there: Deployment nmstate/nmstate-operator"},
		"Deployments unread": {func(f *ClusterFacts) {
			f.Operators = Fact[[]Workload]{Error: "forbidden"}
		}, "nmstate", Unknown, "forbidden"},
		"CRDs unread": {func(f *ClusterFacts) { f.CRDs = Fact[[]CRD]{Error: "forbidden"} }, "crds", Unknown, "forbidden"},
		"admin policies": {func(f *ClusterFacts) {
			f.Foreign = []Foreign{{foreignPolicies[0], Known(2)}, {foreignPolicies[1], Known(0)}}
		}, "policies", Warning, "2 objects of adminnetworkpolicies"},
		"policies unread": {func(f *ClusterFacts) { f.Foreign = []Foreign{{foreignPolicies[0], Fact[int]{Error: "forbidden"}}} }, "policies", Unknown, "forbidden"},
		"lint":            {func(f *ClusterFacts) { f.Lint.Value.Found = map[string]int{"FK001": 2, "FK012": 1} }, "lint", Note, "3 things that are probably not meant in 3 NetworkPolicies: FK001 (2), FK012 (1)"},
		"lint unread":     {func(f *ClusterFacts) { f.Lint.Error = "forbidden" }, "lint", Unknown, "forbidden"},
	} {
		f := wellCluster()
		f.FrontProxy.Value.CA = realAuthority(t)
		row.spoil(f)
		found(t, name, Cluster(f), row.check, row.level, row.seen)
	}
}

// ofNmstateGroup is the CRD of policies as both Flowkeep and kubernetes-nmstate serve it.
func ofNmstateGroup(partOf string) CRD {
	return CRD{
		Name:     "nodenetworkconfigurationpolicies.nmstate.io",
		Versions: []string{"v1", "v1beta1"},
		Stored:   "v1",
		PartOf:   partOf,
	}
}

// The table of CustomResourceDefinitions is what deploy/crds has.
func TestOwnCRDs(t *testing.T) {
	files, err := filepath.Glob("../../deploy/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	have := map[string]string{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var crd struct {
			Metadata struct{ Name string }
			Spec     struct{ Versions []struct{ Name string } }
		}
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatal(err)
		}
		have[crd.Metadata.Name] = crd.Spec.Versions[0].Name
	}
	if !maps.Equal(have, ownCRDs) {
		t.Errorf("deploy/crds has %v", have)
	}
}

// Against all pairs, at random.
func TestOverlaps(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var list []holding
		for i := range 1 + r.IntN(7) {
			bits := 8 + r.IntN(8)
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(10 + r.IntN(2)), byte(r.IntN(16) << 4)}), bits).Masked()
			list = append(list, holding{p, fmt.Sprint("node", i/2)})
		}
		want := false
		for i, a := range list {
			for _, b := range list[i+1:] {
				want = want || a.node != b.node && a.prefix.Overlaps(b.prefix)
			}
		}
		if got := overlaps(list); (len(got) > 0) != want {
			t.Fatalf("%v: %v, want %v", list, got, want)
		}
	}
}

func TestSockets(t *testing.T) {
	const tcp = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   0: 0100007F:24E1 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0\n" +
		"   1: 0100007F:24E1 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4712 1\n"
	list, bad := ParseSockets("tcp", []byte(tcp))
	if want := (Socket{Protocol: "tcp", Address: netip.MustParseAddr("127.0.0.1"), Port: 9441, Inode: 4711}); bad != 0 || len(list) != 1 || list[0] != want {
		t.Errorf("%+v, %d bad", list, bad)
	}
	const udp6 = "head\n 1: 0000000000000000FFFF00000100007F:17C1 00000000000000000000000000000000:0000 07 0:0 0:0 0 0 0 0 2\njunk\n 2: XX:1 0:0 07 0 0 0 0 0 0\n"
	list, bad = ParseSockets("udp", []byte(udp6))
	if bad != 2 || len(list) != 1 || list[0].Port != genevePort || list[0].Address != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("%+v, %d bad", list, bad)
	}
}

func TestHooks(t *testing.T) {
	for name, row := range map[string]struct {
		family, text string
		want         []Hook
	}{
		"Docker": {"ip", "*nat\n:FORWARD DROP [0:0]\nCOMMIT\n*filter\n:INPUT ACCEPT [5:6]\n:FORWARD DROP [0:0]\n:DOCKER-USER - [0:0]\n-A FORWARD -j DOCKER-USER\n-A DOCKER-USER -j RETURN\nCOMMIT\n",
			[]Hook{{"forward", "ip filter FORWARD", false}}},
		"let through": {"ip6", "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -o fk-+ -j ACCEPT\n-A DOCKER-USER -i fk-+ -j ACCEPT\nCOMMIT\n", []Hook{{"forward", "ip6 filter FORWARD", true}}},
		"netplugin's": {"ip", "# Generated by iptables-save v1.8.9 (nf_tables) on Fri\n*filter\n:FORWARD DROP [0:0]\n" +
			"-A FORWARD -i fk-+ -m comment --comment flowkeep -j ACCEPT\n" +
			"-A FORWARD -o fk-+ -m comment --comment flowkeep -j ACCEPT\n",
			[]Hook{{"forward", "ip filter FORWARD", true}}},
		"netplugin's, nft": {"", "table ip filter {\n\tchain FORWARD {\n" +
			"\t\ttype filter hook forward priority filter; policy drop;\n" +
			"\t\tiifname \"fk-*\" counter packets 7 bytes 99 accept comment \"flowkeep\"\n" +
			"\t\toifname \"fk-*\" counter packets 0 bytes 0 accept comment \"flowkeep\"\n\t}\n}\n",
			[]Hook{{"forward", "ip filter FORWARD", true}}},
		"legacy": {"ip6", "# Generated by ip6tables-save v1.8.9 on Fri\n*filter\n:FORWARD DROP [0:0]\nCOMMIT\n",
			[]Hook{{"forward", "legacy-ip6 filter FORWARD", false}}},
		"one way":   {"ip", "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -o fk-+ -j ACCEPT\n-A FORWARD -i fk-+ -p tcp -j ACCEPT\n", []Hook{{"forward", "ip filter FORWARD", false}}},
		"elsewhere": {"ip", "*filter\n:FORWARD DROP [0:0]\n-A OTHER -o fk-+ -j ACCEPT\n-A OTHER -i fk-+ -j ACCEPT\n", []Hook{{"forward", "ip filter FORWARD", false}}},
		"nft": {"", "table inet wall {\n\tchain in {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n\tchain through {\n\t\ttype filter hook forward priority filter + 10; policy drop;\n" +
			"\t\tiifname \"fk-*\" counter packets 0 bytes 0 accept\n\t\tiifname \"fk-*\" accept\n\t\toifname \"fk-*\" accept\n\t}\n\tchain out { # handle 3\n\t\ttype filter hook output priority 0; policy drop;\n\t}\n}\n",
			[]Hook{{"input", "inet wall in", false}, {"forward", "inet wall through", true}}},
		"nothing": {"", "table ip flowkeep {\n\tchain forward {\n\t\ttype filter hook forward priority filter; policy accept;\n\t\tdrop\n\t}\n}\n", nil},
	} {
		if got := ParseHooks(row.family, row.text); !slices.Equal(got, row.want) {
			t.Errorf("%s: %+v, want %+v", name, got, row.want)
		}
	}
}

func TestRuntimes(t *testing.T) {
	for name, row := range map[string]struct {
		text       string
		conf, bins []string
	}{
		"containerd 1":  {"[plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = \"/usr/lib/cni\" # Debian's\n  conf_dir = '/etc/cni/net.d/'\n", []string{"/etc/cni/net.d"}, []string{"/usr/lib/cni"}},
		"containerd 2":  {"bin_dirs = ['/opt/cni/bin', '/x']\nmax_conf_num = 1\n\"/not\" = 1\n", nil, []string{"/opt/cni/bin", "/x"}},
		"CRI-O":         {"# network_dir = \"/no\"\nnetwork_dir = \"/etc/crio/net\"\nplugin_dirs = [\n\t\"/opt/cni/bin/\",\n\t\"/usr/libexec/cni\",\n]\nother = [\n\"/y\"]\n", []string{"/etc/crio/net"}, []string{"/opt/cni/bin", "/usr/libexec/cni"}},
		"variables":     {"conf_dir = \"${SNAP_DATA}/args/cni-network\"\n", nil, nil},
		"nothing of it": {"version = 2\nroot = \"/var/lib/containerd\"\n", nil, nil},
	} {
		if got := ParseRuntime("f", row.text); !slices.Equal(got.ConfDir, row.conf) || !slices.Equal(got.BinDirs, row.bins) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func FuzzParsers(f *testing.F) {
	f.Add("05.conf", []byte(`{"type": "calico", "plugins": [{"type": "a"}]}`))
	f.Add("x", []byte("head\n 0: 0100007F:24E1 0 0A 0 0 0 0 0 1\n:KUBE-X - [0:0]\ntable ip cali\n"))
	f.Fuzz(func(t *testing.T, name string, text []byte) {
		c := ParseNetConf(name, text)
		if c.Error == "" && len(c.Types) == 0 {
			t.Errorf("%q: neither types nor an error", text)
		}
		node := wellNode()
		node.CNI.Value.Conf = []NetConf{c}
		node.Sockets.Value, _ = ParseSockets("tcp", text)
		node.Chains[0].Listing.Value, node.Chains[0].Drops = ParseChains(string(text)), ParseHooks("ip", string(text))
		node.Runtimes = []Runtime{ParseRuntime(name, string(text))}
		node.Kernel, node.Switch.Answers = Known(string(text)), Known(string(text))
		cluster := wellCluster()
		cluster.Version.Value, cluster.FrontProxy.Value.CA, cluster.Nodes.Value[0].PodCIDRs[0], cluster.Nodes.Value[0].Internal[0] = string(text), string(text), string(text), name
		for _, r := range []Report{Node(node), Cluster(cluster)} {
			for _, found := range r.Findings {
				if len(found.Seen) > longest+len("…") {
					t.Errorf("%d bytes: %q", len(found.Seen), found.Seen[:100])
				}
			}
		}
	})
}
