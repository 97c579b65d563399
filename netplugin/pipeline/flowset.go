package pipeline

import (
	"cmp"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
)

type flowKey struct {
	table    uint8
	priority uint16
	match    ofctl.Match
}

func keyOf(f *ofctl.Flow) flowKey { return flowKey{f.Table, f.Priority, f.Match} }

// flowSet is the flows that should be, and what they were at the last take.
type flowSet struct {
	now    map[flowKey]ofctl.Flow
	before map[flowKey]*ofctl.Flow // touched since the last take; nil: there was none
	order  []flowKey               // of before, as they were touched
}

func newFlowSet() flowSet {
	return flowSet{now: map[flowKey]ofctl.Flow{}, before: map[flowKey]*ofctl.Flow{}}
}

func (s *flowSet) note(k flowKey) {
	if _, ok := s.before[k]; ok {
		return
	}
	s.order = append(s.order, k)
	if f, ok := s.now[k]; ok {
		s.before[k] = &f
	} else {
		s.before[k] = nil
	}
}

func (s *flowSet) set(f ofctl.Flow) {
	k := keyOf(&f)
	if have, ok := s.now[k]; ok && sameFlow(&have, &f) {
		return
	}
	s.note(k)
	s.now[k] = f
}

func (s *flowSet) unset(k flowKey) {
	if _, ok := s.now[k]; ok {
		s.note(k)
		delete(s.now, k)
	}
}

func sameFlow(a, b *ofctl.Flow) bool {
	return a.Cookie == b.Cookie && slices.Equal(a.Actions, b.Actions)
}

// take orders additions before deletions. A flow whose actions alone change is modified, so that its counters stay.
func (s *flowSet) take() []ofctl.FlowMod {
	var mods, deletions []ofctl.FlowMod
	for _, k := range s.order {
		was := s.before[k]
		f, is := s.now[k]
		switch {
		case !is && was != nil:
			deletions = append(deletions, ofctl.FlowMod{Command: ofctl.Delete, Flow: *was})
		case !is || was != nil && sameFlow(was, &f):
		case was != nil && was.Cookie == f.Cookie:
			mods = append(mods, ofctl.FlowMod{Command: ofctl.Modify, Flow: f})
		default:
			mods = append(mods, ofctl.FlowMod{Command: ofctl.Add, Flow: f})
		}
	}
	s.before, s.order = map[flowKey]*ofctl.Flow{}, nil
	return append(mods, deletions...)
}

func (s *flowSet) all() []ofctl.Flow {
	out := make([]ofctl.Flow, 0, len(s.now))
	for _, f := range s.now {
		out = append(out, f)
	}
	return out
}

// SortFlows orders flows as they are read: by table, falling priority, and match.
func SortFlows(flows []ofctl.Flow) {
	slices.SortFunc(flows, func(a, b ofctl.Flow) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Match.String(), b.Match.String()))
	})
}
