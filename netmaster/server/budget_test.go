package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// small has the budgets of the engine and the ledger small, and those of the watcher, which trims.
func small(c *Config) {
	c.Budgets = policy.DefaultBudgets
	c.Budgets.Policy.Peers, c.Budgets.Policy.Members = 2, policy.GroupCost(0)
	c.Budgets.Namespace.Rules, c.Budgets.PodPorts = 3, 1
	c.Watcher.Budgets = c.Budgets
}

// endpoint returns what netctl has of a pod.
func (m *master) endpoint(id string) inspect.Endpoint {
	m.Helper()
	var out []inspect.Endpoint
	m.ask(func(c grpc.ClientConnInterface) (err error) {
		out, err = inspect.Ask[[]inspect.Endpoint](m.Context(), c, inspect.Question{Kind: inspect.AskEndpoints, ID: id})
		return err
	})
	return out[0]
}

// Labels that exceed a budget are left out with an Event and in a metric: the pod is isolated and no peer, and no
// selector of namespaces chooses the Namespace. The same holds after a restart, and all is back without the labels.
func TestLabelsOverBudget(t *testing.T) {
	labels := func(n int) map[string]string {
		out := map[string]string{"app": "x"}
		for i := range n {
			out[fmt.Sprint("l", i)] = ""
		}
		return out
	}
	many := pod("many", "x", "node1", "10.0.1.9")
	many.Labels = labels(4)
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "wide", Labels: labels(4)}}
	w := newWorld(t, append(shop(t), many, space)...)
	few := func(c *Config) {
		c.Budgets = policy.DefaultBudgets
		c.Budgets.Labels = 4
		c.Watcher.Budgets = c.Budgets
	}
	m := w.start(few)
	until(t, "the events", func() bool {
		return w.reported("Pod ns/many LabelsOverBudget", "5 labels are left out", "isolated") &&
			w.reported("Namespace /wide NamespaceLabelsOverBudget", "it has 5 labels")
	})
	until(t, "the metric", func() bool { return m.metric("netmaster_invalid_objects") == 2 })
	m.stop()
	m = w.start(few)
	m.ready()
	until(t, "the same is left out after a restart", func() bool { return m.metric("netmaster_invalid_objects") == 2 })
	isolated := func() bool {
		e := m.endpoint("ns/many")
		own := "ns/" + policy.OverBudgetPolicy
		return e.State == "labels over budget" && slices.Contains(e.Ingress, own) && slices.Contains(e.Egress, own)
	}
	until(t, "the pod is isolated", isolated)
	m.stop()
	w.apiServer(true)
	m = w.start(few)
	m.ready()
	if !isolated() {
		t.Errorf("from the policy DB: %+v", m.endpoint("ns/many"))
	}
	w.apiServer(false)
	many.Labels, space.Labels = labels(3), labels(3)
	if _, err := w.client.CoreV1().Pods("ns").Update(t.Context(), many, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.CoreV1().Namespaces().Update(t.Context(), space, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "nothing is left out", func() bool { return m.metric("netmaster_invalid_objects") == 0 && !isolated() })
}

// What exceeds a budget is left out with an Event and in a metric: of a policy, of a namespace's policies, of a pod, and
// because of the pods that peers choose. A policy that fits again when another one is deleted is whole, also after a restart.
func TestOverBudget(t *testing.T) {
	many := pod("many", "x", "node1", "10.0.1.9")
	ports := []corev1.ContainerPort{{Name: "a", ContainerPort: 1}, {Name: "b", ContainerPort: 2}}
	many.Spec.Containers = []corev1.Container{{Ports: ports}}
	peers := func(apps ...string) string {
		var list []string
		for _, app := range apps {
			list = append(list, fmt.Sprintf(`{podSelector: {matchLabels: {app: %s}}}`, app))
		}
		return fmt.Sprintf(`{ingress: [{from: [%s]}]}`, strings.Join(list, ", "))
	}
	w := newWorld(t, append(shop(t), many,
		netpol(t, "q-peers", peers("x", "y", "z")), netpol(t, "r-members", peers("a")), netpol(t, "s-late", peers("late")))...)
	m := w.start(small)
	until(t, "the events", func() bool {
		const peers = "NetworkPolicy ns/q-peers OverBudget"
		return w.reported(peers, "spec.ingress[0] peer [2]", "over the budget of 2 selectors of a policy", "allows nothing") &&
			w.reported("NetworkPolicy ns/s-late OverBudget", "over the budget of 3 rules of all policies of a namespace") &&
			w.reported(peers, fmt.Sprintf("over the budget of %d pods of all peers", policy.GroupCost(0))) &&
			w.reported("Pod ns/many PortsOverBudget", "1 named ports are left out")
	})
	until(t, "the metric", func() bool { return m.metric("netmaster_invalid_objects") == 3 })
	if err := w.client.NetworkingV1().NetworkPolicies("ns").Delete(t.Context(), "r-members", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the late policy is within budget", func() bool { return m.metric("netmaster_invalid_objects") == 2 })
	m.stop()
	m = w.start(small)
	m.ready()
	until(t, "the same is left out after a restart", func() bool { return m.metric("netmaster_invalid_objects") == 2 })
}
