package inspect

import (
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/explain"
)

const notWired = "dbg/p is not wired by Flowkeep, its side is not enforced"

func TestWay_Verdict(t *testing.T) {
	pod := func(id, node string) explain.End {
		return explain.End{Kind: explain.Pod, Pods: []string{id}, Node: node}
	}
	p, w := pod("dbg/p", "n1"), pod("dbg/w", "n2")
	world := explain.End{Kind: explain.Outside, Address: netip.MustParseAddr("192.0.2.1")}
	for name, c := range map[string]struct {
		from, to        explain.End
		egress, ingress bool
		ofTheNode       bool
		unattached      []string
		notProved       []NoProof
		want            string
	}{
		"allowed": {w, p, true, true, false, nil, nil, "ALLOWED"},
		"denied":  {w, p, true, false, false, nil, nil, "DENIED"},
		"denied at its ingress": {w, p, true, false, false, []string{"dbg/p"}, nil,
			"policies deny it; " + notWired},
		"denied at its egress": {p, w, false, true, false, []string{"dbg/p"}, nil,
			"policies deny it; " + notWired},
		"denied to it by the other":   {w, p, false, true, false, []string{"dbg/p"}, nil, "DENIED"},
		"denied from it by the other": {p, w, true, false, false, []string{"dbg/p"}, nil, "DENIED"},
		"denied by both":              {w, p, false, false, false, []string{"dbg/p"}, nil, "DENIED"},
		"from the world": {world, p, true, false, false, []string{"dbg/p"}, nil,
			"policies deny it; " + notWired},
		"allowed to it":   {w, p, true, true, false, []string{"dbg/p"}, nil, "policies allow it; " + notWired},
		"by its own node": {world, p, true, true, true, []string{"dbg/p"}, nil, "ALLOWED"},
		"its node is silent": {w, p, true, false, false, nil, []NoProof{{Node: "n1"}},
			"policies deny it; no switch proves it, n1 does not answer"},
		"the other's node is silent": {w, p, true, false, false, nil, []NoProof{{Node: "n2"}}, "DENIED"},
		"allowed, a node is silent": {w, p, true, true, false, nil, []NoProof{{Node: "n2"}},
			"policies allow it; no switch proves it, n2 does not answer"},
		"denied by both, one is silent": {w, p, false, false, false, nil, []NoProof{{Node: "n2"}}, "DENIED"},
		"its node has a problem": {w, p, true, false, false, nil, []NoProof{{"n1", "no bridge"}},
			"policies deny it; n1 gives no proof: no bridge"},
		"neither side holds": {w, p, false, false, false, []string{"dbg/p"}, []NoProof{{Node: "n2"}},
			"policies deny it; no switch proves it, n2 does not answer; " + notWired},
	} {
		t.Run(name, func(t *testing.T) {
			way := Way{OfTheNode: c.ofTheNode, NotEnforced: c.unattached, NotProved: c.notProved}
			way.From, way.To, way.Allowed = c.from, c.to, c.egress && c.ingress
			way.Egress.Allowed, way.Ingress.Allowed = c.egress, c.ingress
			if got := way.Verdict(); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestWay_Verdict_SwitchDisagrees(t *testing.T) {
	pod := func(id, node string) explain.End {
		return explain.End{Kind: explain.Pod, Pods: []string{id}, Node: node}
	}
	for name, c := range map[string]struct {
		egress, ingress, ofTheNode bool
		node, want                 string
	}{
		"denied":                         {true, false, false, "n1", "policies deny it; the switch of n1 disagrees"},
		"allowed":                        {true, true, false, "n2", "policies allow it; the switch of n2 disagrees"},
		"denied, the other's":            {true, false, false, "n2", "DENIED"},
		"denied by both, the other does": {false, false, false, "n2", "DENIED"},
		"by its own node":                {true, true, true, "n1", "policies allow it; the switch of n1 disagrees"},
	} {
		t.Run(name, func(t *testing.T) {
			way := Way{OfTheNode: c.ofTheNode, DisagreeingNodes: []string{c.node}}
			way.From, way.To, way.Allowed = pod("dbg/w", "n2"), pod("dbg/p", "n1"), c.egress && c.ingress
			way.Egress.Allowed, way.Ingress.Allowed = c.egress, c.ingress
			if got := way.Verdict(); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestWay_Verdict_Unproved(t *testing.T) {
	p := explain.End{Kind: explain.Pod, Pods: []string{"dbg/p"}, Node: "n1"}
	world := explain.End{Kind: explain.Outside, Address: netip.MustParseAddr("192.0.2.1")}
	way := func(from, to explain.End, egress, ingress bool, unattached ...string) *Way {
		w := &Way{Unproved: true, NotEnforced: unattached}
		w.From, w.To, w.Allowed, w.Egress.Allowed, w.Ingress.Allowed = from, to, egress && ingress, egress, ingress
		return w
	}
	own := way(world, p, true, true)
	own.OfTheNode = true
	for name, c := range map[string]struct {
		way  *Way
		want string
	}{
		"denied":       {way(world, p, true, false), "policies deny it; not proved"},
		"allowed":      {way(p, p, true, true), "policies allow it; not proved"},
		"not attached": {way(world, p, true, false, "dbg/p"), "policies deny it; " + notWired},
		"of no pods":   {way(world, world, true, true), "ALLOWED"},
		"by its node":  {own, "ALLOWED"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.way.Verdict(); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestWay_IsEnforced_DroppedAtSource(t *testing.T) {
	for name, c := range map[string]struct {
		node       string // of the source
		ingress    bool
		trace      Trace
		unattached []string
		want       bool
	}{
		"dropped":                 {"n1", false, Trace{Node: "n1"}, []string{"a/to"}, true},
		"passed":                  {"n1", false, Trace{Node: "n1", Passed: true}, []string{"a/to"}, false},
		"no trace":                {"n1", false, Trace{Node: "n1", Problem: "no bridge"}, []string{"a/to"}, false},
		"dropped, but not by it":  {"n1", true, Trace{Node: "n1"}, []string{"a/to"}, false},
		"from another node":       {"n2", false, Trace{Node: "n2"}, []string{"a/to"}, false},
		"the source is not there": {"n1", false, Trace{Node: "n1"}, []string{"a/from", "a/to"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := Way{NotEnforced: c.unattached, Traces: []Trace{c.trace}}
			w.From = explain.End{Kind: explain.Pod, Pods: []string{"a/from"}, Node: c.node}
			w.To = explain.End{Kind: explain.Pod, Pods: []string{"a/to"}, Node: "n1"}
			w.Ingress.Allowed = c.ingress
			if w.IsEnforced(&w.To) != c.want {
				t.Errorf("%v, want %v", !c.want, c.want)
			}
		})
	}
}

func TestWay_EnforcedAlike(t *testing.T) {
	way := func(to string, unattached ...string) *Way {
		w := &Way{NotEnforced: unattached}
		w.From = explain.End{Kind: explain.Pod, Pods: []string{"a/from"}}
		w.To = explain.End{Kind: explain.Pod, Pods: []string{to}}
		return w
	}
	for name, c := range map[string]struct {
		a, b *Way
		want bool
	}{
		"both ends":      {way("a/x"), way("a/y"), true},
		"neither target": {way("a/x", "a/x"), way("a/y", "a/y"), true},
		"one target":     {way("a/x", "a/x"), way("a/y"), false},
		"one source":     {way("a/x", "a/from"), way("a/y"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if c.a.EnforcedAlike(c.b) != c.want {
				t.Errorf("want %v", c.want)
			}
		})
	}
}

func TestWay_DeniesEnforced(t *testing.T) {
	end := func(id string) explain.End { return explain.End{Kind: explain.Pod, Pods: []string{id}} }
	for name, c := range map[string]struct {
		egress, ingress bool
		unattached      []string
		want            bool
	}{
		"allowed":                      {true, true, nil, false},
		"denied":                       {true, false, nil, true},
		"denied at one not attached":   {true, false, []string{"a/to"}, false},
		"denied at the other":          {false, true, []string{"a/to"}, true},
		"denied by both, one attached": {false, false, []string{"a/to"}, true},
		"denied by both":               {false, false, []string{"a/from", "a/to"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := Way{NotEnforced: c.unattached}
			w.From, w.To, w.Allowed = end("a/from"), end("a/to"), c.egress && c.ingress
			w.Egress.Allowed, w.Ingress.Allowed = c.egress, c.ingress
			if w.DeniesEnforced() != c.want {
				t.Errorf("%v, want %v", !c.want, c.want)
			}
		})
	}
}
