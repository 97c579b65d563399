package nodeconfig

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
)

// Standing has the nodes of a policy's status, from which the roll-out is decided. A node with a turn has an entry
// for it, stored before the node is changed, so that the turn survives the handler.
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

// Nodes returns the nodes in the status, sorted.
func (s Standing) Nodes() []string { return slices.Sorted(maps.Keys(s.entries)) }

// says reports whether the status has this entry of a node already.
func (s Standing) says(e nmstatev1.PolicyNode, conflicts []nmstatev1.Conflict) bool {
	old, ok := s.entries[e.Node]
	return ok && sameEntry(old, e) && slices.Equal(s.conflicts[e.Node], conflicts)
}

// sameEntry compares entries but for their times and the nodes that they wait for: those are written with the next
// other change.
func sameEntry(old, e nmstatev1.PolicyNode) bool {
	return old.Matched == e.Matched && old.Reason == e.Reason && old.Phase == e.Phase && sameMessage(old, e) &&
		old.ObservedGeneration == e.ObservedGeneration && slices.Equal(old.Interfaces, e.Interfaces)
}

func sameMessage(old, e nmstatev1.PolicyNode) bool {
	return old.Message == e.Message || waitsForTurn(old) && waitsForTurn(e) && strings.HasPrefix(old.Message, e.Message+takenBy)
}

// waitsForTurn reports whether a node may not change only because the limit of changing nodes is reached.
func waitsForTurn(e nmstatev1.PolicyNode) bool {
	return e.Phase == nmstatev1.PhaseWaiting && strings.HasPrefix(e.Message, forItsTurn)
}

// The message of a node that waits for its turn names the nodes that have it.
const (
	forItsTurn = "waits for its turn: "
	takenBy    = ", taken by "
)

// holders names the nodes that have turns, and since when: those that have them for longest, and how many more there are.
func (s Standing) holders(most int) string {
	var list []nmstatev1.PolicyNode
	for _, e := range s.entries {
		if holdsTurn(e) {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b nmstatev1.PolicyNode) int {
		return cmp.Or(sinceOf(a).Compare(sinceOf(b)), cmp.Compare(a.Node, b.Node))
	})
	var named []string
	for _, e := range list[:min(len(list), most)] {
		text := e.Node
		if e.Since != nil {
			text += " since " + e.Since.UTC().Format(time.RFC3339)
		}
		named = append(named, text)
	}
	if more := len(list) - most; more > 0 {
		named = append(named, fmt.Sprintf("%d more", more))
	}
	return strings.Join(named, ", ")
}

func sinceOf(e nmstatev1.PolicyNode) time.Time {
	if e.Since == nil {
		return time.Time{}
	}
	return e.Since.Time
}

// nameHolders sets the nodes with turns in the entries of all nodes that wait for theirs.
func (s Standing) nameHolders() {
	const most = 2
	names := s.holders(most)
	for node, e := range s.entries {
		if waitsForTurn(e) {
			e.Message, _, _ = strings.Cut(e.Message, takenBy)
			if names != "" {
				e.Message += takenBy + names
			}
			s.entries[node] = e
		}
	}
}

// holdsTurn: the node is changing, or failed while it did; its network may be out of order.
func holdsTurn(e nmstatev1.PolicyNode) bool {
	return e.Phase == nmstatev1.PhaseApplying || e.Phase == nmstatev1.PhaseFailing
}

// turns returns the number of nodes that have a turn.
func (s Standing) turns() (n int) {
	for _, e := range s.entries {
		if holdsTurn(e) {
			n++
		}
	}
	return n
}

// counts reports whether a node counts for a percentage in maxUnavailable.
func counts(e nmstatev1.PolicyNode) bool {
	switch e.Phase {
	case nmstatev1.PhaseNotSelected, nmstatev1.PhaseNoMatch, nmstatev1.PhaseUnmanaged:
		return false
	}
	return true
}

// Turn returns why a node may not change yet because of a policy, and the nodes for which it waits; "" if it may. It
// may not after another node has failed with the policy as it is, nor while as many as maxUnavailable are changing or
// failing. A node that takes its turn and falls silent keeps it: its state is not known.
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
			return "the roll-out stopped: " + name + " is failing; it goes on when the node recovers or the policy is edited", others
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
		return forItsTurn + "maxUnavailable is " + p.most.String(), others // without counts, which would change all the time
	}
	return "", nil
}
