package driftcheck

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// stubOwner is an owner of a switch whose desired flows do not change.
type stubOwner struct {
	compiler *pipeline.Compiler
	session  *stubSession
	refused  func(*ofctl.Flow) bool
	repaired func(*Comparison)
	failures int    // repairs that fail before the others
	failing  func() // at each of them; nil: nothing

	one sync.Mutex // runs
}

// Do runs one function at a time, as the goroutine of a real owner does.
func (o *stubOwner) Do(_ context.Context, f func()) error {
	o.one.Lock()
	defer o.one.Unlock()
	f()
	return nil
}

func (o *stubOwner) Session() Session {
	if o.session == nil {
		return nil
	}
	return o.session
}

func (o *stubOwner) Desired(whole bool) Desired {
	if !whole {
		return Desired{Flows: pipeline.CheckReported(o.compiler)}
	}
	return Desired{Flows: o.compiler.BeginDriftCheck()}
}

func (o *stubOwner) Enforced() Enforced { return Enforced{Refused: o.refused} }

func (o *stubOwner) Describe(*ofctl.Flow) pipeline.Note { return pipeline.Note{} }

func (o *stubOwner) Repair(_ context.Context, x *Comparison) error {
	if o.failures > 0 {
		o.failures--
		if o.failing != nil {
			o.failing()
		}
		return errors.New("refused")
	}
	o.repaired(x)
	return nil
}

// stubSession is a switch with flows.
type stubSession struct {
	dump func(visit func(ofctl.Flow, error) error) error
}

func (s *stubSession) Dump(_ context.Context, visit func(ofctl.Flow, error) error) error {
	return s.dump(visit)
}

func (*stubSession) Meters(context.Context) ([]ofctl.Meter, error) { return nil, nil }

func (*stubSession) Groups(context.Context, func(ofctl.SelectGroup, error) error) error { return nil }

func (*stubSession) Close() error { return nil }

func (*stubSession) Done() <-chan struct{} { return nil }

// stubChecker returns a Checker of a switch with some desired flows, and those flows.
func stubChecker(t *testing.T) (*Checker, *stubOwner, []ofctl.Flow) {
	t.Helper()
	o := &stubOwner{
		compiler: pipeline.New(pipeline.Config{}, nil),
		session:  &stubSession{},
		refused:  func(*ofctl.Flow) bool { return false },
		repaired: func(*Comparison) {},
	}
	r := &policy.Rule{Direction: policy.Ingress, AppliedTo: policy.Key{1}, Peers: []policy.Key{{2}}, AnyPort: true}
	r.Key = policy.RuleKey(r)
	o.compiler.Apply(policy.NodeUpdate{Rules: []policy.RuleChange{{Key: r.Key, Rule: r}}})
	o.compiler.Take()
	flows := o.compiler.Flows()
	pipeline.SortFlows(flows)
	o.session.dump = func(visit func(ofctl.Flow, error) error) error {
		for _, f := range flows {
			if err := visit(f, nil); err != nil {
				return err
			}
		}
		return nil
	}
	cfg := Config{Node: "node1", Translates: true, Logger: slog.New(slog.DiscardHandler), Report: func(wire.Drift) {}}
	return New(cfg, o), o, flows
}

var errNameless = &ofctl.UnknownError{What: "field", Match: true}

func TestReported_Add(t *testing.T) {
	flow := func(port uint32) ofctl.Flow { return ofctl.Flow{Priority: 7, Match: ofctl.Match{InPort: port}} }
	filter := pipeline.LearnedFilter()
	learned := ofctl.Flow{Table: filter.Table, Cookie: filter.Cookie}
	grouped := ofctl.Flow{Actions: []ofctl.Action{{Kind: ofctl.Group, Value: 1}}}
	many := make([]ofctl.Update, MaxFindings+1)
	for i := range many {
		many[i].Flow = flow(uint32(i + 1))
	}
	for name, c := range map[string]struct {
		updates      []ofctl.Update
		added, flows int
		whole        bool
	}{
		"own changes":          {[]ofctl.Update{{Kind: ofctl.OwnChange}, {Kind: ofctl.OwnChange}}, 0, 0, false},
		"a pause, others":      {[]ofctl.Update{{Kind: ofctl.UpdatesPaused}, {Flow: flow(1)}, {Kind: ofctl.UpdatesResumed}}, 2, 1, true},
		"others, a pause":      {[]ofctl.Update{{Flow: flow(1)}, {Kind: ofctl.UpdatesPaused}, {Kind: ofctl.UpdatesResumed}}, 2, 1, true},
		"a pause, learned":     {[]ofctl.Update{{Kind: ofctl.UpdatesPaused}, {Flow: learned}, {Kind: ofctl.UpdatesResumed}}, 0, 0, false},
		"a pause":              {[]ofctl.Update{{Kind: ofctl.UpdatesPaused}, {Kind: ofctl.UpdatesResumed}}, 0, 0, false},
		"learned":              {[]ofctl.Update{{Flow: learned}, {Kind: ofctl.FlowRemoved, Flow: learned}}, 0, 0, false},
		"two flows":            {[]ofctl.Update{{Flow: flow(1)}, {Flow: flow(2)}}, 2, 2, false},
		"one flow, twice":      {[]ofctl.Update{{Flow: flow(1)}, {Kind: ofctl.FlowRemoved, Flow: flow(1)}}, 2, 1, false},
		"a group":              {[]ofctl.Update{{Kind: ofctl.GroupChanged}}, 1, 0, true},
		"a meter":              {[]ofctl.Update{{Kind: ofctl.MeterChanged}}, 1, 0, true},
		"unreadable":           {[]ofctl.Update{{Kind: ofctl.UpdateUnreadable}}, 1, 0, true},
		"that cannot be named": {[]ofctl.Update{{Flow: flow(1), Unknown: errNameless}}, 1, 0, true},
		"that named a group":   {[]ofctl.Update{{Kind: ofctl.FlowRemoved, Flow: grouped}}, 1, 0, true},
		"too many":             {many, len(many), MaxFindings, true},
	} {
		r := newReported(true)
		added := r.add(c.updates)
		if got := r.changes; added != c.added || len(got.flows) != c.flows || got.whole != c.whole {
			t.Errorf("%s: %d added, %d flows, whole %v; want %d, %d, %v",
				name, added, len(got.flows), got.whole, c.added, c.flows, c.whole)
		}
		if flows, whole := len(r.flowsDue) == 1, len(r.wholeDue) == 1; flows != (c.flows > 0) || whole != c.whole {
			t.Errorf("%s: due is a repair of flows: %v, a comparison: %v", name, flows, whole)
		}
	}
	still := newReported(false)
	if still.add([]ofctl.Update{{Kind: ofctl.UpdatesPaused}, {Kind: ofctl.UpdatesResumed}}); !still.changes.whole {
		t.Error("a pause of a switch that learns nothing leads to no comparison")
	}
	r := newReported(true)
	r.add([]ofctl.Update{{Flow: flow(1)}, {Kind: ofctl.FlowRemoved, Flow: flow(1)}})
	if last := r.takeFlows()[0].Kind; last != ofctl.FlowRemoved {
		t.Errorf("of two updates of a flow the one of kind %d is left", last)
	}
	if r.add([]ofctl.Update{{Flow: flow(1)}}); len(r.takeFlows()) != 1 {
		t.Error("a flow that was taken before is not added again")
	}
}

func TestCompareReported(t *testing.T) {
	c, o, flows := stubChecker(t)
	own, other := flows[0], ofctl.Flow{Table: 7, Priority: 65535}
	opened := own
	opened.Actions = []ofctl.Action{{Kind: ofctl.Output, Port: 1}}
	for name, test := range map[string]struct {
		update                  ofctl.Update
		missing, changed, extra int
		mods                    []ofctl.Command
	}{
		"own flow deleted":       {ofctl.Update{Kind: ofctl.FlowRemoved, Flow: own}, 1, 0, 0, []ofctl.Command{ofctl.Add}},
		"other's flow deleted":   {ofctl.Update{Kind: ofctl.FlowRemoved, Flow: other}, 0, 0, 0, nil},
		"own flow added again":   {ofctl.Update{Flow: own}, 0, 0, 0, nil},
		"own flow opened":        {ofctl.Update{Kind: ofctl.FlowModified, Flow: opened}, 0, 1, 0, []ofctl.Command{ofctl.Add}},
		"own flow with timeout":  {ofctl.Update{Flow: own, Unknown: errors.Join(&ofctl.UnknownError{})}, 0, 1, 0, []ofctl.Command{ofctl.Add}},
		"other's flow":           {ofctl.Update{Flow: other}, 0, 0, 1, []ofctl.Command{ofctl.Delete}},
		"other's learned cookie": {ofctl.Update{Flow: ofctl.Flow{Table: 1, Cookie: pipeline.LearnedFilter().Cookie}}, 0, 0, 1, []ofctl.Command{ofctl.Delete}},
	} {
		x := compareReported(c, []ofctl.Update{test.update})
		if x.Missing != test.missing || x.Changed != test.changed || x.Extra != test.extra {
			t.Errorf("%s: %+v", name, x.DriftCount)
		}
		mods := x.Mods()
		if len(mods) != len(test.mods) {
			t.Errorf("%s: the repair is %v", name, mods)
			continue
		}
		for i, command := range test.mods {
			if mods[i].Command != command || x.Partial() {
				t.Errorf("%s: the repair is %v", name, mods)
			}
		}
	}
	o.refused = func(*ofctl.Flow) bool { return true }
	if x := compareReported(c, []ofctl.Update{{Kind: ofctl.FlowRemoved, Flow: own}}); !x.Same() {
		t.Errorf("a flow that the switch refused is missing: %+v", x.DriftCount)
	}
}
