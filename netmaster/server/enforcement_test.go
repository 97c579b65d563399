package server

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/enforcement"
	"github.com/flowkeep/flowkeep/policydb/kube"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// asking is an object that asks for ns/p, and what it was answered.
type asking struct {
	mu   sync.Mutex
	told string
}

func (a *asking) Follow(ctx context.Context, n *enforcement.News) {
	n.Put(&v1alpha1.NetworkPolicyEnforcement{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Generation: 1}, Spec: v1alpha1.NetworkPolicyEnforcementSpec{Policy: "p"}})
	<-ctx.Done()
}

func (a *asking) Write(_ context.Context, o *v1alpha1.NetworkPolicyEnforcement) (*v1alpha1.NetworkPolicyEnforcement, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, s := o.Status.Conditions[0], o.Status
	a.told = fmt.Sprintf("%s %s, generation %d copy %q, %d of %d: %s", c.Status, c.Reason, s.PolicyGeneration, s.Copy, s.NodesEnforcing, s.Nodes, c.Message)
	return o, nil
}

func (a *asking) is(want string) func() bool {
	return func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return strings.Contains(a.told, want)
	}
}

// What an object is answered is what nodes say, and what netctl policy wait says.
func TestEnforcementIsReported(t *testing.T) {
	w := newWorld(t, shop(t)...)
	a := new(asking)
	m := w.start(func(c *Config) { c.Enforcement = a })
	n1 := held(m, "node1")
	until(t, "it is in force", a.is(`True InForce, generation 0 copy "", 1 of 1: in force on 1 node`))
	n1.deaf(true)
	edited := generation(t, 2, denyDB)
	edited.Annotations = map[string]string{kube.Copy: "abc"}
	w.put(edited)
	until(t, "its edit is not acknowledged", a.is(`Unknown Pending, generation 2 copy "abc", 0 of 1: 1 of 1 node has not acknowledged generation 2 yet: node1`))
	n1.deaf(false)
	until(t, "its edit is in force", a.is(`True InForce, generation 2 copy "abc", 1 of 1`))
	n1.is(func() bool { n1.wrong = []wire.RuleError{{Message: "no room for flows"}}; return true })()
	w.put(generation(t, 3, webToDB))
	until(t, "it fails", a.is(`False Failed, generation 3 copy "", 0 of 1: 1 of 1 node is in trouble with it, and denies what it would allow there: node1 (no room for flows)`))
	n1.end()
	until(t, "the node is away", a.is("Unknown NodesAway, generation 3"))
	if err := w.client.NetworkingV1().NetworkPolicies("ns").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "it is deleted", a.is(`Unknown NoPolicy, generation 0 copy "", 0 of 0: there is no NetworkPolicy ns/p`))
}
