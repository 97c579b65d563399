package agent

import (
	"context"
	"fmt"

	"github.com/flowkeep/flowkeep/netplugin/datapath"
)

// attach compares all flows of a switch that has just been connected, and uses it from then on.
func (a *agent) attach(ctx context.Context, s session) error {
	a.vswitchd.trackHalves(ctx)
	a.vswitchd.holdFragments(ctx)
	a.zoneLimits.limitConntrack(ctx)
	a.dropLog.ensureMeters(ctx, s)
	if err := a.translation.ensureGroups(ctx, s); err != nil {
		return fmt.Errorf("make the groups of Services: %w", err)
	}
	a.translation.compileServices(a.compiler.RetryRefused())
	a.disk.saveIDs(a.compiler.Settle()) // what was due is part of the comparison
	a.wrong.forget()
	a.dropLog.clearDryRunProblem()
	a.counting.sequence++
	a.counting.owed.Store(true)
	d, err := a.translation.difference(ctx, s, a.compiler.Flows())
	if err != nil {
		return err
	}
	a.session = s
	a.log.Info("connected to the switch", "missing", d.Missing, "changed", d.Changed, "extra", d.Extra)
	err = a.bring(ctx, &d)
	a.report()
	if err != nil {
		a.dropLog.flowsRefused(err)
		return err
	}
	a.drift.Attached()
	a.translation.endStale()
	if !a.cfg.translates() { // no flow names one any more
		if err := s.EnsureGroups(ctx, nil); err != nil {
			a.log.Debug("could not delete the groups of Services", "error", err)
		}
	}
	if d.Empty() { // the connection may have been lost after the last commit and before its purge
		a.vswitchd.purge(ctx)
	}
	a.disk.finishPods()
	return nil
}

// bring changes the flows of the switch to the wanted ones.
func (a *agent) bring(ctx context.Context, d *datapath.Difference) error {
	stages := d.Stages()
	if len(stages) > 1 {
		a.log.Info("the switch has flows of another layout; adding the new flows before deleting the old ones")
	}
	for _, s := range stages {
		if s.Drained {
			a.vswitchd.drain(ctx)
		}
		if err := a.commit(ctx, s.Mods); err != nil {
			return err
		}
	}
	return nil
}

// detach records that the connection to the switch is lost.
func (a *agent) detach() {
	a.session, a.wrong.switchProblem = nil, ""
	a.report()
}

// checkComplete closes complete once the rules and the node's configuration are known, so that all desired flows can be
// compiled. An earlier comparison would delete flows that a node with a lost state file still enforces.
func (a *agent) checkComplete() {
	if !a.rules.known || !a.node.configured {
		return
	}
	select {
	case <-a.complete:
	default:
		close(a.complete)
		a.setReady("rules", "")
	}
}
