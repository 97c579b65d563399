package resolve

import (
	"iter"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// index brings labels and selectors together: an entry a label, with the groups whose selector is filed under it and the
// objects that have it. It is known by a hash alone: two labels may share an entry, so that all it says is who could match.
type index[Object ~uint32] struct {
	entries pool[entryID, entry[Object]]
	byLabel table[entryID]
	// again is how many times more than once a group is filed under a hash: by labels that share it, as those of two namespaces may.
	again map[filing]uint32
}

type filing struct {
	hash  uint32
	group groupID
}

type entryID uint32

type entry[Object ~uint32] struct {
	groups  few[groupID]
	objects few[Object]
}

// anchor is the requirement that a selector is filed under; nil: it has none that names values.
func anchor(s *policy.Selector) *policy.Requirement {
	for i := range s.Requirements {
		if s.Requirements[i].Operator == policy.In {
			return &s.Requirements[i]
		}
	}
	return nil
}

// find is nil where there is no entry.
func (x *index[Object]) find(hash uint32) *entry[Object] {
	for id := range x.byLabel.each(hash) {
		return x.entries.at(id)
	}
	return nil
}

// get finds or makes an entry.
func (x *index[Object]) get(hash uint32) *entry[Object] {
	if it := x.find(hash); it != nil {
		return it
	}
	id, it := x.entries.take()
	x.byLabel.add(hash, id)
	return it
}

func (x *index[Object]) addGroup(hash uint32, g groupID) {
	it := x.get(hash)
	var buf [1]groupID
	if !has(it.groups.all(&buf), g) {
		it.groups.insert(g)
		return
	}
	if x.again == nil {
		x.again = map[filing]uint32{}
	}
	x.again[filing{hash, g}]++
}

func (x *index[Object]) addObject(hash uint32, o Object) {
	x.get(hash).objects.insert(o)
}

func (x *index[Object]) removeGroup(hash uint32, g groupID) {
	f := filing{hash, g}
	if n := x.again[f]; n > 1 {
		x.again[f] = n - 1
		return
	} else if n == 1 {
		delete(x.again, f)
		return
	}
	if it := x.find(hash); it != nil {
		it.groups.remove(g)
		x.tidy(hash, it)
	}
}

func (x *index[Object]) removeObject(hash uint32, o Object) {
	if it := x.find(hash); it != nil {
		it.objects.remove(o)
		x.tidy(hash, it)
	}
}

func (x *index[Object]) tidy(hash uint32, it *entry[Object]) {
	if !it.groups.empty() || !it.objects.empty() {
		return
	}
	for id := range x.byLabel.each(hash) {
		x.byLabel.remove(hash, id)
		x.entries.give(id)
		return
	}
}

// label is a label's hash in the index of pods of a namespace, or of namespaces (0).
func (h *hashing) label(ns namespaceID, key, value string) uint32 {
	return h.fold(mix(mix(h.text(key), h.text(value)), uint64(ns)))
}

// anchors are the hashes that a selector with this anchor is filed under.
func (h *hashing) anchors(ns namespaceID, r *policy.Requirement) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, v := range r.Values {
			if !yield(h.label(ns, r.Key, v)) {
				return
			}
		}
	}
}
