package pipeline_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

func never(*ofctl.Flow) bool { return false }

// found returns the result of a drift check of a reading.
func found(a *pipeline.DriftCheck, reading []ofctl.Flow) (changed, extra, missing int) {
	for i := range reading {
		switch a.See(&reading[i], false) {
		case pipeline.Changed:
			changed++
		case pipeline.Extra:
			extra++
		}
	}
	return changed, extra, len(a.Missing(never))
}

func checked(t *testing.T, rules int) (*pipeline.Compiler, []ofctl.Flow) {
	t.Helper()
	c := pipeline.New(pipeline.Config{}, nil)
	for i := range rules {
		r := blockRule(i, 5)
		c.Apply(policy.NodeUpdate{Rules: []policy.RuleChange{{Key: r.Key, Rule: r}}})
	}
	c.Take()
	flows := c.Flows()
	if len(flows) < 10 {
		t.Fatalf("only %d flows", len(flows))
	}
	pipeline.SortFlows(flows)
	return c, flows
}

func TestDriftCheckTellsWhatDiffers(t *testing.T) {
	c, flows := checked(t, 3)
	for name, test := range map[string]struct {
		reading                 func([]ofctl.Flow) []ofctl.Flow
		changed, extra, missing int
	}{
		"same":               {func(f []ofctl.Flow) []ofctl.Flow { return f }, 0, 0, 0},
		"told twice":         {func(f []ofctl.Flow) []ofctl.Flow { return append(f, f...) }, 0, 0, 0},
		"nothing":            {func([]ofctl.Flow) []ofctl.Flow { return nil }, 0, 0, len(flows)},
		"missing":            {func(f []ofctl.Flow) []ofctl.Flow { return f[2:] }, 0, 0, 2},
		"cookie":             {func(f []ofctl.Flow) []ofctl.Flow { f[1].Cookie++; return f }, 1, 0, 0},
		"actions":            {func(f []ofctl.Flow) []ofctl.Flow { f[1].Actions = f[1].Actions[:0:0]; f[1].Cookie = 1; return f }, 1, 0, 0},
		"moved":              {func(f []ofctl.Flow) []ofctl.Flow { f[1].Priority++; f[1].Table = 99; return f }, 0, 1, 1},
		"twice, one missing": {func(f []ofctl.Flow) []ofctl.Flow { f[1] = f[0]; return f }, 0, 0, 1},
	} {
		reading := test.reading(append([]ofctl.Flow{}, flows...))
		a := c.BeginDriftCheck()
		if changed, extra, missing := found(a, reading); changed != test.changed || extra != test.extra || missing != test.missing {
			t.Errorf("%s: %d changed, %d extra, %d missing; want %d, %d, %d", name, changed, extra, missing, test.changed, test.extra, test.missing)
		}
		a.End()
	}
}

func TestDriftCheckOfForeignFlows(t *testing.T) {
	c, flows := checked(t, 3)
	a := c.BeginDriftCheck()
	if got := a.See(&flows[0], true); got != pipeline.Changed {
		t.Errorf("a flow with what nobody knows: %d", got)
	}
	leftOut := func(f *ofctl.Flow) bool {
		return f.Table == flows[1].Table && f.Match == flows[1].Match && f.Priority == flows[1].Priority
	}
	for i := range flows[2:] {
		a.See(&flows[2+i], false)
	}
	if list := a.Missing(leftOut); len(list) != 0 {
		t.Errorf("what the switch refused is missing: %v", list)
	}
	if list := a.Missing(never); len(list) != 1 {
		t.Errorf("missing: %v", list)
	}
	second := c.BeginDriftCheck()
	a.End()
	if !a.Ended() || second.Ended() {
		t.Error("the end of the first ended the second")
	}
}

// While flows change, a reading from before, from between or from after the changes differs in nothing; what was changed by somebody
// else, and by nobody here, is found all the same.
func TestDriftCheckWhileFlowsChange(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		c, _ := checked(t, 6)
		readings := [][]ofctl.Flow{c.Flows()}
		a := c.BeginDriftCheck()
		for range 1 + r.IntN(4) {
			change := policy.RuleChange{Key: blockRule(r.IntN(9), 5).Key}
			if r.IntN(2) == 0 {
				put := blockRule(r.IntN(9), 5)
				change = policy.RuleChange{Key: put.Key, Rule: put}
			}
			c.Apply(policy.NodeUpdate{Rules: []policy.RuleChange{change}})
			c.Take()
			readings = append(readings, c.Flows())
		}
		reading := readings[r.IntN(len(readings))]
		cut := r.IntN(len(reading) + 1)
		changed, extra, _ := found(a, reading[:cut])
		put := blockRule(9, 5) // between two parts of the reading
		c.Apply(policy.NodeUpdate{Rules: []policy.RuleChange{{Key: put.Key, Rule: put}}})
		c.Take()
		more, moreExtra, missing := found(a, reading[cut:])
		if changed+more+extra+moreExtra+missing > 0 {
			t.Fatalf("seed %d: %d changed, %d extra, %d missing", seed, changed+more, extra+moreExtra, missing)
		}
		a = c.BeginDriftCheck()
		flows := c.Flows()
		if changed, extra, missing := found(a, flows[1:]); changed+extra != 0 || missing != 1 {
			t.Fatalf("seed %d: a missing flow: %d changed, %d extra, %d missing", seed, changed, extra, missing)
		}
	}
}

// A flow that goes after it was seen does not stand in for one that is missing.
func TestDriftCheckCountsWhatItSaw(t *testing.T) {
	c := pipeline.New(pipeline.Config{}, nil)
	r := &policy.Rule{Direction: policy.Ingress, AppliedTo: policy.Key{1}, Peers: []policy.Key{{2}}, AnyPort: true}
	r.Key = policy.RuleKey(r)
	address := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, n}) }
	c.Apply(policy.NodeUpdate{Rules: []policy.RuleChange{{Key: r.Key, Rule: r}}, Groups: []policy.GroupUpdate{
		{Key: policy.Key{1}, Kind: policy.AppliedToGroup, Replace: true, Added: []netip.Addr{address(1)}},
		{Key: policy.Key{2}, Kind: policy.PeerGroup, Replace: true, Added: []netip.Addr{address(2), address(3), address(4)}}}})
	c.Take()
	flows := c.Flows()
	pipeline.SortFlows(flows)
	a := c.BeginDriftCheck()
	if _, _, missing := found(a, flows[1:]); missing != 1 {
		t.Fatalf("%d missing", missing)
	}
	c.Apply(policy.NodeUpdate{Groups: []policy.GroupUpdate{{Key: policy.Key{2}, Kind: policy.PeerGroup, Removed: []netip.Addr{address(4)}}}})
	if mods, _ := c.Take(); len(mods) != 1 || a.Touched(&flows[0]) {
		t.Fatalf("%d changes: nothing would be shown", len(mods))
	}
	if len(a.Missing(never)) != 1 {
		t.Errorf("%v is not missed once another has gone", flows[0])
	}
}

// TestCheckReported_LeavesOutOfDriftCheck: a drift check that is under way does not find what was reported meanwhile.
func TestCheckReported_LeavesOutOfDriftCheck(t *testing.T) {
	c, flows := checked(t, 3)
	opened, extra := flows[1], ofctl.Flow{Table: 200, Priority: 7}
	opened.Cookie++
	a := c.BeginDriftCheck()
	a.See(&flows[2], false)
	b := pipeline.CheckReported(c)
	if want, ok := b.Lost(&flows[0]); !ok || want.Match != flows[0].Match {
		t.Errorf("instead of a deleted flow there should be %v", want)
	}
	if _, ok := b.Lost(&extra); ok {
		t.Error("another program's flow is missing")
	}
	got := []pipeline.Finding{b.See(&opened, false), b.See(&extra, false), b.See(&flows[2], false)}
	if want := []pipeline.Finding{pipeline.Changed, pipeline.Extra, pipeline.Held}; !slices.Equal(got, want) {
		t.Errorf("the reported flows are %v, want %v", got, want)
	}
	if got := a.See(&opened, false); got != pipeline.Held {
		t.Errorf("the drift check finds %v", got)
	}
	if got := a.See(&extra, false); got != pipeline.Held {
		t.Errorf("the drift check finds %v", got)
	}
	for i := range flows[3:] {
		a.See(&flows[3+i], false)
	}
	if list := a.Missing(never); len(list) != 0 || a.Ended() {
		t.Errorf("the drift check misses %v", list)
	}
}
