package native

import (
	"context"
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

const desiresToTry = uint64(400)

func indent(s nmstate.State) string {
	text, _ := json.Marshal(s)
	return string(text)
}

// stale tells that there are routes that the kernel keeps, and would not take: their gateway's network is no longer there.
// And a VXLAN keeps an MTU that it would not be given when its base's falls.
func (n *network) stale() bool {
	for _, l := range n.Links {
		if base := n.Links[l.Base]; base != nil && l.MTU > l.mostMTU(base) {
			return true
		}
	}
	return slices.ContainsFunc(n.Routes, func(r route) bool {
		without := n.clone()
		without.loseRoutes(func(o *route) bool { return o.equal(&r) })
		return !r.kernelMade() && without.addRoute(&r) != nil
	})
}

// For any desire that is not refused: once applied, nothing of it is missing, a second plan is empty, and roll-back brings
// back what was.
func TestRandomDesires(t *testing.T) {
	taken := 0
	for seed := range desiresToTry {
		f := newFake()
		b := onFake(f)
		d := dice{rand.New(rand.NewPCG(seed, 1)), all}
		d.cards = []string{"eth1", "eth2"}
		for step := range 4 {
			taken += lawful(t, b, d.desire(), fmt.Sprintf("seed %d, desire %d", seed, step), nil)
			if t.Failed() {
				return
			}
		}
	}
	if taken < int(desiresToTry)*3/4 {
		t.Errorf("only %d desires were taken: they test too little", taken)
	}
	t.Logf("%d desires", taken)
}

// lawful applies a desired state, and returns 1 where it was not refused. It is rolled back and applied again. A plan by
// the node's report is refused where the backend refuses.
func lawful(t *testing.T, b *Backend, desired nmstate.State, what string, skip func(error) bool) int {
	t.Helper()
	ctx := context.Background()
	before, err := b.Show(ctx)
	if err != nil {
		t.Fatal(err)
	}
	was, err := b.system.show(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	change, err := b.Apply(ctx, desired, volatile)
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s: %s\ndesired: %s\nsteps:\n  %s\nbefore: %s", what, fmt.Sprintf(format, args...), indent(desired), strings.Join(change.Steps, "\n  "), indent(before))
	}
	refused := errors.Is(err, nodestate.ErrRefused)
	if _, byReport := Plan(Node{Report: before, Volatile: true}, desired, b.own); refused != (byReport != nil) {
		fail("a plan by the report: %v; the backend: %v", byReport, err)
	}
	if refused {
		return 0
	}
	if err != nil {
		if skip != nil && skip(err) {
			if err := b.Rollback(ctx, change); err != nil {
				fail("roll-back after %v: %v", err, err)
			}
			return 0
		}
		fail("apply: %v", err)
		return 1
	}
	after, err := b.Show(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if diff := nmstate.Diff(desired, after); len(diff) > 0 {
		fail("after apply: %v", diff)
	}
	if steps, err := b.Plan(ctx, desired); err != nil || len(steps) > 0 {
		fail("a second plan is to %s, %v", texts(steps), err)
	}
	if len(change.Steps) > 0 {
		for range 2 {
			if err := b.Rollback(ctx, change); err != nil {
				fail("roll-back: %v", err)
				return 1
			}
		}
		back, err := b.Show(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if diff := append(nmstate.Diff(before, back), nmstate.Diff(back, before)...); len(diff) > 0 && !was.stale() {
			fail("after roll-back: %v", diff)
		}
		if _, err := b.Apply(ctx, desired, volatile); err != nil {
			fail("applied again after the roll-back: %v", err)
		}
	}
	return 1
}

// Whatever step fails, done or not: roll-back brings back what was. So it is for a process that was killed there.
func TestRollbackFromEveryStep(t *testing.T) {
	failures := 0
	for seed := uint64(0); failures < 300 && seed < 2000; seed++ {
		d := dice{rand.New(rand.NewPCG(seed, 2)), all}
		d.cards = []string{"eth1", "eth2"}
		first, second := d.desire(), d.desire()
		for _, halfway := range []bool{false, true} {
			for at := 1; ; at++ {
				f := newFake()
				b := onFake(f)
				if _, err := b.Apply(t.Context(), first, volatile); err != nil {
					break
				}
				was := f.clone()
				before, _ := b.Show(t.Context())
				f.steps, f.failAt, f.halfway = 0, at, halfway
				var journal nodestate.Change
				_, err := b.Apply(t.Context(), second, nodestate.Order{Volatile: true, Journal: func(c nodestate.Change) error {
					raw, err := json.Marshal(c)
					return errors.Join(err, json.Unmarshal(raw, &journal))
				}})
				if !errors.Is(err, errFake) {
					break // refused, or fewer steps than that
				}
				failures++
				f.failAt = 0
				if err := onFake(f).Rollback(t.Context(), journal); err != nil {
					t.Fatalf("seed %d, failed at step %d: roll-back: %v\n%s", seed, at, err, strings.Join(journal.Steps, "\n"))
				}
				back, _ := b.Show(t.Context())
				if diff := append(nmstate.Diff(before, back), nmstate.Diff(back, before)...); len(diff) > 0 && !was.stale() {
					t.Fatalf("seed %d, failed at step %d (%v): %v\n%s\nbefore: %s\nsecond: %s", seed, at, halfway, diff, strings.Join(journal.Steps, "\n"), indent(before), indent(second))
				}
			}
		}
	}
	if failures < 300 {
		t.Errorf("only %d failures were tried", failures)
	}
	t.Logf("%d failures", failures)
}

// TestApply_LeavesAVLANUp: the kernel takes a VLAN down with its base interface. The VLAN comes up again with it,
// unless an administrator took the VLAN itself down.
func TestApply_LeavesAVLANUp(t *testing.T) {
	f := newFake()
	b := onFake(f)
	vlan := state(t, `interfaces: [{name: v9, type: vlan, state: up, vlan: {base-iface: eth1, id: 9}}]`)
	if _, err := b.Apply(t.Context(), vlan, volatile); err != nil {
		t.Fatal(err)
	}
	desired := state(t, "interfaces: [{name: eth1, state: up, lldp: {enabled: true}}]")
	c, err := b.Apply(t.Context(), desired, volatile)
	if err != nil {
		t.Fatal(err)
	}
	f.down(f.Links["eth1"]) // another program
	if err := b.Rollback(t.Context(), c); err != nil || !f.Links["v9"].Up {
		t.Errorf("after the roll-back: %v, %+v", err, f.Links["v9"])
	}
	f.down(f.Links["eth1"])
	if _, err := b.Apply(t.Context(), desired, volatile); err != nil || !f.Links["v9"].Up {
		t.Errorf("after the repair: %v, %+v", err, f.Links["v9"])
	}
	f.down(f.Links["v9"]) // as an administrator wants it: it stays
	desired = state(t, "interfaces: [{name: eth1, state: up, mtu: 1300}]")
	if _, err := b.Apply(t.Context(), desired, volatile); err != nil || f.Links["v9"].Up {
		t.Errorf("after another change: %v, %+v", err, f.Links["v9"])
	}
}
