package agent

import (
	"context"
	"errors"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/driftcheck"
)

// TestQueryFlows_ReadsOnAConnectionOfItsOwn has no further connection to the switch: the one that enforces is not used.
func TestQueryFlows_ReadsOnAConnectionOfItsOwn(t *testing.T) {
	a, _, _ := onSwitch(t)
	full := errors.New("no more connections")
	dial := a.drift.Dial
	a.drift.Dial = func(context.Context) (driftcheck.Reader, error) { return nil, full }
	if _, err := a.inspector.queryFlows(t.Context(), nil); !errors.Is(err, full) {
		t.Errorf("queryFlows returned %v", err)
	}
	a.drift.Dial = dial
	if text, err := a.inspector.queryFlows(t.Context(), nil); err != nil || len(text) < 100 {
		t.Errorf("queryFlows returned %d bytes and %v", len(text), err)
	}
}
