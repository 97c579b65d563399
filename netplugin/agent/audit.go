package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/datapath"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
)

const (
	// auditStep is how many flows are compared while the owner is held: less than a millisecond.
	auditStep = 1024
	// auditTime bounds one comparison: 100,000 flows take less than a second.
	auditTime = time.Minute
	// mostFindings is how many flows that are changed or extra are remembered one by one. Where there are more, all is compared again
	// with the owner held.
	mostFindings = 4096
)

var (
	errSwitchAway = errors.New("Open vSwitch is away")
	errUnsteady   = errors.New("the connection to Open vSwitch changed while its flows were read")
)

// reader reads a switch's flows.
type reader interface {
	Dump(ctx context.Context, visit func(ofctl.Flow, error) error) error
	Meters(ctx context.Context) ([]ofctl.Meter, error)
	Close() error
}

// finding is a flow of the switch that is not as it should be.
type finding struct {
	have    ofctl.Flow
	foreign error // what of it Flowkeep never sends
	extra   bool  // else it is changed
}

// comparison is what the switch held at one moment, against what it should have.
type comparison struct {
	at                      *pipeline.Audit
	revision                uint64
	flows, wanted           int
	missing, changed, extra int
	absent                  []ofctl.Flow  // all that are missing
	found                   []finding     // the first mostFindings of the others
	wantMeters, haveMeters  []ofctl.Meter // of a node that tells of what is denied
	meters                  []meterFinding
}

func (x *comparison) same() bool { return x.missing+x.changed+x.extra == 0 }

// partial tells whether what was found does not suffice to mend.
func (x *comparison) partial() bool {
	meters := countMeters(x.meters)
	return x.changed+x.extra > len(x.found)+meters.Changed+meters.Extra
}

// compare reads the switch on a connection of its own, beside the owner, and asks the owner for a moment at a time: updates do not wait,
// and what they change meanwhile is left out. At the end finish has the result with the owner held. Comparisons are made one at a time.
// A thousand flows are in memory at once, besides those that differ.
func (a *agent) compare(ctx context.Context, finish func(*comparison)) error {
	ctx, cancel := context.WithTimeout(ctx, auditTime)
	defer cancel()
	select {
	case a.comparing <- struct{}{}:
		defer func() { <-a.comparing }()
	case <-ctx.Done():
		return fmt.Errorf("another comparison of the switch goes on: %w", ctx.Err())
	}
	var sw session
	x := &comparison{}
	if err := a.do(ctx, func() {
		if sw = a.session; sw != nil {
			x.at = a.compiler.BeginAudit()
			x.wantMeters = a.meters()
		}
	}); err != nil {
		return err
	}
	if sw == nil {
		return errSwitchAway
	}
	defer a.endAudit(ctx, x.at)
	if err := a.read(ctx, sw, x); err != nil {
		return fmt.Errorf("read the switch's flows: %w", err)
	}
	var err error
	doErr := a.do(ctx, func() {
		if a.session != sw || isDone(sw) {
			err = errUnsteady
			return
		}
		a.settle(x)
		finish(x)
	})
	return errors.Join(doErr, err)
}

// isDone tells a session that is lost though the owner may not know yet.
func isDone(sw session) bool {
	select {
	case <-sw.Done():
		return true
	default:
		return false
	}
}

// endAudit comes to its end though ctx may have.
func (a *agent) endAudit(ctx context.Context, at *pipeline.Audit) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTime)
	defer cancel()
	_ = a.do(ctx, at.End)
}

// openReader returns a new connection to the switch, so that a long dump neither keeps the owner's changes waiting nor,
// where its reader gives up, ends the session that enforces. The caller calls done. Tests without a dial read on sw.
func (a *agent) openReader(ctx context.Context, sw session) (from reader, done func(), err error) {
	if a.dial == nil {
		return sw, func() {}, nil
	}
	if from, err = a.dial(ctx); err != nil {
		return nil, nil, err
	}
	return from, func() { from.Close() }, nil
}

// read takes a reading on a new connection, so that the owner's changes do not wait until it is through.
func (a *agent) read(ctx context.Context, sw session, x *comparison) error {
	from, done, err := a.openReader(ctx, sw)
	if err != nil {
		return err
	}
	defer done()
	chunk := make([]dumped, 0, auditStep)
	flush := func() error {
		err := a.do(ctx, func() { x.see(chunk) })
		chunk = chunk[:0]
		return err
	}
	if len(x.wantMeters) > 0 {
		if x.haveMeters, err = from.Meters(ctx); err != nil {
			return err
		}
	}
	err = from.Dump(ctx, func(f ofctl.Flow, foreign error) error {
		if chunk = append(chunk, dumped{f, foreign}); len(chunk) == auditStep {
			return flush()
		}
		return nil
	})
	if err != nil {
		return err
	}
	return flush()
}

// dumped is a flow as the switch told it.
type dumped struct {
	flow    ofctl.Flow
	foreign error
}

// see judges a part of the reading, with the owner held.
func (x *comparison) see(chunk []dumped) {
	for i := range chunk {
		d := &chunk[i]
		x.flows++
		found := pipeline.Extra
		if !datapath.Nameless(d.foreign) {
			found = x.at.See(&d.flow, d.foreign != nil)
		}
		switch found {
		case pipeline.Held:
			continue
		case pipeline.Changed:
			x.changed++
		case pipeline.Extra:
			x.extra++
		}
		if len(x.found) < mostFindings {
			x.found = append(x.found, finding{d.flow, d.foreign, found == pipeline.Extra})
		}
	}
}

// settle closes the comparison, with the owner held: what is missing is known only now, and what was touched meanwhile counts no more.
func (a *agent) settle(x *comparison) {
	x.revision, x.wanted = a.rules.revision, a.compiler.Count()
	x.absent = x.at.Missing(a.wrong.refused)
	x.missing = len(x.absent)
	x.settleMeters()
	x.found = slices.DeleteFunc(x.found, func(f finding) bool {
		if datapath.Nameless(f.foreign) || !x.at.Touched(&f.have) {
			return false
		}
		if f.extra {
			x.extra--
		} else {
			x.changed--
		}
		return true
	})
}

// mods are what mends it. A flow that no flow mod can name goes with all of its table that have its cookie; what should be among these
// is added again, in the same bundle.
func (x *comparison) mods() (mods []ofctl.FlowMod) {
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

// audit compares the switch with what it should hold, mends it, and tells netmaster of what it found.
func (a *agent) audit(ctx context.Context) {
	began := time.Now()
	err := a.compare(ctx, func(x *comparison) { a.audited(ctx, x, began) })
	if err == nil || errors.Is(err, errSwitchAway) || errors.Is(err, errUnsteady) || ctx.Err() != nil { // the next connection compares
		return
	}
	a.log.Error("audit failed", "error", err)
	a.metrics.auditErrors.Inc()
	_ = a.do(ctx, func() { a.drift.problem = "the last audit failed: " + err.Error() })
}

// audited takes a comparison over, with the owner held.
func (a *agent) audited(ctx context.Context, x *comparison, began time.Time) {
	a.metrics.audits.Inc()
	a.metrics.auditSeconds.Observe(time.Since(began).Seconds())
	a.drift.audited, a.drift.took = time.Now(), time.Since(began)
	a.drift.problem, a.drift.last = "", inspect.DriftCount{}
	if x.same() {
		return
	}
	meters := a.node.meters
	if a.session != nil {
		a.ensureMeters(ctx, a.session) // with a meter that is gone went its flows
	}
	var err error
	if a.node.meters != meters { // other flows are wanted now
		a.take()
		err = a.mend(ctx)
	} else if x.partial() {
		err = a.mend(ctx)
	} else {
		err = a.commit(ctx, x.mods())
		a.report()
	}
	a.drifted(x, err)
}

// mend compares all with the owner held, and sends what differs.
func (a *agent) mend(ctx context.Context) error {
	if a.session == nil {
		return errSwitchAway
	}
	d, err := datapath.Compare(ctx, a.session, a.taken())
	if err != nil {
		a.log.Error("audit failed", "error", err)
		return err
	}
	err = a.commit(ctx, d.Mods)
	a.report()
	return err
}

// taken are the flows that the switch should hold, but for those that it refused.
func (a *agent) taken() []ofctl.Flow {
	return slices.DeleteFunc(a.compiler.Flows(), func(f ofctl.Flow) bool {
		return a.wrong.refused(&f)
	})
}
