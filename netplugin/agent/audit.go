package agent

import (
	"context"
	"errors"
	"slices"

	"github.com/flowkeep/flowkeep/netplugin/datapath"
	"github.com/flowkeep/flowkeep/ofctl"
)

// quickAudits is how often an audit is tried again beside the owner when the flows changed meanwhile.
const quickAudits = 3

// audit compares the switch with what it should hold, and mends it. It works beside the owner and asks it for a moment at
// a time, so that updates do not wait; only what looks wrong is compared again with the owner held.
func (a *agent) audit(ctx context.Context) {
	for range quickAudits {
		same, err := a.quickAudit(ctx)
		if err != nil {
			a.log.Error("audit failed", "error", err)
			return
		}
		if same {
			a.metrics.audits.Inc()
			return
		}
	}
	_ = a.do(ctx, func() { a.mend(ctx) })
}

// auditStep is how many flows are compared while the owner is held: less than a millisecond.
const auditStep = 1024

// quickAudit tells whether the switch held exactly what it should; false may also mean that flows changed meanwhile.
func (a *agent) quickAudit(ctx context.Context) (same bool, err error) {
	var sw session
	if err := a.do(ctx, func() { sw = a.session }); err != nil {
		return false, err
	}
	if sw == nil {
		return true, nil // the next connection compares
	}
	var flows []ofctl.Flow
	strange := 0
	err = sw.Dump(ctx, func(f ofctl.Flow, err error) error {
		if err != nil {
			strange++
		}
		flows = append(flows, f)
		return nil
	})
	if err != nil {
		return false, err
	}
	wrong := strange
	for step := range slices.Chunk(flows, auditStep) {
		err = errors.Join(err, a.do(ctx, func() {
			for i := range step {
				if !a.compiler.Holds(&step[i]) {
					wrong++
				}
			}
		}))
	}
	err = errors.Join(err, a.do(ctx, func() { same = wrong == 0 && len(flows) == a.compiler.Count()-len(a.wrong.flows) }))
	return same, err
}

// mend compares all and sends what differs.
func (a *agent) mend(ctx context.Context) {
	if a.session == nil {
		return
	}
	d, err := datapath.Compare(ctx, a.session, a.taken())
	if err != nil {
		a.log.Error("audit failed", "error", err)
		return
	}
	a.metrics.audits.Inc()
	if d.Empty() {
		return
	}
	a.metrics.drift.Add(float64(d.Missing + d.Changed + d.Extra))
	a.log.Warn("the switch's flows had drifted; mending", "missing", d.Missing, "changed", d.Changed, "extra", d.Extra)
	_ = a.commit(ctx, d.Mods)
	a.report()
}

// taken are the flows that the switch should hold, but for those that it refused.
func (a *agent) taken() []ofctl.Flow {
	return slices.DeleteFunc(a.compiler.Flows(), func(f ofctl.Flow) bool {
		return a.wrong.refused(&f)
	})
}
