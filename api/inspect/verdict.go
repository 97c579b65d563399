package inspect

import (
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/explain"
)

// IsEnforced reports whether policies are enforced at an end of the way: Flowkeep attached its pod, it is no pod, or
// the switch of the source drops what policies deny at the target.
func (w *Way) IsEnforced(e *explain.End) bool {
	return w.isAttached(e) || e.Address == w.To.Address && w.isDroppedAtSource()
}

func (w *Way) isAttached(e *explain.End) bool {
	return e.Kind != explain.Pod || !slices.Contains(w.NotEnforced, e.Pods[0])
}

// isDroppedAtSource reports whether a trace proves the denial at the target although Flowkeep did not attach it: an
// attached pod of the same node sends the packet by the traced switch. The opposite direction has no such proof: the
// other CNI plugin may translate the address of its pod.
func (w *Way) isDroppedAtSource() bool {
	return w.From.Kind == explain.Pod && w.isAttached(&w.From) && w.From.Node == w.To.Node && !w.Ingress.Allowed &&
		slices.ContainsFunc(w.Traces, func(t Trace) bool { return t.Node == w.To.Node && t.Problem == "" && !t.Passed })
}

// EnforcedAlike reports whether policies are enforced at the same ends of two ways.
func (w *Way) EnforcedAlike(b *Way) bool {
	return w.IsEnforced(&w.From) == b.IsEnforced(&b.From) && w.IsEnforced(&w.To) == b.IsEnforced(&b.To)
}

// Caveats returns why the policies' verdict is no fact: an end that decides is not enforced, no switch proved it, or a
// switch disagrees. There are none if an end that denies is enforced and proved.
func (w *Way) Caveats() (list []string) {
	if w.Self || w.OfTheNode && len(w.DisagreeingNodes) == 0 {
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
	if !w.IsEnforced(e) {
		return e.Pods[0] + " is not wired by Flowkeep, its side is not enforced"
	}
	if e.Kind != explain.Pod {
		return ""
	}
	i := slices.IndexFunc(w.NotProved, func(n NoProof) bool { return n.Node == e.Node })
	switch {
	case w.Unproved:
		return "not proved"
	case slices.Contains(w.DisagreeingNodes, e.Node):
		return "the switch of " + e.Node + " disagrees"
	case i < 0:
		return ""
	case w.NotProved[i].Problem == "":
		return "no switch proves it, " + e.Node + " does not answer"
	}
	return e.Node + " gives no proof: " + w.NotProved[i].Problem
}

// DeniesEnforced reports whether policies deny the way at an end where they are enforced.
func (w *Way) DeniesEnforced() bool {
	return !w.Allowed && (!w.Egress.Allowed && w.IsEnforced(&w.From) || !w.Ingress.Allowed && w.IsEnforced(&w.To))
}

// Verdict returns ALLOWED or DENIED, or what policies say if that is no fact.
func (w *Way) Verdict() string {
	if caveats := w.Caveats(); len(caveats) > 0 {
		return w.ByPolicies() + "; " + strings.Join(caveats, "; ")
	}
	return w.ByPolicies()
}

// ByPolicies returns Verdict without the caveats.
func (w *Way) ByPolicies() string {
	switch isFact := len(w.Caveats()) == 0; {
	case isFact && w.Allowed:
		return "ALLOWED"
	case isFact:
		return "DENIED"
	case w.Allowed:
		return "policies allow it"
	}
	return "policies deny it"
}
