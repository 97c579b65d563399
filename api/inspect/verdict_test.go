package inspect

import (
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/explain"
)

func TestWay_Verdict(t *testing.T) {
	pod := func(id, node string) explain.End {
		return explain.End{Kind: explain.Pod, Pods: []string{id}, Node: node}
	}
	p, w := pod("dbg/p", "n1"), pod("dbg/w", "n2")
	world := explain.End{Kind: explain.Outside, Address: netip.MustParseAddr("192.0.2.1")}
	const notWired = "dbg/p is not wired by Flowkeep, its side is not enforced"
	for name, c := range map[string]struct {
		from, to           explain.End
		egress, ingress    bool
		ofTheNode          bool
		unattached, silent []string
		want               string
	}{
		"allowed":                       {w, p, true, true, false, nil, nil, "ALLOWED"},
		"denied":                        {w, p, true, false, false, nil, nil, "DENIED"},
		"denied at its ingress":         {w, p, true, false, false, []string{"dbg/p"}, nil, "policies deny it; " + notWired},
		"denied at its egress":          {p, w, false, true, false, []string{"dbg/p"}, nil, "policies deny it; " + notWired},
		"denied to it by the other":     {w, p, false, true, false, []string{"dbg/p"}, nil, "DENIED"},
		"denied from it by the other":   {p, w, true, false, false, []string{"dbg/p"}, nil, "DENIED"},
		"denied by both":                {w, p, false, false, false, []string{"dbg/p"}, nil, "DENIED"},
		"from the world":                {world, p, true, false, false, []string{"dbg/p"}, nil, "policies deny it; " + notWired},
		"allowed to it":                 {w, p, true, true, false, []string{"dbg/p"}, nil, "policies allow it; " + notWired},
		"by its own node":               {world, p, true, true, true, []string{"dbg/p"}, nil, "ALLOWED"},
		"its node is silent":            {w, p, true, false, false, nil, []string{"n1"}, "policies deny it; no switch proves it, n1 does not answer"},
		"the other's node is silent":    {w, p, true, false, false, nil, []string{"n2"}, "DENIED"},
		"allowed, a node is silent":     {w, p, true, true, false, nil, []string{"n2"}, "policies allow it; no switch proves it, n2 does not answer"},
		"denied by both, one is silent": {w, p, false, false, false, nil, []string{"n2"}, "DENIED"},
		"neither side holds": {w, p, false, false, false, []string{"dbg/p"}, []string{"n2"},
			"policies deny it; no switch proves it, n2 does not answer; " + notWired},
	} {
		t.Run(name, func(t *testing.T) {
			way := Way{OfTheNode: c.ofTheNode, NotEnforced: c.unattached, NotProved: c.silent}
			way.From, way.To, way.Allowed = c.from, c.to, c.egress && c.ingress
			way.Egress.Allowed, way.Ingress.Allowed = c.egress, c.ingress
			if got := way.Verdict(); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
