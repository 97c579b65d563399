package nodeconfig

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// aggregate is what policies and the administrator together make of a node: the policies' layers in their order, then what
// is held back, then what was set by hand. It has a part for each place that is wanted, or that the node's object speaks of.
type aggregate struct {
	policies []*Policy
	parts    []aggregated
}

// aggregated is a part, and how it differs from what the node's object has there.
type aggregated struct {
	*merged
	versus *comparison
}

// heldBy and handBy are the layers above the policies'.
func (a *aggregate) heldBy() int { return len(a.policies) }
func (a *aggregate) handBy() int { return len(a.policies) + 1 }

// aggregateOf lays what policies want, but for those left out, for which kept stands.
func aggregateOf(n *Node, policies []*Policy, wants []want, out map[int]string, kept pieces) *aggregate {
	a := &aggregate{policies: policies}
	stacks := make(map[place]stack, len(n.desiredLayers))
	pile := func(p pieces, by int) {
		for _, one := range p {
			if len(one.content) > 0 { // a name alone wants nothing
				stacks[one.place] = append(stacks[one.place], laying{by, one.content})
			}
		}
	}
	for by, w := range wants {
		if _, left := out[by]; !left && w.matched {
			pile(w.contribution, by)
		}
	}
	pile(kept, a.heldBy())
	pile(n.handPieces, a.handBy())
	for _, known := range []layers{n.desiredLayers, n.recordLayers} {
		for at := range known {
			if _, wanted := stacks[at]; !wanted {
				stacks[at] = nil
			}
		}
	}
	a.parts = make([]aggregated, 0, len(stacks))
	for at, s := range stacks {
		m := n.Memory.merge(at, s, len(s) > 0 && s[len(s)-1].by == a.handBy())
		a.parts = append(a.parts, aggregated{m, m.compare(n.desiredLayers[at], n.recordLayers[at])})
	}
	return a
}

// record returns the part of the desired state that policies contribute.
func (a *aggregate) record() nmstate.State {
	var all pieces
	for _, p := range a.parts {
		all = append(all, piece{p.place, p.content(p.fromPolicies)})
	}
	return together(all)
}

// wanted reports whether the node's desired state is written.
func (a *aggregate) wanted() bool {
	return !slices.ContainsFunc(a.parts, func(p aggregated) bool { return !p.versus.wanted })
}

// recorded reports whether the node's record is written.
func (a *aggregate) recorded() bool {
	return !slices.ContainsFunc(a.parts, func(p aggregated) bool { return !p.versus.recorded })
}

// owners are the layers that something is from.
func (a *aggregate) owners() map[int]bool {
	found := map[int]bool{}
	for _, p := range a.parts {
		for owner, live := range p.live {
			if live {
				found[p.owners[owner]] = true
			}
		}
	}
	return found
}

// refs returns the policies with a part in the record, in order. A policy that is left out keeps the generation that the
// node has, if the node has a part of it.
func (a *aggregate) refs(n *Node, out map[int]string) (refs []nmstatev1.PolicyRef) {
	old, owners := generations(n.refs), a.owners()
	for by, p := range a.policies {
		generation := p.Generation
		_, left := out[by]
		had, was := old[p.Name]
		if left {
			generation = had
		}
		if owners[by] || left && was && owners[a.heldBy()] {
			refs = append(refs, nmstatev1.PolicyRef{Name: p.Name, Generation: generation})
		}
	}
	return refs
}

func generations(refs []nmstatev1.PolicyRef) map[string]int64 {
	found := make(map[string]int64, len(refs))
	for _, r := range refs {
		found[r.Name] = r.Generation
	}
	return found
}

// sameNames: a generation alone is no reason to write.
func sameNames(a, b []nmstatev1.PolicyRef) bool {
	return maps.EqualFunc(generations(a), generations(b), func(int64, int64) bool { return true })
}

// leaf is an attribute, or a route or rule, of which the node has one thing from policies and is to have another. Had is
// nil where it had nothing; by is negative where it is to have nothing.
type leaf struct {
	had any
	by  int
}

func (m *merged) leaf(c change) leaf {
	if c.owner < 0 {
		return leaf{c.had, -1}
	}
	return leaf{c.had, m.owners[c.owner]}
}

// changes visits the attributes of the node's record that the layers have otherwise.
func (a *aggregate) changes(visit func(leaf)) {
	for _, p := range a.parts {
		for _, c := range p.versus.changes {
			visit(p.leaf(c))
		}
	}
}

// keep returns the attributes of the node's record that stay although the layers have them otherwise.
func (a *aggregate) keep(keeps func(leaf) bool) (kept pieces) {
	for _, p := range a.parts {
		if len(p.versus.changes) > 0 {
			kept = append(kept, piece{p.place, p.keep(func(c change) bool { return keeps(p.leaf(c)) })})
		}
	}
	return kept
}

// disputes are sorted by path and then loser.
func (a *aggregate) disputes() (list []dispute) {
	for _, m := range a.parts {
		for _, d := range m.disputes {
			d.winner, d.loser = m.owners[d.winner], m.owners[d.loser]
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b dispute) int {
		return cmp.Or(strings.Compare(a.path, b.path), cmp.Compare(a.loser, b.loser))
	})
	return list
}
