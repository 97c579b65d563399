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
	now        map[flowKey]*entry
	before     map[flowKey]*ofctl.Flow // touched since the last take; nil: there was none
	order      []flowKey               // keys of the map before, in the order of the changes
	driftCheck *DriftCheck             // under way; nil: none
	// fresh: there was no take yet. All flows are additions, and nothing is noted of each.
	fresh bool
}

// entry is a flow, which does not change: another takes its place.
type entry struct {
	ofctl.Flow
	seen uint64 // the number of the last drift check that found it on the switch
}

func newFlowSet() flowSet {
	return flowSet{now: map[flowKey]*entry{}, before: map[flowKey]*ofctl.Flow{}, fresh: true}
}

func (s *flowSet) note(k flowKey) {
	s.driftCheck.touch(k)
	if _, ok := s.before[k]; ok || s.fresh {
		return
	}
	s.order = append(s.order, k)
	if e, ok := s.now[k]; ok {
		s.before[k] = &e.Flow
	} else {
		s.before[k] = nil
	}
}

func (s *flowSet) set(f ofctl.Flow) {
	k := keyOf(&f)
	if have, ok := s.now[k]; ok && sameFlow(&have.Flow, &f) {
		return
	}
	s.note(k)
	s.now[k] = &entry{Flow: f}
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
	if s.fresh {
		mods = additions(s.all())
	}
	for _, k := range s.order {
		was := s.before[k]
		e, is := s.now[k]
		switch {
		case !is && was != nil:
			deletions = append(deletions, ofctl.FlowMod{Command: ofctl.Delete, Flow: *was})
		case !is || was != nil && sameFlow(was, &e.Flow):
		case was != nil && was.Cookie == e.Cookie:
			mods = append(mods, ofctl.FlowMod{Command: ofctl.Modify, Flow: e.Flow})
		default:
			mods = append(mods, ofctl.FlowMod{Command: ofctl.Add, Flow: e.Flow})
		}
	}
	s.settle()
	return append(mods, deletions...)
}

// settle forgets what was before.
func (s *flowSet) settle() { s.before, s.order, s.fresh = map[flowKey]*ofctl.Flow{}, nil, false }

// additions returns the additions of flows, in a fixed order.
func additions(flows []ofctl.Flow) (mods []ofctl.FlowMod) {
	SortFlows(flows)
	for i := range flows {
		mods = append(mods, ofctl.FlowMod{Command: ofctl.Add, Flow: flows[i]})
	}
	return mods
}

func (s *flowSet) all() []ofctl.Flow {
	out := make([]ofctl.Flow, 0, len(s.now))
	for _, e := range s.now {
		out = append(out, e.Flow)
	}
	return out
}

// SortFlows orders flows as they are read: by table, falling priority, and match.
func SortFlows(flows []ofctl.Flow) {
	slices.SortFunc(flows, func(a, b ofctl.Flow) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Match.String(), b.Match.String()))
	})
}
