package query

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// obedient is a node that does what the oracle says; but may change an answer.
func (p *place) obedient(node string, but func(*inspect.Trace)) func(inspect.NodeQuery) any {
	return func(q inspect.NodeQuery) any {
		if q.Kind == inspect.QueryVerify {
			return inspect.NodeVerify{Node: node, Held: 9, Wanted: 9, Differences: []inspect.Difference{}}
		}
		w := p.owner.world()
		out := inspect.NodeTraces{Node: node}
		for _, packet := range q.Packets {
			v := policy.Allowed(w, packet)
			at := func(a netip.Addr) bool {
				return slices.ContainsFunc(w.Endpoints, func(e *policy.Endpoint) bool {
					return e.Node == node && !e.HostNetwork && !e.Finished && slices.Contains(e.Addresses, a)
				})
			}
			t := inspect.Trace{Packet: packet, Passed: (!at(packet.From) || v.Egress.Allowed) && (!at(packet.To) || v.Ingress.Allowed) || isNodes(p.nodes.infos, node, packet.From)}
			if but != nil {
				but(&t)
			}
			out.Traces = append(out.Traces, t)
		}
		return out
	}
}

func verified(t *testing.T, p *place, what inspect.VerifyWhat) inspect.Verified {
	t.Helper()
	v, err := asked[inspect.Verified](p, inspect.Question{Kind: inspect.AskVerify, Verify: &what})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestVerify(t *testing.T) {
	p := twoNodes(t)
	p.nodes.answers = map[string]any{"node1": p.obedient("node1", nil), "node2": p.obedient("node2", nil)}
	v := verified(t, p, inspect.VerifyWhat{Samples: 300, Seed: 7})
	if len(v.Nodes) != 2 || v.Revision != p.owner.engine.Revision() || v.Seed != 7 {
		t.Fatalf("%+v", v)
	}
	for _, n := range v.Nodes {
		s := n.Samples
		if !n.Fine || len(n.Problems) > 0 || s.Traced != 300 || s.Differing != 0 || s.Allowed+s.Denied != 300 {
			t.Errorf("%+v", n)
		}
	}
	if s := v.Nodes[0].Samples; s.Allowed < 100 || s.Denied < 100 { // shop/db is isolated both ways
		t.Errorf("one verdict was hardly looked at: %+v", s)
	}
	if v := verified(t, p, inspect.VerifyWhat{Nodes: []string{"node2", "node2"}}); len(v.Nodes) != 1 || !v.Nodes[0].Fine || v.Nodes[0].Samples.Traced != 0 {
		t.Errorf("without samples: %+v", v)
	}
	for _, bad := range []*inspect.VerifyWhat{nil, {Samples: -1}, {Samples: inspect.MostSamples + 1}} {
		if _, err := asked[any](p, inspect.Question{Kind: inspect.AskVerify, Verify: bad}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := asked[any](p, inspect.Question{Kind: inspect.AskVerify, Verify: &inspect.VerifyWhat{Nodes: []string{"node9"}}}); status.Code(err) != codes.NotFound {
		t.Errorf("a node that is none: %v", err)
	}
}

// Each way not to be fine.
func TestVerifyFinds(t *testing.T) { synctest.Test(t, testVerifyFinds) }

func testVerifyFinds(t *testing.T) {
	for name, test := range map[string]struct {
		node1   func(p *place) any
		samples int
		problem string
		check   func(n *inspect.NodeResult) bool
	}{
		"flows": {func(p *place) any {
			return func(q inspect.NodeQuery) any {
				return inspect.NodeVerify{Held: 8, Wanted: 9, DriftCount: inspect.DriftCount{Missing: 1}, Differences: []inspect.Difference{{Kind: inspect.FlowMissing}}}
			}
		}, 0, "", func(n *inspect.NodeResult) bool { return n.Flows.Missing == 1 && len(n.Flows.Differences) == 1 }},
		"verdicts": {func(p *place) any { return p.obedient("node1", func(t *inspect.Trace) { t.Passed = true }) }, 100, "", func(n *inspect.NodeResult) bool {
			w := n.Samples.Wrong
			return n.Samples.Differing > 20 && len(w) > 0 && !w[0].Allowed && w[0].Passed && slices.Equal(w[0].Policies, []string{"shop/db"}) && w[0].Trace.Node == "node1" && w[0].From != "" && w[0].To != ""
		}},
		"everything drops": {func(p *place) any { return p.obedient("node1", func(t *inspect.Trace) { t.Passed = false }) }, 100, "", func(n *inspect.NodeResult) bool {
			return n.Samples.Differing > 20 && slices.ContainsFunc(n.Samples.Wrong, func(w inspect.WrongSample) bool { return strings.HasPrefix(strings.Join(w.By, " "), "shop/db ingress") })
		}},
		"silent": {func(*place) any { return nil }, 10, "its flows were not compared: node node1 does not " +
			"respond", nil},
		"older":    {func(*place) any { return errors.New(`this netplugin knows no query "verify"`) }, 0, "knows no query", nil},
		"nonsense": {func(*place) any { return "hello" }, 10, "its flows were not compared: its answer", nil},
		"switch gone": {func(p *place) any {
			return p.obedient("node1", func(t *inspect.Trace) { t.Problem = "ask ovs-vswitchd: timeout" })
		}, 10, "only 0 of 10 packets were traced: ask ovs-vswitchd", nil},
		"skips all": {func(p *place) any {
			return p.obedient("node1", func(t *inspect.Trace) { t.Problem, t.OutOfScope = "not set up", true })
		}, 10, "no packet could be traced: not set up", nil},
		"too few": {func(p *place) any {
			return func(q inspect.NodeQuery) any { return inspect.NodeTraces{} }
		}, 10, "0 traces of 10 packets", nil},
	} {
		p := twoNodes(t)
		p.nodes.answers = map[string]any{"node1": test.node1(p), "node2": p.obedient("node2", nil)}
		var cancel context.CancelFunc
		p.admin, cancel = context.WithTimeout(p.admin, 10*time.Second)
		v := verified(t, p, inspect.VerifyWhat{Samples: test.samples})
		cancel()
		n := &v.Nodes[0]
		if n.Fine || !strings.Contains(strings.Join(n.Problems, "\n"), test.problem) || test.check != nil && !test.check(n) {
			t.Errorf("%s: %+v", name, n)
		}
		if !v.Nodes[1].Fine {
			t.Errorf("%s: the other node: %+v", name, v.Nodes[1])
		}
	}
	p := twoNodes(t)
	slow := p.obedient("node1", nil)
	p.nodes.answers = map[string]any{"node2": p.obedient("node2", nil), "node1": func(q inspect.NodeQuery) any {
		if traces, ok := slow(q).(inspect.NodeTraces); ok {
			traces.Traces = traces.Traces[:min(len(traces.Traces), 7)] // its time was over
			return traces
		}
		return slow(q)
	}}
	if n := verified(t, p, inspect.VerifyWhat{Samples: 100}).Nodes[0]; !n.Fine || n.Samples.Traced != 100 {
		t.Errorf("a slow node: %+v", n)
	}
	p.nodes.list[1] = feed.NodeStatus{Name: "node2", Refused: "too old"}
	p.nodes.answers["node1"] = p.obedient("node1", nil)
	if v := verified(t, p, inspect.VerifyWhat{Samples: 9}); v.Nodes[1].Fine || !strings.Contains(v.Nodes[1].Problems[0], "refused, and was not looked at") || v.Nodes[1].Flows != nil {
		t.Errorf("a node that is refused: %+v", v.Nodes[1])
	}
}

// What changes while packets are traced is judged by neither the one nor the other; what never comes to rest is said.
func TestVerifyWhileRulesChange(t *testing.T) {
	p := twoNodes(t)
	p.nodes.list = p.nodes.list[:1]
	open := policy.Policy{Namespace: "shop", Name: "open", AppliedTo: is("app", "db"), IsolatesIngress: true, IsolatesEgress: true,
		Ingress: []policy.PolicyRule{{AnyPeer: true, AnyPort: true}}, Egress: []policy.PolicyRule{{AnyPeer: true, AnyPort: true}}}
	changes, always := 0, false
	behave := p.obedient("node1", nil)
	p.nodes.answers = map[string]any{"node1": func(q inspect.NodeQuery) any {
		answer := behave(q)
		if q.Kind == inspect.QueryTrace && (always || changes < 6) { // the switch was asked before, the rules change behind it
			changes++
			batch := resolve.Batch{Policies: []*policy.Policy{&open}}
			if changes%2 == 0 {
				batch = resolve.Batch{DeletedPolicies: []string{"shop/open"}}
			}
			p.owner.engine.Apply(batch)
			p.nodes.list[0].Sent++
			p.nodes.list[0].Realised++
		}
		return answer
	}}
	v := verified(t, p, inspect.VerifyWhat{Samples: 80})
	if n := v.Nodes[0]; !n.Fine || n.Samples.Traced != 80 || n.Samples.Differing > 0 {
		t.Errorf("after a few changes: %+v", n)
	}
	always = true
	v = verified(t, p, inspect.VerifyWhat{Samples: 80})
	if n := v.Nodes[0]; n.Fine || n.Samples.Unsettled != 80 || n.Samples.Differing > 0 || len(n.Problems) != 1 {
		t.Errorf("with changes all the time: %+v", n)
	}
	always = false
	p.nodes.list[0].Pending = 1
	if n := verified(t, p, inspect.VerifyWhat{Samples: 5}).Nodes[0]; n.Fine || n.Samples.Unsettled != 5 {
		t.Errorf("a node that is behind: %+v", n)
	}
}

// A switch has no flows any more for a pod that netmaster has yet to hear has ended. That is no difference.
func TestVerify_PodEndsOnItsNodeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := twoNodes(t)
		p.nodes.list = p.nodes.list[:1]
		ended := netip.MustParseAddr("10.0.0.2") // shop/db
		queries := 0
		behave := p.obedient("node1", func(t *inspect.Trace) { t.Passed = t.Passed && t.Packet.To != ended && t.Packet.From != ended })
		p.nodes.answers = map[string]any{"node1": func(q inspect.NodeQuery) any {
			if queries++; queries == 3 { // the first trace after the one that differed
				gone := resolve.Announcement{Node: "node1", Namespace: "shop", Name: "db", UID: "db", Addresses: []netip.Addr{ended}}
				p.owner.engine.Apply(resolve.Batch{
					DeletedEndpoints: []string{"shop/db"},
					Withdrawn:        []resolve.Announcement{gone},
				})
			}
			return behave(q)
		}}
		n := verified(t, p, inspect.VerifyWhat{Samples: 200}).Nodes[0]
		if !n.Fine || n.Samples.Differing > 0 || n.Samples.Skipped == 0 {
			t.Errorf("%d queries, %d packets differ, %d skipped: "+
				"%q", queries, n.Samples.Differing, n.Samples.Skipped, n.Problems)
		}
	})
}

// The model that samples are judged by is the oracle; each pod has its turn; the same seed draws the same.
func TestSamples(t *testing.T) {
	for seed := range uint64(30) {
		g := policytest.New(seed)
		w := g.World(12, 6)
		infos := []policy.NodeInfo{{Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00:9::1")}}}
		r := rand.New(rand.NewPCG(seed, 9))
		for _, e := range w.Endpoints {
			e.Node = fmt.Sprintf("node%d", 1+r.IntN(2))
		}
		sc := newScene(1, w, infos)
		s, again := newSampler(sc, "node1", seed), newSampler(sc, "node1", seed)
		drawn := map[string]bool{}
		for i := range 120 {
			x, ok := s.draw(i)
			if y, _ := again.draw(i); y.packet != x.packet {
				t.Fatalf("seed %d: %+v and %+v", seed, x.packet, y.packet)
			}
			if !ok {
				continue
			}
			if want := policy.Allowed(w, x.packet); want.Egress.Allowed != x.verdict.Egress.Allowed || want.Ingress.Allowed != x.verdict.Ingress.Allowed {
				t.Fatalf("seed %d: %+v: %+v, oracle %+v", seed, x.packet, x.verdict, want)
			}
			if !x.atSource && !x.atTarget || x.packet.From == x.packet.To || x.packet.From.Is6() != x.packet.To.Is6() {
				t.Errorf("seed %d: %+v", seed, x)
			}
			for _, a := range []netip.Addr{x.packet.From, x.packet.To} {
				drawn[sc.name(a)] = true
			}
		}
		for _, e := range s.pods {
			if !drawn[e.ID()] {
				t.Errorf("seed %d: %s was never drawn", seed, e.ID())
			}
		}
	}
	if _, ok := newSampler(newScene(1, &policy.World{}, nil), "node1", 1).draw(0); ok {
		t.Error("something was drawn out of nothing")
	}
}

// Of a hundred pods each rule lets only one in, by one port of its own: none is met by chance, and each has its turn.
func TestSamplesMeetEveryRule(t *testing.T) {
	const rules = 20
	only := func(i int) policy.Selector {
		return policy.Selector{Requirements: []policy.Requirement{{Key: "n", Operator: policy.In, Values: []string{fmt.Sprint(i)}}}}
	}
	w := &policy.World{Namespaces: []policy.Namespace{{Name: "ns", Labels: map[string]string{}}}}
	for i := range 100 {
		w.Endpoints = append(w.Endpoints, &policy.Endpoint{Namespace: "ns", Name: fmt.Sprintf("p%02d", i), Node: fmt.Sprintf("node%d", min(i, 1)+1), Labels: map[string]string{"n": fmt.Sprint(i)},
			Addresses: []netip.Addr{policytest.Address(i, false)}})
	}
	p := &policy.Policy{Namespace: "ns", Name: "narrow", IsolatesIngress: true, AppliedTo: only(0)}
	for i := range rules {
		number, pods := uint16(1000+10*i), only(50+i)
		p.Ingress = append(p.Ingress, policy.PolicyRule{Ports: []policy.PolicyPort{{Protocol: policy.TCP, First: number, Last: number}},
			Peers: []policy.Peer{{Pods: &pods}}})
	}
	w.Policies = []*policy.Policy{p}
	for seed := range uint64(5) {
		s, met := newSampler(newScene(1, w, nil), "node1", seed), map[int]bool{}
		for i := range 2 * rules {
			x, ok := s.draw(i)
			if ok && x.allowed && len(x.verdict.Ingress.By) == 1 {
				met[x.verdict.Ingress.By[0].Rule] = true
			}
		}
		if len(met) != rules {
			t.Errorf("seed %d: %d of %d rules were met", seed, len(met), rules)
		}
	}
}

// Rules whose peers are nobody, or only the pod itself, are looked through once a family, however many packets are drawn; they keep nobody from the packets of others.
func TestSampler_EmptyPeersAreSearchedOnce(t *testing.T) {
	const pods, draws = 2000, 200
	label := func(n int) *policy.Selector {
		return &policy.Selector{Requirements: []policy.Requirement{{Key: "n", Operator: policy.In, Values: []string{fmt.Sprint(n)}}}}
	}
	w := &policy.World{Namespaces: []policy.Namespace{{Name: "ns", Labels: map[string]string{}}}}
	for i := range pods {
		w.Endpoints = append(w.Endpoints, &policy.Endpoint{Namespace: "ns", Name: fmt.Sprintf("p%04d", i), Node: fmt.Sprintf("node%d", min(i/5, 1)+1), Labels: map[string]string{"n": fmt.Sprint(i)},
			Addresses: []netip.Addr{policytest.Address(i, false), policytest.Address(i, true)}})
	}
	for name, test := range map[string]struct {
		peer *policy.Selector
		port policy.PolicyPort
		once int // times that all pods are looked through
	}{
		"nobody":              {label(pods), policy.PolicyPort{Protocol: policy.TCP, First: 80, Last: 80}, 2},
		"one pod":             {label(0), policy.PolicyPort{Protocol: policy.TCP, First: 80, Last: 80}, 2},
		"a port nobody names": {label(1), policy.PolicyPort{Protocol: policy.TCP, Name: "http"}, 2 * 5},
	} {
		w.Policies = []*policy.Policy{{Namespace: "ns", Name: "narrow", IsolatesIngress: true, Ingress: []policy.PolicyRule{{Peers: []policy.Peer{{Pods: test.peer}}, Ports: []policy.PolicyPort{test.port}}}}}
		s, again, drawn := newSampler(newScene(1, w, nil), "node1", 1), newSampler(newScene(1, w, nil), "node1", 1), 0
		if name == "one pod" {
			s.pods, again.pods = s.podNamed("p0000"), again.podNamed("p0000")
		}
		for i := range draws {
			a, ok := s.draw(i)
			if b, okAgain := again.draw(i); ok != okAgain || a.packet != b.packet {
				t.Fatalf("%s: the same seed gives %+v and %+v", name, a, b)
			}
			if ok {
				drawn++
			}
		}
		if drawn < draws-1 || s.scanned != test.once*pods {
			t.Errorf("%s: %d of %d drawn, %d pods were looked at, want %d times "+
				"%d", name, drawn, draws, s.scanned, test.once, pods)
		}
		if rule := &s.rulesOf(s.pods[0])[0]; name == "one pod" && s.podOf(0, w.Endpoints[1], rule, false) != w.Endpoints[0].Addresses[0] {
			t.Error("a pod is nobody to others since it was to itself")
		}
	}
}

func (s *sampler) podNamed(name string) []*policy.Endpoint {
	return slices.DeleteFunc(slices.Clone(s.pods), func(e *policy.Endpoint) bool { return e.Name != name })
}

func TestRandomIn(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, text := range []string{"10.1.2.3/32", "10.0.0.0/9", "0.0.0.0/0", "fd00::/7", "2001:db8::1/128", "2001:db8::/61"} {
		p := netip.MustParsePrefix(text)
		for range 100 {
			if a := randomIn(r, p); !p.Contains(a) {
				t.Fatalf("%v is not in %v", a, p)
			}
		}
	}
}

func TestShorten(t *testing.T) {
	n := inspect.NodeResult{Flows: &inspect.NodeVerify{}, Samples: inspect.SampleResults{Wrong: make([]inspect.WrongSample, 9)}}
	for i := range 30 {
		n.Flows.Differences = append(n.Flows.Differences, inspect.Difference{Kind: []string{inspect.FlowMissing, inspect.FlowChanged, inspect.FlowExtra}[i/10]})
	}
	if shorten(&n, 4); len(n.Flows.Differences) != 12 || n.Flows.Differences[11].Kind != inspect.FlowExtra || len(n.Samples.Wrong) != 4 {
		t.Errorf("%+v", n)
	}
}
