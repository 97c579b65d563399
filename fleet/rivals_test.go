package fleet

import (
	"fmt"
	"strings"
	"testing"
)

// TestRivals: of policies of one kind on the same section of a gateway all but the oldest are told, until all clusters say that they take them too.
func TestRivals(t *testing.T) {
	policy := func(kind Kind, name, created, sections string, said ...State) PolicyReport {
		r := reportOf(kind, said...)
		var refs []string
		for section := range strings.FieldsSeq(sections) {
			gateway, section, _ := strings.Cut(section, ":")
			refs = append(refs, fmt.Sprintf("{group: gateway.networking.k8s.io, kind: Gateway, name: %s, sectionName: %q}", gateway, section))
		}
		r.Policy.Object = tree(t, fmt.Sprintf(`{metadata: {namespace: shop, name: %s, creationTimestamp: "2026-01-0%sT00:00:00Z"}, spec: {targetRefs: [%s]}}`, name, created, strings.Join(refs, ", ")))
		r.Policy.Name = Name{"shop", name}
		return r
	}
	good, bad := answerOf("c1", "Accepted=True"), answerOf("c1", "Accepted=True", "Enforced=False/NotReady/no limitador")
	lost := answerOf("c1", "Accepted=False/Conflicted/older one")
	other := conditionsKind
	other.Kind = "AuthPolicy"
	for _, test := range []struct {
		name     string
		policies []PolicyReport
		says     string
	}{
		{"one", []PolicyReport{policy(conditionsKind, "a", "1", "web:")}, "False/NoConflicts"},
		{"two kinds", []PolicyReport{policy(conditionsKind, "a", "1", "web:"), policy(other, "b", "2", "web:")}, "False/NoConflicts"},
		{"two sections", []PolicyReport{policy(conditionsKind, "a", "1", "web:http"), policy(conditionsKind, "b", "2", "web:https"), policy(conditionsKind, "c", "3", "web:")}, "False/NoConflicts"},
		{"another gateway", []PolicyReport{policy(conditionsKind, "a", "1", "web:"), policy(conditionsKind, "b", "2", "api:")}, "False/NoConflicts"},
		{"the older", []PolicyReport{policy(conditionsKind, "a", "2", "web:", good), policy(conditionsKind, "b", "1", "web: api:", good, quiet("c2", Waiting))}, "False/NoConflicts"},
		{"nothing is told", []PolicyReport{policy(conditionsKind, "a", "2", "web:", quiet("c1", Waiting)), policy(conditionsKind, "b", "1", "web:", good)},
			"Unknown/SameTarget/no cluster reports a conflict, and not all have reported: KIND/shop/a targets the gateway, as KIND/shop/b does, which is older (which counts is for their controllers to say)"},
		{"by name", []PolicyReport{policy(conditionsKind, "b", "1", "web:http", bad), policy(conditionsKind, "a", "1", "web:http api:", bad)},
			"KIND/shop/b targets its section http, as KIND/shop/a does"},
		{"ancestors", []PolicyReport{policy(ancestorsKind, "b", "1", "web:http", good, quiet("c2", Silent)), policy(ancestorsKind, "a", "1", "web:http", good)}, "ANCESTORS/shop/b targets its section http"},
		{"all take it", []PolicyReport{policy(conditionsKind, "a", "2", "web:", good, answerOf("c2", "Enforced=True")), policy(conditionsKind, "b", "1", "web:", good)}, "False/NoConflicts"},
		{"a cluster tells of it", []PolicyReport{policy(conditionsKind, "a", "2", "web:", lost), policy(conditionsKind, "b", "1", "web:", good)},
			"True/Conflicted/KIND/shop/a in c1: older one; KIND/shop/a targets the gateway, as KIND/shop/b does, which is older"},
	} {
		status, _ := GatewayStatus(&GatewayReport{Gateway: gatewayObject(), Policies: test.policies}, noon)
		c := conditionNamed(listOf(status, "conditions"), ConditionPolicyConflicts)
		want := strings.NewReplacer("KIND", conditionsKind.Kind, "ANCESTORS", ancestorsKind.Kind).Replace(test.says)
		if is := fmt.Sprintf("%s/%s/%s", c["status"], c["reason"], c["message"]); !strings.Contains(is, want) {
			t.Errorf("%s: %s, want %s", test.name, is, want)
		}
	}
}
