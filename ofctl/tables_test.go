package ofctl_test

import (
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// TestFlowCount counts flows of several tables, those of other programs among them.
func TestFlowCount(t *testing.T) {
	sw := ovstest.Start(t, 1)
	s := connect(t, sw)
	count := func() int {
		t.Helper()
		n, err := ofctl.FlowCount(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := count()
	drop := func(table uint8, priority uint16) ofctl.Flow { return ofctl.Flow{Table: table, Priority: priority} }
	flows := []ofctl.Flow{drop(3, 1), drop(3, 2), drop(253, 7)}
	if err := s.Commit(t.Context(), mods(ofctl.Add, flows)); err != nil {
		t.Fatal(err)
	}
	sw.OFCtl(t, "add-flow", "table=9,priority=1,actions=drop")
	if got := count() - before; got != 4 {
		t.Errorf("%d flows more, want 4", got)
	}
	sw.OFCtl(t, "del-flows")
	if got := count(); got != 0 {
		t.Errorf("%d flows after all were deleted", got)
	}
}
