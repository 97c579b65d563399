package agent

import (
	"context"
	"slices"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/driftcheck"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/independent"
)

// driftOwner is the agent as a drift check sees it. All methods but Do belong to the owner goroutine.
type driftOwner struct{ a *agent }

// newDriftCheck returns the drift check of the agent's switch.
func newDriftCheck(a *agent) *driftcheck.Checker {
	return driftcheck.New(driftcheck.Config{
		Node:       a.cfg.Node,
		Interval:   a.cfg.DriftCheckInterval,
		Translates: a.cfg.translates(),
		Logger:     a.log,
		Report:     func(d wire.Drift) { a.client.Drifted(d) },
	}, driftOwner{a})
}

// independentReader returns a function that makes a reader of the switch which shares no code with ofctl; nil: there is
// none.
func (c *Config) independentReader() func() *independent.Reader {
	if len(c.ReadFlows) == 0 {
		return nil
	}
	command := append(slices.Clone(c.ReadFlows), c.managementSocket())
	return func() *independent.Reader {
		return &independent.Reader{Command: command, Timeout: driftcheck.Timeout}
	}
}

// Do runs f on the owner goroutine.
func (o driftOwner) Do(ctx context.Context, f func()) error { return o.a.do(ctx, f) }

// Session returns the connection to the switch; nil: Open vSwitch is away.
func (o driftOwner) Session() driftcheck.Session {
	if o.a.session == nil {
		return nil
	}
	return o.a.session
}

// Desired returns the desired state, from which a comparison begins: that of the whole switch, or only of flows.
func (o driftOwner) Desired(whole bool) driftcheck.Desired {
	if !whole {
		return driftcheck.Desired{Flows: pipeline.CheckReported(o.a.compiler)}
	}
	return driftcheck.Desired{
		Flows:  o.a.compiler.BeginDriftCheck(),
		Meters: o.meters(),
		Groups: o.a.translation.groups(),
	}
}

// meters returns the meters that the switch should have; none where it logs no denied packets. Those of other programs
// do no harm then.
func (o driftOwner) meters() []ofctl.Meter {
	if !o.a.node.answers {
		return nil
	}
	return append(o.a.dropLog.meters(), o.a.pods.limits.bandwidthMeters()...)
}

// Enforced returns the desired state at the end of a comparison.
func (o driftOwner) Enforced() driftcheck.Enforced {
	return driftcheck.Enforced{
		Revision: o.a.rules.revision,
		Flows:    o.a.compiler.Count(),
		Refused:  o.a.wrong.refused,
	}
}

// Describe returns the use of a flow.
func (o driftOwner) Describe(f *ofctl.Flow) pipeline.Note { return o.a.compiler.Describe(f) }

// Repair changes the switch so that it has no differences.
func (o driftOwner) Repair(ctx context.Context, x *driftcheck.Comparison) error {
	a := o.a
	meters, answers := a.node.meters, a.node.answers
	if a.session != nil {
		a.dropLog.ensureMeters(ctx, a.session) // with a meter that is gone went its flows
	}
	if err := o.restoreGroups(ctx, x); err != nil {
		a.log.Error("could not restore the groups of Services", "error", err)
		return err
	}
	if a.node.meters != meters || a.node.answers != answers { // other flows are wanted now
		a.take()
		return o.compareAll(ctx)
	}
	if x.Partial() {
		return o.compareAll(ctx)
	}
	err := a.commit(ctx, x.Mods())
	a.report()
	return err
}

// restoreGroups brings the switch's groups to those that should be there, before the flows that name them. With a group
// the switch has removed its flows.
func (o driftOwner) restoreGroups(ctx context.Context, x *driftcheck.Comparison) error {
	if !x.GroupsDiffer() || o.a.session == nil {
		return nil
	}
	return o.a.session.EnsureGroups(ctx, o.a.translation.groups())
}

// compareAll compares all flows without leaving the owner goroutine, and sends what differs.
func (o driftOwner) compareAll(ctx context.Context) error {
	a := o.a
	if a.session == nil {
		return driftcheck.ErrSwitchAway
	}
	d, err := a.translation.difference(ctx, a.session, o.accepted())
	if err != nil {
		a.log.Error("drift check failed", "error", err)
		return err
	}
	err = a.commit(ctx, d.Mods)
	a.report()
	return err
}

// accepted returns the flows that the switch should have, but for those that it refused.
func (o driftOwner) accepted() []ofctl.Flow {
	return slices.DeleteFunc(o.a.compiler.Flows(), func(f ofctl.Flow) bool {
		return o.a.wrong.refused(&f)
	})
}
