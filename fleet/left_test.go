package fleet

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A gateway that is another's keeps what its new controller has told, and nothing of ours.
func TestGatewayWithoutUs(t *testing.T) {
	gateway := func(status Object) Object {
		return Object{"metadata": map[string]any{"namespace": "shop", "name": "web"}, "spec": map[string]any{"listeners": []any{map[string]any{"name": "http"}}}, "status": status}
	}
	for _, problem := range []*Problem{nil, {Reason: ReasonNotPlaced, Message: "it has no label " + LabelPlacement + ", which names a Placement of its namespace"}, {Reason: ReasonInvalidParameters, Message: "GatewayClass edge: it is not"}} {
		ours, _ := GatewayStatus(&GatewayReport{Gateway: gateway(nil), Problem: problem, States: []State{{Cluster: "c1", Phase: Silent, Reason: "Silent"}}}, metav1.Now())
		if status, changed := GatewayWithoutUs(DefaultController, gateway(ours)); !changed || len(status) != 0 {
			t.Errorf("of ours %v is left", status)
		}
		theirs := Object{}
		for key, value := range ours {
			theirs[key] = value
		}
		theirs["conditions"] = append([]any{map[string]any{"type": "Programmed", "status": "True", "message": "assigned an address"}}, listOf(ours, "conditions")[2:]...)
		theirs["addresses"] = []any{map[string]any{"value": "192.0.2.9"}}
		status, changed := GatewayWithoutUs(DefaultController, gateway(theirs))
		if conditions := listOf(status, "conditions"); !changed || len(conditions) != 1 || typeOf(conditions[0]) != "Programmed" || len(listOf(status, "addresses")) != 1 || len(listOf(status, "listeners")) != 1 {
			t.Errorf("of another's %v is left", status)
		}
		if _, changed := GatewayWithoutUs(DefaultController, gateway(status)); changed {
			t.Error("it is taken away once more")
		}
	}
}

// Of a policy only what is ours goes, and what has nothing of ours is not written.
func TestPolicyWithoutUs(t *testing.T) {
	const controller = DefaultController
	entry := func(controller string) any { return map[string]any{"controllerName": controller} }
	condition := func(typ string) any { return map[string]any{"type": typ} }
	for _, c := range []struct {
		ancestors bool
		status    Object
		left      int // entries or conditions; -1: nothing is written
	}{
		{true, Object{"ancestors": []any{entry("theirs"), entry(string(controller))}}, 1},
		{true, Object{"ancestors": []any{entry(string(controller))}}, 0},
		{true, Object{"ancestors": []any{entry("theirs")}}, -1},
		{true, Object{"ancestors": []any{}}, -1},
		{false, Object{"conditions": []any{condition("Accepted"), condition(ConditionSynced), condition(domain(Group).ofCluster("c1", "Enforced"))}}, 1},
		{false, Object{"conditions": []any{condition("Accepted")}}, -1},
		{false, Object{"conditions": []any{}}, -1},
		{false, nil, -1},
	} {
		p := &Policy{Kind: Kind{Status: true, Ancestors: c.ancestors}, Object: Object{"status": c.status}}
		status, changed := PolicyWithoutUs(controller, p)
		if changed != (c.left >= 0) || changed && len(listOf(status, "ancestors"))+len(listOf(status, "conditions")) != c.left {
			t.Errorf("of %v it leaves %v, changed: %v", c.status, status, changed)
		}
	}
}
