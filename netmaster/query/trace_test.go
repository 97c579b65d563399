package query

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (p *place) traced(from, to string, spec *inspect.TraceSpec) (list []inspect.Traced, err error) {
	p.t.Helper()
	target, err := inspect.ParseTarget(to)
	if err != nil {
		p.t.Fatal(err)
	}
	err = p.Follow(p.admin, &inspect.Question{Kind: inspect.AskTrace, From: from, To: &target, Trace: spec}, func(a *inspect.Answer) error {
		var got inspect.Traced
		list = append(list, got)
		return json.Unmarshal(a.Body, &list[len(list)-1])
	})
	return list, err
}

var (
	api, db = netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.2")
	began   = time.Unix(1e9, 0)
)

// sightedAt is a packet of api's to db, or of db's back, at one of the places on its way.
func seenAt(place string, back bool, flags byte, port uint16, after int) inspect.Sighting {
	s := inspect.Sighting{Time: began.Add(time.Duration(after) * time.Microsecond), Interface: place, Place: inspect.PlaceOther,
		SeenPacket: inspect.SeenPacket{Identity: "there", Strong: true, Protocol: policy.TCP, Src: api, Dst: db, SrcPort: 40000, DstPort: port, Flags: flags, Seq: 100, Text: "a packet"}}
	switch place {
	case "gateway":
		s.Place, s.Sent = inspect.PlaceGateway, true
	case "eth0 out":
		s.Sent = true
	case "api", "db":
		s.Place, s.Pod, s.Sent = inspect.PlacePod, "shop/"+place, place == "db" != back
	}
	if back {
		s.Identity, s.Ack, s.Src, s.Dst, s.SrcPort, s.DstPort = "back", 101, s.Dst, s.Src, s.DstPort, s.SrcPort
	}
	return s
}

const (
	syn = 2
	rst = 4
	ack = 16
)

// sees answers what a node is asked while it traces.
func (p *place) sees(node string, out string, list ...inspect.Sighting) {
	p.nodes.answers[node] = func(q inspect.NodeQuery) any {
		switch q.Kind {
		case inspect.QuerySightings:
			body, err := json.Marshal(inspect.Sighted{Node: "another", Sightings: list})
			if err != nil {
				p.t.Error(err)
			}
			return []string{`{}`, string(body)}
		case inspect.QueryTrace:
			return inspect.NodeTraces{Traces: []inspect.Trace{{Packet: q.Packets[0], Passed: !strings.HasPrefix(out, "dropped"), Out: out}}}
		}
		return errors.New("asked for " + q.Kind)
	}
}

// apiAlone lets api reach db at 5432, and nobody else.
func apiAlone() resolve.Batch {
	return resolve.Batch{Policies: []*policy.Policy{{Namespace: "shop", Name: "db", Generation: 4, AppliedTo: is("app", "db"), IsolatesIngress: true,
		Ingress: []policy.PolicyRule{{Peers: []policy.Peer{{Pods: ptr(is("app", "api"))}}, Ports: []policy.PolicyPort{{Protocol: policy.TCP, First: 5432, Last: 5432}}}}}}}
}

func TestTrace(t *testing.T) {
	there := func(flags byte, port uint16, n int) (onNode2, onNode1 []inspect.Sighting) {
		all := []inspect.Sighting{seenAt("api", false, flags, port, 0), seenAt("eth0 out", false, flags, port, 50), seenAt("eth0", false, flags, port, 7), seenAt("gateway", false, flags, port, 9), seenAt("db", false, flags, port, 20)}[:n]
		return all[:min(n, 2)], all[min(n, 2):]
	}
	both := func(flags, answer byte, port uint16, n int) (onNode2, onNode1 []inspect.Sighting) {
		onNode2, onNode1 = there(flags, port, 5)
		all := []inspect.Sighting{seenAt("db", true, answer, port, 90), seenAt("eth0 out", true, answer, port, 95), seenAt("eth0", true, answer, port, 200), seenAt("api", true, answer, port, 250)}[:n]
		return slices.Concat(onNode2, all[min(n, 2):]), slices.Concat(onNode1, all[:min(n, 2)])
	}
	two := func(a, b []inspect.Sighting) [2][]inspect.Sighting { return [2][]inspect.Sighting{a, b} }
	stack2, stack1 := there(syn, 5432, 3) // into node1's stack, which answers
	stack2 = slices.Concat(stack2, []inspect.Sighting{seenAt("eth0", true, rst|ack, 5432, 200), seenAt("api", true, rst|ack, 5432, 250)})
	stack1 = append(stack1, seenAt("eth0 out", true, rst|ack, 5432, 95))
	for name, c := range map[string]struct {
		to      string
		seen    [2][]inspect.Sighting // of node2 and node1
		outcome inspect.Outcome
		verdict string
		hops    int
	}{
		"answered":        {"shop/db:5432", two(both(syn, syn|ack, 5432, 4)), inspect.Answered, "DELIVERED AND ANSWERED, after 250µs", 5},
		"reset":           {"shop/db:5432", two(both(syn, rst|ack, 5432, 4)), inspect.Answered, "DELIVERED, and shop/db refuses it (a TCP reset)", 5},
		"reset by a node": {"shop/db:5432", two(stack2, stack1), inspect.Refused, "REFUSED by the network stack of node1 (a TCP reset)", 3},
		"answer lost": {"shop/db:5432", two(both(syn, syn|ack, 5432, 3)), inspect.AnswerLost, "DELIVERED, BUT ITS ANSWER IS LOST in the network stack of " +
			"node2", 5},
		"unanswered":                         {"shop/db:5432", two(there(syn, 5432, 5)), inspect.Unanswered, "DELIVERED, NOT ANSWERED: shop/db got it", 5},
		"lost between":                       {"shop/db:5432", two(there(syn, 5432, 2)), inspect.Lost, "LOST between node2 and node1: it left by eth0 out, and node1 has not seen it; policies allow it", 2},
		"lost in the switch, though allowed": {"shop/db:5432", two(there(syn, 5432, 4)), inspect.Lost, "LOST in Open vSwitch of node1: it went in by gateway", 4},
		"denied":                             {"shop/db:95", two(there(syn, 95, 4)), inspect.Denied, "DENIED on node1: shop/db is isolated by shop/db, and no rule allows it", 4},
		"an ACK":                             {"shop/db:5432", two(there(ack, 5432, 5)), inspect.Delivered, "DELIVERED to shop/db; it asks for no answer", 5},
		"opened by the other end":            {"shop/db", two(there(syn|ack, 80, 5)), inspect.Unanswered, "DELIVERED, NOT ANSWERED", 5},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPlace(t)
			p.owner.engine.Apply(apiAlone())
			passes := "pod shop/db"
			if c.outcome == inspect.Denied {
				passes = "dropped in the table ingress-denied"
			}
			p.sees("node2", "out of the node", c.seen[0]...)
			p.sees("node1", passes, c.seen[1]...)
			list, err := p.traced("shop/api", c.to, &inspect.TraceSpec{Duration: time.Minute})
			if err != nil || len(list) != 3 {
				t.Fatalf("%s: %+v, %v", name, list, err)
			}
			if !slices.Equal(list[0].Nodes, []string{"node1", "node2"}) || len(list[0].Problems) > 0 {
				t.Errorf("%s: it begins with %+v", name, list[0])
			}
			got := list[1].Packet
			if got.Outcome != c.outcome || !strings.HasPrefix(got.Verdict, c.verdict) || len(got.Hops) != c.hops || got.Hops[0].Node != "node2" || got.Text != "a packet" || got.Hops[0].Identity != "" {
				t.Errorf("%s: %s: %s, %d hops", name, got.Outcome, got.Verdict, len(got.Hops))
			}
			if len(got.Hops) > 2 && (got.Hops[2].Node != "node1" || got.Hops[2].After != 0 || got.Hops[1].After != 50*time.Microsecond) {
				t.Errorf("%s: %+v", name, got.Hops)
			}
			if w := got.Way; w == nil || len(w.Traces) == 0 || len(w.Disagreements) > 0 {
				t.Errorf("%s: what policies and switches say: %+v", name, w)
			} else if name == "opened by the other end" && (w.From.Address != db || w.Port != 40000) {
				t.Errorf("it is judged as %s → %s:%d", w.From.Address, w.To.Address, w.Port)
			}
			q := p.nodes.asked[0].Sightings
			if q == nil || !slices.Equal(q.From, []netip.Addr{api}) || !slices.Equal(q.To, []netip.Addr{db}) || q.Duration < time.Minute {
				t.Errorf("%s: asked %+v", name, q)
			}
		})
	}
}

// What is delivered although policies deny it, or passes a switch that should drop it, is a disagreement.
func TestTraceDisagrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { testTraceDisagrees(t, "pod shop/db", "lets it pass") })
	synctest.Test(t, func(t *testing.T) { testTraceDisagrees(t, "dropped in the table ingress-denied") })
}

func testTraceDisagrees(t *testing.T, out string, want ...string) {
	p := newPlace(t)
	p.owner.engine.Apply(apiAlone())
	p.sees("node2", "out of the node", seenAt("api", false, syn, 95, 0))
	p.sees("node1", out, seenAt("db", false, syn, 95, 20))
	list, err := p.traced("shop/api", "shop/db:95", &inspect.TraceSpec{})
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	way := list[1].Packet.Way
	want = append(want, "it was delivered to shop/db")
	if !slices.EqualFunc(way.Disagreements, want, strings.Contains) {
		t.Errorf("%q, want %q", way.Disagreements, want)
	}
	if got := way.Verdict(); got != "policies deny it; the switch of node1 disagrees" {
		t.Errorf("%q", got)
	}
}

// TestTrace_PodNotAttached: a trace begins with the ends that Flowkeep did not attach, and the remedy. Silence of such a
// source proves nothing.
func TestTrace_PodNotAttached(t *testing.T) {
	for name, c := range map[string]struct {
		pods, name, end string
	}{
		"the source": {"shop/api@node2", "shop/api", "NOT CERTAIN: no packet from shop/api to shop/db:95 was seen at " +
			"the pod's link on node2, but the pod is not wired by Flowkeep"},
		"the target": {"shop/db@node1", "shop/db", "NOT SENT: "},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlace(t)
				p.owner.engine.Apply(apiAlone())
				p.notAttached(c.pods)
				p.sees("node2", "out of the node")
				p.sees("node1", "pod shop/db")
				list, err := p.traced("shop/api", "shop/db:95", &inspect.TraceSpec{})
				if err != nil || len(list) != 2 {
					t.Fatalf("%+v, %v", list, err)
				}
				problem := c.name + " is not wired by Flowkeep: " + attachment.Remedy
				if got := list[0].Problems; !slices.Equal(got, []string{problem}) {
					t.Errorf("problems %q, want %q", got, problem)
				}
				if got := list[1].End; !strings.HasPrefix(got, c.end) {
					t.Errorf("it ends with %q, want %q", got, c.end)
				}
			})
		})
	}
}

// A packet that goes on in other segments is as well as its acknowledgement.
func TestTraceOfSegments(t *testing.T) { synctest.Test(t, testTraceOfSegments) }

func testTraceOfSegments(t *testing.T) {
	for _, acknowledged := range []bool{false, true} {
		p := newPlace(t)
		large, piece, acks := seenAt("api", false, ack, 5432, 0), seenAt("db", false, ack, 5432, 9), seenAt("api", true, ack, 5432, 70)
		large.Length, piece.Length, piece.Identity, acks.Ack = 3000, 1500, "a piece", 3100
		list := []inspect.Sighting{large}
		if acknowledged {
			list = append(list, acks)
		}
		p.sees("node2", "out of the node", list...)
		p.sees("node1", "pod shop/db", piece)
		got, err := p.traced("shop/api", "shop/db:5432", &inspect.TraceSpec{})
		if err != nil || len(got) != 3 {
			t.Fatalf("%+v, %v", got, err)
		}
		want := map[bool]string{false: "NOT CERTAIN: behind the link of shop/api on node2 it went " +
			"on", true: "DELIVERED AND ACKNOWLEDGED, after 70µs"}[acknowledged]
		if packet := got[1].Packet; !strings.HasPrefix(packet.Verdict, want) || (packet.Outcome == inspect.Answered) != acknowledged || len(packet.Problems) == 0 {
			t.Errorf("%s: %s, %q", packet.Outcome, packet.Verdict, packet.Problems)
		}
	}
}

// Nothing was sent, or only what did not come from FROM's link.
func TestTrace_NoPackets(t *testing.T) { synctest.Test(t, testTraceOfSilence) }

func testTraceOfSilence(t *testing.T) {
	p := newPlace(t)
	p.sees("node2", "")
	p.sees("node1", "", seenAt("gateway", false, syn, 5432, 9), seenAt("db", false, syn, 5432, 20))
	list, err := p.traced("shop/api", "shop/db:5432", &inspect.TraceSpec{Duration: time.Minute})
	if err != nil || len(list) != 2 || list[1].Packet != nil || list[1].End != "NOT SENT: no packet from shop/api "+
		"to shop/db:5432 came by the pod's link on node2 within 1m0s" {
		t.Errorf("%+v, %v", list, err)
	}
}

// Packets that came too fast make a loss uncertain, and so does a node that does not look.
func TestTraceIsNotCertain(t *testing.T) { synctest.Test(t, testTraceIsNotCertain) }

func testTraceIsNotCertain(t *testing.T) {
	p := newPlace(t)
	first := seenAt("api", false, syn, 5432, 0)
	p.sees("node2", "out of the node", first)
	p.nodes.answers["node1"] = errors.New("node node1 is not connected")
	list, err := p.traced("shop/api", "shop/db:5432", &inspect.TraceSpec{})
	if err != nil || len(list) != 3 || list[1].Packet.Outcome != inspect.Unsure || len(list[0].Problems) != 1 || !strings.Contains(list[0].Problems[0], "node1 does not report sightings") {
		t.Errorf("a node is away: %+v, %v", list, err)
	}
	body, err := json.Marshal(inspect.Sighted{Sightings: []inspect.Sighting{first}, CaptureCounts: inspect.CaptureCounts{Dropped: 9}})
	if err != nil {
		t.Fatal(err)
	}
	p.sees("node1", "pod shop/db")
	p.nodes.answers["node2"] = []string{`{}`, string(body)}
	list, err = p.traced("shop/api", "shop/db:5432", &inspect.TraceSpec{})
	if err != nil || len(list) != 3 || list[1].Packet.Outcome != inspect.Unsure || !strings.HasPrefix(list[1].Packet.Verdict, "NOT CERTAIN: LOST") || !strings.Contains(strings.Join(list[2].Problems, ""), "9 packets came to node2") {
		t.Errorf("too many: %+v, %v", list, err)
	}
	p.nodes.answers["node2"] = []string{`{}`, `{"end":"as many packets as a trace takes"}`}
	list, err = p.traced("shop/api", "shop/db:5432", &inspect.TraceSpec{})
	if err != nil || len(list) != 2 || !strings.HasPrefix(list[1].End, "NOT CERTAIN: no packet from shop/api to "+
		"shop/db:5432 was seen") {
		t.Errorf("too many others: %+v, %v", list, err)
	}
	p.nodes.answers["node2"] = errors.New(`this netplugin knows no query "sightings"`)
	if _, err := p.traced("shop/api", "shop/db:5432", &inspect.TraceSpec{}); status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "older") {
		t.Errorf("the sender's node does not look: %v", err)
	}
}

func TestTraceRefuses(t *testing.T) {
	p := newPlace(t)
	spec := &inspect.TraceSpec{}
	for _, c := range []struct {
		from, to string
		spec     *inspect.TraceSpec
		code     codes.Code
	}{
		{"shop/api", "shop/db", nil, codes.InvalidArgument}, {"shop/api", "shop/db", &inspect.TraceSpec{Count: -1}, codes.InvalidArgument},
		{"shop/api", "shop/db", &inspect.TraceSpec{Count: inspect.MostFollowed + 1}, codes.InvalidArgument}, {"shop/api", "shop/db", &inspect.TraceSpec{Duration: time.Hour}, codes.InvalidArgument},
		{"world", "shop/db", spec, codes.InvalidArgument}, {"shop/api", "world", spec, codes.InvalidArgument}, {"shop/nobody", "shop/db", spec, codes.NotFound},
		{"shop/api", "shop/api", spec, codes.InvalidArgument}, {"shop/api", "shop/new", spec, codes.FailedPrecondition}, {"198.51.100.1", "198.51.100.2", spec, codes.FailedPrecondition},
		{"shopping/twin1", "shopping/bag", spec, codes.FailedPrecondition}, {"shopping/bag", "shopping/twin2", spec, codes.FailedPrecondition}, {"shop/done", "shop/db", spec, codes.FailedPrecondition},
	} {
		if _, err := p.traced(c.from, c.to, c.spec); status.Code(err) != c.code {
			t.Errorf("%s → %s, %+v: %v", c.from, c.to, c.spec, err)
		}
	}
	p.nodes.infos = []policy.NodeInfo{{Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}
	for _, ends := range [][2]string{{"shop/host", "shop/db"}, {"shop/api", "shop/host"}} {
		if _, err := p.traced(ends[0], ends[1], spec); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "node node1") {
			t.Errorf("a pod of its node's network, %v: %v", ends, err)
		}
	}
	if len(p.nodes.asked) != 0 {
		t.Errorf("nodes were asked: %+v", p.nodes.asked)
	}
	unknown, _ := withServices(t)
	unknown.nodes.infos = nil
	if _, err := unknown.traced("shop/host", "svc/shop/one", spec); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("without an address: %v", err)
	}
	for range maxTraces {
		p.packets.tracing <- struct{}{}
	}
	if _, err := p.traced("shop/api", "shop/db", spec); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one too many: %v", err)
	}
}

// Whose packets are looked for, and where: behind Services and node ports, with the addresses that nodes put in.
func TestTraceLooksFor(t *testing.T) { synctest.Test(t, testTraceLooksFor) }

func testTraceLooksFor(t *testing.T) {
	for ends, want := range map[string]string{
		"shop/api shop/db:5432":      "[10.0.0.3] → [10.0.0.2] TCP [5432] by [node1 node2]",
		"shop/api shop/db:sql":       "[10.0.0.3] → [10.0.0.2] TCP [5432] by [node1 node2]",
		"shop/api shop/db/icmp":      "[10.0.0.3] → [10.0.0.2] protocol(1) [] by [node1 node2]",
		"shop/api shop/db":           "[10.0.0.3] → [10.0.0.2] protocol(0) [] by [node1 node2]",
		"shop/api shop/db/udp":       "[10.0.0.3] → [10.0.0.2] UDP [] by [node1 node2]",
		"shop/api 10.0.0.2:1":        "[10.0.0.3] → [10.0.0.2] TCP [1] by [node1 node2]",
		"shop/api 198.51.100.1:1":    "[10.0.0.3 192.0.2.2] → [198.51.100.1] TCP [1] by [node2]",
		"198.51.100.1 shop/db:1":     "[198.51.100.1] → [10.0.0.2] TCP [1] by [node1]",
		"node1 shop/db:1":            "[192.0.2.1 10.0.0.1] → [10.0.0.2] TCP [1] by [node1]",
		"shop/api svc/shop/one":      "[10.0.0.3 192.0.2.2] → [10.96.0.1 10.0.0.2] TCP [3306 5432] by [node1 node2]",
		"shop/db svc/shop/one":       "[10.0.0.2 192.0.2.1 10.0.0.1] → [10.96.0.1 10.0.0.2] TCP [3306 5432] by [node1]",
		"shop/api svc/shop/bare:sql": "[10.0.0.3 192.0.2.2] → [10.0.0.2 10.0.0.4] TCP [3306 5432] by [node1 node2]",
		"198.51.100.1 node1:30007": "[198.51.100.1 192.0.2.1 10.0.0.1] → [10.96.0.7 192.0.2.1 10.0.0.2] TCP [3306 " +
			"30007 5432] by [node1]",
		"shop/api node1:30007": "[10.0.0.3 192.0.2.2 192.0.2.1 10.0.0.1] → [192.0.2.1 10.0.0.2] TCP [30007 " +
			"5432] by [node1 node2]",
		"shop/api node1:22": "[10.0.0.3 192.0.2.2] → [192.0.2.1] TCP [22] by [node1 node2]",
	} {
		p, _ := withServices(t)
		p.nodes.answers = map[string]any{"node1": []string{`{}`}, "node2": []string{`{}`}}
		from, to, _ := strings.Cut(ends, " ")
		list, err := p.traced(from, to, &inspect.TraceSpec{Duration: time.Second})
		if err != nil || len(list) != 2 || len(p.nodes.asked) == 0 {
			t.Errorf("%s: %+v, %v", ends, list, err)
			continue
		}
		i := slices.IndexFunc(p.nodes.asked, func(q inspect.NodeQuery) bool { return q.Kind == inspect.QuerySightings })
		if i < 0 {
			t.Errorf("%s: no node looks", ends)
			continue
		}
		q := p.nodes.asked[i].Sightings
		if got := fmt.Sprintf("%v → %v %v %v by %v", q.From, q.To, q.Protocol, q.Ports, list[0].Nodes); got != want {
			t.Errorf("%s:\n got %s\nwant %s", ends, got, want)
		}
	}
}

// TestTrace_SightingsAreCut: a node that sends long texts would use up netmaster's memory.
func TestTrace_SightingsAreCut(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	address := netip.MustParseAddr("fe80::1%" + long)
	packet := inspect.SeenPacket{Identity: long, Text: long, Src: address, Dst: address}
	nested := packet
	nested.About = &inspect.SeenPacket{About: &packet}
	packet.About = &nested
	seen := inspect.Sighting{Interface: long, Place: inspect.Place(long), Pod: long, SeenPacket: packet}
	run := &traceRun{observers: map[string]*observer{"node1": {}}}
	run.take(&nodeReport{node: "node1", Sighted: inspect.Sighted{Sightings: []inspect.Sighting{seen}}})
	kept, err := json.Marshal(run.sightings)
	if err != nil || len(run.sightings) != 1 || len(kept) > 4<<10 {
		t.Errorf("%d bytes of %d sightings are kept: %v", len(kept), len(run.sightings), err)
	}
}
