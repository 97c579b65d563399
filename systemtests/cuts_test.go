package systemtests

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// cut is what netctl cuts tells of one.
type cut struct {
	Reason      string         `json:"reason"`
	Connections int            `json:"connections"`
	Protocols   map[string]int `json:"protocols"`
	Endpoint    string         `json:"endpoint"`
	Why         string         `json:"why"`
}

// cuts are those that speak of the namespace, of all nodes.
func (w *world) cuts(namespace string) (found []cut) {
	w.Helper()
	text, err := w.Netctl(w.ctx, "cuts", "-o", "json")
	w.must(err)
	var all struct {
		Nodes []struct {
			Problem string `json:"problem"`
			Cuts    []cut  `json:"cuts"`
		} `json:"nodes"`
	}
	w.must(json.Unmarshal([]byte(text), &all))
	for _, n := range all.Nodes {
		if n.Problem != "" {
			w.Error(n.Problem)
		}
		for _, c := range n.Cuts {
			if strings.Contains(c.Why, namespace+"/") {
				found = append(found, c)
			}
		}
	}
	return found
}

// tellsCut waits until cuts of this reason are told that amount to as many connections of each protocol; for UDP what was asked
// shortly before still counts as one.
func (w *world) tellsCut(namespace, why string, each int) {
	w.Helper()
	w.must(cluster.Until(w.ctx, settling, func() error {
		got := map[string]int{}
		var said []string
		for _, c := range w.cuts(namespace) {
			said = append(said, fmt.Sprintf("%d: %s", c.Connections, c.Why))
			if c.Why == why {
				for p, n := range c.Protocols {
					got[p] += n
				}
			}
		}
		if got["TCP"] != each || got["UDP"] < each {
			return fmt.Errorf("want %d TCP and UDP connections %q, told are %v of\n  %s", each, why, got, strings.Join(said, "\n  "))
		}
		return nil
	}))
}

// ended is how long after a change the connections that it takes the permission from may still live.
const ended = time.Second

// live streams along ways that end and ways that stay while change runs. The first must end within a second of the
// change: no response reaches the client after that, and no packet of the client its server. The time for which the
// machine stood still is allowed, and logged. The others must not miss a response.
func (w *world) live(ending, staying []cluster.Expectation, change func()) {
	w.Helper()
	streams := w.streams(ending, staying...)
	var r *cluster.Revocation
	w.watch(stall, staying, func() {
		w.allHeard(ending)
		change()
		r = w.revoked(time.Now())
		r.Expire(w.ctx)
		w.awaitEnd(r, ending, cluster.Window(700*time.Millisecond))
	}, ending...)
	w.Log(r.Timing(w.stopRevoked(r, streams)))
}

// revoked returns the evaluation of connections that a change at a time no longer allows.
func (w *world) revoked(made time.Time) *cluster.Revocation {
	return &cluster.Revocation{Made: made, Limit: ended, Late: w.machine.LateSince}
}

// stopRevoked ends streams along revoked connections, fails the test for each that had answers too late, and returns
// what each saw.
func (w *world) stopRevoked(r *cluster.Revocation, streams []*cluster.Stream) []cluster.Report {
	w.Helper()
	stopped, reports := time.Now(), w.stop(streams)
	for i, report := range reports {
		if err := r.Judge(streams[i].Expectation, report, stopped); err != nil {
			w.Error(err)
		}
	}
	return reports
}

// awaitEnd observes revoked connections at their servers for as long as window, from the time on at which they must
// have ended, and fails the test if one has a packet.
func (w *world) awaitEnd(r *cluster.Revocation, ways []cluster.Expectation, window time.Duration) {
	w.Helper()
	w.awaitSilence(r, window, func(window time.Duration) (alive []string) {
		heard := w.listen(ways)
		cluster.Undisturbed(w.ctx, window)
		for i, a := range heard() {
			if a.Packets > 0 {
				alive = append(alive, fmt.Sprintf("%v: %d packets came to the server, the last %v after the change",
					ways[i], a.Packets, a.Last.Sub(r.Made)))
			}
		}
		return alive
	})
}

// awaitSilence calls observe, which observes revoked connections for a time and returns a line for each that has
// packets, and fails the test for each of these lines; see cluster.Revocation.Silence.
func (w *world) awaitSilence(r *cluster.Revocation, window time.Duration, observe func(time.Duration) []string) {
	w.Helper()
	for _, failure := range r.Silence(window, observe) {
		w.Error(failure)
	}
}

func (w *world) transports(from, to string, port int, why string) (list []cluster.Expectation) {
	w.Helper()
	for _, proto := range []string{"tcp", "udp"} {
		list = append(list, w.open(from, to, proto, port, why)...)
	}
	return list
}

// A label that goes, an edited policy in the other direction, and a new policy: each ends exactly the connections that it takes the
// permission from, and netctl tells how many and for which rule. What another rule allows goes on.
func TestCutConnectionsAreTold(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	families := len(w.pods["b"].IPs)
	w.policy(ns, "db", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {client: "yes"}}}]}, {from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}, {port: 80, protocol: UDP}]}]}`)
	// A connection that a probe had opened before the policy would count twice.
	_, err := w.Netctl(w.ctx, "policy", "wait", ns+"/db", "--timeout", "2m")
	w.must(err)
	w.label(ns, "client", "yes", "a", "c")
	ending, staying := slices.Concat(w.transports("c", "b", 80, "its label goes"), w.transports("a", "b", 81, "its label goes")), w.transports("a", "b", 80, "another rule allows it")
	w.settles(ending, staying)
	w.live(ending, staying, func() { w.label(ns, "client", nil, "a", "c") })
	w.tellsCut(ns, fmt.Sprintf("lived on %s/db ingress[0]; denied by %s/db ingress", ns, ns), 2*families)

	ending, staying = w.transports("a", "c", 80, "no policy yet"), w.transports("a", "c", 81, "no policy, then allowed")
	w.settles(ending, staying)
	w.live(ending, staying, func() {
		w.policy(ns, "out", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{ports: [{port: 81}, {port: 81, protocol: UDP}]}]}`)
	})
	w.tellsCut(ns, fmt.Sprintf("lived while nothing isolated the pod; denied by %s/out egress", ns), families)

	ending = staying
	w.live(ending, nil, func() {
		w.policy(ns, "out", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{ports: [{port: 80}]}]}`)
	})
	w.tellsCut(ns, fmt.Sprintf("lived on %s/out egress[0]; denied by %s/out egress", ns, ns), families)
}

// When a pod is gone its connections end, those that it opened and those of others to it. They are told, on its node as the pod's, and on that of a peer as
// of the rule that they lived on, where that isolates the peer; and nothing of them is left on its node for whoever gets its address. The other node's conntrack
// keeps its own until they time out (docs/decisions/006). Whoever else lives on either node loses nothing.
func TestADeadPodsConnectionsAreForgotten(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.run(ns, "d@node2")
	w.policy(ns, "a", `{podSelector: {matchLabels: {app: a}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]}`)
	dead := w.pods["c"]
	opened, taken := w.transports("c", "a", 80, "c dies"), w.transports("b", "c", 80, "c dies")
	beside := []cluster.Expectation{w.one("d", "b", "tcp", 6, true), w.one("d", "b", "udp", 4, true)}
	staying := append([]cluster.Expectation{w.one("a", "b", "tcp", 4, true), w.one("a", "b", "udp", 6, true)}, beside...)
	w.settles(opened, taken, staying, w.shut("b", "a", "udp", 80, "a is isolated"))
	const lively = 100 // times a second: those that end need not keep the machine busy
	toIt, streams := w.streamsAt(lively, taken), w.streamsAt(lively, opened)
	var r *cluster.Revocation
	w.watch(stall, staying, func() {
		w.allHeard(slices.Concat(opened, taken))
		w.stop(toIt) // what others send to the address when it is nobody's is theirs
		w.must(cluster.Until(w.ctx, settling, func() error { return w.disconnected(w.pods["b"], dead) }))
		w.tracks("node2", slices.Concat(opened, taken))
		w.must(w.DeletePod(w.ctx, ns, "c"))
		w.must(cluster.Until(w.ctx, 30*time.Second, func() error {
			if _, err := os.Stat(dead.NetNS); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("the pod is being ended (%w)", err)
			}
			return nil
		}))
		r = w.revoked(time.Now())
		r.Expire(w.ctx)
		w.awaitEnd(r, opened, 100*time.Millisecond)
		w.must(cluster.Until(w.ctx, 5*time.Second, func() error { return w.forgotten(dead, w.pods["b"]) }))
		w.tracks("node1", staying)
		w.tracks("node2", beside)
	})
	w.stopRevoked(r, streams)
	w.tellsUDP(ns, fmt.Sprintf("pod %s/c is gone", ns), 2*len(dead.IPs)) // TCP's are gone as soon as the kubelet has ended the server
	w.tellsUDP(ns, fmt.Sprintf("lived on %s/a ingress[0]; denied by %s/a ingress", ns, ns), len(dead.IPs))
}

// disconnected returns an error while a pod has TCP connections to another that it may send segments of: a FIN that is
// not acknowledged goes on to an address that no pod has by then, and opens an entry of conntrack there.
func (w *world) disconnected(from, to cluster.Pod) error {
	for _, ip := range to.IPs {
		dst := strings.TrimSuffix(netip.AddrPortFrom(ip, 0).String(), ":0") // IPv6 in brackets
		text, err := w.RunIn(w.ctx, from.NetNS, "ss", "-Htn", "state", "connected", "exclude", "time-wait", "dst", dst)
		if err != nil {
			return err
		}
		if text != "" {
			return fmt.Errorf("connections of %v to %v:\n%s", from, ip, text)
		}
	}
	return nil
}

// tracks fails the test unless a node's switch knows a connection along each of the ways.
func (w *world) tracks(node string, ways []cluster.Expectation) {
	w.Helper()
	dump, err := w.Conntrack(w.ctx, node)
	w.must(err)
	lines := strings.Split(dump, "\n")
	for _, e := range ways {
		from := slices.IndexFunc(e.From.IPs, func(a netip.Addr) bool { return a.Is4() == e.To.Is4() })
		is := func(line string) bool {
			return strings.HasPrefix(line, fmt.Sprintf("%s,orig=(src=%v,dst=%v,", e.Proto, e.From.IPs[from], e.To)) && strings.Contains(line, fmt.Sprintf(",dport=%d)", e.Port))
		}
		if !slices.ContainsFunc(lines, is) {
			w.Errorf("%v: the switch of %s knows no such connection", e, node)
		}
	}
}

// forgotten tells whether a dead pod's node still knows connections that it opened, or that a peer opened which sends nothing any more.
func (w *world) forgotten(dead, peer cluster.Pod) error {
	dump, err := w.Conntrack(w.ctx, dead.Node)
	if err != nil {
		return err
	}
	for _, ip := range dead.IPs {
		from := slices.IndexFunc(peer.IPs, func(a netip.Addr) bool { return a.Is4() == ip.Is4() })
		for _, left := range []string{fmt.Sprintf("orig=(src=%v,", ip), fmt.Sprintf("orig=(src=%v,dst=%v,", peer.IPs[from], ip)} {
			if strings.Contains(dump, left) {
				return fmt.Errorf("%s still remembers %s…:\n%s", dead.Node, left, dump)
			}
		}
	}
	return nil
}

// tellsUDP waits until so many connections of UDP are told to have ended for a reason.
func (w *world) tellsUDP(namespace, why string, want int) {
	w.Helper()
	w.must(cluster.Until(w.ctx, settling, func() error {
		told := 0
		for _, c := range w.cuts(namespace) {
			if c.Why == why {
				told += c.Protocols["UDP"]
			}
		}
		if told < want {
			return fmt.Errorf("%d UDP connections are told %q, want %d: %+v", told, why, want, w.cuts(namespace))
		}
		return nil
	}))
}
