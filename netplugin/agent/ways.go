package agent

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// The way between two nodes changes at both ends within seconds, not at once. So each end accepts packets by both
// ways for a while, and sends by the new way when the other end accepts it too. A node receives a change of the list
// of nodes at most 1.25 s after the first one does (docs/decisions/034).
const (
	waySendAfter  = 5 * time.Second
	wayCloseAfter = 15 * time.Second
)

// passage is the way to a node, and when it last changed.
type passage struct {
	way   policy.Way
	since time.Time // zero: it never changed
}

// at returns the ways that apply. Before the change the other way applied.
func (p passage) at(now time.Time) hostnet.PeerWay {
	routed := p.way == policy.WayRoute
	switch passed := now.Sub(p.since); {
	case p.since.IsZero() || passed >= wayCloseAfter:
		return hostnet.PeerWay{Routed: routed, Bare: routed, Closed: routed}
	case passed >= waySendAfter:
		return hostnet.PeerWay{Routed: routed, Bare: true}
	}
	return hostnet.PeerWay{Routed: !routed, Bare: true}
}

// sendsOld reports whether packets still leave by the way that applied before the change.
func (p passage) sendsOld(now time.Time) bool {
	return !p.since.IsZero() && now.Sub(p.since) < waySendAfter
}

// due returns how long the ways that apply stay as they are; false if it is for good.
func (p passage) due(now time.Time) (time.Duration, bool) {
	passed := now.Sub(p.since)
	switch {
	case p.since.IsZero() || passed >= wayCloseAfter:
		return 0, false
	case passed >= waySendAfter:
		return wayCloseAfter - passed, true
	}
	return waySendAfter - passed, true
}

// withLinks returns a list in which nodes have the links of an earlier list, if netmaster does not know any: they
// have not connected since it started.
func withLinks(infos, before []policy.NodeInfo) []policy.NodeInfo {
	known := make(map[string]*policy.Links, len(before))
	for i := range before {
		known[before[i].Name] = before[i].Links
	}
	out := slices.Clone(infos)
	for i := range out {
		if out[i].Links == nil {
			out[i].Links = known[out[i].Name]
		}
	}
	return out
}

// ways are the passages to all other nodes by name.
type ways map[string]passage

// settledWays returns the ways of a list of nodes that is not new.
func settledWays(self string, infos []policy.NodeInfo) ways {
	w := ways{}
	me, others := split(self, infos)
	for i := range others {
		w[others[i].Name] = passage{way: policy.WayBetween(&me, &others[i])}
	}
	return w
}

// updated returns the ways of a list of nodes. To a node that is new a tunnel leads first: it may not know yet that
// this node routes to it.
func (w ways) updated(self string, infos []policy.NodeInfo, now time.Time) ways {
	next := settledWays(self, infos)
	for name, p := range next {
		before, known := w[name]
		switch {
		case known && before.way == p.way:
			next[name] = before
		case known && before.sendsOld(now): // the other end may know nothing of that change
			next[name] = passage{p.way, now.Add(-waySendAfter)}
		case known || p.way == policy.WayRoute:
			next[name] = passage{p.way, now}
		}
	}
	return next
}

// at returns the ways that apply to all nodes.
func (w ways) at(now time.Time) map[string]hostnet.PeerWay {
	out := make(map[string]hostnet.PeerWay, len(w))
	for name, p := range w {
		out[name] = p.at(now)
	}
	return out
}

// wayChanging counts nodes to which the way is changing, besides policy.WayRoute and policy.WayGeneve.
const wayChanging = "changing"

// count returns the number of nodes by the way to them.
func (w ways) count(now time.Time) map[string]int {
	out := map[string]int{string(policy.WayRoute): 0, string(policy.WayGeneve): 0, wayChanging: 0}
	for _, p := range w {
		if _, changes := p.due(now); changes {
			out[wayChanging]++
		} else {
			out[string(p.way)]++
		}
	}
	return out
}

// due returns how long the ways that apply stay as they are, at most a time.
func (w ways) due(now time.Time, most time.Duration) time.Duration {
	for _, p := range w {
		if d, changes := p.due(now); changes {
			most = min(most, d)
		}
	}
	return most
}

// sendByBoth returns the ways for the time in which the node's stack changes from some to others. The switch gives
// packets to the stack only for nodes to which it has a route before and after, and accepts all that either accepts.
func sendByBoth(before, after map[string]hostnet.PeerWay) map[string]hostnet.PeerWay {
	out := maps.Clone(after)
	for name, a := range after {
		b := before[name]
		out[name] = hostnet.PeerWay{
			Routed: a.Routed && b.Routed,
			Bare:   a.Bare || b.Bare,
			Closed: a.Closed && b.Closed,
		}
	}
	return out
}

// withoutRoute returns the ways of what the switch sends: not by the stack where this has no route, if the other node
// accepts packets from the tunnel. To a node that does not, the stack discards them, unless the network has a route.
func withoutRoute(w map[string]hostnet.PeerWay, left []hostnet.Left) map[string]hostnet.PeerWay {
	out := maps.Clone(w)
	for _, l := range left {
		if way, ok := out[l.Node]; ok && !way.Closed {
			way.Routed = false
			out[l.Node] = way
		}
	}
	return out
}

// restoredWays returns the ways of the list of nodes on disk; nil if the traffic mode is not auto.
func (nc *nodeConfig) restoredWays() ways {
	if nc.a.cfg.TrafficMode != TrafficAuto {
		return nil
	}
	return settledWays(nc.a.cfg.Node, nc.a.rules.nodes)
}

// announcedLinks returns the links for the first hello; nil in traffic mode geneve, in which no other node may route
// to this one.
func (nc *nodeConfig) announcedLinks() (*policy.Links, error) {
	if nc.a.cfg.TrafficMode == TrafficGeneve {
		return nil, nil
	}
	return onLink(nc.self().Addresses)
}

// onLink returns the segments of the node that hold one of the addresses, or all with none.
func onLink(addresses []netip.Addr) (*policy.Links, error) {
	links, err := rtnl.ReadLinks()
	if err != nil {
		return nil, err
	}
	return hostnet.OnLink(links, addresses)
}

func (r *runner) newHostKeeper() *hostKeeper {
	h := &hostKeeper{
		runner:    r,
		changed:   make(chan struct{}, 1),
		ways:      r.node.restoredWays(),
		deletions: make(chan hostnet.Config, 1),
	}
	h.wanted = h.ways.at(time.Now())
	h.sent = h.wanted
	return h
}
