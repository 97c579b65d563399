package agent

import (
	"context"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
)

// countInterval is the time between two counts of the switch's flows. A drift check, which reads them all, is made each
// minute (Config.DriftCheckInterval).
const countInterval = 500 * time.Millisecond

// flowCounter returns how many flows a switch has.
type flowCounter func(ctx context.Context) (int, error)

// flowCounts are how many flows the switch has, and how many it should have.
type flowCounts struct{ have, want int }

// flowCount compares the number of the switch's flows with the number that it should have.
type flowCount struct{ a *agent }

// keepCounted counts the switch's flows until ctx ends, on a connection of its own. Without drift checks it does not.
func (fc *flowCount) keepCounted(ctx context.Context) {
	// A switch that translates Services adds flows by itself.
	if fc.a.cfg.DriftCheckInterval <= 0 || fc.a.cfg.translates() {
		return
	}
	for ctx.Err() == nil {
		if s, err := ofctl.Connect(ctx, fc.a.cfg.managementSocket()); err == nil {
			fc.countBy(ctx, func(ctx context.Context) (int, error) { return ofctl.FlowCount(ctx, s) })
			s.Close()
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
	}
}

// countBy counts until the switch does not respond.
func (fc *flowCount) countBy(ctx context.Context, count flowCounter) {
	again := time.NewTicker(countInterval)
	defer again.Stop()
	var checked flowCounts
	for {
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
		var err error
		if checked, err = fc.checkCount(ctx, count, checked); err != nil {
			return
		}
	}
}

// checkCount counts once, and makes a drift check where the count differs. It returns the counts, to be given to the next
// call: a difference that a check did not remove is left to the next regular one.
func (fc *flowCount) checkCount(ctx context.Context, count flowCounter, checked flowCounts) (flowCounts, error) {
	want, ok := fc.flowsWanted(ctx)
	have, err := count(ctx)
	if err != nil {
		return checked, err
	}
	if now, still := fc.flowsWanted(ctx); !ok || !still || now != want {
		return checked, nil // they have changed meanwhile
	}
	counts := flowCounts{have, want}
	if have != want && counts != checked {
		fc.a.log.Warn("the switch has more or fewer flows than it should; comparing all", "have", have, "want", want)
		fc.a.drift.Check(ctx)
	}
	return counts, nil
}

// flowsWanted returns how many flows the switch should have; ok is false without a connection to it.
func (fc *flowCount) flowsWanted(ctx context.Context) (flows int, ok bool) {
	err := fc.a.do(ctx, func() {
		flows, ok = fc.a.compiler.Count()-len(fc.a.wrong.flows), fc.a.session != nil
	})
	return flows, ok && err == nil
}
