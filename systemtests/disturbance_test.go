package systemtests

import (
	"flag"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// layer is a part of the host's configuration that denies on its own what policies deny.
type layer int

const (
	routing layer = iota // policy rules, routes, addresses, links
	filters              // nftables
	bridge               // Open vSwitch's database, which nothing passes without
)

// networkd runs a real systemd-networkd for three seconds, which manages a link of its own. With a read-only /sys it does
// not wait for udev.
const networkd = `ip link add other0 type veth peer name other1 && ip link set other0 up && ip link set other1 up
unshare -m sh -ec '
mount -t tmpfs tmpfs /run
mount --bind /sys /sys
mount -o remount,bind,ro /sys
mkdir -p /run/systemd/netif/links /run/systemd/netif/leases /run/systemd/netif/lldp /run/systemd/network
chown -R systemd-network:systemd-network /run/systemd/netif
printf "[Match]\nName=other0\n[Network]\nAddress=198.51.100.9/24\n" >/run/systemd/network/10-other.network
timeout 3 /lib/systemd/systemd-networkd >/dev/null 2>&1 || [ $? = 124 ]
'
ip link del other0`

// networkManager runs a real NetworkManager for four seconds, with a bus of its own. As after its installation it
// manages every link that has no address: those of pods too.
const networkManager = `unshare -m -p -f --kill-child sh -ec '
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib/NetworkManager
mount --bind /sys /sys
mount -o remount,bind,ro /sys
mkdir -p /run/dbus /run/NetworkManager/conf.d
dbus-daemon --system --fork --nopidfile
printf "[main]\nplugins=keyfile\n[keyfile]\nunmanaged-devices=none\n" >/run/nm.conf
timeout 4 NetworkManager --debug --config /run/nm.conf --config-dir /run/nm.d --log-level ERR >/dev/null 2>&1 || [ $? = 124 ]
'`

var everyDisturbance = flag.Bool("every-disturbance", false, "TestHostDisturbances: all changes, not one of each kind")

// disturbance is what another program does to node1: the command runs in its network namespace, with $VSCTL.
type disturbance struct {
	name    string
	layer   layer
	command string
}

var disturbances = []disturbance{
	{"rules that are not the kernel's", routing, "for f in -4 -6; do ip $f -d rule | grep -v 'proto kernel' | cut -d: -f1 | while read p; do ip $f rule del pref $p; done; done"},
	{"systemd-networkd starts", routing, networkd},
	{"NetworkManager starts", routing, networkManager},
	{"all policy rules", routing, "for f in -4 -6; do ip $f rule flush; ip $f rule add pref 32766 table main; done"},
	{"rules of Services", routing, "for f in -4 -6; do ip $f rule del pref 60; ip $f rule del pref 61; done"},
	{"the Services' table", routing, "ip route flush table 102; ip -6 route flush table 102"},
	{"routes to pods elsewhere", routing, "ip route flush proto 0x66; ip -6 route flush proto 0x66"},
	{"fk-gw down and up", routing, "ip link set fk-gw down; ip link set fk-gw up"},
	{"fk-gw down", routing, "ip link set fk-gw down"},
	{"fk-wire down and up", routing, "ip link set fk-wire down; ip link set fk-wire up"},
	{"addresses of fk-gw", routing, "ip addr flush dev fk-gw"},
	{"neighbour entries of fk-gw", routing, "ip neigh flush dev fk-gw nud all; ip -6 neigh flush dev fk-gw nud all"},
	{"MTU and MAC of fk-gw", routing, "ip link set fk-gw mtu 1280 address 02:00:00:00:00:99"},
	{"forwarding", routing, "for s in ipv4/ip_forward ipv6/conf/all/forwarding ipv4/conf/fk-gw/forwarding; do echo 0 >/proc/sys/net/$s; done"},
	{"reverse path filter", routing, "for s in all fk-gw fk-wire; do echo 1 >/proc/sys/net/ipv4/conf/$s/rp_filter; done"},
	{"Flowkeep's nftables table", filters, "nft delete table inet flowkeep"},
	{"a chain of it", filters, "nft flush chain inet flowkeep raw; nft flush chain inet flowkeep service-forward"},
	{"pods' links down", routing, "for l in $(ls /sys/class/net | grep ^fkp); do ip link set $l down; done"},
	{"ports of pods", bridge, "for p in $($VSCTL list-ports fk0 | grep ^fkp); do $VSCTL del-port $p; done"},
	{"port of fk-gw", bridge, "$VSCTL del-port fk-gw"},
	{"port of fk-wire", bridge, "$VSCTL del-port fk-wire"},
	{"the bridge", bridge, "$VSCTL del-br fk0"},
	{"both tables", filters, "nft delete table inet flowkeep; nft delete table arp flowkeep"},
}

// disturbed is a node whose host configuration is changed, and the ways that are watched meanwhile.
type disturbed struct {
	*world
	allowed, denied []cluster.Expectation
}

func newDisturbed(t *testing.T) *disturbed {
	w := setup(t)
	byRoutes(w)
	ns := threePods(w)
	w.run(ns, "d@node1")
	w.policy(ns, "a", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress]}`)
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: d}}}]}]}`)
	b, c := service(w, ns, "b"), service(w, ns, "c")
	stop, err := w.Serve(w.ctx, w.NodeNS("node1"), 8098)
	w.must(err)
	w.Cleanup(stop)
	node1 := cluster.Pod{Name: "node1", Node: "node1", NetNS: w.NodeNS("node1")}
	node2 := cluster.Pod{Name: "node2", Node: "node2", NetNS: w.NodeNS("node2")}
	own := append([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, w.nodeIPs("node1")...)
	d := &disturbed{world: w}
	d.denied = slices.Concat(
		through(w, c, "a", false), through(w, b, "a", false), w.shut("a", "c", "udp", 80, "a may send nothing"),
		through(w, b, "c", false), w.shut("c", "b", "udp", 80, "only d may send to b"))
	d.allowed = slices.Concat(through(w, c, "d", true), through(w, b, "d", true), w.open("d", "c", "udp", 80, "allowed, across"),
		w.open("d", "b", "udp", 80, "allowed, same node"))
	udp := func(from cluster.Pod, to netip.Addr, port int, why string) {
		d.allowed = append(d.allowed, cluster.Expectation{From: from, Proto: "udp", To: to, Port: port, Open: true, Why: why})
	}
	for _, a := range own {
		udp(node1, a, 8098, "the node's own")
	}
	for _, a := range own[1:] {
		udp(node2, a, 8098, "the node's own, from another node")
	}
	for _, a := range w.pods["d"].IPs {
		udp(node1, a, 80, "a node reaches its pods")
	}
	d.allowed = slices.DeleteFunc(d.allowed, func(e cluster.Expectation) bool { return e.Proto == "tcp" }) // it waits for its own timers
	api, err := w.ServiceIPs(w.ctx, "default", "kubernetes")
	w.must(err)
	for _, a := range api {
		d.denied = append(d.denied, cluster.Expectation{From: w.pods["a"], Proto: "tcp", To: a, Port: 443, Why: "the API server's Service"})
	}
	w.settles(d.allowed, d.denied)
	return d
}

func (d *disturbed) disturb(command string) {
	d.Helper()
	vsctl := "VSCTL='ovs-vsctl --no-wait --db=unix:" + d.Dir + "/node1/flowkeep/ovs/db.sock'; "
	_, err := d.RunIn(d.ctx, d.NodeNS("node1"), "sh", "-c", vsctl+command)
	d.must(err)
}

// maxOutage is the time within which allowed ways work again.
const maxOutage = time.Second

// observe sends a hundred packets a second along each way while during runs. It fails the test if a denied packet
// passes, or if an allowed way has no answer for longer than maxOutage, and returns the longest time without an answer.
// On a slow machine that time tells of the machine alone: there the ways have to work again in the end.
func (d *disturbed) observe(allowed []cluster.Expectation, during func()) (outage time.Duration) {
	d.Helper()
	unheard := d.unheard(d.denied, "policies deny it")
	ways := slices.Concat(allowed, d.denied)
	streams := d.streamsAt(100, ways)
	during()
	end := time.Now()
	for i, r := range d.stop(streams) {
		e := ways[i]
		switch gap := max(time.Duration(r.LongestGapMillis)*time.Millisecond, end.Sub(r.LastAnswer)); {
		case !e.Open && r.Received > 0:
			d.leak("%v: %d of %d questions were answered", e, r.Received, r.Sent)
		case e.Open && (r.Received == 0 || cluster.Slowness() == 1 && gap > maxOutage+d.machine.Late()):
			d.Errorf("%v: %d of %d questions were answered, none for %v", e, r.Received, r.Sent, gap)
		case e.Open:
			outage = max(outage, gap)
		}
	}
	unheard()
	if cluster.Slowness() > 1 && len(allowed) > 0 {
		d.settles(allowed, d.denied)
	}
	return outage
}

// TestHostDisturbances changes host objects of node1, each kind of them, while probes run. No denied packet passes, with
// netplugin and without it. With it, allowed ways and the node's own work again within a second.
func TestHostDisturbances(t *testing.T) {
	d := newDisturbed(t)
	list := chosenDisturbances()
	for _, c := range list {
		outage := d.observe(d.allowed, func() {
			cluster.Undisturbed(d.ctx, 200*time.Millisecond)
			d.disturb(c.command)
			cluster.Undisturbed(d.ctx, 1300*time.Millisecond)
		})
		t.Logf("%s: %d ms without an answer", c.name, outage.Milliseconds())
		if t.Failed() {
			t.Fatal(c.name)
		}
	}
	repaired, err := d.Metric(d.ctx, "node1-netplugin", "flowkeep_netplugin_host_repairs_total")
	d.must(err)
	if repaired < float64(len(list)) {
		t.Errorf("netplugin counted %v repairs", repaired)
	}
	for _, l := range []layer{routing, filters, bridge} {
		d.withoutNetplugin(l)
	}
}

// chosenDisturbances returns one of each kind, or all.
func chosenDisturbances() []disturbance {
	if *everyDisturbance {
		return disturbances
	}
	brief := []string{"all policy rules", "the Services' table", "fk-gw down and up", "addresses of fk-gw", "forwarding", "ports of pods", "both tables"}
	return slices.DeleteFunc(slices.Clone(disturbances), func(d disturbance) bool { return !slices.Contains(brief, d.name) })
}

// withoutNetplugin removes a layer, object by object, while netplugin does not run.
func (d *disturbed) withoutNetplugin(l layer) {
	d.Helper()
	d.must(d.Stop(d.ctx, "node1-netplugin"))
	for _, c := range chosenDisturbances() {
		if c.layer != l {
			continue
		}
		d.observe(nil, func() {
			d.disturb(c.command + " || true") // an earlier one may have removed it
			cluster.Undisturbed(d.ctx, 500*time.Millisecond)
		})
		if d.Failed() {
			d.Errorf("%s, without netplugin", c.name)
			break
		}
	}
	d.must(d.Start(d.ctx, "node1-netplugin"))
	d.must(d.AwaitReady(d.ctx, "node1-netplugin", 30*time.Second))
	d.settles(d.allowed, d.denied)
}
