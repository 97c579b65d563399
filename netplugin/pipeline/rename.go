package pipeline

import (
	"maps"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// move is where the dirty addresses of a class go.
type move struct {
	to        classKeys
	addresses int
	apart     bool // they go to several classes, or to none
}

// renameClasses gives a class all of whose addresses go to one class that is not there yet the content of that one. The
// flows of the addresses stay then: a peer that chooses pods which other peers choose already costs a few flows.
func (d *dimension) renameClasses() {
	moves := map[*class]*move{}
	for a := range d.dirty {
		before := d.of[a]
		if before == nil || d.classes[before.content] != before {
			continue
		}
		to := d.classKeys(a)
		m := moves[before]
		if m == nil {
			m = &move{to: to}
			moves[before] = m
		}
		m.addresses++
		m.apart = m.apart || to.keys == nil || to.content != m.to.content
	}
	for _, cl := range slices.SortedFunc(maps.Keys(moves), compareClasses) {
		if m := moves[cl]; !m.apart && m.addresses == cl.refs && m.to.content != cl.content {
			d.rename(cl, m.to)
		}
	}
}

// rename gives a class another set of groups, unless that one has an id already.
func (d *dimension) rename(cl *class, to classKeys) {
	if !d.side.c.classIDs.rename(cl.content, to.content) {
		return
	}
	delete(d.classes, cl.content)
	left := cl.keys
	cl.content, cl.keys = to.content, to.keys
	d.classes[cl.content] = cl
	for _, k := range left {
		if u := d.uses[k]; u != nil && !isIn(cl.keys, k) {
			delete(u.classes, cl)
		}
	}
	for chunk := range cl.chunks {
		d.side.dirtyClauses[clauseID{cl, chunk}] = struct{}{}
	}
	d.enter(cl)
}

func isIn(sorted []policy.Key, k policy.Key) bool {
	_, ok := slices.BinarySearchFunc(sorted, k, compareKeys)
	return ok
}
