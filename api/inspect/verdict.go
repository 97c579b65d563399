package inspect

import (
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/explain"
)

// IsEnforced reports whether policies are enforced at an end of the way: Flowkeep attached its pod, or it is no pod.
func (w *Way) IsEnforced(e *explain.End) bool {
	return e.Kind != explain.Pod || !slices.Contains(w.NotEnforced, e.Pods[0])
}

// Caveats returns why the policies' verdict is no fact: an end that decides is not enforced, or no switch proved it.
// There are none if an end that denies is enforced and proved.
func (w *Way) Caveats() (list []string) {
	if w.Self || w.OfTheNode {
		return nil
	}
	for _, s := range []struct {
		end  *explain.End
		side *explain.Side
	}{{&w.From, &w.Egress}, {&w.To, &w.Ingress}} {
		if !w.Allowed && s.side.Allowed {
			continue // the other end decides
		}
		why := w.caveat(s.end)
		switch {
		case why != "" && !slices.Contains(list, why):
			list = append(list, why)
		case why == "" && !w.Allowed:
			return nil
		}
	}
	return list
}

func (w *Way) caveat(e *explain.End) string {
	switch {
	case !w.IsEnforced(e):
		return e.Pods[0] + " is not wired by Flowkeep, its side is not enforced"
	case e.Kind == explain.Pod && slices.Contains(w.NotProved, e.Node):
		return "no switch proves it, " + e.Node + " does not answer"
	}
	return ""
}

// Verdict returns ALLOWED or DENIED, or what policies say if that is no fact.
func (w *Way) Verdict() string {
	caveats := strings.Join(w.Caveats(), "; ")
	switch {
	case caveats != "" && w.Allowed:
		return "policies allow it; " + caveats
	case caveats != "":
		return "policies deny it; " + caveats
	case w.Allowed:
		return "ALLOWED"
	}
	return "DENIED"
}
