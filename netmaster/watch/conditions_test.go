package watch

import (
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// The condition is written and cleared; the kubelet's conditions stay as they are.
func TestConditions(t *testing.T) {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	node.Status.Conditions = []corev1.NodeCondition{ready}
	client := fake.NewClientset(node)
	c := &Conditions{Client: client}
	read := func() (conditions []corev1.NodeCondition) {
		n, err := client.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return n.Status.Conditions
	}
	for _, reason := range []string{"FlowkeepNoRoute", "FlowkeepClusterCIDRs", ""} {
		if err := c.Set(t.Context(), "node1", reason, "why"); err != nil {
			t.Fatal(err)
		}
		marked, err := c.Marked(t.Context())
		if want := reason != ""; err != nil || slices.Contains(marked, "node1") != want {
			t.Errorf("with reason %q the nodes %q are marked (%v)", reason, marked, err)
		}
		if have := read(); len(have) != 2 || !slices.Contains(have, ready) {
			t.Errorf("with reason %q the conditions are %+v", reason, have)
		}
	}
	for _, a := range client.Actions() {
		if a.GetVerb() == "patch" && a.GetSubresource() != "status" {
			t.Errorf("a patch of the Node itself: %v", a)
		}
	}
	last := func(n corev1.NodeCondition) bool { return n.Type == wellknown.ConditionNetworkProblem }
	if i := slices.IndexFunc(read(), last); i < 0 || read()[i].Status != corev1.ConditionFalse {
		t.Errorf("the condition is not cleared: %+v", read())
	}
	if err := c.Set(t.Context(), "gone", "FlowkeepNoRoute", "why"); err != nil {
		t.Errorf("a Node that is gone: %v", err)
	}
}
