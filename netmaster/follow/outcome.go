package follow

import (
	"net/netip"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// TCP flags.
const (
	fin = 1 << iota
	syn
	rst
	_
	ack
)

const (
	icmp   = 1
	tcp    = 6
	icmpv6 = 58
)

// Last returns the last hop.
func (w *Way) Last() *inspect.Hop { return &w.Hops[len(w.Hops)-1] }

// Started reports whether the way begins where its sender sends, so that no part of it was missed.
func (e *Ends) Started(w *Way) bool { return e.starts(w.Back, &w.Hops[0]) }

func (e *Ends) starts(back bool, first *inspect.Hop) bool {
	from := &e.From
	if back {
		if from = e.At(first.Src); from == nil {
			return false
		}
	}
	switch {
	case from.Pod != "":
		return first.Place == inspect.PlacePod && first.Pod == from.Pod && !first.Sent
	case from.Node != "":
		return first.Node == from.Node && first.Sent
	}
	return fromNetwork(first)
}

// Arrived reports whether the way ends at its receiver or, for a receiver outside, where it leaves the last node.
func (e *Ends) Arrived(w *Way) bool {
	last := w.Last()
	to := e.At(last.Dst)
	if w.Back {
		to = nil
		if contains(e.From.Addresses, last.Dst) {
			to = &e.From
		}
	}
	switch {
	case to == nil:
		return w.Back && e.From.Pod == "" && e.From.Node == "" && toNetwork(last)
	case to.Pod != "":
		return last.Place == inspect.PlacePod && last.Pod == to.Pod && last.Sent
	case to.Node != "":
		return last.Node == to.Node && !last.Sent && last.Place != inspect.PlacePod
	}
	return toNetwork(last)
}

func contains(list []netip.Addr, a netip.Addr) bool {
	for _, v := range list {
		if v == a {
			return true
		}
	}
	return false
}

// Opens returns +1 if a packet can only be from the client of a connection, -1 if only from the server, 0 otherwise.
func Opens(p *inspect.SeenPacket) int {
	switch {
	case p.Protocol == tcp && p.Flags&(syn|ack) == syn:
		return 1
	case p.Protocol == tcp && p.Flags&(syn|ack) == syn|ack:
		return -1
	case isICMP(p) && p.SrcPort != 0:
		return 1
	case isICMP(p) && p.DstPort != 0:
		return -1
	}
	return 0
}

func isICMP(p *inspect.SeenPacket) bool { return p.Protocol == icmp || p.Protocol == icmpv6 }

// AsksForAnswer reports whether a response is expected.
func AsksForAnswer(p *inspect.SeenPacket) bool {
	switch {
	case p.Protocol == tcp:
		return p.Flags&rst == 0 && (p.Flags&(syn|fin) != 0 || p.Length > 0)
	case isICMP(p):
		return p.SrcPort != 0
	}
	return true
}

// Answers reports whether b, in the opposite direction, passed a node after f and responds to it.
func Answers(f, b *Way) bool {
	if f.Back == b.Back {
		return false
	}
	asked, answer := &f.Hops[0].SeenPacket, &b.Hops[0].SeenPacket
	switch {
	case asked.Protocol != answer.Protocol:
		return false
	case asked.Protocol == tcp && answer.Flags&ack != 0:
		end := asked.Seq + uint32(asked.Length)
		for _, bit := range []byte{syn, fin} {
			if asked.Flags&bit != 0 {
				end++
			}
		}
		if int32(answer.Ack-end) < 0 {
			return false
		}
	case asked.Protocol == tcp && (answer.Flags&rst == 0 || answer.Seq != asked.Ack):
		return false
	case isICMP(asked) && (asked.SrcPort == 0 || asked.Seq != answer.Seq):
		return false
	}
	return meet(f, b)
}

// meet reports whether b passed a node of f later, with the ends exchanged.
func meet(f, b *Way) bool {
	for i := range f.Hops {
		there := &f.Hops[i]
		for j := range b.Hops {
			back := &b.Hops[j]
			if there.Node == back.Node && back.Time.After(there.Time) && there.Src == back.Dst &&
				there.Dst == back.Src &&
				there.SrcPort == back.DstPort &&
				there.DstPort == back.SrcPort {
				return true
			}
		}
	}
	return false
}

// Recut reports whether a TCP packet continues in other packets, as segmentation offload splits and joins packets.
// These have no start of their own.
func (e *Ends) Recut(w *Way, all []Way) bool {
	first := &w.Hops[0].SeenPacket
	if first.Protocol != tcp || first.Length == 0 {
		return false
	}
	for i := range all {
		other := &all[i].Hops[0].SeenPacket
		if all[i].Back == w.Back && other.Protocol == tcp && first.Seq-other.Seq < uint32(other.Length) &&
			!e.Started(&all[i]) {
			return true
		}
	}
	return false
}

// Error returns a later ICMP error about the packet; nil if there is none.
func (w *Way) Error(seen []inspect.Hop) *inspect.Hop {
	for i := range seen {
		about := seen[i].About
		for j := range w.Hops {
			h := &w.Hops[j]
			if about != nil && seen[i].Node == h.Node && seen[i].Time.After(h.Time) && about.Protocol == h.Protocol &&
				about.Src == h.Src &&
				about.Dst == h.Dst &&
				about.SrcPort == h.SrcPort &&
				about.DstPort == h.DstPort {
				return &seen[i]
			}
		}
	}
	return nil
}

// Resets reports whether a response is a reset from the network stack that the packet entered at its last hop.
func Resets(answer *Way, last *inspect.Hop) bool {
	if len(answer.Hops) == 0 || Behind(last) != Stack {
		return false
	}
	first := &answer.Hops[0]
	return first.Protocol == tcp && first.Flags&rst != 0 && first.Node == last.Node &&
		first.Place != inspect.PlacePod &&
		first.Sent
}

// Part is a part of the cluster.
type Part int

// Parts of the cluster.
const (
	Switch  Part = iota // of the hop's node
	Stack               // of the hop's node: routes, nftables, kube-proxy
	Network             // behind the hop's node
	Other               // a pod that is not the receiver
)

// Behind returns the part that received a packet after its last sighting at a hop.
func Behind(h *inspect.Hop) Part {
	switch h.Place {
	case inspect.PlacePod:
		if h.Sent {
			return Other
		}
		return Switch
	case inspect.PlaceGateway, inspect.PlaceWire:
		if h.Sent {
			return Switch
		}
		return Stack
	case inspect.PlaceTunnel:
		if !h.Sent {
			return Switch
		}
		return Network
	}
	if h.Sent {
		return Network
	}
	return Stack
}
