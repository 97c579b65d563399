package resolve

import (
	"iter"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// index maps a hash of a label to the groups whose selector requires it and the objects that have it. As hashes may
// collide, the results are only candidates.
type index[Object ~uint32] struct {
	entries pool[entryID, entry[Object]]
	byLabel table[entryID]
	// extra counts how many additional times a group is indexed under a hash, because of colliding labels.
	extra map[filing]uint32
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

// anchor returns the requirement by which a selector is indexed; nil if none requires values.
func anchor(s *policy.Selector) *policy.Requirement {
	if i := slices.IndexFunc(s.Requirements, isAnchor); i >= 0 {
		return &s.Requirements[i]
	}
	return nil
}

func isAnchor(r policy.Requirement) bool { return r.Operator == policy.In }

// find returns the entry of a hash; nil if there is none.
func (x *index[Object]) find(hash uint32) *entry[Object] {
	for id := range x.byLabel.each(hash) {
		return x.entries.at(id)
	}
	return nil
}

// get returns the entry of a hash. It creates one if necessary.
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
	if x.extra == nil {
		x.extra = map[filing]uint32{}
	}
	x.extra[filing{hash, g}]++
}

func (x *index[Object]) addObject(hash uint32, o Object) {
	x.get(hash).objects.insert(o)
}

func (x *index[Object]) removeGroup(hash uint32, g groupID) {
	f := filing{hash, g}
	if n := x.extra[f]; n > 1 {
		x.extra[f] = n - 1
		return
	} else if n == 1 {
		delete(x.extra, f)
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

// label returns the hash of a label of pods in a namespace, or of a label of namespaces (0).
func (h *hashing) label(ns namespaceID, key, value string) uint32 {
	return h.fold(mix(mix(h.text(key), h.text(value)), uint64(ns)))
}

// anchors returns the hashes under which a selector with this anchor is indexed.
func (h *hashing) anchors(ns namespaceID, r *policy.Requirement) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, v := range r.Values {
			if !yield(h.label(ns, r.Key, v)) {
				return
			}
		}
	}
}
