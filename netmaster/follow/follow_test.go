package follow

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
)

var (
	web, db0, db1 = netip.MustParseAddr("10.0.1.2"), netip.MustParseAddr("10.0.2.3"), netip.MustParseAddr("10.0.1.3")
	service       = netip.MustParseAddr("10.96.0.7")
	node1         = netip.MustParseAddr("192.0.2.1")
	shop          = &Ends{
		From: End{Pod: "shop/web", Node: "node1", Addresses: []netip.Addr{web}}, Aliases: []netip.Addr{node1},
		To:      []End{{Pod: "shop/db-0", Node: "node2", Addresses: []netip.Addr{db0}}, {Pod: "shop/db-1", Node: "node1", Addresses: []netip.Addr{db1}}},
		Virtual: []netip.Addr{service},
	}
)

// at is a place on a packet's way, and the ends that it has there.
type at struct {
	node     string
	place    inspect.Place
	ifName   string
	pod      string
	sent     bool
	from, to netip.Addr
	port     uint16 // of the client
}

func link(node, pod string, sent bool, from, to netip.Addr) at {
	return at{node, inspect.PlacePod, "fkp-" + pod, pod, sent, from, to, 40000}
}

func gateway(sent bool, to netip.Addr) at {
	return at{"node1", inspect.PlaceGateway, "fk-gw", "", sent, web, to, 40000}
}

// ways are those that packets go: direct and by a Service, on a node and across two, masqueraded and not.
var ways = map[string][]at{
	"one node": {link("node1", "shop/web", false, web, db1), link("node1", "shop/db-1", true, web, db1)},
	"Service, one node": {link("node1", "shop/web", false, web, service), gateway(false, service), gateway(true, db1),
		link("node1", "shop/db-1", true, web, db1)},
	"across": {link("node1", "shop/web", false, web, db0), {"node1", inspect.PlaceWire, "fk-wire", "", false, web, db0, 40000}, {"node1", inspect.PlaceOther, "eth0", "", true, web, db0, 40000},
		{"node2", inspect.PlaceOther, "eth0", "", false, web, db0, 40000}, {"node2", inspect.PlaceGateway, "fk-gw", "", true, web, db0, 40000}, link("node2", "shop/db-0", true, web, db0)},
	"Service, across, masqueraded": {link("node1", "shop/web", false, web, service), gateway(false, service), gateway(true, db0),
		{"node1", inspect.PlaceOther, "eth0", "", true, node1, db0, 61234}, {"node2", inspect.PlaceOther, "eth0", "", false, node1, db0, 61234}, {"node2", inspect.PlaceGateway, "fk-gw", "", true, node1, db0, 61234},
		{"node2", inspect.PlacePod, "fkp-shop/db-0", "shop/db-0", true, node1, db0, 61234}},
	"by tunnel": {link("node1", "shop/web", false, web, db0), {"node1", inspect.PlaceTunnel, "eth0", "", true, web, db0, 40000},
		{"node2", inspect.PlaceTunnel, "eth0", "", false, web, db0, 40000}, link("node2", "shop/db-0", true, web, db0)},
	"there and back": {link("node1", "shop/web", false, web, service), {"node1", inspect.PlaceOther, "eth0", "", true, web, service, 40000}, {"node3", inspect.PlaceOther, "eth0", "", false, web, service, 40000},
		{"node3", inspect.PlaceOther, "eth0", "", true, web, db1, 40000}, {"node1", inspect.PlaceOther, "eth0", "", false, web, db1, 40000}, link("node1", "shop/db-1", true, web, db1)},
}

// sightings are of a packet that goes so far; Text says which it is.
func sightings(name string, way []at, p inspect.SeenPacket, back bool, clock map[string]time.Time, r *rand.Rand) (list []inspect.Hop) {
	if back {
		way = slices.Clone(way)
		slices.Reverse(way)
	}
	for _, a := range way {
		clock[a.node] = clock[a.node].Add(time.Duration(1+r.IntN(50)) * time.Microsecond)
		s := inspect.Sighting{Time: clock[a.node], Interface: a.ifName, Place: a.place, Pod: a.pod, Sent: a.sent != back, SeenPacket: p}
		s.Text, s.Src, s.Dst, s.SrcPort, s.DstPort = name, a.from, a.to, a.port, 5432
		if p.SrcPort != 0 && a.port == 40000 {
			s.SrcPort = p.SrcPort
		}
		if back {
			s.Src, s.Dst, s.SrcPort, s.DstPort = s.Dst, s.Src, s.DstPort, s.SrcPort
		}
		list = append(list, inspect.Hop{Node: a.node, Sighting: s})
	}
	return list
}

// TestJoin follows many packets at once: shuffled, translated, lost on the way, retransmitted, on nodes whose clocks differ. All that is of
// one packet comes together, in the order of travel, and nothing else does.
func TestJoin(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		clock := map[string]time.Time{}
		for _, node := range []string{"node1", "node2", "node3"} {
			clock[node] = time.Unix(1e9+r.Int64N(3600), r.Int64N(1e9))
		}
		var seen []inspect.Hop
		want := map[string][]inspect.Hop{}
		for n := range 1 + r.IntN(12) {
			name := fmt.Sprint("packet ", n)
			// weak identities are shared by packets of other ports; strong ones by nobody
			p := inspect.SeenPacket{Protocol: 17, Identity: "the same", SrcPort: uint16(1000 + n)}
			way := ways[slices.Sorted(keysOf(ways))[r.IntN(len(ways))]]
			if masqueraded := slices.ContainsFunc(way, func(a at) bool { return a.port != 40000 }); masqueraded || r.IntN(2) == 0 {
				p = inspect.SeenPacket{Protocol: 6, Identity: fmt.Sprint("number ", n), Strong: true}
			}
			hops := sightings(name, way, p, r.IntN(3) == 0, clock, r)
			want[name] = hops[:1+r.IntN(len(hops))]
			seen = append(seen, want[name]...)
		}
		r.Shuffle(len(seen), func(i, j int) { seen[i], seen[j] = seen[j], seen[i] })
		noise := inspect.Hop{Node: "node1", Sighting: inspect.Sighting{SeenPacket: inspect.SeenPacket{Identity: "number 0", Strong: true, Src: netip.MustParseAddr("198.51.100.1"), Dst: db0}}}
		got := shop.Join(append(seen, noise))
		if len(got) != len(want) {
			t.Errorf("seed %d: %d packets, want %d", seed, len(got), len(want))
		}
		for _, w := range got {
			name := w.Hops[0].Text
			same := slices.EqualFunc(w.Hops, want[name], func(a, b inspect.Hop) bool {
				return a.Text == b.Text && a.Node == b.Node && a.Interface == b.Interface && a.Sent == b.Sent && a.Dst == b.Dst
			})
			if !same || w.Alike || w.Hops[0].After != 0 {
				t.Errorf("seed %d: %s\n got %v\nwant %v", seed, name, places(w.Hops), places(want[name]))
			}
		}
		if t.Failed() {
			return
		}
	}
}

func keysOf[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func places(hops []inspect.Hop) (list []string) {
	for i := range hops {
		list = append(list, fmt.Sprintf("%s %s %s %v", hops[i].Text, hops[i].Node, hops[i].Interface, hops[i].Sent))
	}
	return list
}

// Packets that nothing tells apart are told apart by their order where all of them arrive, and said to be alike where not.
func TestJoin_IndistinguishablePackets(t *testing.T) {
	for _, lost := range []bool{false, true} {
		r, clock := rand.New(rand.NewPCG(1, 1)), map[string]time.Time{"node2": time.Unix(5, 0)}
		p := inspect.SeenPacket{Protocol: 17, Identity: "hello"}
		var seen []inspect.Hop
		for n := range 3 {
			hops := sightings(fmt.Sprint(n), ways["across"], p, false, clock, r)
			if lost && n == 1 {
				hops = hops[:3]
			}
			seen = append(seen, hops...)
		}
		got := shop.Join(seen)
		if len(got) != 3 {
			t.Fatalf("%d packets", len(got))
		}
		for i, w := range got {
			if w.Alike != lost || !lost && (w.Last().Text != fmt.Sprint(i) || w.Hops[0].Text != fmt.Sprint(i)) {
				t.Errorf("lost: %v, packet %d is alike: %v, %v", lost, i, w.Alike, places(w.Hops))
			}
		}
	}
}

// Where translation may have given a packet another port, and only the port tells it from others, it is not said to end there.
func TestJoin_SourcePortTranslated(t *testing.T) {
	for _, strong := range []bool{false, true} {
		for _, n := range []int{3, 7} { // of its places: lost where it is translated, and not
			p := inspect.SeenPacket{Protocol: 17, Identity: "hello", Strong: strong}
			hops := sightings("", ways["Service, across, masqueraded"], p, false, map[string]time.Time{}, rand.New(rand.NewPCG(1, 1)))[:n]
			if w := shop.Join(hops)[0]; w.Alike != (!strong && n > 3) || !shop.Started(&w) {
				t.Errorf("strong: %v, %d places: alike: %v, %v", strong, n, w.Alike, places(w.Hops))
			}
		}
	}
}

func TestStartedAndArrived(t *testing.T) {
	for name, way := range ways {
		for _, back := range []bool{false, true} {
			hops := sightings(name, way, inspect.SeenPacket{Protocol: 6, Identity: name, Strong: true}, back, map[string]time.Time{}, rand.New(rand.NewPCG(1, 1)))
			for n := 1; n <= len(hops); n++ {
				w := shop.Join(slices.Clone(hops[:n]))[0]
				if got, want := shop.Arrived(&w), n == len(hops); got != want || !shop.Started(&w) || w.Back != back {
					t.Errorf("%s, back: %v, %d of %d places: arrived: %v, started: %v", name, back, n, len(hops), got, shop.Started(&w))
				}
				if n > 1 {
					if w := shop.Join(slices.Clone(hops[1:n]))[0]; shop.Started(&w) {
						t.Errorf("%s: %v is a start", name, places(w.Hops[:1]))
					}
				}
			}
		}
	}
}

// A node and somebody outside have no link of their own.
func TestNodesAndTheOutside(t *testing.T) {
	outside := netip.MustParseAddr("198.51.100.1")
	hop := func(node string, place inspect.Place, sent bool) inspect.Hop {
		return inspect.Hop{Node: node, Sighting: inspect.Sighting{Interface: string(place), Place: place, Sent: sent, SeenPacket: inspect.SeenPacket{Identity: "x", Strong: true, Src: web, Dst: outside}}}
	}
	e := &Ends{From: shop.From, To: []End{{Addresses: []netip.Addr{outside}}}}
	e.From.Pod = ""
	e.From.Node = ""
	in, out := hop("node1", inspect.PlaceOther, false), hop("node1", inspect.PlaceOther, true)
	w := Way{Hops: []inspect.Hop{in, out}}
	if !e.Started(&w) || !e.Arrived(&w) {
		t.Error("from outside to outside")
	}
	if w := (Way{Hops: []inspect.Hop{out, in}}); e.Started(&w) || e.Arrived(&w) {
		t.Error("the other way round")
	}
	e.From.Node, e.To[0].Node = "node1", "node2"
	last := hop("node2", inspect.PlaceOther, false)
	if w := (Way{Hops: []inspect.Hop{out, last}}); !e.Started(&w) || !e.Arrived(&w) {
		t.Error("from node to node")
	}
	if w := (Way{Hops: []inspect.Hop{in, hop("node2", inspect.PlacePod, false)}}); e.Started(&w) || e.Arrived(&w) {
		t.Error("from a pod of node2 to node2")
	}
}

func TestAnswers(t *testing.T) {
	way := func(back bool, p inspect.SeenPacket, after time.Duration) *Way {
		p.Src, p.Dst = web, db1
		if p.Protocol != 1 {
			p.SrcPort, p.DstPort = 40000, 5432
		}
		if back {
			p.Src, p.Dst, p.SrcPort, p.DstPort = p.Dst, p.Src, p.DstPort, p.SrcPort
		}
		return &Way{Back: back, Hops: []inspect.Hop{{Node: "node1", Sighting: inspect.Sighting{Time: time.Unix(1, 0).Add(after), SeenPacket: p}}}}
	}
	type packet = inspect.SeenPacket
	for name, c := range map[string]struct {
		asked, answer packet
		answers, asks bool
	}{
		"SYN, SYN-ACK":      {packet{Protocol: 6, Flags: syn, Seq: 0xffffffff}, packet{Protocol: 6, Flags: syn | ack, Ack: 0}, true, true},
		"SYN, an old ACK":   {packet{Protocol: 6, Flags: syn, Seq: 100}, packet{Protocol: 6, Flags: ack, Ack: 100}, false, true},
		"SYN, reset":        {packet{Protocol: 6, Flags: syn, Seq: 100}, packet{Protocol: 6, Flags: rst | ack, Ack: 101}, true, true},
		"data, ACK":         {packet{Protocol: 6, Flags: ack, Seq: 100, Length: 10}, packet{Protocol: 6, Flags: ack, Ack: 110}, true, true},
		"data, ACK of less": {packet{Protocol: 6, Flags: ack, Seq: 100, Length: 10}, packet{Protocol: 6, Flags: ack, Ack: 105}, false, true},
		"ACK, reset":        {packet{Protocol: 6, Flags: ack, Ack: 77}, packet{Protocol: 6, Flags: rst, Seq: 77}, true, false},
		"UDP":               {packet{Protocol: 17}, packet{Protocol: 17}, true, true},
		"UDP, TCP":          {packet{Protocol: 17}, packet{Protocol: 6}, false, true},
		"ping":              {packet{Protocol: 1, SrcPort: 7, Seq: 3}, packet{Protocol: 1, SrcPort: 7, Seq: 3}, true, true},
		"another ping":      {packet{Protocol: 1, SrcPort: 7, Seq: 3}, packet{Protocol: 1, SrcPort: 7, Seq: 4}, false, true},
	} {
		f := way(false, c.asked, 0)
		if got := Answers(f, way(true, c.answer, time.Millisecond)); got != c.answers {
			t.Errorf("%s: %v", name, got)
		}
		if Answers(f, way(true, c.answer, -time.Millisecond)) || Answers(f, way(false, c.answer, time.Millisecond)) {
			t.Errorf("%s: before it, or the same way", name)
		}
		if got := AsksForAnswer(&f.Hops[0].SeenPacket); got != c.asks {
			t.Errorf("%s asks: %v", name, got)
		}
	}
}

func TestError(t *testing.T) {
	p := inspect.SeenPacket{Protocol: 17, Src: web, Dst: db0, SrcPort: 4, DstPort: 53}
	w := Way{Hops: []inspect.Hop{{Node: "node1", Sighting: inspect.Sighting{Time: time.Unix(5, 0), SeenPacket: p}}}}
	other := p
	other.SrcPort = 5
	about := func(p inspect.SeenPacket, node string, at int64) inspect.Hop {
		return inspect.Hop{Node: node, Sighting: inspect.Sighting{Time: time.Unix(at, 0), SeenPacket: inspect.SeenPacket{Protocol: 1, Src: node1, Dst: web, About: &p}}}
	}
	if got := w.Error([]inspect.Hop{w.Hops[0], about(other, "node1", 6), about(p, "node1", 4), about(p, "node2", 6)}); got != nil {
		t.Errorf("%+v", got)
	}
	if got := w.Error([]inspect.Hop{about(other, "node1", 6), about(p, "node1", 6)}); got == nil || got.Src != node1 || got.About.SrcPort != 4 {
		t.Errorf("%+v", got)
	}
}

// A packet that is cut or joined goes on in others; one that is sent again does not.
func TestRecut(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	segment := func(identity string, seq uint32, length int, from int) []inspect.Hop {
		p := inspect.SeenPacket{Protocol: 6, Identity: identity, Strong: true, Seq: seq, Length: length}
		return sightings(identity, ways["across"], p, false, map[string]time.Time{}, r)[from:]
	}
	whole := segment("whole", 0xfffffff0, 3000, 0)[:3]
	for name, c := range map[string]struct {
		others []inspect.Hop
		want   bool
	}{
		"its first half":     {segment("half", 0xfffffff0, 1500, 3), true},
		"joined with others": {segment("joined", 0xffffff00, 9000, 3), true},
		"its second half":    {segment("half", 1484, 1500, 3), false},
		"the one before":     {segment("before", 0xffffff00, 0xf0, 3), false},
		"sent again":         {segment("again", 0xfffffff0, 3000, 0), false},
	} {
		all := shop.Join(slices.Concat(whole, c.others))
		if got := shop.Recut(&all[0], all[1:]); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
