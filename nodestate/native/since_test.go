package native

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// foreign makes a random change of another program to one of the links.
func (d dice) foreign(f *fake, links []string) string {
	name := pick(d, links...)
	l := f.Links[name]
	if l == nil {
		return ""
	}
	s := Step{name: name}
	switch d.IntN(5) {
	case 0:
		s.verb = setDown
	case 1:
		s.verb = setUp
	case 2:
		s.verb, s.number = setMTU, pick(d, 1300, 1400, 1500)
	case 3:
		if len(l.Addresses) == 0 {
			return ""
		}
		s.verb, s.address = deleteAddress, pick(d, l.Addresses...)
	case 4:
		if l.Controller == "" || l.Type == typeOVSInterface {
			return ""
		}
		s.verb, s.text = detachPort, l.Controller
	}
	if f.refuse(s) != nil || f.network.do(s) != nil {
		return ""
	}
	return s.String()
}

// journaled returns an order, and the newest change that its journal was given, as a later process reads it.
func journaled(since *nodestate.Change) (nodestate.Order, *nodestate.Change) {
	kept := new(nodestate.Change)
	if since != nil {
		*kept = *since
	}
	return nodestate.Order{Since: since, Journal: func(c nodestate.Change) error {
		raw, err := json.Marshal(c)
		*kept = nodestate.Change{}
		return errors.Join(err, json.Unmarshal(raw, kept))
	}}, kept
}

// repaired applies a desire, lets another program change links of the change, repairs, and rolls back. It reports
// whether a repair was made.
func repaired(t *testing.T, f *fake, d dice, desired nmstate.State) bool {
	t.Helper()
	b, ctx := onFake(f), t.Context()
	was := f.clone()
	start, _ := b.Show(ctx)
	order, first := journaled(nil)
	if _, err := b.Apply(ctx, desired, order); err != nil || len(first.Steps) == 0 {
		return false // refused, or nothing to change
	}
	var old before
	if err := json.Unmarshal(first.Before, &old); err != nil {
		t.Fatal(err)
	}
	links := slices.DeleteFunc(slices.Concat(sortedKeys(old.Links), old.Absent), func(name string) bool {
		return f.Links[name] == nil
	})
	if len(links) == 0 {
		return false
	}
	var others []string
	for count := 1 + d.IntN(3); len(others) < count; {
		if step := d.foreign(f, links); step != "" {
			others = append(others, step)
		}
	}
	order, second := journaled(first)
	_, err := b.Apply(ctx, desired, order)
	fail := func(what string, args ...any) {
		t.Helper()
		t.Fatalf("%s\nsteps:\n  %s\nothers: %q\ndesired: %s\nbefore: %s", fmt.Sprintf(what, args...),
			strings.Join(second.Steps, "\n  "), others, indent(desired), indent(start))
	}
	after, _ := b.Show(ctx)
	if err == nil {
		if diff := nmstate.Diff(desired, after); len(diff) > 0 {
			fail("after the repair: %v", diff)
		}
	}
	if err := b.Rollback(ctx, *second); err != nil && !was.stale() {
		fail("roll-back: %v", err)
	}
	back, _ := b.Show(ctx)
	if diff := append(nmstate.Diff(start, back), nmstate.Diff(back, start)...); len(diff) > 0 && !was.stale() {
		fail("after the roll-back: %v", diff)
	}
	return err == nil && string(second.Before) != "" && len(second.Steps) > len(first.Steps)
}

// TestApplySince_RandomRepairs: what another program changes of a change's links is repaired, and one roll-back undoes
// all of it.
func TestApplySince_RandomRepairs(t *testing.T) {
	repairs := 0
	for seed := range desiresToTry {
		d := dice{rand.New(rand.NewPCG(seed, 3)), all}
		d.cards = []string{"eth1", "eth2"}
		f := newFake()
		for range 2 { // refused ones change nothing
			_, _ = onFake(f).Apply(t.Context(), d.desire(), volatile)
		}
		for range 6 {
			if t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
				if repaired(t, f, d, d.desire()) {
					repairs++
				}
			}); t.Failed() {
				return
			}
		}
	}
	if repairs < int(desiresToTry)/4 {
		t.Errorf("only %d repairs", repairs)
	}
	t.Logf("%d repairs", repairs)
}

// TestApplySince_KeepsTheFirstState: the roll-back brings back the state before the first change, not the one before
// the repair.
func TestApplySince_KeepsTheFirstState(t *testing.T) {
	f := newFake()
	b := onFake(f)
	desired := state(t, "interfaces: [{name: eth1, mtu: 1300}, {name: d0, type: dummy, state: up}]")
	order, first := journaled(nil)
	if _, err := b.Apply(t.Context(), desired, order); err != nil {
		t.Fatal(err)
	}
	if c, err := b.Apply(t.Context(), desired, nodestate.Order{Since: first, Journal: func(nodestate.Change) error {
		return errors.New("called without need")
	}}); err != nil || string(c.Before) != string(first.Before) {
		t.Errorf("%v: %s", err, c.Before)
	}
	f.Links["eth1"].MTU = 1400
	delete(f.Links, "d0")
	order, second := journaled(first)
	c, err := b.Apply(t.Context(), desired, order)
	if err != nil || string(c.Before) != string(second.Before) || f.Links["eth1"].MTU != 1300 || f.Links["d0"] == nil {
		t.Errorf("%v: %+v", err, f.Links)
	}
	if err := b.Rollback(t.Context(), *second); err != nil || f.Links["eth1"].MTU != 1500 || f.Links["d0"] != nil {
		t.Errorf("%v: %+v", err, f.Links)
	}
}
