package datapath

import (
	"context"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
)

// picky refuses flows of one priority, as a switch refuses a bundle: whole.
type picky struct {
	refuses uint16
	holds   []ofctl.FlowMod
}

func (p *picky) Commit(_ context.Context, mods []ofctl.FlowMod) error {
	for i := range mods {
		if mods[i].Flow.Priority == p.refuses && mods[i].Command != ofctl.Delete {
			return &ofctl.SwitchError{Flow: &mods[i].Flow}
		}
	}
	p.holds = mods
	return nil
}

func (p *picky) Dump(context.Context, func(ofctl.Flow, error) error) error { return nil }

// TestARefusedFlowOnlyDenies: what could only allow is taken away; anything else fails the bundle.
func TestARefusedFlowOnlyDenies(t *testing.T) {
	mods := []ofctl.FlowMod{{Flow: ofctl.Flow{Priority: 1}}, {Command: ofctl.Modify, Flow: ofctl.Flow{Priority: 2}}}
	s := &picky{refuses: 2}
	refused, err := CommitAll(context.Background(), s, mods, always)
	if err != nil || len(refused) != 1 || len(s.holds) != 2 || s.holds[1].Command != ofctl.Delete {
		t.Errorf("refused %v, error %v, committed %v", refused, err, s.holds)
	}
	s = &picky{refuses: 1}
	if _, err := CommitAll(context.Background(), s, mods, never); err == nil || s.holds != nil {
		t.Error("a bundle without a flow that isolates was committed")
	}
}
