// Package follow finds the ways of packets through the cluster in what nodes have seen of them. A packet is known again by what neither
// stacks nor address translation nor tunnels change (inspect.SeenPacket.Identity), so that nothing is done to it. Pure: without clock,
// lock and I/O.
package follow

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// End is a pod, a node, or, where it has neither name, somebody outside.
type End struct {
	Pod       string // namespace/name
	Node      string
	Addresses []netip.Addr
}

// Ends are whom packets are between.
type Ends struct {
	From End
	// Aliases are addresses that nodes put in place of From's.
	Aliases []netip.Addr
	// To are who may get them.
	To []End
	// Virtual are addresses that nodes translate to one of To's.
	Virtual []netip.Addr
}

// Way is a packet's.
type Way struct {
	Back bool // from To to From
	// Hops are in the order of travel: by time on a node, and by the path from one to the next, for clocks differ.
	Hops []inspect.Hop
	// Alike: others are the same in all that can be compared, and some of them were seen at fewer places: which is which is not known. Or
	// it ends where another, the same but for its sender's port, begins by an alias: it may have been given that port.
	Alike bool
}

// Join puts together what was seen, in any order. Ways are in the order in which From sent them as far as it is
// known; those that only To's node saw come last.
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
	translated := map[key]bool{} // by identity and direction: some came from somewhere with an alias
	for _, k := range order {
		apart := e.apart(k.back, groups[k])
		if k.port != 0 && slices.ContainsFunc(apart, e.goesOn) {
			translated[key{back: k.back, identity: k.identity}] = true
		}
		ways = append(ways, apart...)
	}
	for i := range ways {
		first := &ways[i].Hops[0]
		if !first.Strong && translated[key{back: ways[i].Back, identity: first.Identity}] && e.Started(&ways[i]) && !e.Arrived(&ways[i]) {
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

// key is of sightings that are of one packet, or of several that are alike.
type key struct {
	back     bool
	identity string
	port     uint16 // at From, where the identity alone does not do
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
	return (slices.Contains(e.From.Addresses, from) || slices.Contains(e.Aliases, from)) && (e.At(to) != nil || slices.Contains(e.Virtual, to))
}

// At is which of To has an address; nil: none.
func (e *Ends) At(a netip.Addr) *End {
	for i := range e.To {
		if slices.Contains(e.To[i].Addresses, a) {
			return &e.To[i]
		}
	}
	return nil
}

// spot is where a packet passes once.
type spot struct {
	node, ifName     string
	sent             bool
	src, dst         netip.Addr
	srcPort, dstPort uint16
}

func spotOf(h *inspect.Hop) spot {
	return spot{h.Node, h.Interface, h.Sent, h.Src, h.Dst, h.SrcPort, h.DstPort}
}

// apart takes those apart that are alike: the first at each spot are one, the second, and so on, as long as none overtakes another.
func (e *Ends) apart(back bool, hops []inspect.Hop) (ways []Way) {
	slices.SortStableFunc(hops, func(a, b inspect.Hop) int { return a.Time.Compare(b.Time) }) // nodes are not compared below
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

// rank is in the order of a node on the way from From to To.
func (e *Ends) rank(node string) int {
	switch {
	case node == e.From.Node:
		return 0
	case slices.ContainsFunc(e.To, func(to End) bool { return to.Node == node }):
		return 2
	}
	return 1
}

// goesOn tells whether a way begins where an alias was put in place of From, perhaps with another port.
func (e *Ends) goesOn(w Way) bool {
	from := w.Hops[0].Src
	if w.Back {
		from = w.Hops[0].Dst
	}
	return slices.Contains(e.Aliases, from) && !e.Started(&w)
}

// arrange puts hops in the order of travel.
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

// follows tells whether b is where the network takes what a node sends.
func follows(a, b *inspect.Hop) bool {
	return a.Node != b.Node && toNetwork(a) && fromNetwork(b) && a.Src == b.Src && a.Dst == b.Dst && a.SrcPort == b.SrcPort && a.DstPort == b.DstPort
}

func toNetwork(h *inspect.Hop) bool {
	return h.Sent && (h.Place == inspect.PlaceOther || h.Place == inspect.PlaceTunnel)
}

func fromNetwork(h *inspect.Hop) bool {
	return !h.Sent && (h.Place == inspect.PlaceOther || h.Place == inspect.PlaceTunnel)
}

// stays are what each node saw from when the packet came until it left for the network.
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

// since fills in After.
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
