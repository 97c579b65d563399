package driftcheck

import (
	"context"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/datapath"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/independent"
)

const (
	// Step is how many flows are compared in one turn of the owner goroutine: less than a millisecond.
	Step = 1024
	// Timeout bounds one comparison: 100,000 flows take less than a second.
	Timeout = time.Minute
	// MaxFindings is how many flows that are changed or extra are remembered one by one. Where there are more, all is
	// compared again on the owner goroutine.
	MaxFindings = 4096
)

// finding is a flow of the switch that is not as it should be.
type finding struct {
	have    ofctl.Flow
	foreign error // the part of the flow that Flowkeep never sends
	extra   bool  // else it is changed
}

// Comparison is the difference between a switch and its desired state at one moment.
type Comparison struct {
	inspect.DriftCount
	Revision      uint64
	Flows, Wanted int
	at            *pipeline.DriftCheck
	absent        []ofctl.Flow // all that are missing
	found         []finding    // the first MaxFindings of the others
	meters        meterComparison
	groups        groupComparison
	translated    bool                // flows that the switch has learned are its own
	second        *independent.Reader // it read the flows; nil: ofctl did
}

// want sets the desired state.
func (x *Comparison) want(d Desired) {
	x.at, x.meters.want, x.groups.want = d.Flows, d.Meters, d.Groups
}

// Same reports whether the switch has its desired state.
func (x *Comparison) Same() bool { return x.Sum() == 0 }

// Partial reports whether the differences that were remembered do not suffice to repair the switch.
func (x *Comparison) Partial() bool {
	meters, groups := x.meters.count(), x.groups.count()
	return x.Changed+x.Extra > len(x.found)+meters.Changed+meters.Extra+groups.Changed+groups.Extra
}

// GroupsDiffer reports whether a group is missing, changed or extra.
func (x *Comparison) GroupsDiffer() bool { return len(x.groups.found) > 0 }

// read reads the switch and compares the flows. Turn runs a function on the owner goroutine.
func (x *Comparison) read(ctx context.Context, from Reader, turn func(func()) error) error {
	chunk := make([]dumped, 0, Step)
	flush := func() error {
		err := turn(func() { x.see(chunk) })
		chunk = chunk[:0]
		return err
	}
	err := from.Dump(ctx, func(f ofctl.Flow, foreign error) error {
		if x.translated && pipeline.IsLearned(&f) {
			return nil
		}
		if chunk = append(chunk, dumped{f, foreign}); len(chunk) == Step {
			return flush()
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err = flush(); err != nil {
		return err
	}
	if err = x.meters.read(ctx, from); err != nil { // after Dump, by which an independent reader has read them
		return err
	}
	return x.groups.read(ctx, from)
}

// dumped is a flow as the switch reports it.
type dumped struct {
	flow    ofctl.Flow
	foreign error
}

// see compares a part of the flows. Call it on the owner goroutine.
func (x *Comparison) see(chunk []dumped) {
	for i := range chunk {
		d := &chunk[i]
		x.Flows++
		found := pipeline.Extra
		if !datapath.Nameless(d.foreign) {
			found = x.at.See(&d.flow, d.foreign != nil)
		}
		switch found {
		case pipeline.Held:
			continue
		case pipeline.Changed:
			x.Changed++
		case pipeline.Extra:
			x.Extra++
		}
		if len(x.found) < MaxFindings {
			x.found = append(x.found, finding{d.flow, d.foreign, found == pipeline.Extra})
		}
	}
}

// settle ends the comparison on the owner goroutine: only now is it known what is missing, and flows that were changed
// meanwhile are left out.
func (x *Comparison) settle(e Enforced) {
	x.Revision, x.Wanted = e.Revision, e.Flows
	x.absent = x.at.Missing(e.Refused)
	x.meters.compare()
	x.groups.compare()
	x.leaveOutUnread()
	x.Missing = len(x.absent)
	x.Add(x.meters.count())
	x.Add(x.groups.count())
	x.found = slices.DeleteFunc(x.found, func(f finding) bool {
		if datapath.Nameless(f.foreign) || !x.at.Touched(&f.have) {
			return false
		}
		if f.extra {
			x.Extra--
		} else {
			x.Changed--
		}
		return true
	})
}

// Mods returns the flow mods that repair the flows. A flow that no flow mod can name is deleted with all of its table
// that have its cookie; those of them that should exist are added again, in the same bundle.
func (x *Comparison) Mods() (mods []ofctl.FlowMod) {
	gone := map[pipeline.Place]bool{}
	for i := range x.found {
		f := &x.found[i]
		at := pipeline.Place{Table: f.have.Table, Cookie: f.have.Cookie}
		if !datapath.Nameless(f.foreign) || gone[at] {
			continue
		}
		gone[at] = true
		mods = append(mods, ofctl.FlowMod{Command: ofctl.DeleteCookie, Flow: ofctl.Flow{Table: at.Table, Cookie: at.Cookie}})
		for _, own := range x.at.At(at) {
			mods = append(mods, ofctl.FlowMod{Command: ofctl.Add, Flow: own})
		}
	}
	for i := range x.absent {
		mods = append(mods, ofctl.FlowMod{Command: ofctl.Add, Flow: x.absent[i]})
	}
	for i := range x.found {
		if datapath.Nameless(x.found[i].foreign) {
			continue
		}
		if f, ok := x.at.Want(&x.found[i].have); ok {
			mods = append(mods, ofctl.FlowMod{Command: ofctl.Add, Flow: f})
		}
	}
	for i := range x.found {
		if f := &x.found[i]; f.extra && !datapath.Nameless(f.foreign) {
			mods = append(mods, ofctl.FlowMod{Command: ofctl.Delete, Flow: f.have})
		}
	}
	return mods
}
