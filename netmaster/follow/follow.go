// Package follow reconstructs the ways of packets through the cluster from sightings of nodes. It recognises a
// packet by content that network stacks, address translation and tunnels do not change
// (inspect.SeenPacket.Identity), without marking it. The package is pure: it has no clock, lock or I/O.
package follow

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// End is a pod or a node; without either name it is outside the cluster.
type End struct {
	Pod       string // namespace/name
	Node      string
	Addresses []netip.Addr
}

// Ends are the ends of the packets to follow.
type Ends struct {
	From End
	// Aliases are addresses that nodes substitute for From's.
	Aliases []netip.Addr
	// To are the possible receivers.
	To []End
	// Virtual are addresses that nodes translate to one of To's.
	Virtual []netip.Addr
}

// Way is the way of one packet.
type Way struct {
	Back bool // from To to From
	// Hops are in the order of travel: by time on each node, and by path between nodes, as clocks differ.
	Hops []inspect.Hop
	// Alike reports that the way is ambiguous: other packets have equal content and fewer sightings, or the way ends
	// where another begins with an alias and a different source port.
	Alike bool
}

// Join joins sightings, in any order, to ways. These are in the order of sending, as far as known; ways seen only by
// To's node are last.
func (e *Ends) Join(seen []inspect.Hop) (ways []Way) {
	groups, order := map[key][]inspect.Hop{}, []key{}
	for i := range seen {
		k, ok := e.keyOf(&seen[i])
		if !ok {
			continue
		}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], seen[i])
	}
	translated := map[key]bool{} // by identity and direction: a way before an alias exists
	for _, k := range order {
		apart := e.separate(k.back, groups[k])
		if k.port != 0 && slices.ContainsFunc(apart, e.continuesOther) {
			translated[key{back: k.back, identity: k.identity}] = true
		}
		ways = append(ways, apart...)
	}
	for i := range ways {
		first := &ways[i].Hops[0]
		if !first.Strong && translated[key{back: ways[i].Back, identity: first.Identity}] && e.Started(&ways[i]) &&
			!e.Arrived(&ways[i]) {
			ways[i].Alike = true
		}
	}
	slices.SortStableFunc(ways, func(a, b Way) int {
		if a.Hops[0].Node != b.Hops[0].Node {
			return cmp.Compare(e.rank(a.Hops[0].Node), e.rank(b.Hops[0].Node))
		}
		return a.Hops[0].Time.Compare(b.Hops[0].Time)
	})
	return ways
}

// key is common to the sightings of one packet, or of indistinguishable ones.
type key struct {
	back     bool
	identity string
	port     uint16 // source port at From, if the identity is not unique
}

func (e *Ends) keyOf(h *inspect.Hop) (k key, ok bool) {
	if h.About != nil || h.Identity == "" {
		return k, false
	}
	k, port := key{identity: h.Identity}, h.SrcPort
	if !e.forward(h.Src, h.Dst) {
		if !e.forward(h.Dst, h.Src) {
			return k, false
		}
		k.back, port = true, h.DstPort
	}
	if !h.Strong {
		k.port = port
	}
	return k, true
}

func (e *Ends) forward(from, to netip.Addr) bool {
	return (slices.Contains(e.From.Addresses, from) || slices.Contains(e.Aliases, from)) &&
		(e.At(to) != nil || slices.Contains(e.Virtual, to))
}

// At returns the end in To with an address; nil if there is none.
func (e *Ends) At(a netip.Addr) *End {
	for i := range e.To {
		if slices.Contains(e.To[i].Addresses, a) {
			return &e.To[i]
		}
	}
	return nil
}

// spot identifies a place that a packet passes once.
type spot struct {
	node, ifName     string
	sent             bool
	src, dst         netip.Addr
	srcPort, dstPort uint16
}

func spotOf(h *inspect.Hop) spot {
	return spot{h.Node, h.Interface, h.Sent, h.Src, h.Dst, h.SrcPort, h.DstPort}
}

// separate separates indistinguishable packets: the first sightings at each spot form the first way, and so on. This
// assumes that packets do not overtake each other.
func (e *Ends) separate(back bool, hops []inspect.Hop) (ways []Way) {
	slices.SortStableFunc(hops,
		func(a, b inspect.Hop) int { return a.Time.Compare(b.Time) }) // order across nodes is irrelevant below
	counts := map[spot]int{}
	for i := range hops {
		at := spotOf(&hops[i])
		n := counts[at]
		if counts[at]++; n == len(ways) {
			ways = append(ways, Way{Back: back})
		}
		ways[n].Hops = append(ways[n].Hops, hops[i])
	}
	for i := range ways {
		ways[i].Hops = e.arrange(back, ways[i].Hops)
	}
	if n := counts[spotOf(&ways[0].Hops[0])]; n > 1 {
		for _, other := range counts {
			if other == n {
				continue
			}
			for i := range ways {
				ways[i].Alike = true
			}
		}
	}
	return ways
}

// rank returns the position of a node on the way from From to To.
func (e *Ends) rank(node string) int {
	switch {
	case node == e.From.Node:
		return 0
	case slices.ContainsFunc(e.To, func(to End) bool { return to.Node == node }):
		return 2
	}
	return 1
}

// continuesOther reports whether a way begins where an alias was substituted for From, possibly with another port.
func (e *Ends) continuesOther(w Way) bool {
	from := w.Hops[0].Src
	if w.Back {
		from = w.Hops[0].Dst
	}
	return slices.Contains(e.Aliases, from) && !e.Started(&w)
}

// arrange sorts hops in the order of travel.
func (e *Ends) arrange(back bool, hops []inspect.Hop) (out []inspect.Hop) {
	rank := func(node string) int {
		if back {
			return -e.rank(node)
		}
		return e.rank(node)
	}
	parts := stays(hops)
	slices.SortStableFunc(parts, func(a, b []inspect.Hop) int {
		if a[0].Node == b[0].Node {
			return a[0].Time.Compare(b[0].Time)
		}
		return cmp.Or(cmp.Compare(rank(a[0].Node), rank(b[0].Node)), cmp.Compare(a[0].Node, b[0].Node))
	})
	for len(parts) > 0 {
		next := max(0, slices.IndexFunc(parts, func(p []inspect.Hop) bool {
			if len(out) == 0 {
				return e.starts(back, &p[0])
			}
			return follows(&out[len(out)-1], &p[0])
		}))
		out = append(out, parts[next]...)
		parts = slices.Delete(parts, next, next+1)
	}
	return since(out)
}

// follows reports whether b receives from the network what a sends.
func follows(a, b *inspect.Hop) bool {
	return a.Node != b.Node && toNetwork(a) && fromNetwork(b) && a.Src == b.Src && a.Dst == b.Dst &&
		a.SrcPort == b.SrcPort &&
		a.DstPort == b.DstPort
}

func toNetwork(h *inspect.Hop) bool {
	return h.Sent && (h.Place == inspect.PlaceOther || h.Place == inspect.PlaceTunnel)
}

func fromNetwork(h *inspect.Hop) bool {
	return !h.Sent && (h.Place == inspect.PlaceOther || h.Place == inspect.PlaceTunnel)
}

// stays splits the hops of each node where the packet left for the network.
func stays(hops []inspect.Hop) (parts [][]inspect.Hop) {
	byNode := map[string][]inspect.Hop{}
	for _, h := range hops {
		byNode[h.Node] = append(byNode[h.Node], h)
	}
	for _, list := range byNode {
		slices.SortStableFunc(list, func(a, b inspect.Hop) int { return a.Time.Compare(b.Time) })
		begin := 0
		for i := 1; i < len(list); i++ {
			if toNetwork(&list[i-1]) && fromNetwork(&list[i]) {
				parts = append(parts, list[begin:i])
				begin = i
			}
		}
		parts = append(parts, list[begin:])
	}
	return parts
}

// since sets After of each hop.
func since(hops []inspect.Hop) []inspect.Hop {
	first := map[string]int{}
	for i := range hops {
		if _, seen := first[hops[i].Node]; !seen {
			first[hops[i].Node] = i
		}
		hops[i].After = hops[i].Time.Sub(hops[first[hops[i].Node]].Time)
	}
	return hops
}
