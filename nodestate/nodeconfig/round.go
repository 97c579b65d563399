package nodeconfig

import (
	"maps"
	"slices"
	"time"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
)

// Round decides for some nodes one after the other, each knowing which turns those before it have taken. One goroutine uses it.
type Round struct {
	Policies  []*Policy // in the order of Sort
	Standings map[string]Standing
	// Decisions by node. Reports by policy: what its status does not have yet.
	Decisions map[string]Decision
	Reports   map[string]*Report
	stored    map[string]Standing // as it was before the round
}

// NewRound takes the policies, in any order, and where they stand, by name; it changes neither.
func NewRound(policies []*Policy, standings map[string]Standing) *Round {
	r := &Round{Policies: slices.Clone(policies), Standings: maps.Clone(standings), Decisions: map[string]Decision{}, Reports: map[string]*Report{}, stored: standings}
	if r.Standings == nil {
		r.Standings = map[string]Standing{}
	}
	Sort(r.Policies)
	return r
}

// Decide decides for one node.
func (r *Round) Decide(n *Node) Decision {
	d := Decide(n, r.Policies, r.Standings)
	name := n.Object.Name
	r.Decisions[name] = d
	for policy, entry := range d.Entries {
		if r.Standings[policy].says(entry, d.Conflicts[policy]) {
			continue
		}
		report := r.report(policy)
		report.entries[name], report.conflicts[name] = entry, d.Conflicts[policy]
		report.claims = report.claims || slices.Contains(d.Claims, policy)
		r.Standings[policy].entries[name] = entry
	}
	return d
}

// Resume takes over a report of an earlier round that is not in the policy's status yet; call it before the first
// Decide.
func (r *Round) Resume(policy string, untold *Report) {
	report := r.report(policy)
	report.gone = slices.Clone(untold.gone)
	maps.Copy(report.entries, untold.entries)
	maps.Copy(report.conflicts, untold.conflicts)
	for _, name := range report.gone {
		delete(r.Standings[policy].entries, name)
	}
	maps.Copy(r.Standings[policy].entries, report.entries)
}

// TellAt returns when a report that is pending since then is due, so that one update has reports of many nodes: at
// once if a turn has to be stored before a node may change, or if the last turn is given back, for which others may
// wait; otherwise after the patience, in which other nodes, or this one, may end their turns.
func (r *Round) TellAt(policy string, since time.Time, patience time.Duration) time.Time {
	if r.Reports[policy].claims || r.stored[policy].turns() > 0 && r.Standings[policy].turns() == 0 {
		return since
	}
	return since.Add(patience)
}

// GivesBack reports whether the policy's report ends turns.
func (r *Round) GivesBack(policy string) bool {
	for _, name := range r.Reports[policy].told() {
		if holdsTurn(r.stored[policy].entries[name]) && !holdsTurn(r.Standings[policy].entries[name]) {
			return true
		}
	}
	return false
}

// report returns the policy's pending report; its standing is the round's own from now on.
func (r *Round) report(policy string) *Report {
	report := r.Reports[policy]
	if report == nil {
		report = &Report{entries: map[string]nmstatev1.PolicyNode{}, conflicts: map[string][]nmstatev1.Conflict{}}
		s := Standing{maps.Clone(r.Standings[policy].entries), r.Standings[policy].conflicts}
		if s.entries == nil {
			s.entries = map[string]nmstatev1.PolicyNode{}
		}
		r.Reports[policy], r.Standings[policy] = report, s
	}
	return report
}

// Forget removes deleted nodes from policies' reports; call it before the first Decide.
func (r *Round) Forget(exists func(node string) bool) {
	for policy, s := range maps.Clone(r.Standings) {
		for _, name := range slices.Sorted(maps.Keys(s.entries)) {
			if !exists(name) {
				report := r.report(policy)
				delete(r.Standings[policy].entries, name)
				delete(report.entries, name)
				delete(report.conflicts, name)
				report.gone = append(report.gone, name)
			}
		}
	}
}
