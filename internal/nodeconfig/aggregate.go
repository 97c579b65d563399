package nodeconfig

import (
	"maps"

	nmstatev1 "github.com/flowkeep/flowkeep/api/nmstate/v1"
	"github.com/flowkeep/flowkeep/internal/nmstate"
)

// aggregate is what policies and the administrator together make of a node: the policies' layers in their order, then what
// is held back, then what was set by hand.
type aggregate struct {
	policies []*Policy
	layers   *layers
}

// heldBy and handBy are the layers above the policies'.
func (a *aggregate) heldBy() int { return len(a.policies) }
func (a *aggregate) handBy() int { return len(a.policies) + 1 }

func (a *aggregate) fromPolicies(by int) bool { return by <= a.heldBy() }

// aggregateOf lays what policies want, but for those left out, for which kept stands.
func aggregateOf(n *Node, policies []*Policy, wants []want, out map[int]string, kept pieces) *aggregate {
	a := &aggregate{policies: policies, layers: newLayers()}
	for by, w := range wants {
		if _, left := out[by]; !left && w.matched {
			w.layOn(a.layers, by)
		}
	}
	a.layers.lay(kept, a.heldBy())
	a.layers.lay(n.handPieces, a.handBy())
	return a
}

// record is what of the desired state is from policies.
func (a *aggregate) record() nmstate.State { return a.layers.document(a.fromPolicies) }

// wanted tells whether the node's desired state is as it is to be.
func (a *aggregate) wanted(n *Node) bool {
	same := true
	walk(n.desiredLayers, a.layers, func(was, is *entry) {
		same = same && was != nil && is != nil && equal(was.value, is.value)
	})
	return same
}

// recorded tells whether the node's record is as it is to be.
func (a *aggregate) recorded(n *Node) bool {
	same := true
	walk(n.recordLayers, a.layers, func(was, is *entry) {
		if is != nil && !a.fromPolicies(is.by) {
			is = nil
		}
		same = same && (was == nil) == (is == nil) && (was == nil || equal(was.value, is.value))
	})
	return same
}

// owners are the layers that something is from.
func (a *aggregate) owners() map[int]bool {
	found := map[int]bool{}
	walk(newLayers(), a.layers, func(_, is *entry) { found[is.by] = true })
	return found
}

// refs are the policies that something of the record is from, in order. Those left out stay as of the generation that the
// node has, if it has something of theirs.
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

// changes visits what of the node's record the layers have otherwise.
func (a *aggregate) changes(n *Node, visit func(leaf)) {
	walk(n.recordLayers, a.layers, func(was, is *entry) {
		if l := leafOf(was, is); l != nil {
			visit(*l)
		}
	})
}

func leafOf(was, is *entry) *leaf {
	switch {
	case was == nil:
		return &leaf{by: is.by}
	case is == nil:
		return &leaf{had: was.value, by: -1}
	case equal(was.value, is.value):
		return nil
	}
	return &leaf{had: was.value, by: is.by}
}

// keep is what of the node's record is to stay although the layers have it otherwise.
func (a *aggregate) keep(n *Node, keeps func(leaf) bool) pieces {
	kept := pieces{items: map[item]map[string]any{}, rest: keepAll(&n.recordLayers.rest, &a.layers.rest, keeps)}
	for key, was := range n.recordLayers.interfaces {
		if attributes := keepAll(was, a.layers.interfaces[key], keeps); len(attributes) > 0 {
			kept.interfaces = append(kept.interfaces, namedInterface{key, attributes})
		}
	}
	for key, was := range n.recordLayers.items {
		if value, ok := keepEntry(was, a.layers.items[key], keeps).(map[string]any); ok {
			kept.items[key] = value
		}
	}
	return kept
}

func keepAll(was, is *entry, keeps func(leaf) bool) map[string]any {
	kept := map[string]any{}
	for key, one := range was.kids {
		if value := keepEntry(one, kidsOf(is)[key], keeps); value != nil {
			kept[key] = value
		}
	}
	return kept
}

// keepEntry returns what of an entry is kept, or nil.
func keepEntry(was, is *entry, keeps func(leaf) bool) any {
	if was.kids != nil {
		if below := keepAll(was, is, keeps); len(below) > 0 {
			return below
		}
		return nil
	}
	if l := leafOf(was, leafOnly(is)); l != nil && keeps(*l) {
		return was.value
	}
	return nil
}
