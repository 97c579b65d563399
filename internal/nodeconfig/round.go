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
	// Decisions by node, and what policies are to be told, by policy.
	Decisions map[string]Decision
	Reports   map[string]*Report
}

// NewRound takes the policies, in any order, and where they stand, by name.
func NewRound(policies []*Policy, standings map[string]Standing) *Round {
	r := &Round{Policies: slices.Clone(policies), Standings: map[string]Standing{}, Decisions: map[string]Decision{}, Reports: map[string]*Report{}}
	Sort(r.Policies)
	for _, p := range r.Policies {
		r.Standings[p.Name] = maps.Clone(standings[p.Name])
		if r.Standings[p.Name] == nil {
			r.Standings[p.Name] = Standing{}
		}
		r.Reports[p.Name] = &Report{Entries: map[string]nmstatev1.PolicyNode{}, Conflicts: map[string][]nmstatev1.Conflict{}}
	}
	return r
}

// Decide decides for one node.
func (r *Round) Decide(n *Node) Decision {
	d := Decide(n, r.Policies, r.Standings)
	name := n.Object.Name
	r.Decisions[name] = d
	for policy, entry := range d.Entries {
		r.Standings[policy][name] = entry
		r.Reports[policy].Entries[name] = entry
		r.Reports[policy].Conflicts[name] = d.Conflicts[policy]
	}
	return d
}

// Forget takes nodes that are no more out of what policies are told; do it before the first Decide.
func (r *Round) Forget(exists func(node string) bool) {
	for policy, s := range r.Standings {
		for _, name := range slices.Sorted(maps.Keys(s)) {
			if !exists(name) {
				delete(s, name)
				r.Reports[policy].Gone = append(r.Reports[policy].Gone, name)
			}
		}
	}
}
