package pipeline

import (
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
)

// TestServices_PortsAreHashed: where the datapath's hash has no ports of UDP, flows put them into the destination; the
// kernel's hash has them, and each value would cost megaflows.
func TestServices_PortsAreHashed(t *testing.T) {
	for _, held := range []bool{true, false} {
		cfg := withServices()
		cfg.Services.Held = held
		c := New(cfg, nil)
		c.PutService(aService("a", 3))
		moves, pops := 0, 0
		for _, f := range c.Flows() {
			if slices.ContainsFunc(f.Actions, func(a ofctl.Action) bool { return a.Kind == ofctl.MoveUDPSrc }) {
				moves++
			}
			if f.Table == TableServiceSlot && f.Actions[0].Kind == ofctl.Pop {
				pops++
			}
		}
		if moves > 0 != held || pops > 0 != held {
			t.Errorf("held %v: %d flows put ports into the destination, %d restore it", held, moves, pops)
		}
	}
}
