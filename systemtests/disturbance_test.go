package systemtests

import (
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
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

var (
	everyDisturbance = flag.Bool("every-disturbance", false, "TestHostDisturbances: all changes, not one of each kind")
	otherDisturbance = flag.Bool("other-disturbances", false, "TestOtherDisturbances: firewalls, and changes of the bridge")
)

// hostObject is a kind of objects of the host, as in netplugin's metric of what it has written, and their layer.
type hostObject struct {
	kind  string // empty: Flowkeep has none, and what the other program changes stays
	layer layer
}

var (
	ruleObject      = hostObject{"rule", routing}
	routeObject     = hostObject{"route", routing}
	linkObject      = hostObject{"link", routing}
	addressObject   = hostObject{"address", routing}
	neighbourObject = hostObject{"neighbour", routing}
	sysctlObject    = hostObject{"sysctl", routing}
	tableObject     = hostObject{"nftables", filters}
	portObject      = hostObject{"port", bridge}
	bridgeObject    = hostObject{"bridge", bridge}
	flowObject      = hostObject{flowKind, bridge}

	othersRouting = hostObject{"", routing}
	othersFilters = hostObject{"", filters}
	othersBridge  = hostObject{"", bridge}
)

// flowKind is the kind of flows, which have a metric of their own.
const flowKind = "flow"

// disturbance is what another program does to node1: its commands run in its network namespace, with
// $VSCTL and $BRIDGE. netplugin writes objects of its kind again.
type disturbance struct {
	name    string
	object  hostObject
	command string
}

// undo has the commands after which a disturbance leaves nothing to the next one, by name.
var undo = map[string]string{
	"iptables-restore": openIptables,
	"ufw reloads":      openIptables,

	"fail_mode of the bridge":     "$VSCTL set-fail-mode fk0 secure",
	"fail_mode standalone":        "$VSCTL set-fail-mode fk0 secure",
	"a controller of the bridge":  "$VSCTL del-controller fk0",
	"tc on ports and pods' links": noTrafficControl,
	strictName:                    "sysctl -qw " + filterOfUplink + "=$(sysctl -n net.ipv4.conf.default.rp_filter)",
}

const (
	strictName     = "strict reverse path filter of the uplink"
	filterOfUplink = "net.ipv4.conf.eth0.rp_filter"
)

// droppedFor precedes the time at the end of the output of a command whose program dropped packets itself: the longest
// without a break.
const droppedFor = "the program dropped packets for "

// drops returns the time at the end of a command's output; see droppedFor.
func drops(output string) (time.Duration, error) {
	_, text, found := strings.Cut(output, droppedFor)
	if !found {
		return 0, nil
	}
	return time.ParseDuration(strings.TrimSpace(text))
}

const servicesTables = `for f in -4 -6; do ip $f route flush table 26214; ip $f route flush table 26217; done`

var disturbances = []disturbance{
	{"rules that are not the kernel's", othersRouting, "for f in -4 -6; do ip $f -d rule | grep -v 'proto kernel' | cut -d: -f1 | while read p; do ip $f rule del pref $p; done; done"},
	{"systemd-networkd starts", othersRouting, networkd},
	{"NetworkManager starts", othersRouting, networkManager},
	{"all policy rules", ruleObject, "for f in -4 -6; do ip $f rule flush; ip $f rule add pref 32766 table main; done"},
	{"rules of Services", ruleObject, "for f in -4 -6; do ip $f rule del pref 60; ip $f rule del pref 61; done"},
	{"table of own packets", routeObject, "ip route flush table 26216; ip -6 route flush table 26216"},
	{"the Services' tables", routeObject, servicesTables},
	{"routes to pods elsewhere", routeObject, "ip route flush proto 0x66; ip -6 route flush proto 0x66"},
	{"fk-gw down and up", routeObject, "ip link set fk-gw down; ip link set fk-gw up"},
	{"fk-gw down", linkObject, "ip link set fk-gw down"},
	{"fk-wire down and up", routeObject, "ip link set fk-wire down; ip link set fk-wire up"},
	{"fk-out down and up", routeObject, "ip link set fk-out down; ip link set fk-out up"},
	{"addresses of fk-gw", addressObject, "ip addr flush dev fk-gw"},
	{"neighbour entries of fk-gw", neighbourObject, "ip neigh flush dev fk-gw nud all; ip -6 neigh flush dev fk-gw nud all"},
	{"MTU and MAC of fk-gw", linkObject, "ip link set fk-gw mtu 1280 address 02:00:00:00:00:99"},
	{"forwarding", sysctlObject, "for s in ipv4/ip_forward ipv6/conf/all/forwarding ipv4/conf/fk-gw/forwarding; do echo 0 >/proc/sys/net/$s; done"},
	{strictName, sysctlObject, "sysctl -qw net.ipv4.conf.all.src_valid_mark=0 " + filterOfUplink + "=1"},
	{"reverse path filter", sysctlObject, "cd /proc/sys/net/ipv4/conf; for s in all fk-*; do echo 1 >$s/rp_filter; done"},
	{"Flowkeep's nftables table", tableObject, "nft delete table inet flowkeep"},
	{"a chain of it", tableObject, "nft flush chain inet flowkeep raw; nft flush chain inet flowkeep service-forward"},
	{"pods' links down", sysctlObject, "for l in $(ls /proc/sys/net/ipv4/conf | grep ^fkp); do ip link set $l down; done"},
	{"fail_mode of the bridge", bridgeObject, "$VSCTL del-fail-mode fk0"},
	{"ports of pods", portObject, "for p in $($VSCTL list-ports fk0 | grep ^fkp); do $VSCTL del-port $p; done"},
	{"port of fk-gw", portObject, "$VSCTL del-port fk-gw"},
	{"port of fk-wire", portObject, "$VSCTL del-port fk-wire"},
	{"port of fk-out", portObject, "$VSCTL del-port fk-out"},
	{"the bridge", portObject, "$VSCTL del-br fk0"},
	{"both tables", tableObject, "nft delete table inet flowkeep; nft delete table arp flowkeep"},
}

// otherDisturbances are reloads of firewalls, and changes of the bridge and of objects that are not Flowkeep's. Those of
// the bridge that stop all packets are the last.
var otherDisturbances = []disturbance{
	{"nftables.service reloads", tableObject, nftablesService},
	{"iptables-restore", tableObject, iptablesRestore},
	{"ufw reloads", tableObject, ufw},
	{"firewalld starts and reloads", othersFilters, firewalld},
	{"fk0 down and up", othersRouting, "ip link set fk0 up; ip link set fk0 down"},
	{"tc on ports and pods' links", othersBridge, trafficControl},
	{"entries of conntrack", othersBridge, "conntrack -F 2>&1"},
	{"a controller of the bridge", bridgeObject, "$VSCTL set-controller fk0 tcp:127.0.0.1:6653"},
	{"link of fk-wire", portObject, removeLink + " fk-wire"},
	{"link of fk-out", portObject, removeLink + " fk-out"},
	{"link of fk-gw", portObject, removeLink + " fk-gw"},
	{"flows", flowObject, "ovs-ofctl -O OpenFlow13 del-flows unix:$BRIDGE"},
}

// disturbed is a node whose host configuration is changed, and the ways that are watched meanwhile.
type disturbed struct {
	*world
	allowed, denied []cluster.Expectation
	betweenPods     *rawFrames
	byStack         []*rawFrames // that the node's stack sends to a pod
}

func newDisturbed(t *testing.T) *disturbed {
	w := setup(t)
	byRoutes(w)
	ns := threePods(w)
	w.run(ns, "d@node1", "e@node1")
	raw := w.framesBetween("a", "d")
	w.policy(ns, "a", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress]}`)
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: d}}}]}]}`)
	w.policy(ns, "e", fmt.Sprintf(`{podSelector: {matchLabels: {app: e}}, policyTypes: [Egress], egress: [{to: [%s]}]}`,
		blocks(w.nodeIPs("node1"))))
	b, c := service(w, ns, "b"), service(w, ns, "c")
	stop, err := w.Serve(w.ctx, w.NodeNS("node1"), 8098)
	w.must(err)
	w.Cleanup(stop)
	node1 := cluster.Pod{Name: "node1", Node: "node1", NetNS: w.NodeNS("node1")}
	node2 := cluster.Pod{Name: "node2", Node: "node2", NetNS: w.NodeNS("node2")}
	own := append([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, w.nodeIPs("node1")...)
	outside := cluster.Pod{Name: "outside", Node: "control plane", NetNS: w.ControlPlaneNS()}
	ports, across := w.nodePort(ns, "b"), w.nodePort(ns, "c")
	trusted := append(w.nodeIPs("node1"), w.pods["d"].IPs...) // b may receive from these
	udpPort := uint16(ports["udp"])
	byStack := []*rawFrames{w.framesByNode("b", trusted, udpPort)}
	if !translatesInSwitch() { // else the stack gets none of them
		byStack = append(byStack, w.framesToPort("e", "b", udpPort), w.framesToPort("e", "c", uint16(across["udp"])))
	}
	d := &disturbed{world: w, betweenPods: raw, byStack: byStack}
	d.denied = slices.Concat(
		through(w, c, "a", false), through(w, b, "a", false), w.shut("a", "c", "udp", 80, "a may send nothing"),
		through(w, b, "c", false), w.shut("c", "b", "udp", 80, "only d may send to b"),
		w.at("node1", ports, outside, false, "only d may send to b"),
		w.at("node1", ports, w.pods["e"], false, "e may send to node1 only"),
		w.at("node1", across, w.pods["e"], false, "e may send to node1 only"))
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
	d.allowed = slices.Concat(d.allowed, w.at("node1", ports, w.pods["d"], true, "by a node port, same node"),
		w.at("node1", across, w.pods["d"], true, "by a node port, across"))
	d.allowed = slices.DeleteFunc(d.allowed, func(e cluster.Expectation) bool { return e.Proto == "tcp" }) // it waits for its own timers
	api, err := w.ServiceIPs(w.ctx, "default", "kubernetes")
	w.must(err)
	for _, a := range api {
		d.denied = append(d.denied, cluster.Expectation{From: w.pods["a"], Proto: "tcp", To: a, Port: 443, Why: "the API server's Service"})
	}
	w.settles(d.allowed, d.denied)
	return d
}

// disturb runs a command on node1, with its switch in variables, and returns what it prints.
func (d *disturbed) disturb(command string) (output string) {
	d.Helper()
	ovs := d.Dir + "/node1/flowkeep/ovs"
	variables := "VSCTL='ovs-vsctl --no-wait --db=unix:" + ovs + "/db.sock' BRIDGE=" + ovs + "/fk0.mgmt\n"
	output, err := d.RunIn(d.ctx, d.NodeNS("node1"), "sh", "-c", variables+command)
	d.must(err)
	return output
}

// maxOutage is the time within which allowed ways work again.
const maxOutage = time.Second

// observation returns for how long after a change the ways are observed: longer than the limit of the outage, which may be
// longer by allowed, so that a longer outage is seen.
func observation(allowed time.Duration) time.Duration {
	return cluster.Stretch(maxOutage+allowed) + 300*time.Millisecond
}

// probeRate returns how many packets a second a probe of a way sends. On an emulated machine forty probes at this rate
// use up the processors: netplugin repaired after 17 s. There they send a third as many during an observation, which is
// longer by the slowness.
func probeRate() float64 {
	if cluster.IsEmulated() {
		return 33 / cluster.Window(time.Second).Seconds()
	}
	return 100
}

// framePause is the time between two frames of a sender; see probeRate.
func framePause() time.Duration {
	if cluster.IsEmulated() {
		return cluster.Window(15 * time.Millisecond)
	}
	return 5 * time.Millisecond
}

// observe sends packets along each way, see probeRate, and frames, while during runs. It fails the test if a denied
// packet or a frame passes, or if an allowed way has no response for longer than maxOutage plus the time that during
// returns. It returns the longest time without a response.
func (d *disturbed) observe(allowed []cluster.Expectation, during func() time.Duration) (outage time.Duration) {
	d.Helper()
	unheard := d.unheard(d.denied, "policies deny it")
	frames := append(slices.Clone(d.byStack), d.betweenPods)
	var stops []func() [][]byte
	for _, f := range frames {
		stops = append(stops, f.sent(d.world))
	}
	ways := slices.Concat(allowed, d.denied)
	streams := d.streamsAt(probeRate(), ways)
	began, limit := time.Now(), maxOutage
	defer func() { // also when during ends the test: it reports the denied packets that passed before
		d.Helper()
		end := time.Now()
		var longest cluster.Expectation
		if outage, longest = d.outageOf(ways, d.stop(streams), end); longest.Open {
			d.within(limit, outage, began, "%v without a response", longest)
		}
		unheard()
		for i, stop := range stops {
			frames[i].judge(d, stop())
		}
	}()
	limit += during()
	return 0 // the deferred function sets it
}

// outageOf fails the test for a denied way that was answered and an allowed one that never was. It returns the allowed way
// that had no response for the longest time until end, and that time.
func (d *disturbed) outageOf(ways []cluster.Expectation, reports []cluster.Report, end time.Time) (
	outage time.Duration, longest cluster.Expectation,
) {
	d.Helper()
	for i, r := range reports {
		e := ways[i]
		switch gap := max(time.Duration(r.LongestGapMillis)*time.Millisecond, end.Sub(r.LastAnswer)); {
		case !e.Open && r.Received > 0:
			d.leak("%v: %d of %d questions were answered", e, r.Received, r.Sent)
		case e.Open && r.Received == 0:
			d.Errorf("%s %v: %d of %d questions were answered; the first lost is %d; the socket: %q",
				cluster.Lost, e, r.Received, r.Sent, r.FirstLoss, r.Broken)
		case e.Open && gap > outage:
			outage, longest = gap, e
		}
	}
	return outage, longest
}

// TestHostDisturbances changes host objects of node1, each kind of them, while probes run. No denied packet passes, with
// netplugin and without it. With it, allowed ways and the node's own work again within a second.
func TestHostDisturbances(t *testing.T) {
	d, list := newDisturbed(t), chosenDisturbances()
	d.withoutTags()
	d.withoutNextHops()
	d.withNetplugin(list)
	for _, l := range []layer{routing, filters, bridge} {
		d.withoutNetplugin(l, list)
	}
}

// TestOtherDisturbances does the same for values in Open vSwitch's database, firewalls that reload, and flows.
func TestOtherDisturbances(t *testing.T) {
	if !*otherDisturbance {
		t.Skip("the gate leaves it out: make test-full PART=disturbances-other")
	}
	d, list := newDisturbed(t), slices.Concat(valueDisturbances, otherDisturbances)
	d.withNetplugin(list)
	for _, l := range []layer{routing, filters, bridge} {
		d.withoutNetplugin(l, list)
	}
}

// writes returns how many objects of a kind netplugin has written on node1 since its start because they differed.
func (d *disturbed) writes(kind string) float64 {
	d.Helper()
	metric, labels := "flowkeep_netplugin_host_writes_total", []string{fmt.Sprintf("object=%q", kind)}
	if kind == flowKind {
		metric, labels = "flowkeep_netplugin_drift_flows_total", nil
	}
	n, err := d.Metric(d.ctx, "node1-netplugin", metric, labels...)
	d.must(err)
	return n
}

// written waits until netplugin has written more objects of a kind than before, and reports whether it has.
func (d *disturbed) written(kind string, before float64) bool {
	d.Helper()
	return cluster.Until(d.ctx, settling, func() error {
		if d.writes(kind) > before {
			return nil
		}
		return fmt.Errorf("netplugin has written no object of kind %s", kind)
	}) == nil
}

// withNetplugin makes each change, and waits until all is as before.
func (d *disturbed) withNetplugin(list []disturbance) {
	d.Helper()
	var idle []string
	for _, c := range list {
		before := 0.0
		if c.object.kind != "" {
			before = d.writes(c.object.kind)
		}
		var dropped time.Duration
		outage := d.observe(d.allowed, func() time.Duration {
			cluster.Undisturbed(d.ctx, cluster.Window(200*time.Millisecond)) // the probes start
			var err error
			dropped, err = drops(d.disturb(c.command))
			d.must(err)
			cluster.Undisturbed(d.ctx, observation(dropped))
			return dropped
		})
		d.Logf("%s: %d ms without an answer; the program itself dropped packets for %d ms", c.name,
			outage.Milliseconds(), dropped.Milliseconds())
		if d.Failed() {
			d.Fatal(c.name)
		}
		d.disturb(undo[c.name])
		d.settles(d.allowed, d.denied) // the next one begins where all is as before
		if c.object.kind != "" && !d.written(c.object.kind, before) {
			idle = append(idle, c.name)
		}
	}
	if len(idle) > 0 {
		d.Errorf("netplugin wrote nothing of the kind again after %q, so that nothing is shown", idle)
	}
}

// chosenDisturbances returns one of each kind, or all.
func chosenDisturbances() []disturbance {
	if *everyDisturbance {
		return disturbances
	}
	brief := []string{"all policy rules", "the Services' tables", "table of own packets", "fk-gw down and up",
		"addresses of fk-gw", "forwarding", "ports of pods", "both tables",
		"fail_mode of the bridge", strictName}
	return slices.DeleteFunc(slices.Clone(disturbances), func(d disturbance) bool { return !slices.Contains(brief, d.name) })
}

// withoutNetplugin removes a layer, object by object, while netplugin does not run.
func (d *disturbed) withoutNetplugin(l layer, list []disturbance) {
	d.Helper()
	d.must(d.Stop(d.ctx, "node1-netplugin"))
	for _, c := range list {
		if c.object.layer != l {
			continue
		}
		d.observe(nil, func() time.Duration {
			d.disturb("{ " + c.command + "\n} || true") // an earlier one may have removed it
			cluster.Undisturbed(d.ctx, cluster.Window(500*time.Millisecond))
			return 0
		})
		d.disturb(undo[c.name])
		if d.Failed() {
			d.Errorf("%s, without netplugin", c.name)
			break
		}
	}
	d.starts()
}

// starts starts netplugin again, and waits until all is as before.
func (d *disturbed) starts() {
	d.Helper()
	d.must(d.Start(d.ctx, "node1-netplugin"))
	d.must(d.AwaitReady(d.ctx, "node1-netplugin", 30*time.Second))
	d.settles(d.allowed, d.denied)
}
