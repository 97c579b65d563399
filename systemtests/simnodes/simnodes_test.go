package simnodes_test

import (
	"context"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/simnodes"
)

type world struct {
	*testing.T
	*simnodes.Rig
	ctx context.Context
}

func start(t *testing.T, s simnodes.Sizes, limit time.Duration) *world {
	t.Helper()
	r, err := simnodes.Start(t.Context(), s, limit, t.Logf)
	if r != nil {
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("netmaster wrote last:\n%s", r.Tail(simnodes.Netmaster))
			}
			if err := r.End(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return &world{t, r, t.Context()}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// unchanged holds that nodes which are served anew, by a netmaster that has begun anew, need nothing: all that they were told piecemeal
// is what they are told now.
func (w *world) unchanged(sim *simnodes.Sim) {
	w.Helper()
	before, err := sim.State(w.ctx)
	w.must(err)
	w.must(w.Restart(w.ctx))
	after, _, err := sim.Current(w.ctx)
	w.must(err)
	if after.TakenRules != before.TakenRules || after.TakenGroups != before.TakenGroups {
		w.Errorf("after a restart nodes were sent %d rules and %d groups, though nothing had changed", after.TakenRules-before.TakenRules, after.TakenGroups-before.TakenGroups)
	}
}

// Fifty nodes and a thousand pods: what happens reaches the nodes that it concerns, and a restart of netmaster sends none of it again.
func TestSimulatedNodes(t *testing.T) {
	w := start(t, simnodes.Sizes{Nodes: 50, Pods: 1000, Policies: 250}, time.Minute)
	w.must(w.StartNetmaster(w.ctx))
	sim, err := w.StartNodes(w.ctx, "nodes", 0, 50)
	w.must(err)
	w.must(sim.Connect(w.ctx))
	st, _, err := sim.Current(w.ctx)
	w.must(err)
	if st.Wired != 1000 || st.Rules == 0 || st.Members == 0 {
		t.Errorf("the nodes hold %+v", st)
	}
	w.unchanged(sim)
	c, err := w.Churn(w.ctx, 100, 2*time.Second, false)
	w.must(err)
	if len(c.Missing) > 0 {
		t.Errorf("of %d events these reached no node: %v", c.Events, c.Missing)
	}
	for _, kind := range simnodes.Kinds {
		if len(c.Took[kind]) == 0 {
			t.Errorf("nothing was seen of: %s", kind)
		}
		t.Logf("%s: p50 %v, p99 %v", kind, simnodes.Quantile(c.Took[kind], 0.5), simnodes.Quantile(c.Took[kind], 0.99))
	}
	w.unchanged(sim)
}
