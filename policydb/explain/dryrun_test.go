package explain_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// TestDryRunsAreTheOracles: what dry runs say of a packet, which policies isolate in them, and which rules would allow. Remedies must
// help there, and the world in which they are enforced judges as they say.
func TestDryRunsAreTheOracles(t *testing.T) {
	judged, denied := 0, 0
	seen := map[explain.ChangeKind]int{}
	worlds(t, 300, func(g policytest.Gen, w *policy.World, m *explain.Model) {
		enforced := explain.Enforced(w)
		for range 40 {
			p := g.Packet(pods)
			run, want := m.Explain(p).DryRun, policy.DryRun(w, p)
			if none := len(want.Egress.Isolated)+len(want.Ingress.Isolated) == 0; run == nil || none {
				if run != nil || !none {
					t.Errorf("%+v: %+v, the oracle says %+v", p, run, want)
				}
				continue
			}
			judged++
			if !run.Allowed {
				denied++
			}
			if is := policy.Allowed(enforced, p).Allowed; run.Allowed != want.Allowed || run.Allowed != is {
				t.Errorf("%+v: allowed %v, the oracle says %v, and %v where they are enforced", p, run.Allowed, want.Allowed, is)
			}
			checkDryRun(t, w, p, policy.Egress, run.Egress, want.Egress, seen)
			checkDryRun(t, w, p, policy.Ingress, run.Ingress, want.Ingress, seen)
		}
	})
	if judged < 500 || denied < 200 {
		t.Errorf("only %d packets were judged by dry runs, and %d denied", judged, denied)
	}
}

func checkDryRun(t *testing.T, w *policy.World, p policy.Packet, d policy.Direction, got *explain.Side, want policy.SideVerdict, seen map[explain.ChangeKind]int) {
	t.Helper()
	if got == nil {
		if len(want.Isolated) > 0 {
			t.Errorf("%+v: nothing of %s, the oracle says %+v", p, d, want)
		}
		return
	}
	checkSide(t, p, *got, want)
	if !slices.Equal(got.Isolating(), want.Isolated) {
		t.Errorf("%+v: %s isolated by %v, the oracle says %v", p, d, got.Isolating(), want.Isolated)
	}
	for _, r := range got.Remedies[:min(3, len(got.Remedies))] {
		checkRemedy(t, explain.Enforced(w), p, r, d, seen)
	}
}

// TestDryRunsAreNoPartOfVerdicts: a world without them has the same matrix, and putting one in changes nothing until it is enforced.
func TestDryRunsAreNoPartOfVerdicts(t *testing.T) {
	changed := 0
	worlds(t, 60, func(_ policytest.Gen, w *policy.World, m *explain.Model) {
		without := *w
		without.Policies = slices.DeleteFunc(slices.Clone(w.Policies), func(p *policy.Policy) bool { return p.DryRun })
		bare := explain.NewModel(&without)
		if a, b := m.Matrix(explain.Question{Outside: true}), bare.Matrix(explain.Question{Outside: true}); !reflect.DeepEqual(a, b) {
			t.Errorf("the matrix is %+v, without dry runs %+v", a, b)
		}
		if d := explain.Diff(bare, m); !d.Same() {
			t.Errorf("dry runs change %+v", d)
		}
		if d := explain.Diff(m, explain.NewModel(explain.Enforced(w))); !d.Same() {
			changed++
		}
	})
	if changed < 10 {
		t.Errorf("only %d worlds were others with their dry runs enforced", changed)
	}
}

func TestTryOfADryRun(t *testing.T) {
	w := policytest.New(3).World(5, 3)
	staged := *w.Policies[0]
	staged.DryRun = true
	_, tried := explain.Try(w, []explain.Attempt{{Policy: &staged}})
	if len(tried) != 1 || tried[0].Action != explain.Changed || !slices.Contains(tried[0].Notes, "it is a dry run: it isolates no pod and allows nothing") {
		t.Errorf("from enforced: %+v", tried)
	}
	after, _ := explain.Try(w, []explain.Attempt{{Policy: &staged}})
	if _, tried = explain.Try(after, []explain.Attempt{{Policy: w.Policies[0]}}); tried[0].Action != explain.Changed || len(tried[0].Notes) > 0 {
		t.Errorf("to enforced: %+v", tried)
	}
	if _, tried = explain.Try(after, []explain.Attempt{{Policy: w.Policies[0], ModeOmitted: true}}); len(tried[0].Notes) != 1 || !strings.Contains(tried[0].Notes[0], "kubectl annotate") {
		t.Errorf("by a manifest that does not say so: %+v", tried)
	}
}
