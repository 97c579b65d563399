package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/flowkeep/flowkeep/ofctl"
)

// flowMonitor has the switch report changes of flows by other programs to the drift check. It belongs to the goroutine
// that keeps the session.
type flowMonitor struct {
	a       *agent
	refused bool // and logged
}

// start starts the monitor of a session, before the comparison of attach, so that no change is missed. Without drift
// checks there is no monitor.
func (m *flowMonitor) start(ctx context.Context, s *ofctl.Session) error {
	a := m.a
	if a.cfg.DriftCheckInterval <= 0 {
		return nil
	}
	err := ofctl.MonitorFlows(ctx, s, a.drift.Observe)
	if refused, ok := errors.AsType[*ofctl.SwitchError](err); ok {
		if !m.refused {
			a.log.Warn("Open vSwitch refuses the flow monitor, as before 3.0; drift checks find changed flows",
				"interval", a.cfg.DriftCheckInterval, "error", refused)
		}
		m.refused = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("monitor the switch's flows: %w", err)
	}
	a.drift.SetMonitored(true)
	return nil
}
