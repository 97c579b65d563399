package query

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// pass lets time pass.
func pass(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// says makes a node look at once, tell its sightings after a while, and, if it lives on, that it looks, each second.
func says(after time.Duration, lives bool, list ...inspect.Sighting) func(context.Context, func([]byte) error) error {
	return func(ctx context.Context, each func([]byte) error) error {
		body, err := json.Marshal(inspect.Sighted{Sightings: list})
		if err != nil {
			return err
		}
		if err := each([]byte(`{}`)); err != nil {
			return err
		}
		pass(ctx, after)
		for err = each(body); err == nil && lives && ctx.Err() == nil; err = each([]byte(`{}`)) {
			pass(ctx, time.Second)
		}
		<-ctx.Done()
		return ctx.Err()
	}
}

// The node where a packet came into the cluster tells of it after the one to which it went on: it is followed from where it came in.
func TestTrace_LateSightings(t *testing.T) { synctest.Test(t, testTraceOfWhatIsToldLate) }

func testTraceOfWhatIsToldLate(t *testing.T) {
	p, _ := withServices(t)
	client, node2 := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("192.0.2.2")
	hop := func(place string, dst netip.Addr, port uint16, after int) inspect.Sighting {
		s := seenAt(place, false, syn, port, after)
		s.Src, s.Dst = client, dst
		return s
	}
	p.nodes.answers["node2"] = says(350*time.Millisecond, true, hop("eth0", node2, 30007, 0), hop("eth0 out", db, 5432, 10))
	p.nodes.answers["node1"] = says(50*time.Millisecond, true, hop("eth0", db, 5432, 100), hop("gateway", db, 5432, 103), hop("db", db, 5432, 109))
	list, err := p.traced(client.String(), "node2:30007", &inspect.TraceSpec{Duration: time.Minute})
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	if got := list[1].Packet; len(got.Hops) != 5 || got.Hops[0].Node != "node2" || got.Outcome != inspect.Unanswered {
		t.Errorf("%s: %+v", got.Verdict, got.Hops)
	}
}

// A node that is silent, or gone, may have seen what is missed.
func TestTrace_SilentNodes(t *testing.T) { synctest.Test(t, testTraceOfNodesThatFallSilent) }

func testTraceOfNodesThatFallSilent(t *testing.T) {
	start, wire, arrives := seenAt("api", false, syn, 5432, 0), seenAt("eth0 out", false, syn, 5432, 5), seenAt("db", false, syn, 5432, 9)
	back := seenAt("db", true, syn|ack, 5432, 20)
	out := seenAt("eth0 out", true, syn|ack, 5432, 25)
	for name, c := range map[string]struct {
		node1, node2 func(context.Context, func([]byte) error) error
		verdict      string
	}{
		"the receiver's is silent":     {says(0, false), says(time.Second, true, start, wire), "NOT CERTAIN: "},
		"silent when it was delivered": {says(time.Second, false, arrives), says(time.Second, true, start, wire), "NOT CERTAIN: DELIVERED, NOT ANSWERED"},
		"the sender's, for the answer": {says(time.Second, true, arrives, back, out), says(time.Second, false, start, wire), "NOT CERTAIN: DELIVERED, BUT ITS " +
			"ANSWER IS LOST"},
		"all are heard":                 {says(0, true), says(time.Second, true, start, wire), "LOST between node2 and node1"},
		"the sender's, behind its wire": {says(time.Second, true, arrives), says(time.Second, false, start, wire), "DELIVERED, NOT ANSWERED"},
	} {
		p := newPlace(t)
		p.nodes.answers["node1"], p.nodes.answers["node2"] = c.node1, c.node2
		list, err := p.traced("shop/api", "shop/db:5432", &inspect.TraceSpec{Duration: time.Minute})
		if err != nil || len(list) != 3 || !strings.HasPrefix(list[1].Packet.Verdict, c.verdict) {
			t.Errorf("%s: %+v, %v", name, list, err)
			if len(list) > 1 {
				t.Errorf("%s", list[1].Packet.Verdict)
			}
		}
	}
}

// Switches that take their time with one packet do not make another seem lost.
func TestTraceWaitsForSwitches(t *testing.T) { synctest.Test(t, testTraceWaitsForSwitches) }

func testTraceWaitsForSwitches(t *testing.T) {
	p := newPlace(t)
	one := []inspect.Sighting{seenAt("api", false, syn, 5432, 0), seenAt("db", false, syn, 5432, 9), seenAt("db", true, syn|ack, 5432, 20), seenAt("api", true, syn|ack, 5432, 30)}
	two := slices.Clone(one)
	for i := range two {
		two[i].Identity, two[i].Time = two[i].Identity+" again", two[i].Time.Add(time.Millisecond)
		two[i].SrcPort, two[i].DstPort = []uint16{40001, 40001, 5432, 5432}[i], []uint16{5432, 5432, 40001, 40001}[i]
	}
	stream := func(first, between, second []inspect.Sighting, after time.Duration) func(inspect.NodeQuery) any {
		return func(q inspect.NodeQuery) any {
			if q.Kind != inspect.QuerySightings {
				time.Sleep(4 * time.Second)
				return inspect.NodeTraces{Traces: []inspect.Trace{{Packet: q.Packets[0], Passed: true, Out: "on"}}}
			}
			return func(ctx context.Context, each func([]byte) error) error {
				for _, part := range [][]inspect.Sighting{nil, first, between, second} {
					body, err := json.Marshal(inspect.Sighted{Sightings: part})
					if err != nil {
						return err
					}
					if err := each(body); err != nil {
						return err
					}
					pass(ctx, after)
				}
				<-ctx.Done()
				return ctx.Err()
			}
		}
	}
	p.nodes.answers["node2"] = stream([]inspect.Sighting{one[0], one[3]}, two[:1], two[3:], 250*time.Millisecond)
	p.nodes.answers["node1"] = stream([]inspect.Sighting{one[1], one[2]}, nil, two[1:3], 390*time.Millisecond)
	list, err := p.traced("shop/api", "shop/db:5432", &inspect.TraceSpec{Count: 2, Duration: time.Minute})
	if err != nil || len(list) != 4 {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, got := range list[1:3] {
		if got.Packet.Outcome != inspect.Answered {
			t.Errorf("%s: %v", got.Packet.Verdict, got.Packet.Problems)
		}
	}
}

// A node that tells on and on, of a packet without end, does not hold a trace up for ever.
func TestTraceEnds(t *testing.T) { synctest.Test(t, testTraceEnds) }

func testTraceEnds(t *testing.T) {
	p := newPlace(t)
	p.nodes.answers["node2"] = []string{`{}`}
	p.sees("node1", "")
	p.nodes.answers["node2"] = func(ctx context.Context, each func([]byte) error) error {
		for n := 0; ctx.Err() == nil; n++ {
			s := seenAt("api", false, syn, 5432, 0)
			if n > 0 {
				s = seenAt("eth0 out", false, syn, 5432, n)
				s.Interface = fmt.Sprint("eth", n)
			}
			body, err := json.Marshal(inspect.Sighted{Sightings: []inspect.Sighting{s}})
			if err != nil {
				return err
			}
			if err := each(body); err != nil {
				return err
			}
			pass(ctx, time.Second)
		}
		return ctx.Err()
	}
	began := time.Now()
	list, err := p.traced("shop/api", "shop/db:5432", &inspect.TraceSpec{Duration: 5 * time.Second})
	if err != nil || time.Since(began) > 20*time.Second || !strings.HasPrefix(list[len(list)-1].End, "NOT CERTAIN") && list[len(list)-1].Packet == nil {
		t.Errorf("after %v: %+v, %v", time.Since(began), list, err)
	}
}

// What are alike are not told to be delivered where one of them is missing.
func TestTrace_IndistinguishablePackets(t *testing.T) {
	synctest.Test(t, testTraceOfPacketsThatAreAlike)
}

func testTraceOfPacketsThatAreAlike(t *testing.T) {
	p := newPlace(t)
	udp := func(place string, back bool, after int) inspect.Sighting {
		s := seenAt(place, back, 0, 5432, after)
		s.Protocol, s.Strong, s.Seq, s.Ack = policy.UDP, false, 0, 0
		return s
	}
	p.sees("node2", "on", udp("api", false, 0), udp("api", false, 500), udp("api", true, 540))
	p.sees("node1", "on", udp("db", false, 510), udp("db", true, 520))
	list, err := p.traced("shop/api", "shop/db:5432/udp", &inspect.TraceSpec{Duration: time.Minute})
	if err != nil || len(list) != 3 || list[1].Packet.Outcome != inspect.Unsure {
		t.Fatalf("%+v, %v", list, err)
	}
}

// A node that says nothing at all holds nobody up.
func TestTraceWithoutANode(t *testing.T) { synctest.Test(t, testTraceWithoutANode) }

func testTraceWithoutANode(t *testing.T) {
	p := newPlace(t)
	p.nodes.answers["node2"] = says(0, true, seenAt("api", false, syn, 5432, 0), seenAt("eth0 out", false, syn, 5432, 5))
	began := time.Now()
	list, err := p.traced("shop/api", "shop/db:5432", &inspect.TraceSpec{Duration: time.Minute})
	if err != nil || len(list) != 3 || time.Since(began) > 15*time.Second || list[1].Packet.Outcome != inspect.Unsure || !slices.Equal(list[0].Problems, []string{"node node1 does not report sightings: it has not answered within 3s"}) {
		t.Errorf("after %v: %+v, %v", time.Since(began), list, err)
	}
}

// What goes to an endpoint that came later is not looked for, and not said to be lost.
func TestTrace_ServiceChanges(t *testing.T) {
	synctest.Test(t, testTraceOfAServiceThatChanges)
}

func testTraceOfAServiceThatChanges(t *testing.T) {
	for _, changes := range []bool{false, true} {
		p, r := withServices(t)
		start := seenAt("api", false, syn, 3306, 0)
		start.Dst = netip.MustParseAddr("10.96.0.1")
		p.nodes.answers["node1"] = says(0, true)
		p.nodes.answers["node2"] = func(ctx context.Context, each func([]byte) error) error {
			return says(time.Second, true, start)(ctx, func(body []byte) error {
				if behind := r.behind["shop/one"]; changes && len(behind) == 1 && string(body) != `{}` {
					later := behind[0]
					later.Address = netip.MustParseAddr("10.0.0.4")
					r.behind["shop/one"] = append(slices.Clone(behind), later)
				}
				return each(body)
			})
		}
		list, err := p.traced("shop/api", "svc/shop/one", &inspect.TraceSpec{Duration: time.Minute})
		if err != nil || len(list) != 3 {
			t.Fatalf("%+v, %v", list, err)
		}
		if want := map[bool]inspect.Outcome{false: inspect.Lost, true: inspect.Unsure}[changes]; list[1].Packet.Outcome != want {
			t.Errorf("it changes: %v: %s, %q", changes, list[1].Packet.Verdict, list[1].Packet.Problems)
		}
	}
}

// A packet that is answered is not lost, unless it was sent again and that arrived.
func TestTrace_ResponseWithoutArrival(t *testing.T) {
	synctest.Test(t, testTraceOfWhatIsAnsweredUnseen)
}

func testTraceOfWhatIsAnsweredUnseen(t *testing.T) {
	again, arrives := seenAt("api", false, syn, 5432, 1000), seenAt("db", false, syn, 5432, 1010)
	again.Identity, arrives.Identity = "again", "again"
	for _, repeated := range []bool{false, true} {
		p := newPlace(t)
		onNode2, onNode1 := []inspect.Sighting{seenAt("api", false, syn, 5432, 0), seenAt("api", true, syn|ack, 5432, 1050)}, []inspect.Sighting{}
		if repeated {
			onNode2, onNode1 = append(onNode2, again), append(onNode1, arrives)
		}
		p.sees("node2", "on", onNode2...)
		p.sees("node1", "on", onNode1...)
		list, err := p.traced("shop/api", "shop/db:5432", &inspect.TraceSpec{Duration: time.Minute, Count: 2})
		if err != nil || len(list) < 3 {
			t.Fatalf("%+v, %v", list, err)
		}
		var got []inspect.Outcome
		for _, told := range list {
			if told.Packet != nil {
				got = append(got, told.Packet.Outcome)
			}
		}
		slices.Sort(got)
		if want := map[bool][]inspect.Outcome{false: {inspect.Unsure}, true: {inspect.Answered, inspect.Lost}}[repeated]; !slices.Equal(got, want) {
			t.Errorf("sent again: %v: %q, want %q", repeated, got, want)
		}
	}
}
