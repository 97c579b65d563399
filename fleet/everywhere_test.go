package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestEverywhereIsEverywhere holds for any states: the answer is True only if each cluster has answered, and says True, of this version, of all
// that any cluster tells; each cluster is in the answer once, and those that are not True are counted in the message.
func TestEverywhereIsEverywhere(t *testing.T) {
	seen := map[metav1.ConditionStatus]int{}
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 2))
		var states []State
		for i := range r.IntN(3) {
			states = append(states, randomState(r, fmt.Sprintf("c%d", i)))
			if r.IntN(2) == 0 {
				states[i] = answerOf(states[i].Cluster, "Accepted=True", "Enforced=True@7")
			}
		}
		for _, kind := range []Kind{conditionsKind, ancestorsKind, statuslessKind} {
			p := reportOf(kind, slices.Clone(states)...)
			e := p.Everywhere()
			seen[e.Status]++
			all, not := len(states) > 0, 0
			for i := range p.Targets[0].States {
				s := &p.Targets[0].States[i]
				fine := s.Phase == Answered
				for _, typ := range toldOfPolicies {
					told := slices.ContainsFunc(p.Targets[0].States, func(o State) bool { return find(p.SaidOf(&o), typ) != nil })
					c := find(p.SaidOf(s), typ)
					fine = fine && (!told || c != nil && c.Status == metav1.ConditionTrue && (c.Generation == nil || *c.Generation == 7))
				}
				if all = all && fine; !fine {
					not++
				}
				if at := e.Clusters[i]; at.Cluster != s.Cluster || (at.Status == metav1.ConditionTrue) != fine {
					t.Fatalf("%d: %s of %s: %+v", seed, kind.Kind, s.Cluster, at)
				}
			}
			if (e.Status == metav1.ConditionTrue) != all || len(e.Clusters) != len(states) || not > 0 && !strings.HasPrefix(e.Message, fmt.Sprintf("not in %d of ", not)) {
				t.Fatalf("%d: %s: %+v", seed, kind.Kind, e)
			}
		}
	}
	if seen["True"] < 50 || seen["False"] < 50 || seen["Unknown"] < 50 {
		t.Errorf("not all answers came up: %v", seen)
	}
}
