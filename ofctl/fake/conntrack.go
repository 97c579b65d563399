package fake

import "github.com/flowkeep/flowkeep/ofctl"

// connection is one that was committed.
type connection struct {
	original Tuple
	mark     uint32
	answered bool // packets were seen both ways
}

// conntrack finds connections by the tuples of both directions.
type conntrack map[zoned]*connection

type zoned struct {
	zone uint16
	Tuple
}

// tracking is the conntrack state of a packet.
type tracking struct {
	state    uint32
	zone     uint16
	mark     uint32
	original Tuple
}

// look returns the conntrack state of a packet in a zone (ovs-fields(7), ct_state).
func (c conntrack) look(zone uint16, p *Packet) tracking {
	t := p.tuple()
	if p.Inner != nil {
		return c.related(zone, *p.Inner)
	}
	conn := c[zoned{zone, t}]
	if conn == nil {
		state := ofctl.CtTrk | ofctl.CtNew
		if p.Unasked || p.isEchoReply() {
			state = ofctl.CtTrk | ofctl.CtInv
		}
		return tracking{state: state, zone: zone, original: t}
	}
	state := ofctl.CtTrk
	if conn.original != t {
		conn.answered = true
		state |= ofctl.CtRpl
	}
	if conn.answered {
		state |= ofctl.CtEst
	} else {
		state |= ofctl.CtNew
	}
	return tracking{state: state, zone: zone, mark: conn.mark, original: conn.original}
}

// related returns the conntrack state of an ICMP error with this inner tuple. The error travels against the inner
// packet.
func (c conntrack) related(zone uint16, inner Tuple) tracking {
	conn := c[zoned{zone, inner}]
	if conn == nil {
		return tracking{state: ofctl.CtTrk | ofctl.CtInv, zone: zone}
	}
	state := ofctl.CtTrk | ofctl.CtRel
	if conn.original == inner {
		state |= ofctl.CtRpl
	}
	return tracking{state: state, zone: zone, mark: conn.mark, original: conn.original}
}

func (p *Packet) isEchoReply() bool {
	return p.Proto == icmp && p.ICMPType == 0 || p.Proto == icmpv6 && p.ICMPType == 129
}

// visit looks the packet up, and commits where the action says so.
func (c conntrack) visit(a *ofctl.Action, p *Packet) tracking {
	found := c.look(a.Zone, p)
	if !a.Commit || found.state&ofctl.CtInv != 0 {
		return found
	}
	if a.Force && found.state&ofctl.CtRpl != 0 {
		c.remove(a.Zone, p.tuple())
		found = c.look(a.Zone, p)
	}
	c.commit(a, p)
	found.mark = found.mark&^a.Mask | a.Value&a.Mask
	return found
}

func (c conntrack) remove(zone uint16, t Tuple) {
	delete(c, zoned{zone, t})
	delete(c, zoned{zone, t.reversed()})
}

// commit keeps a new connection, or changes the mark of one that is there.
func (c conntrack) commit(a *ofctl.Action, p *Packet) {
	t := p.tuple()
	conn := c[zoned{a.Zone, t}]
	if conn == nil {
		if p.Inner != nil || p.Unasked {
			return
		}
		conn = &connection{original: t}
		c[zoned{a.Zone, t}], c[zoned{a.Zone, t.reversed()}] = conn, conn
	}
	conn.mark = conn.mark&^a.Mask | a.Value&a.Mask
}

// Flush forgets the connections of a zone that are between these addresses, in either direction.
func (s *Switch) Flush(zone uint16, t Tuple) { s.conntrack.remove(zone, t) }

// Connections returns the number of connections in a zone.
func (s *Switch) Connections(zone uint16) int {
	n := 0
	for k, conn := range s.conntrack {
		if k.zone == zone && k.Tuple == conn.original {
			n++
		}
	}
	return n
}
