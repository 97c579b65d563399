package nodeconfig

import (
	"maps"
	"slices"

	nmstatev1 "github.com/flowkeep/flowkeep/api/nmstate/v1"
	"github.com/flowkeep/flowkeep/internal/nmstate"
)

// aggregate is what policies and the administrator together make of a node: the policies' layers in their order, then what
// is held back, then what was set by hand.
type aggregate struct {
	policies []*Policy
	layers   *layers
	owners   map[int]bool // layers that something of the record is from
	desired  nmstate.State
	record   nmstate.State // canonical
	form     nmstate.State // desired in canonical form
}

// heldBy and handBy are the layers above the policies'.
func (a *aggregate) heldBy() int { return len(a.policies) }
func (a *aggregate) handBy() int { return len(a.policies) + 1 }

// aggregateOf lays what policies want, but for those left out, for which kept stands.
func aggregateOf(n *Node, policies []*Policy, wants []want, out map[int]string, kept pieces) *aggregate {
	a := &aggregate{policies: policies, layers: newLayers(), owners: map[int]bool{}}
	for by, w := range wants {
		if _, left := out[by]; !left && w.matched {
			w.layOn(a.layers, by)
		}
	}
	a.layers.lay(kept, a.heldBy())
	hand := n.hand()
	a.layers.lay(takeApart(nmstate.Canonical(hand)), a.handBy())
	a.record = nmstate.Canonical(a.layers.document(func(by int) bool {
		if by == a.handBy() {
			return false
		}
		a.owners[by] = true
		return true
	}))
	a.desired = nmstate.Overlay(a.record, hand)
	a.form = nmstate.Canonical(a.desired)
	return a
}

// refs are the policies that something of the record is from, in order. Those left out stay as of the generation that the
// node has, if it has something of theirs.
func (a *aggregate) refs(n *Node, out map[int]string) (refs []nmstatev1.PolicyRef) {
	old := generations(n.refs)
	for by, p := range a.policies {
		generation := p.Generation
		_, left := out[by]
		had, was := old[p.Name]
		if left {
			generation = had
		}
		if a.owners[by] || left && was && a.owners[a.heldBy()] {
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

// compare walks what of the record and the layers differs, and returns of the record what keep wants.
func (a *aggregate) compare(record nmstate.State, keep func(leaf) bool) pieces {
	old := newLayers()
	old.lay(takeApart(record), 0)
	kept := pieces{items: map[item]map[string]any{}, rest: compareEntries(&old.rest, &a.layers.rest, keep)}
	for _, key := range unionKeys(old.interfaces, a.layers.interfaces) {
		was, is := old.interfaces[key], a.layers.interfaces[key]
		if attributes := compareEntries(was, is, keep); len(attributes) > 0 {
			kept.interfaces = append(kept.interfaces, namedInterface{key, attributes})
		}
	}
	for key := range union(old.items, a.layers.items) {
		if value, ok := compareEntry(old.items[key], a.layers.items[key], keep).(map[string]any); ok {
			kept.items[key] = value
		}
	}
	return kept
}

func unionKeys(a, b map[string]*entry) []string { return slices.Sorted(maps.Keys(union(a, b))) }

func union[K comparable](a, b map[K]*entry) map[K]bool {
	all := make(map[K]bool, len(a)+len(b))
	for k := range a {
		all[k] = true
	}
	for k := range b {
		all[k] = true
	}
	return all
}

// compareEntries compares two entries with further attributes; nil has none.
func compareEntries(was, is *entry, keep func(leaf) bool) map[string]any {
	kept := map[string]any{}
	for _, key := range unionKeys(kidsOf(was), kidsOf(is)) {
		if value := compareEntry(kidsOf(was)[key], kidsOf(is)[key], keep); value != nil {
			kept[key] = value
		}
	}
	return kept
}

func kidsOf(e *entry) map[string]*entry {
	if e == nil {
		return nil
	}
	return e.kids
}

// compareEntry returns what of was is kept, or nil.
func compareEntry(was, is *entry, keep func(leaf) bool) any {
	if kidsOf(was) != nil || kidsOf(is) != nil && (was == nil || !was.set) {
		if below := compareEntries(was, is, keep); len(below) > 0 {
			return below
		}
		return nil
	}
	l := leaf{by: -1}
	if was != nil && was.set {
		l.had = was.value
	}
	if is != nil && (is.set || is.kids != nil) {
		l.by = is.by
	}
	if l.had == nil && l.by < 0 || l.had != nil && is != nil && is.set && jsonOf(is.value) == jsonOf(l.had) {
		return nil
	}
	if keep(l) && l.had != nil {
		return l.had
	}
	return nil
}
