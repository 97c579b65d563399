package nodeconfig

import (
	"reflect"
	"slices"
)

// laying is what one layer wants of a place.
type laying struct {
	by      int
	content map[string]any // immutable
}

// stack is all that is wanted of a place, the lowest layer first.
type stack []laying

// owners are the layers of a stack, each once.
func (s stack) owners() (owners []int) {
	for _, l := range s {
		if len(owners) == 0 || owners[len(owners)-1] != l.by {
			owners = append(owners, l.by)
		}
	}
	return owners
}

// alike reports whether two stacks make the same: the same content in the same order, of as many layers. Which layers
// these are does not matter, so a merged document holds until its content changes, whatever policies come and go
// besides. Content at the same address is the same, because it is immutable; a stack keeps it there.
func (s stack) alike(other stack) bool {
	if len(s) != len(other) {
		return false
	}
	for n := range s {
		newLayer, otherNew := n > 0 && s[n].by != s[n-1].by, n > 0 && other[n].by != other[n-1].by
		if newLayer != otherNew || address(s[n].content) != address(other[n].content) {
			return false
		}
	}
	return true
}

func address(content map[string]any) uintptr { return reflect.ValueOf(content).Pointer() }

// merged is what becomes of a stack. Its entries name layers by where they are in owners.
type merged struct {
	*part
	stack    stack
	owners   []int
	byHand   bool      // the last owner is the administrator
	live     []bool    // of the owners: whether something is from it
	disputes []dispute // in terms of owners
	compared *comparison
}

func merge(at place, s stack, byHand bool) *merged {
	m := &merged{part: newPart(at), stack: s, owners: s.owners(), byHand: byHand}
	owner := 0
	for n, l := range s {
		if n > 0 && l.by != s[n-1].by {
			owner++
		}
		m.lay(l.content, owner)
	}
	m.live = make([]bool, len(m.owners))
	walk(nil, m.part, func(_, is *entry) { m.live[is.by] = true })
	m.disputes = m.part.disputes()
	return m
}

// again is the same of a stack that is alike, of other layers.
func (m *merged) again(s stack) *merged {
	owners := s.owners()
	if slices.Equal(owners, m.owners) {
		return m
	}
	other := *m
	other.stack, other.owners = s, owners
	return &other
}

// fromPolicies reports whether the owner's attributes belong to the record.
func (m *merged) fromPolicies(owner int) bool { return !m.byHand || owner < len(m.owners)-1 }

// comparison is how what was merged differs from what the node's object has there.
type comparison struct {
	desired, record  *part
	wanted, recorded bool
	changes          []change
}

// change is an attribute, or a route or rule, of which the record has one thing and the layers another. Owner is negative
// where they have nothing.
type change struct {
	had   any
	owner int
}

// compare is quick where it has compared with the same before.
func (m *merged) compare(desired, record *part) *comparison {
	if m.compared != nil && m.compared.desired == desired && m.compared.record == record {
		return m.compared
	}
	c := &comparison{desired: desired, record: record, wanted: true, recorded: true}
	walk(desired, m.part, func(was, is *entry) {
		c.wanted = c.wanted && was != nil && is != nil && equal(was.value, is.value)
	})
	walk(record, m.part, func(was, is *entry) {
		if l := changeOf(was, is); l != nil {
			c.changes = append(c.changes, *l)
		}
		if is != nil && !m.fromPolicies(is.by) {
			is = nil
		}
		c.recorded = c.recorded && (was == nil) == (is == nil) && (was == nil || equal(was.value, is.value))
	})
	m.compared = c
	return c
}

func changeOf(was, is *entry) *change {
	switch {
	case was == nil:
		return &change{owner: is.by}
	case is == nil:
		return &change{had: was.value, owner: -1}
	case equal(was.value, is.value):
		return nil
	}
	return &change{had: was.value, owner: is.by}
}

// keep returns the attributes of the record that stay although the layers have them otherwise.
func (p *aggregated) keep(keeps func(change) bool) map[string]any {
	return keepAll(kidsAt(p.versus.record), p.kids, keeps)
}

func keepAll(was, is map[string]*entry, keeps func(change) bool) map[string]any {
	kept := map[string]any{}
	for key, one := range was {
		if value := keepEntry(one, is[key], keeps); value != nil {
			kept[key] = value
		}
	}
	return kept
}

// keepEntry returns the part of an entry that is kept, or nil.
func keepEntry(was, is *entry, keeps func(change) bool) any {
	if was.kids != nil {
		if below := keepAll(was.kids, kidsOf(is), keeps); len(below) > 0 {
			return below
		}
		return nil
	}
	if c := changeOf(was, leafOnly(is)); c != nil && keeps(*c) {
		return was.value
	}
	return nil
}
