package query

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// explained asks with both nodes known; what they answer is the test's.
func explained(t *testing.T, p *place, from, to string) (inspect.Explained, error) {
	t.Helper()
	target, err := inspect.ParseTarget(to)
	if err != nil {
		t.Fatal(err)
	}
	return asked[inspect.Explained](p, inspect.Question{Kind: inspect.AskExplain, From: from, To: &target})
}

func twoNodes(t *testing.T) *place {
	p := newPlace(t)
	p.nodes.list = []feed.NodeStatus{{Name: "node1", Connected: true, Sent: 8, Realised: 8}, {Name: "node2", Connected: true, Sent: 8, Realised: 8}}
	p.nodes.infos = []policy.NodeInfo{{Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/29")}},
		{Name: "node2", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}}
	p.nodes.answers = map[string]any{"node1": errors.New("no proof today"), "node2": errors.New("no proof today")}
	return p
}

func TestExplain(t *testing.T) {
	p := twoNodes(t)
	for question, want := range map[string]string{
		"shop/api shop/db:5432":         "10.0.0.3→10.0.0.2 TCP/5432 true",
		"shop/api shop/db:sql":          "10.0.0.3→10.0.0.2 TCP/5432 true",
		"shopping/bag shop/db:81":       "10.0.0.4→10.0.0.2 TCP/81 true", // by the ipBlock
		"10.1.0.1 shop/db:81/tcp":       "10.1.0.1→10.0.0.2 TCP/81 false",
		"10.1.0.1 shop/db/icmp":         "10.1.0.1→10.0.0.2 protocol(1)/0 false",
		"world shop/db":                 "198.51.100.1→10.0.0.2 TCP/5432 true", // the port that is allowed
		"shop/db world:80":              "10.0.0.2→198.51.100.1 TCP/80 false",
		"node1 shop/db:1":               "192.0.2.1→10.0.0.2 TCP/1 true", // its own pod
		"10.0.0.1 shop/db:1":            "10.0.0.1→10.0.0.2 TCP/1 true",  // by its gateway
		"node2 shop/db:1":               "192.0.2.2→10.0.0.2 TCP/1 false",
		"shop/host shop/db:1":           "192.0.2.1→10.0.0.2 TCP/1 true",
		"shop/db shop/db:9/udp":         "10.0.0.2→10.0.0.2 UDP/9 true",
		"shopping/bag shop/host:22/tcp": "10.0.0.4→192.0.2.1 TCP/22 true",
	} {
		from, to, _ := strings.Cut(question, " ")
		x, err := explained(t, p, from, to)
		if err != nil || len(x.Ways) != 1 {
			t.Errorf("%s: %+v, %v", question, x, err)
			continue
		}
		w := x.Ways[0]
		if got := fmt.Sprintf("%s→%s %s/%d %v", w.From.Address, w.To.Address, w.Protocol, w.Port, w.Allowed); got != want {
			t.Errorf("%s: %s, want %s", question, got, want)
		}
	}
	for question, code := range map[string]codes.Code{
		"shop/nobody shop/db": codes.NotFound, "shop/db shop/nobody": codes.NotFound, "node9 shop/db": codes.NotFound, "shop/api shop/db:http": codes.NotFound,
		"shop/new shop/db": codes.FailedPrecondition, "shop/db shop/done": codes.FailedPrecondition, "shop/db fd00::1": codes.FailedPrecondition,
	} {
		from, to, _ := strings.Cut(question, " ")
		if x, err := explained(t, p, from, to); status.Code(err) != code {
			t.Errorf("%s: %+v, %v", question, x, err)
		}
	}
	if _, err := asked[any](p, inspect.Question{Kind: inspect.AskExplain, From: "shop/db"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("half a question: %v", err)
	}
}

// The switches are asked of both ends' nodes; one that does something else is told, one that cannot say so is a problem.
func TestExplainProves(t *testing.T) {
	p := twoNodes(t)
	packet := policy.Packet{From: netip.MustParseAddr("10.0.0.3"), To: netip.MustParseAddr("10.0.0.2"), Protocol: policy.TCP, Port: 5432}
	traced := func(passed bool, problem string) inspect.NodeTraces {
		return inspect.NodeTraces{Traces: []inspect.Trace{{Packet: packet, Passed: passed, Out: "there", Problem: problem}}}
	}
	for name, c := range map[string]struct {
		node1, node2          any
		disagreement, problem string
	}{
		"both agree":     {node1: traced(true, ""), node2: traced(true, "")},
		"one drops":      {node1: traced(false, ""), node2: traced(true, ""), disagreement: "node1 drops it (there), but by the policies it passes"},
		"one is silent":  {node1: traced(true, ""), node2: errors.New("away"), problem: "node node2 gives no proof: away"},
		"one talks rot":  {node1: "{", node2: traced(true, ""), problem: "node node1 gives no proof"},
		"one cannot say": {node1: traced(true, ""), node2: traced(false, "no bridge")},
	} {
		p.nodes.answers = map[string]any{"node1": c.node1, "node2": c.node2}
		x, err := explained(t, p, "shop/api", "shop/db:5432")
		if err != nil {
			t.Fatal(err)
		}
		got, problems := strings.Join(x.Ways[0].Disagreements, "\n"), strings.Join(x.Problems, "\n")
		if !strings.Contains(got, c.disagreement) || (c.disagreement == "") != (got == "") || !strings.Contains(problems, c.problem) || (c.problem == "") != (problems == "") {
			t.Errorf("%s: disagreements %q, problems %q", name, got, problems)
		}
	}
	p.nodes.answers = map[string]any{"node1": inspect.NodeTraces{Traces: []inspect.Trace{{Packet: packet, Passed: true}}}, "node2": traced(true, "")}
	packet.From, packet.Port = netip.MustParseAddr("10.0.0.3"), 9999
	p.nodes.list[0].Realised = 7
	if x, err := explained(t, p, "shop/api", "shop/db:5432"); err != nil || len(x.Problems) != 1 || !strings.Contains(x.Problems[0], "revision 7 of 8") {
		t.Errorf("%+v, %v", x, err)
	}
	if x, err := explained(t, p, "shopping/twin1", "world:80"); err != nil || !strings.Contains(strings.Join(x.Problems, "\n"), "10.0.0.5 is claimed by shopping/twin1 and "+
		"shopping/twin2") {
		t.Errorf("%+v, %v", x, err)
	}
}

func TestMatrix(t *testing.T) {
	p := twoNodes(t)
	m, err := asked[inspect.Matrix](p, inspect.Question{Kind: inspect.AskMatrix, Matrix: &explain.Question{Namespaces: []string{"shop"}}})
	if err != nil || m.Revision == 0 {
		t.Fatalf("%+v, %v", m, err)
	}
	for pair, want := range map[[2]string]string{{"shop/api", "shop/db"}: "all", {"shop/db", "shop/api"}: "none", {"shop/db", "shop/db"}: "all"} {
		if c, ok := m.Between(pair[0], pair[1]); !ok || c.String() != want {
			t.Errorf("%v: %v, %v; want %s", pair, c, ok, want)
		}
	}
	if !slices.Equal(m.Apart, []string{"shop/done", "shop/host", "shop/new"}) || m.Find("shopping/bag") >= 0 {
		t.Errorf("apart: %v, groups: %v", m.Apart, m.Groups)
	}
	if m, err = asked[inspect.Matrix](p, inspect.Question{Kind: inspect.AskMatrix}); err != nil || m.Find("shopping/bag") < 0 {
		t.Errorf("of all: %+v, %v", m, err)
	}
	if _, err := asked[any](p, inspect.Question{Kind: inspect.AskMatrix, Matrix: &explain.Question{Namespaces: []string{"nowhere"}}}); status.Code(err) != codes.NotFound {
		t.Errorf("a namespace that is none: %v", err)
	}
	many := resolve.Batch{Namespaces: []policy.Namespace{{Name: "many"}}}
	for i := range inspect.MostGroups + 1 {
		name := fmt.Sprintf("p%d", i)
		many.Endpoints = append(many.Endpoints, &policy.Endpoint{Namespace: "many", Name: name, UID: name, Labels: map[string]string{"n": name}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})}})
		many.Policies = append(many.Policies, &policy.Policy{Namespace: "many", Name: name, AppliedTo: is("n", name), IsolatesIngress: true})
	}
	p.owner.engine.Apply(many)
	if _, err := asked[any](p, inspect.Question{Kind: inspect.AskMatrix}); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "query a namespace") {
		t.Errorf("too many groups: %v", err)
	}
}

// Who wants no proof costs the nodes nothing.
func TestExplainUnproved(t *testing.T) {
	p := twoNodes(t)
	x, err := asked[inspect.Explained](p, inspect.Question{Kind: inspect.AskExplain, From: "shop/api", To: &inspect.Target{Name: "shop/db", Port: "5432"}, Unproved: true})
	if err != nil || len(x.Ways) != 1 || !x.Ways[0].Allowed || len(x.Ways[0].Traces)+len(x.Problems)+len(p.nodes.asked) != 0 {
		t.Errorf("%+v, %v; the nodes were asked %v", x, err, p.nodes.asked)
	}
}

// notAttached sets the pods that no node announced for too long, written as "namespace/name@node".
func (p *place) notAttached(text string) {
	var overdue []string
	for _, f := range strings.Fields(text) {
		overdue = append(overdue, f+"!")
	}
	set := unattached(strings.Join(overdue, " "))
	p.Server.cfg.Unattached = func() *attachment.Set { return set }
}

// The side of a pod that Flowkeep did not attach is not proved at its node; the other side is.
func TestExplain_PodNotAttached(t *testing.T) {
	p := twoNodes(t)
	p.notAttached("shop/db@node1")
	dropped := func(q inspect.NodeQuery) any {
		var out inspect.NodeTraces
		for _, packet := range q.Packets {
			out.Traces = append(out.Traces, inspect.Trace{Packet: packet, Out: "there"})
		}
		return out
	}
	p.nodes.answers = map[string]any{"node1": dropped, "node2": dropped}
	const remedy = "shop/db is not wired by Flowkeep: " + attachment.Remedy
	for question, want := range map[string]string{
		"10.1.0.1 shop/db:81": "policies deny it; shop/db is not wired by Flowkeep, its side is not enforced",
		"shop/db world:80":    "policies deny it; shop/db is not wired by Flowkeep, its side is not enforced",
		"node1 shop/db:1":     "ALLOWED",
	} {
		from, to, _ := strings.Cut(question, " ")
		x, err := explained(t, p, from, to)
		if err != nil || len(x.Ways) != 1 || x.Ways[0].Verdict() != want || len(x.Ways[0].Traces) != 0 {
			t.Errorf("%s: %+v, %v; want %s", question, x.Ways, err, want)
		}
		if !slices.Contains(x.Problems, remedy) {
			t.Errorf("%s: problems %q", question, x.Problems)
		}
	}
	x, err := explained(t, p, "shop/api", "shop/db:5432")
	if err != nil || len(x.Ways[0].Traces) != 1 || x.Ways[0].Traces[0].Node != "node2" ||
		len(x.Ways[0].Disagreements) != 1 {
		t.Errorf("the other side is not proved: %+v, %v", x.Ways, err)
	}
	p.cfg.Problems = func() []string { return []string{"shop/db on node1: " + attachment.Remedy} }
	if x, err := explained(t, p, "10.1.0.1", "shop/db:81"); err != nil || slices.Contains(x.Problems, remedy) {
		t.Errorf("the remedy is there twice: %+v, %v", x, err)
	}
	p.notAttached("")
	p.cfg.Problems = func() []string { return nil }
	if x, err = explained(t, p, "10.1.0.1", "shop/db:81"); err != nil || slices.Contains(x.Problems, remedy) ||
		x.Ways[0].Verdict() != "DENIED" {
		t.Errorf("once it is attached: %+v, %v", x, err)
	}
}

// The switch of a node also applies the policies of the node's pods that Flowkeep did not attach, by their addresses.
func TestExplain_PodNotAttached_SameNode(t *testing.T) {
	p := twoNodes(t)
	p.owner.engine.Apply(resolve.Batch{Endpoints: []*policy.Endpoint{{
		Namespace: "shop",
		Name:      "web",
		Node:      "node1",
		Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.6")},
	}}})
	p.notAttached("shop/db@node1")
	const notWired = "policies deny it; shop/db is not wired by Flowkeep, its side is not enforced"
	for name, c := range map[string]struct {
		from, to string
		passed   bool
		want     string
	}{
		"to it":           {"shop/web", "shop/db:81", false, "DENIED"},
		"to it, passes":   {"shop/web", "shop/db:81", true, notWired},
		"from it":         {"shop/db", "shop/web:80", false, notWired}, // its plugin may translate its address
		"from it, passes": {"shop/db", "shop/web:80", true, notWired},
	} {
		t.Run(name, func(t *testing.T) {
			p.nodes.answers["node1"] = func(q inspect.NodeQuery) any {
				return inspect.NodeTraces{Traces: []inspect.Trace{{Packet: q.Packets[0], Passed: c.passed}}}
			}
			x, err := explained(t, p, c.from, c.to)
			if err != nil || len(x.Ways) != 1 || x.Ways[0].Verdict() != c.want ||
				len(x.Ways[0].Disagreements) != map[bool]int{true: 1}[c.passed] {
				t.Errorf("%+v, %v; want %s", x.Ways, err, c.want)
			}
		})
	}
}

// A pod without an effective address may be one that Flowkeep did not attach.
func TestExplain_PodNotAttachedWithoutAddress(t *testing.T) {
	p := twoNodes(t)
	p.notAttached("shop/new@node1")
	for _, ends := range [][2]string{{"shop/new", "shop/db:80"}, {"shop/db", "shop/new:80"}} {
		_, err := explained(t, p, ends[0], ends[1])
		if status.Code(err) != codes.FailedPrecondition ||
			!strings.Contains(err.Error(), "shop/new has no effective address: it is not wired by Flowkeep: recreate") {
			t.Errorf("%v: %v", ends, err)
		}
	}
}

func TestExplain_NodeWithoutProof(t *testing.T) {
	p := twoNodes(t)
	for name, c := range map[string]struct {
		answer any
		want   string
	}{
		"no answer": {errors.New("away"), "no switch proves it, node1 does not answer"},
		"a problem": {func(q inspect.NodeQuery) any {
			return inspect.NodeTraces{Traces: []inspect.Trace{{Packet: q.Packets[0], Problem: "no bridge"}}}
		}, "node1 gives no proof: no bridge"},
		"no trace": {inspect.NodeTraces{}, "node1 gives no proof: it returned no trace of this packet"},
	} {
		t.Run(name, func(t *testing.T) {
			p.nodes.answers["node1"] = c.answer
			x, err := explained(t, p, "10.1.0.1", "shop/db:81")
			if err != nil || x.Ways[0].Verdict() != "policies deny it; "+c.want {
				t.Errorf("%s, %v; want %s", x.Ways[0].Verdict(), err, c.want)
			}
		})
	}
}

func TestExplain_VerdictWithoutQuery(t *testing.T) {
	p := twoNodes(t)
	target := &inspect.Target{Name: "shop/db", Port: "81"}
	question := inspect.Question{Kind: inspect.AskExplain, From: "10.1.0.1", To: target, Unproved: true}
	x, err := asked[inspect.Explained](p, question)
	if err != nil || x.Ways[0].Verdict() != "policies deny it; not proved" {
		t.Errorf("%+v, %v", x.Ways, err)
	}
}

func TestProve_MorePacketsThanTraced(t *testing.T) {
	p := twoNodes(t)
	p.nodes.answers["node1"] = func(q inspect.NodeQuery) any {
		var out inspect.NodeTraces
		for _, packet := range q.Packets {
			out.Traces = append(out.Traces, inspect.Trace{Packet: packet})
		}
		return out
	}
	ways := make([]inspect.Way, inspect.MostTraces+1)
	for i := range ways {
		w := &ways[i]
		w.Protocol, w.Port = policy.TCP, uint16(i+1)
		w.From = explain.End{Kind: explain.Outside, Address: netip.MustParseAddr("10.1.0.1")}
		w.To = explain.End{
			Kind:    explain.Pod,
			Address: netip.MustParseAddr("10.0.0.2"),
			Pods:    []string{"shop/db"},
			Node:    "node1",
		}
	}
	p.Server.prove(t.Context(), ways, "")
	last := &ways[inspect.MostTraces]
	if ways[0].Verdict() != "DENIED" || len(last.NotProved) != 1 ||
		last.NotProved[0].Problem != "it is queried for 64 packets at most" {
		t.Errorf("%s; %+v", ways[0].Verdict(), last.NotProved)
	}
}

func TestMatrix_PodsNotAttached(t *testing.T) {
	p := twoNodes(t)
	p.notAttached("shop/db@node1 shop/new@node1 shopping/bag@node2")
	question := inspect.Question{Kind: inspect.AskMatrix, Matrix: &explain.Question{Namespaces: []string{"shop"}}}
	m, err := asked[inspect.Matrix](p, question)
	if err != nil || !slices.Equal(m.NotEnforced, []string{"shop/db", "shop/new"}) {
		t.Errorf("not enforced: %v, %v", m.NotEnforced, err)
	}
	if m.Remedy != attachment.Remedy {
		t.Errorf("remedy %q", m.Remedy)
	}
	if m, err := asked[inspect.Matrix](twoNodes(t), question); err != nil || m.Remedy != "" {
		t.Errorf("all pods are attached: remedy %q, %v", m.Remedy, err)
	}
}

func TestEndpoints_NotAttached(t *testing.T) {
	p := twoNodes(t)
	pod := func(name string, address string) *policy.Endpoint {
		addresses := []netip.Addr{netip.MustParseAddr(address)}
		return &policy.Endpoint{Namespace: "shop", Name: name, UID: name, Node: "node1", Addresses: addresses}
	}
	foreign, wide := pod("foreign", "10.0.7.1"), pod("wide", "10.0.7.2")
	foreign.NoPeer, wide.LabelsLeftOut = true, 3
	p.owner.engine.Apply(resolve.Batch{Endpoints: []*policy.Endpoint{foreign, wide}})
	p.notAttached("shop/api@node2 shop/new@node1 shop/foreign@node1 shop/wide@node1 shopping/twin1@node1 " +
		"shop/host@node1 shop/done@node1 shop/db@node1") // the last three by a set that is outdated
	for id, want := range map[string]string{
		"shop/api":       "not wired",
		"shop/new":       "not wired",
		"shop/foreign":   "not wired",
		"shop/wide":      "not wired",
		"shopping/twin1": "not wired",
		"shop/host":      "host network",
		"shop/done":      "finished",
		"shop/db":        "wired",
	} {
		list, err := asked[[]inspect.Endpoint](p, inspect.Question{Kind: inspect.AskEndpoints, ID: id})
		if err != nil || len(list) != 1 || list[0].State != want || (list[0].Remedy != "") != (want == "not wired") {
			t.Errorf("%s: %+v, %v; want %s", id, list, err, want)
		}
	}
}

func TestPolicies_PodsNotAttached(t *testing.T) {
	p := twoNodes(t)
	p.notAttached("shop/db@node1")
	for _, question := range []inspect.Question{{Kind: inspect.AskPolicies}, {Kind: inspect.AskPolicies, Rules: true}} {
		list, err := asked[[]inspect.Policy](p, question)
		if err != nil {
			t.Fatal(err)
		}
		partial := slices.ContainsFunc(list, func(p inspect.Policy) bool {
			return slices.ContainsFunc(p.Nodes, func(n inspect.PolicyNode) bool { return n.State == "partial" })
		})
		if !partial {
			t.Errorf("no policy is partly enforced: %+v", list)
		}
	}
}
