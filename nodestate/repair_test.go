package nodestate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// slowProbe holds before a change, and after it from the time on.
func (r *rig) slowProbe(from time.Time) []Probe {
	return []Probe{{Name: "the default gateway", Check: func(context.Context, nmstate.State) error {
		if r.node.mtu(r.T, "dummy0") != 1500 && time.Now().Before(from) {
			return errors.New("no answer")
		}
		return nil
	}}}
}

// foreign sets dummy0's MTU as another program does.
func (r *rig) foreign(mtu int) {
	r.node.set(func() { r.node.state = nmstate.Overlay(r.node.state, parse(r.T, desireMTU(mtu))) })
}

// TestVerification_RepairsChangesOfOthers: another program changes the interface during verification.
func TestVerification_RepairsChangesOfOthers(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.cfg.Metrics = NewMetrics(prometheus.NewRegistry())
		r.cfg.Probes = r.slowProbe(time.Now().Add(10 * time.Second))
		r.desire(desireMTU(1450))
		defer r.start(dir)()
		after(2 * time.Second)
		r.foreign(1400)
		after(2 * time.Second)
		if got := r.node.mtu(r.T, "dummy0"); got != 1450 || r.node.repaired.Load() != 1 {
			r.Errorf("mtu %d after %d repairs", got, r.node.repaired.Load())
		}
		text, err := os.ReadFile(filepath.Join(dir, "change.json"))
		if err != nil || !strings.Contains(string(text), "again interfaces[dummy0].mtu") {
			r.Errorf("the journal has no repair: %v: %s", err, text)
		}
		var drifts dto.Metric
		if err := r.cfg.Metrics.drifts.Write(&drifts); err != nil || drifts.GetCounter().GetValue() != 1 {
			r.Errorf("%v drifts counted: %v", drifts.GetCounter().GetValue(), err)
		}
		after(10 * time.Second)
		r.is("True InSync")
		if r.node.rolled.Load() != 0 || r.node.attempts() != 1 {
			r.Errorf("%d roll-backs, %d attempts", r.node.rolled.Load(), r.node.attempts())
		}
		if h := r.api.status().History; len(h) != 1 || h[0].Outcome != v1.OutcomeApplied || len(h[0].Changes) != 2 {
			r.Errorf("history: %+v", h)
		}
	})
}

// TestVerification_RollsBackARepairedChange: the roll-back brings back the state before the change.
func TestVerification_RollsBackARepairedChange(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.cfg.Probes = r.slowProbe(time.Now().Add(time.Hour))
		r.desire(desireMTU(1450))
		defer r.start(dir)()
		after(2 * time.Second)
		r.foreign(1400)
		after(r.cfg.Revert)
		r.is("False RolledBack")
		if got := r.node.mtu(r.T, "dummy0"); got != 1500 || r.node.repaired.Load() == 0 {
			r.Errorf("mtu %d after %d repairs", got, r.node.repaired.Load())
		}
	})
}

// TestVerification_NamesARepairThatFails: a refused repair ends in a roll-back, which the history keeps.
func TestVerification_NamesARepairThatFails(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.cfg.Probes = r.slowProbe(time.Now().Add(10 * time.Second))
		r.node.repairErr = Refuse("there is no interface dummy0")
		r.desire(desireMTU(1450))
		defer r.start(dir)()
		after(2 * time.Second)
		r.foreign(1400)
		after(r.cfg.Revert)
		r.is("False RolledBack")
		h := r.api.status().History
		const failed = "repair: there is no interface"
		if len(h) != 1 || h[0].Outcome != v1.OutcomeRolledBack || !strings.Contains(h[0].Message, failed) {
			r.Errorf("history: %+v", h)
		}
	})
}

// TestVerification_TugOfWar: a program that changes the interface again and again ends in a roll-back at the revert
// time.
func TestVerification_TugOfWar(t *testing.T) {
	played(t, func(r *rig, dir string) {
		r.cfg.Probes = r.slowProbe(time.Now().Add(time.Hour))
		r.desire(desireMTU(1450))
		defer r.start(dir)()
		for range 59 {
			after(time.Second)
			r.foreign(1400)
		}
		if r.node.repaired.Load() < 30 || r.node.repaired.Load() > 60 {
			r.Errorf("%d repairs in a minute", r.node.repaired.Load())
		}
		after(2 * time.Second)
		r.is("False RolledBack")
	})
}
