package verdicts

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// fragment is a piece of a datagram as a pod sends it.
func fragment(from, to int, six bool, port uint16, id uint32, piece, pieces int) fake.Packet {
	p := fake.IP(policytest.Address(from, six), policytest.Address(to, six), 6, port)
	p.FragID, p.Piece, p.Pieces = id, piece, pieces
	return p
}

// arrivals counts the fragments that leave to a pod's port, first and later, by the datagram's id.
func (b *bridge) arrivals(to int, six bool, r *fake.Result, firsts, laters map[uint32]int) {
	port, _ := b.port(policytest.Address(to, six), true)
	for _, o := range r.Outputs {
		switch {
		case o.Port != port || o.Packet.Pieces == 0:
		case o.Packet.Piece == 0:
			firsts[o.Packet.FragID]++
		default:
			laters[o.Packet.FragID]++
		}
	}
}

// TestFragmentsPassWithTheirFirst: whole where the first is allowed and none where it is not, in any order, of new connections
// and of established ones, in both directions; whatever a dry run says.
func TestFragmentsPassWithTheirFirst(t *testing.T) {
	dry := &policy.Policy{Namespace: "ns", Name: "dry", IsolatesIngress: true, IsolatesEgress: true, DryRun: true}
	for _, six := range []bool{false, true} {
		for seed := range uint64(20) {
			order := rand.New(rand.NewPCG(seed, 0)).Perm(5)
			for port, want := range map[uint16]int{80: 5, 81: 0} {
				b := three(t, slices.Concat([]*policy.Policy{lets("0", "1")}, []*policy.Policy{dry}[:seed%2])...)
				for round := range uint32(3) {
					firsts, laters := map[uint32]int{}, map[uint32]int{}
					for _, i := range order {
						_, r := b.send(fragment(0, 1, six, port, round, i, 5))
						b.arrivals(1, six, r, firsts, laters)
					}
					for _, i := range order {
						if want > 0 {
							_, r := b.send(fragment(0, 1, six, port, 100+round, i, 5).Reply())
							b.arrivals(0, six, r, firsts, laters)
						}
					}
					for _, id := range []uint32{round, 100 + round} {
						if got := firsts[id] + laters[id]; got != want {
							t.Errorf("%sIPv6 %v, port %d, round %d, order %v: %d of %d fragments passed",
								leak(got > want), six, port, id, order, got, want)
						}
					}
				}
				b.sw.GiveUp()
				b.expect(tcpBetween(0, 1), true, "others are given up then, and go nowhere")
				if b.sw.Held() != 0 {
					t.Errorf("%d fragments are held for ever", b.sw.Held())
				}
			}
		}
	}
}

// TestLargeDatagramsPass: of more fragments than leave conntrack at once, the rest leave with whatever comes next.
func TestLargeDatagramsPass(t *testing.T) {
	for port, want := range map[uint16]int{80: 7, 81: 0} {
		b := three(t, lets("0", "1"))
		b.sw.Batch = 4
		firsts, laters := map[uint32]int{}, map[uint32]int{}
		for i := range 7 {
			_, r := b.send(fragment(0, 1, false, port, 1, i, 7))
			b.arrivals(1, false, r, firsts, laters)
		}
		for range 3 {
			_, r := b.send(tcpBetween(2, 0))
			b.arrivals(1, false, r, firsts, laters)
		}
		if got := firsts[1] + laters[1]; got != want {
			t.Errorf("%sport %d: %d fragments arrived, want %d", leak(got > want), port, got, want)
		}
	}
}

// destinations are the Ethernet addresses that mean something to the flows: a pod can send them too.
func (b *bridge) destinations() []ofctl.MAC {
	seen := map[ofctl.MAC]bool{config.Gateway.MAC: true}
	for _, f := range b.compiler.Flows() {
		seen[f.Match.EthDst] = true
		for _, a := range f.Actions {
			seen[a.MAC] = true
		}
	}
	return slices.SortedFunc(maps.Keys(seen), func(x, y ofctl.MAC) int { return bytes.Compare(x[:], y[:]) })
}

// results are what a switch did with packets. They are written only where a test fails: texts of thousands of packets
// take longer than the packets.
type results []fmt.Stringer

func (all results) String() string {
	var b strings.Builder
	for _, r := range all {
		b.WriteString(r.String())
	}
	return b.String()
}

// TestNoFragmentWithoutItsFirst: whatever pods send, in whatever order, under whatever registers fragments leave conntrack: a first
// one leaves only if it is allowed, and a later one only if a first of the same id, from the same pod, was. Pod 2 may do nothing,
// and sends with the addresses, ids and connections of its own only.
func TestNoFragmentWithoutItsFirst(t *testing.T) {
	passed := 0
	for seed := range uint64(200) {
		g := rand.New(rand.NewPCG(seed, 1))
		b := three(t, lets("0", "1"))
		b.sw.Batch = 1 + g.IntN(4)
		forged := b.destinations()
		allowed, log := map[string]bool{}, results{}
		for range 200 {
			from, port, six := 2*g.IntN(2), uint16(80+g.IntN(2)), g.IntN(4) == 0
			p := fragment(from, 1, six, port, uint32(g.IntN(3)), g.IntN(3), 3)
			if g.IntN(4) == 0 {
				p.Pieces = 0
			}
			if g.IntN(30) == 0 {
				b.sw.GiveUp()
			}
			in, mac := b.port(p.Src, false)
			p.EthSrc, p.EthDst = mac, config.Gateway.MAC
			if g.IntN(4) == 0 {
				p.EthDst = forged[g.IntN(len(forged))]
			}
			if p.Pieces > 0 && p.Piece == 0 && from == 0 && port == 80 && p.EthDst == config.Gateway.MAC {
				allowed[fmt.Sprint(p.Src, p.FragID)] = true
			}
			r := b.sw.Inject(in, p)
			log = append(log, r)
			for _, o := range r.Outputs {
				q := o.Packet
				switch first := q.Piece == 0 || q.Pieces == 0; {
				case first && (q.DstPort != 80 || q.Src != policytest.Address(0, q.Src.Is6())):
					t.Fatalf("%sseed %d: denied, and left: %s\n%s", leak(true), seed, &q, log)
				case !first && !allowed[fmt.Sprint(q.Src, q.FragID)]:
					t.Fatalf("%sseed %d: without an allowed first, and left: %s, piece %d of %d\n%s",
						leak(true), seed, &q, q.Piece, q.FragID, log)
				case !first:
					passed++
				}
			}
		}
	}
	if passed < 100 {
		t.Errorf("only %d later fragments passed: nothing was shown", passed)
	}
}
