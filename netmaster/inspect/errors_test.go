package inspect

import (
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// A policy has failed on a node where one of its rules has, or everything; other policies there have not.
func TestPoliciesFailWhereTheirRulesDo(t *testing.T) {
	view := func(id string, key byte) *resolve.PolicyView {
		return &resolve.PolicyView{Policy: &policy.Policy{Namespace: "ns", Name: id}, Nodes: []string{"node1"}, Rules: []resolve.RuleView{{Rule: policy.Rule{Key: policy.Key{key}}}}}
	}
	connected := func(errs ...wire.RuleError) map[string]feed.NodeStatus {
		return map[string]feed.NodeStatus{"node1": {Connected: true, Sent: 5, Realised: 5, Errors: errs}}
	}
	one := wire.RuleError{Rules: []policy.Key{{1}}, Origins: []policy.Origin{{Policy: "ns/a", Rule: 0}, {Policy: "ns/a", Rule: 1}}, Message: "refused"}
	all := wire.RuleError{Message: "the switch is away"}
	for _, test := range []struct {
		view  *resolve.PolicyView
		nodes map[string]feed.NodeStatus
		state string
		errs  []string
	}{
		{view("a", 1), connected(one), "failed", []string{"refused"}},
		{view("b", 2), connected(one), "realised", nil},
		{view("a", 1), connected(all, one), "failed", []string{"the switch is away", "refused"}},
		{view("b", 2), connected(all, one), "failed", []string{"the switch is away"}},
		{view("a", 1), connected(), "realised", nil},
		{view("a", 1), nil, "away", nil},
		{view("a", 1), map[string]feed.NodeStatus{"node1": {Connected: true, Sent: 5, Realised: 4}}, "pending", nil},
	} {
		p := policyOf(test.view, test.nodes, false)
		if n := p.Nodes[0]; n.State != test.state || !slices.Equal(n.Errors, test.errs) {
			t.Errorf("%s with %+v: %+v", p.Name, test.nodes, n)
		}
	}
	if got := errorText(&one); got != "ns/a: refused" {
		t.Error(got)
	}
	if got := errorText(&all); got != "the switch is away" {
		t.Error(got)
	}
}
