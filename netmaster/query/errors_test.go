package query

import (
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// A policy has failed on a node where one of its rules has, or everything; other policies there have not. It is pending where
// something of it is on its way, and not where that is newer than what is asked for.
func TestPolicyNodes(t *testing.T) {
	a, b := []policy.Key{{1}}, []policy.Key{{2}}
	connected := func(errs ...wire.RuleError) feed.NodeStatus {
		return feed.NodeStatus{Name: "node1", Connected: true, Sent: 5, Realised: 4, Errors: errs}
	}
	one := wire.RuleError{Rules: a, Origins: []policy.Origin{{Policy: "ns/a", Rule: 0}, {Policy: "ns/a", Rule: 1}}, Message: "refused"}
	all := wire.RuleError{Message: "the switch is away"}
	for _, test := range []struct {
		rules  []policy.Key
		node   feed.NodeStatus
		behind bool
		enough uint64
		state  string
		errs   []string
	}{
		{a, connected(one), false, neverAcknowledged, "failed", []string{"refused"}},
		{b, connected(one), false, neverAcknowledged, "realised", nil},
		{a, connected(all, one), false, neverAcknowledged, "failed", []string{"the switch is away", "refused"}},
		{b, connected(all, one), true, neverAcknowledged, "failed", []string{"the switch is away"}},
		{nil, connected(all), true, neverAcknowledged, "failed", []string{"the switch is away"}},
		{a, connected(), false, neverAcknowledged, "realised", nil},
		{a, feed.NodeStatus{Name: "node1", Errors: []wire.RuleError{one}}, true, 0, "away", nil},
		{a, connected(), true, neverAcknowledged, "pending", nil},
		{a, connected(), true, 5, "pending", nil},
		{a, connected(), true, 4, "realised", nil},
	} {
		n := policyNode(&feed.Standing{NodeStatus: test.node, Needs: true, Behind: test.behind}, false, test.rules, test.enough)
		if n.State != test.state || !slices.Equal(n.Errors, test.errs) || n.Leaving {
			t.Errorf("%+v: %+v", test, n)
		}
		if said := n.Reason != ""; said != (n.State == "away" || n.State == "pending") {
			t.Errorf("%+v: the reason is %q", test, n.Reason)
		}
	}
	if got := errorText(&one); got != "ns/a: refused" {
		t.Error(got)
	}
	if got := errorText(&all); got != "the switch is away" {
		t.Error(got)
	}
}

// What the engine says that nodes hold of a policy is what it shows of it.
func TestExtentMatchesPolicyView(t *testing.T) {
	e := newPlace(t).owner.engine
	texts := func(keys []policy.Key) string {
		var out []string
		for _, k := range keys {
			out = append(out, k.String())
		}
		slices.Sort(out)
		return strings.Join(slices.Compact(out), " ")
	}
	for _, id := range e.Policies() {
		v, _ := e.Policy(id)
		shown, held := extentOf(&v), e.Extent(id)
		if texts(shown.Rules) != texts(held.Rules) || texts(shown.Peers) != texts(held.Peers) || texts(shown.Applied) != texts(held.Applied) || !slices.Equal(shown.Nodes, held.Nodes) || len(held.Rules) == 0 {
			t.Errorf("%s: nodes hold %+v, shown is %+v", id, held, shown)
		}
		if e.PolicyObject(id) != v.Policy {
			t.Errorf("%s is another object", id)
		}
	}
	if x := e.Extent("shop/nobody"); len(x.Rules)+len(x.Nodes) > 0 || e.PolicyObject("shop/nobody") != nil {
		t.Errorf("of none: %+v", x)
	}
}
