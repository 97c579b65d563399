package fake

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
)

// Switch holds flows and connections. Not for concurrent use.
type Switch struct {
	tables    map[uint8]*table
	conntrack conntrack
	held      map[heldKey]map[int]*state
	whole     []*state // fragments of datagrams that are whole, or given up, which have not left conntrack
	// Batch is the most fragments that leave conntrack with one packet; 0: all. The rest leave with the next, whosever
	// it is.
	Batch int
}

// table keeps its flows by priority, the highest first.
type table struct {
	flows map[key]*ofctl.Flow
	order []*ofctl.Flow // nil: to be sorted again
}

type key struct {
	priority uint16
	match    ofctl.Match
}

// New returns a switch without flows, which drops everything.
func New() *Switch {
	return &Switch{tables: map[uint8]*table{}, conntrack: conntrack{}, held: map[heldKey]map[int]*state{}}
}

// Commit applies all mods, or none: the first that Open vSwitch would refuse is returned as an *ofctl.SwitchError.
func (s *Switch) Commit(_ context.Context, mods []ofctl.FlowMod) error {
	for i := range mods {
		if err := check(&mods[i]); err != nil {
			return err
		}
	}
	for i := range mods {
		s.apply(&mods[i])
	}
	return nil
}

func (s *Switch) apply(m *ofctl.FlowMod) {
	if m.Command == ofctl.DeleteAll {
		clear(s.tables)
		return
	}
	t := s.tables[m.Flow.Table]
	if t == nil {
		t = &table{flows: map[key]*ofctl.Flow{}}
		s.tables[m.Flow.Table] = t
	}
	k := key{m.Flow.Priority, m.Flow.Match}
	have := t.flows[k]
	switch m.Command {
	case ofctl.DeleteCookie:
		maps.DeleteFunc(t.flows, func(_ key, f *ofctl.Flow) bool { return f.Cookie == m.Flow.Cookie })
		t.order = nil
	case ofctl.Delete:
		delete(t.flows, k)
		t.order = nil
	case ofctl.Modify:
		if have != nil {
			have.Actions, have.Cookie = m.Flow.Actions, m.Flow.Cookie
		}
	case ofctl.Add:
		f := m.Flow
		f.Packets, f.Bytes = 0, 0
		t.flows[k] = &f
		t.order = nil
	}
}

// Dump visits every flow, in no particular order. The error handed to visit is always nil.
func (s *Switch) Dump(_ context.Context, visit func(ofctl.Flow, error) error) error {
	for _, t := range s.tables {
		for _, f := range t.flows {
			if err := visit(*f, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// Counters visits what the filters choose. All flows are as old as the switch.
func (s *Switch) Counters(_ context.Context, filters []ofctl.Filter, visit func(ofctl.Counted) error) error {
	for _, f := range filters {
		for number, t := range s.tables {
			for _, have := range t.flows {
				if !f.Chooses(number, have.Cookie) {
					continue
				}
				if err := visit(ofctl.Counted{
					Table:    number,
					Priority: have.Priority,
					Cookie:   have.Cookie,
					Match:    have.Match,
					Packets:  have.Packets,
					Bytes:    have.Bytes,
				}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Close does nothing.
func (s *Switch) Close() error { return nil }

func (t *table) sorted() []*ofctl.Flow {
	if t.order == nil {
		for _, f := range t.flows {
			t.order = append(t.order, f)
		}
		slices.SortFunc(t.order, func(a, b *ofctl.Flow) int {
			return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(weight(a), weight(b)))
		})
	}
	return t.order
}

// lookup finds the flow that a packet meets (ovs-fields(7), "Conjunctive Match Fields"): flows with conjunction
// actions are clauses; those of one priority that make a conjunction whole let the packet match its conj_id.
func (s *Switch) lookup(number uint8, st *state) *ofctl.Flow {
	t := s.tables[number]
	if t == nil {
		return nil
	}
	clauses := map[uint32]uint64{} // of the priority at hand: conjunction → clauses that were met
	var priority uint16
	for _, f := range t.sorted() {
		if f.Priority != priority {
			clear(clauses)
			priority = f.Priority
		}
		if !st.matches(&f.Match) {
			continue
		}
		if !isClause(f) {
			return f
		}
		if found := t.conjoin(f, clauses, st); found != nil {
			return found
		}
	}
	return nil
}

// conjoin notes a clause; where it makes a conjunction whole, it looks the packet up with its id.
func (t *table) conjoin(clause *ofctl.Flow, met map[uint32]uint64, st *state) *ofctl.Flow {
	for i := range clause.Actions {
		a := &clause.Actions[i]
		met[a.Value] |= 1 << (a.Clause - 1)
		if met[a.Value] != 1<<a.Clauses-1 {
			continue
		}
		with := *st
		with.conjID = a.Value
		for _, f := range t.sorted() {
			if !isClause(f) && with.matches(&f.Match) {
				return f
			}
		}
	}
	return nil
}

// weight puts clauses behind other flows of the same priority: these win.
func weight(f *ofctl.Flow) int {
	if isClause(f) {
		return 1
	}
	return 0
}

func isClause(f *ofctl.Flow) bool {
	return len(f.Actions) > 0 && f.Actions[0].Kind == ofctl.Conjunction
}
