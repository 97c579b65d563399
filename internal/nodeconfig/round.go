package nodeconfig

import (
	"maps"
	"slices"

	nmstatev1 "github.com/flowkeep/flowkeep/api/nmstate/v1"
)

// Round decides for some nodes one after the other, each knowing which turns those before it have taken. One goroutine uses it.
type Round struct {
	Policies  []*Policy // in the order of Sort
	Standings map[string]Standing
	// Decisions by node, and what policies are to be told that their status does not say yet, by policy.
	Decisions map[string]Decision
	Reports   map[string]*Report
}

// NewRound takes the policies, in any order, and where they stand, by name; it changes neither.
func NewRound(policies []*Policy, standings map[string]Standing) *Round {
	r := &Round{Policies: slices.Clone(policies), Standings: maps.Clone(standings), Decisions: map[string]Decision{}, Reports: map[string]*Report{}}
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
		r.Standings[policy].entries[name] = entry
	}
	return d
}

// report is what the policy is to be told; its standing is the round's own from now on.
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

// Forget takes nodes that are no more out of what policies are told; do it before the first Decide.
func (r *Round) Forget(exists func(node string) bool) {
	for policy, s := range maps.Clone(r.Standings) {
		for _, name := range slices.Sorted(maps.Keys(s.entries)) {
			if !exists(name) {
				report := r.report(policy)
				delete(r.Standings[policy].entries, name)
				report.gone = append(report.gone, name)
			}
		}
	}
}
