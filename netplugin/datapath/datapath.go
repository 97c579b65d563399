// Package datapath keeps a bridge's flow tables as they should be: it reads them back, finds what differs, and sends just
// that, in one bundle.
package datapath

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
)

// Switch is what the datapath needs of ofctl.Session.
type Switch interface {
	Commit(ctx context.Context, mods []ofctl.FlowMod) error
	Dump(ctx context.Context, visit func(ofctl.Flow, error) error) error
}

// Difference is how a switch's tables differ from what they should hold.
type Difference struct {
	Missing, Changed, Extra int
	Mods                    []ofctl.FlowMod // what mends it; see Stages
	have, want              tables          // that have flows, or should have
}

// Empty reports whether the switch has exactly the wanted flows.
func (d *Difference) Empty() bool { return len(d.Mods) == 0 }

// Key identifies a flow as a switch does: one table has one flow of a match and a priority.
type Key struct {
	table    uint8
	priority uint16
	match    ofctl.Match
}

// KeyOf returns the flow's key.
func KeyOf(f *ofctl.Flow) Key { return Key{f.Table, f.Priority, f.Match} }

// Compare dumps the switch. Flows with matches or actions that Flowkeep never sends are extra: the bridge is
// Flowkeep's own.
func Compare(ctx context.Context, s Switch, want []ofctl.Flow) (Difference, error) {
	var d Difference
	left := make(map[Key]*ofctl.Flow, len(want))
	for i := range want {
		left[KeyOf(&want[i])] = &want[i]
		d.want[want[i].Table] = true
	}
	var extra []ofctl.FlowMod
	unknown := 0
	compare := func(f ofctl.Flow, foreign bool) {
		k := KeyOf(&f)
		w, ok := left[k]
		d.have[f.Table] = true
		switch {
		case !ok:
			d.Extra++
			extra = append(extra, ofctl.FlowMod{Command: ofctl.Delete, Flow: f})
		case w == nil: // received twice, as can happen while flows change: a wanted flow must not count as extra
			return
		case foreign || w.Cookie != f.Cookie || !slices.Equal(w.Actions, f.Actions):
			d.Changed++
			d.Mods = append(d.Mods, ofctl.FlowMod{Command: ofctl.Add, Flow: *w})
		}
		if ok {
			left[k] = nil
		}
	}
	err := s.Dump(ctx, func(f ofctl.Flow, strange error) error {
		if Nameless(strange) {
			unknown++
		} else {
			compare(f, strange != nil)
		}
		return nil
	})
	if err != nil {
		return Difference{}, fmt.Errorf("read the switch's flows: %w", err)
	}
	if unknown > 0 {
		return wipe(want, unknown), nil
	}
	for _, w := range left {
		if w == nil {
			continue
		}
		d.Missing++
		d.Mods = append(d.Mods, ofctl.FlowMod{Command: ofctl.Add, Flow: *w})
	}
	d.Mods = append(d.Mods, extra...)
	return d, nil
}

// Nameless reports whether no flow mod can name the flow, by the error that came with it.
func Nameless(err error) bool {
	unknown := new(ofctl.UnknownError)
	return err != nil && (!errors.As(err, &unknown) || unknown.Match)
}

// wipe replaces everything at once: a flow that cannot be named cannot be deleted alone.
func wipe(want []ofctl.Flow, unknown int) Difference {
	d := Difference{Extra: unknown, Mods: []ofctl.FlowMod{{Command: ofctl.DeleteAll}}}
	for i := range want {
		d.Mods = append(d.Mods, ofctl.FlowMod{Command: ofctl.Add, Flow: want[i]})
	}
	return d
}

// maxRefused is how many flows a switch may refuse one by one before the rest is given up.
const maxRefused = 64

// maxUncounted is how many flows that count it may refuse one by one before all of them are left out, and
// maxRejecting how many of Services in a table before all of that table are.
const (
	maxUncounted = 8
	maxRejecting = 8
)

// Refusal is a flow that the switch would not take.
type Refusal struct {
	Flow ofctl.Flow
	Err  error
}

// Without is what it means to leave out a flow that the switch refuses.
type Without uint8

// What it may mean.
const (
	Fails       Without = iota // it may not be left out: the bundle fails
	DeniesMore                 // what it could only have let through is denied
	CountsLess                 // nothing is denied or let through by it
	RejectsMore                // what it leads to an endpoint of a Service is rejected
)

// CommitAll commits the mods in one bundle. Of a flow that the switch refuses and that can be left out, it takes what was
// there away instead, and returns it; any other refusal fails the whole.
func CommitAll(
	ctx context.Context, s Switch, mods []ofctl.FlowMod, without func(*ofctl.Flow) Without,
) ([]Refusal, error) {
	var refused []Refusal
	n := map[group]int{}
	for {
		err := s.Commit(ctx, mods)
		var why *ofctl.SwitchError
		if err == nil || !errors.As(err, &why) || why.Flow == nil {
			return refused, err
		}
		kind := without(why.Flow)
		of := groupOf(why.Flow, kind)
		i := slices.IndexFunc(mods, func(m ofctl.FlowMod) bool { return puts(&m) && KeyOf(&m.Flow) == KeyOf(why.Flow) })
		if kind == Fails || kind == DeniesMore && n[of] == maxRefused || i < 0 {
			return refused, err
		}
		n[of]++
		all := kind == CountsLess && n[of] > maxUncounted || kind == RejectsMore && n[of] > maxRejecting
		mods = slices.Clone(mods)
		for j := range mods {
			f := &mods[j].Flow
			if j == i || all && puts(&mods[j]) && groupOf(f, without(f)) == of {
				refused = append(refused, Refusal{mods[j].Flow, err})
				mods[j].Command = ofctl.Delete
			}
		}
	}
}

// group is flows of which all are left out where too many of them are refused.
type group struct {
	kind  Without
	table uint8 // of RejectsMore
}

func groupOf(f *ofctl.Flow, kind Without) group {
	if kind == RejectsMore {
		return group{kind, f.Table}
	}
	return group{kind: kind}
}

func puts(m *ofctl.FlowMod) bool { return m.Command == ofctl.Add || m.Command == ofctl.Modify }
