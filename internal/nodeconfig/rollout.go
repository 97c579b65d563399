package nodeconfig

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	nmstatev1 "github.com/flowkeep/flowkeep/api/nmstate/v1"
)

// Standing is a policy's status entries by node: all that the roll-out goes by. Whoever holds a turn has an entry that says
// so, stored before the node is changed, so that nothing is forgotten when a handler dies.
type Standing map[string]nmstatev1.PolicyNode

// StandingOf reads a policy's status.
func StandingOf(o *nmstatev1.NodeNetworkConfigurationPolicy) Standing {
	s := make(Standing, len(o.Status.Nodes))
	for _, entry := range o.Status.Nodes {
		s[entry.Node] = entry
	}
	return s
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
	for name, e := range s {
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
		if e := s[name]; e.Phase == nmstatev1.PhaseFailing && e.ObservedGeneration == p.Generation {
			return "the roll-out stopped: " + name + " is failing", others
		}
	}
	if holdsTurn(s[node]) {
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

// sortedEntries are a status' entries by name.
func (s Standing) sortedEntries() []nmstatev1.PolicyNode {
	return slices.SortedFunc(maps.Values(s), func(a, b nmstatev1.PolicyNode) int { return cmp.Compare(a.Node, b.Node) })
}
