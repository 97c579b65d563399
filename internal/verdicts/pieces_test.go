package verdicts

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// fragmented is a UDP datagram that is sent in fragments.
type fragmented struct {
	from   int // the pod that sends it
	dst    netip.Addr
	port   uint16
	pieces int
	id     uint16
}

// fragments returns the datagram's frames.
func (b *bridge) fragments(d fragmented) (frames [][]byte) {
	b.t.Helper()
	src, size := policytest.Address(d.from, d.dst.Is6()), d.pieces*pieceSize
	whole := make([]byte, size)
	binary.BigEndian.PutUint16(whole, 1024)
	binary.BigEndian.PutUint16(whole[2:], d.port)
	binary.BigEndian.PutUint16(whole[4:], uint16(size))
	binary.BigEndian.PutUint16(whole[6:], checksum(append(pseudo(src, d.dst, protoUDP, size), whole...)))
	for at := 0; at < size; at += pieceSize {
		offset := uint16(at / 8)
		more := at+pieceSize < size
		frames = append(frames, b.frameOf(d, src, offset, more, whole[at:at+pieceSize]))
	}
	return frames
}

func (b *bridge) frameOf(d fragmented, src netip.Addr, offset uint16, more bool, payload []byte) []byte {
	b.t.Helper()
	mac := b.locals[d.from].MAC
	if src.Is4() {
		if more {
			offset |= 1 << 13
		}
		packet := ipv4Packet(src, d.dst, protoUDP, d.id, offset, payload)
		return ethernet(config.Gateway.MAC[:], mac[:], ofctl.EtherIPv4, packet)
	}
	offset <<= 3
	if more {
		offset |= 1
	}
	header := binary.BigEndian.AppendUint16([]byte{protoUDP, 0}, offset)
	header = binary.BigEndian.AppendUint32(header, uint32(d.id))
	packet := ipPacket(src, d.dst, protoFragment, append(header, payload...))
	binary.BigEndian.PutUint16(packet[2:], d.id) // numberOf
	return ethernet(config.Gateway.MAC[:], mac[:], ofctl.EtherIPv6, packet)
}

// come returns how many fragments of a datagram come out of a port. Where they are to pass it waits for all of them,
// else as long as for any packet that is denied, and counts those of all ports. Other packets visit conntrack meanwhile: what is held leaves with them.
// Fragments of an earlier denied datagram fail the test when they come out late.
func (b *bridge) come(d fragmented, frames [][]byte, port uint32, pass bool) (got int) {
	b.t.Helper()
	for _, f := range frames {
		must(b.t, unix.Send(b.real.ends[b.locals[d.from].Port], f, 0))
	}
	wait := b.real.patience
	switch {
	case pass && b.real.missed:
		wait *= 20
	case pass:
		wait = comes
	}
	b.real.kept[d.id] = false
	late, others := time.After(wait), time.NewTicker(10*time.Millisecond)
	defer others.Stop()
	for !pass || got < len(frames) {
		select {
		case a := <-b.real.arrived:
			if a.number == d.id && (a.port == port || !pass) {
				got++
			}
			b.real.expectDropped(b.t, a)
		case <-others.C:
			other := &b.locals[2]
			p := ported(policytest.Address(2, false), netip.MustParseAddr("192.0.2.9"), protoUDP, 1, 2, 0)
			must(b.t, unix.Send(b.real.ends[other.Port], ethernet(config.Gateway.MAC[:], other.MAC[:], ofctl.EtherIPv4, p), 0))
		case <-late:
			b.real.missed, b.real.kept[d.id] = b.real.missed || pass, !pass
			return got
		}
	}
	return got
}

// TestFragmentsReachServices: the fragments of a new connection visit conntrack twice in the zone of Services, and
// all go on.
func TestFragmentsReachServices(t *testing.T) {
	sw := startReal(t, "netdev")
	sw.run(t, "no policy", func(t testing.TB) {
		b := three(t)
		sw.settle(t)
		for i, pieces := range []int{2, 3, 20} {
			d := fragmented{dst: netip.MustParseAddr("10.96.7.7"), port: 53, pieces: pieces, id: uint16(7000 + i)}
			if got := b.come(d, b.fragments(d), gatewayPort, true); got != pieces {
				t.Errorf("%d of %d fragments have come out", got, pieces)
			}
		}
	})
}

// TestUserspaceDatapathFragments and TestKernelDatapathFragments: fragments pass where a rule names the port that the
// first of them has, in any order, and nowhere else, also where a rule names no port. A real switch decides, because
// Open vSwitch shows flows no ports of fragments unless the controller requests it.
func TestUserspaceDatapathFragments(t *testing.T) { fragmentsByPort(t, "netdev") }

func TestKernelDatapathFragments(t *testing.T) {
	ovstest.NeedKernelDatapath(t)
	fragmentsByPort(t, "system")
}

func fragmentsByPort(t *testing.T, datapath string) {
	sw := startReal(t, datapath)
	ingress, egress := allows("0", "1"), allowsTo("0", "1")
	anyPort := allows("0", "1")
	anyPort.Ingress[0].Ports, anyPort.Ingress[0].AnyPort = nil, true
	id := uint16(7000)
	for _, c := range []struct {
		name     string
		policies []*policy.Policy
		open     map[uint16]bool
	}{
		{"no policy", nil, map[uint16]bool{53: true, 54: true}},
		{"a port of ingress", []*policy.Policy{ingress}, map[uint16]bool{53: true, 54: false}},
		{"a port of egress", []*policy.Policy{egress}, map[uint16]bool{53: true, 54: false}},
		{"a port of both", []*policy.Policy{ingress, egress}, map[uint16]bool{53: true, 54: false}},
		{"any port", []*policy.Policy{anyPort}, map[uint16]bool{53: true, 54: true}},
		{"nothing is allowed", []*policy.Policy{silent("0")}, map[uint16]bool{53: false, 54: false}},
	} {
		sw.run(t, c.name, func(t testing.TB) {
			b := three(t, c.policies...)
			sw.settle(t)
			for _, six := range []bool{false, true} {
				for port, open := range c.open {
					for _, pieces := range []int{2, 3, 20} {
						for _, reversed := range []bool{false, true} {
							id++
							d := fragmented{dst: policytest.Address(1, six), port: port, pieces: pieces, id: id}
							b.expectFragments(d, reversed, open)
						}
					}
				}
			}
		})
	}
}

// expectFragments sends a datagram, and compares the number of fragments that come out.
func (b *bridge) expectFragments(d fragmented, reversed, open bool) {
	b.t.Helper()
	frames, want := b.fragments(d), 0
	if open {
		want = d.pieces
	}
	if reversed {
		slices.Reverse(frames)
	}
	if got := b.come(d, frames, b.locals[1].Port, open); got != want {
		b.t.Errorf("%sto %v port %d, reversed %v: %d of %d fragments have come out, want %d",
			leak(got > want), d.dst, d.port, reversed, got, d.pieces, want)
	}
}

// allowsTo isolates pod from for egress, and lets it reach pod to on UDP 53.
func allowsTo(from, to string) *policy.Policy {
	return &policy.Policy{Namespace: "ns", Name: "egress", AppliedTo: *labelled(from), IsolatesEgress: true,
		Egress: []policy.PolicyRule{{
			Peers: []policy.Peer{{Pods: labelled(to)}},
			Ports: []policy.PolicyPort{{Protocol: policy.UDP, First: 53, Last: 53}},
		}}}
}
