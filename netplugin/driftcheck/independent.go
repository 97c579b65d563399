package driftcheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/independent"
)

// independentEvery is how many drift checks there are to one that reads the flows independently of ofctl.
const independentEvery = 10

// Values of the label result of independent checks.
const (
	independentSame    = "same"
	independentDiffers = "differs"
	independentFailed  = "failed"
)

var errNoIndependent = errors.New("this netplugin has no independent reader of flows")

// leaveOutUnread removes from the differences the flows, groups and meters that the independent reader could not read:
// their content is unknown.
func (x *Comparison) leaveOutUnread() {
	if x.second == nil {
		return
	}
	if x.translated { // learned flows end by themselves, and are the switch's own
		x.second.Unread = slices.DeleteFunc(x.second.Unread, func(u independent.Unread) bool {
			return u.Kind == "" && !u.Whole && pipeline.IsLearned(&ofctl.Flow{Table: u.Table, Cookie: u.Cookie})
		})
	}
	unread := func(has func(*independent.Unread) bool) bool {
		return slices.ContainsFunc(x.second.Unread, func(u independent.Unread) bool { return has(&u) })
	}
	x.absent = slices.DeleteFunc(x.absent, func(f ofctl.Flow) bool {
		return unread(func(u *independent.Unread) bool { return u.Has(&f) })
	})
	x.groups.found = slices.DeleteFunc(x.groups.found, func(f groupFinding) bool {
		return unread(func(u *independent.Unread) bool { return u.HasGroup(f.id) })
	})
	x.meters.found = slices.DeleteFunc(x.meters.found, func(f meterFinding) bool {
		return unread(func(u *independent.Unread) bool { return u.HasMeter(cmp.Or(f.want.ID, f.have.ID)) })
	})
}

// compareIndependently compares the switch with its desired state, by flows that ofnet and libOpenflow read. It gives
// way to other comparisons, and begins again after them.
func (c *Checker) compareIndependently(ctx context.Context, finish func(*Comparison)) error {
	if c.Independent == nil {
		return errNoIndependent
	}
	return untilRead(ctx, func() error { return c.readIndependently(ctx, finish) })
}

// readIndependently does what compareIndependently does, once. It returns errGaveWay where another comparison waited.
func (c *Checker) readIndependently(ctx context.Context, finish func(*Comparison)) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	ctx, release, err := c.turn.takeToGiveWay(ctx)
	if err != nil {
		return err
	}
	defer release()
	err = c.compareBy(ctx, c.Independent(), finish)
	if err != nil && errors.Is(context.Cause(ctx), errGaveWay) {
		return errGaveWay
	}
	return err
}

// CheckIndependently finds faults of ofctl's codec: another decoder must read the desired state too. It changes nothing,
// since that codec wrote what it finds. A check that fails reports no difference.
func (c *Checker) CheckIndependently(ctx context.Context) {
	var found inspect.DriftCount
	var examples []inspect.Difference
	var unread []string
	took := func(x *Comparison) {
		found = x.DriftCount
		examples, unread = c.differences(x, 1), nil
		for i := range x.second.Unread {
			unread = append(unread, x.second.Unread[i].String())
		}
	}
	err := c.compareIndependently(ctx, took)
	if err == nil && found.Sum() > 0 { // once more: drift that the other check repairs is none of the codec
		c.Check(ctx)
		err = c.compareIndependently(ctx, took)
	}
	if err != nil && isPassing(ctx, err) || ctx.Err() != nil {
		return
	}
	_ = c.owner.Do(ctx, func() { c.checkedIndependently(found, examples, unread, err) })
}

// checkedIndependently records the result of an independent check. Call it on the owner goroutine.
func (c *Checker) checkedIndependently(
	found inspect.DriftCount, examples []inspect.Difference, unread []string, err error,
) {
	result := independentSame
	switch {
	case err != nil:
		result = independentFailed
		c.Logger.Warn("the independent drift check failed", "error", err)
	case found.Sum() > 0:
		result = independentDiffers
	}
	c.metrics.independent.WithLabelValues(result).Inc()
	if len(unread) > 0 {
		c.Logger.Warn("the independent drift check could not read all flows", "flows", len(unread), "example", unread[0])
	}
	if err != nil {
		return
	}
	c.results.codec = ""
	if found.Sum() == 0 {
		return
	}
	report := reportOf(found, examples)
	c.results.codec = fmt.Sprintf("another decoder reads other flows of the switch than netplugin does (%d missing, %d changed, "+
		"%d extra; %s): netctl verify --independent shows them", found.Missing, found.Changed, found.Extra, report.Example)
	report.Problem = c.results.codec
	c.Logger.Error("the switch's flows differ as another decoder reads them", "missing", found.Missing, "changed",
		found.Changed, "extra", found.Extra, "example", report.Example)
	c.Report(report)
}
