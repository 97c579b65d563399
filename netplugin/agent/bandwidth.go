package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
)

// limits keeps the meters that limit pods' bandwidth. It belongs to the owner goroutine.
type limits struct {
	a      *agent
	made   []ofctl.Meter // that the switch has
	absent bool          // the switch has no room for them
}

// bandwidthMeters returns the meters that the switch should have to limit pods' bandwidth.
func (l *limits) bandwidthMeters() []ofctl.Meter {
	if !l.a.node.limits {
		return nil
	}
	return l.a.compiler.BandwidthMeters()
}

// ensureAll brings the switch's meters to those that are wanted and those of pods' bandwidth. Where the switch has no
// room for the latter, pods have no limit: policies hold all the same.
func (l *limits) ensureAll(ctx context.Context, s session, want []ofctl.Meter) error {
	pods := l.a.compiler.BandwidthMeters()
	err := s.EnsureMeters(ctx, slices.Concat(want, pods))
	absent := errors.Is(err, ofctl.ErrNoMeters) && len(pods) > 0
	if absent {
		l.a.log.Warn("the bandwidth of pods is not limited: the switch has no room for their meters", "error", err)
		pods = nil
		err = s.EnsureMeters(ctx, want)
	}
	if err == nil {
		l.made, l.absent = pods, absent
	}
	return err
}

// addLimits makes the meters that flows to come name. Those that are not wanted any more stay until removeLimits: the
// switch removes the flows that name them.
func (l *limits) addLimits(ctx context.Context) error {
	want := l.bandwidthMeters()
	all := slices.Clone(want)
	for _, m := range l.made {
		if !hasMeter(want, m.ID) {
			all = append(all, m)
		}
	}
	return l.changeLimits(ctx, all)
}

// removeLimits removes the meters that no flow names any more.
func (l *limits) removeLimits(ctx context.Context) error {
	return l.changeLimits(ctx, l.bandwidthMeters())
}

// limitsChanged reports whether the switch has other meters than pods' bandwidth needs.
func (l *limits) limitsChanged() bool { return !l.are(l.bandwidthMeters()) }

func (l *limits) are(want []ofctl.Meter) bool {
	return slices.Equal(sortedMeters(want), sortedMeters(l.made))
}

func (l *limits) changeLimits(ctx context.Context, want []ofctl.Meter) error {
	if l.are(want) {
		return nil
	}
	have, err := l.a.session.Meters(ctx)
	if err != nil {
		return fmt.Errorf("read the meters of pods' bandwidth: %w", err)
	}
	others := slices.DeleteFunc(have, func(m ofctl.Meter) bool { return pipeline.IsBandwidthMeter(m.ID) })
	if err := l.a.session.EnsureMeters(ctx, slices.Concat(others, want)); err != nil {
		return fmt.Errorf("make the meters of pods' bandwidth: %w", err)
	}
	l.made = want
	return nil
}

func sortedMeters(list []ofctl.Meter) []ofctl.Meter {
	return slices.SortedFunc(slices.Values(list), func(x, y ofctl.Meter) int { return int(x.ID) - int(y.ID) })
}
