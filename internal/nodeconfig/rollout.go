package nodeconfig

import (
	"fmt"
	"maps"
	"slices"

	nmstatev1 "github.com/flowkeep/flowkeep/api/nmstate/v1"
)

// Standing is what a policy's status says of nodes: all that the roll-out goes by. Whoever holds a turn has an entry that
// says so, stored before the node is changed, so that nothing is forgotten when a handler dies.
type Standing struct {
	entries   map[string]nmstatev1.PolicyNode
	conflicts map[string][]nmstatev1.Conflict
}

// StandingOf reads a policy's status.
func StandingOf(o *nmstatev1.NodeNetworkConfigurationPolicy) Standing {
	s := Standing{make(map[string]nmstatev1.PolicyNode, len(o.Status.Nodes)), map[string][]nmstatev1.Conflict{}}
	for _, entry := range o.Status.Nodes {
		s.entries[entry.Node] = entry
	}
	for _, c := range o.Status.Conflicts {
		s.conflicts[c.Node] = append(s.conflicts[c.Node], c)
	}
	return s
}

// Nodes are those that the status speaks of, sorted.
func (s Standing) Nodes() []string { return slices.Sorted(maps.Keys(s.entries)) }

// says tells whether the status says this of a node already.
func (s Standing) says(e nmstatev1.PolicyNode, conflicts []nmstatev1.Conflict) bool {
	old, ok := s.entries[e.Node]
	return ok && sameEntry(old, e) && slices.Equal(s.conflicts[e.Node], conflicts)
}

// sameEntry: since when does not matter.
func sameEntry(a, b nmstatev1.PolicyNode) bool {
	return a.Matched == b.Matched && a.Reason == b.Reason && a.Phase == b.Phase && a.Message == b.Message &&
		a.ObservedGeneration == b.ObservedGeneration && slices.Equal(a.Interfaces, b.Interfaces)
}

// holdsTurn: the node is changing, or failed while it did; its network may be out of order.
func holdsTurn(e nmstatev1.PolicyNode) bool {
	return e.Phase == nmstatev1.PhaseApplying || e.Phase == nmstatev1.PhaseFailing
}

// counts tells whether a node is one of those that maxUnavailable is a percentage of.
func counts(e nmstatev1.PolicyNode) bool {
	switch e.Phase {
	case nmstatev1.PhaseNotSelected, nmstatev1.PhaseNoMatch, nmstatev1.PhaseUnmanaged:
		return false
	}
	return true
}

// Turn tells whether a node may change because of a policy, and if not, why it waits and for which nodes. It may not after
// another node has failed with the policy as it is, nor while as many as maxUnavailable are changing or failing.
func Turn(p *Policy, s Standing, node string) (why string, others []string) {
	nodes := 1
	for name, e := range s.entries {
		if name == node || !counts(e) {
			continue
		}
		nodes++
		if holdsTurn(e) {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	for _, name := range others {
		if e := s.entries[name]; e.Phase == nmstatev1.PhaseFailing && e.ObservedGeneration == p.Generation {
			return "the roll-out stopped: " + name + " is failing", others
		}
	}
	if holdsTurn(s.entries[node]) {
		return "", nil
	}
	most, err := p.unavailable(nodes)
	if err != nil {
		return err.Error(), nil
	}
	if len(others) >= most {
		return fmt.Sprintf("waits for its turn: maxUnavailable is %s", p.most.String()), others // without counts, which would change all the time
	}
	return "", nil
}
