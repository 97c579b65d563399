package fake

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
)

// visit is where a packet goes on after conntrack, and with what: Open vSwitch's recirc_id. Zero: it was not there yet.
type visit struct {
	table          uint8
	inPort         uint32
	regs           [ofctl.NumRegs]uint32
	tunSrc, tunDst netip.Addr
}

func visitOf(a *ofctl.Action, st *state) visit {
	return visit{a.Table, st.inPort, st.regs, st.TunSrc, st.TunDst}
}

// heldKey identifies the datagram that a fragment belongs to (Open vSwitch 3.1, lib/ipf.c).
type heldKey struct {
	src, dst netip.Addr
	proto    uint8 // IPv4
	id       uint32
	zone     uint16
	back     visit
}

// fragment returns the packet's ip_frag (ovs-fields(7)).
func (p *Packet) fragment() uint8 {
	switch {
	case p.Pieces < 2:
		return 0
	case p.Piece == 0:
		return ofctl.FragAny
	}
	return ofctl.FragAny | ofctl.FragLater
}

// hold keeps a fragment until its datagram is whole, then tracks this and lets the fragments leave; a second of one
// place is found invalid.
func (s *Switch) hold(a *ofctl.Action, st *state, r *Result) {
	k := heldKey{st.Src, st.Dst, st.Proto, st.FragID, a.Zone, st.back}
	if st.Src.Is6() {
		k.proto = 0
	}
	set := s.held[k]
	if set == nil {
		set = map[int]*state{}
		s.held[k] = set
	}
	if set[st.Piece] != nil {
		return
	}
	mine := *st
	set[st.Piece] = &mine
	if set[0] != nil && len(set) == set[0].Pieces {
		delete(s.held, k)
		s.trackTogether(a, set)
	}
	s.leave(a, st, r)
}

func (s *Switch) trackTogether(a *ofctl.Action, set map[int]*state) {
	first := set[0].Packet
	found := s.conntrack.visit(a, &first)
	for i := range len(set) {
		set[i].ct = found
		s.whole = append(s.whole, set[i])
	}
}

// leave sends fragments on that are whole, from where this packet's visit leads and with what is noted of this packet.
func (s *Switch) leave(a *ofctl.Action, st *state, r *Result) {
	n := len(s.whole)
	if s.Batch > 0 {
		n = min(n, s.Batch)
	}
	going := s.whole[:n:n]
	s.whole = slices.Clone(s.whole[n:])
	for _, f := range going {
		again := *f
		again.place = st.place
		again.back = visitOf(a, st)
		s.run(&again, a.Table, r)
	}
}

// GiveUp ends the wait for what is held: it leaves with the next packets, as invalid.
func (s *Switch) GiveUp() {
	for k, set := range s.held {
		delete(s.held, k)
		for _, f := range set {
			f.ct = tracking{state: ofctl.CtInv}
			s.whole = append(s.whole, f)
		}
	}
}

// Held returns the number of fragments that wait for the rest of their datagram.
func (s *Switch) Held() (n int) {
	for _, set := range s.held {
		n += len(set)
	}
	return n
}
