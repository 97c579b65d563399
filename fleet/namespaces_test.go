package fleet

import (
	"slices"
	"strings"
	"testing"

	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNamespaces(t *testing.T) {
	for _, test := range []struct{ patterns, in, out string }{
		{"", "a kube-system", ""},
		{DefaultNamespaces.String(), "a shop kube-systems", "kube-system kube-public kube-node-lease flowkeep-system"},
		{"shop,team-*", "shop team-a team-", "team shops a"},
		{"!team-x,team-*", "team-a", "team-x shop"},
		{"[a-c]?", "ab c1", "d1 a"},
	} {
		n, err := ParseNamespaces(slices.DeleteFunc(strings.Split(test.patterns, ","), func(p string) bool { return p == "" }))
		if err != nil {
			t.Fatal(test.patterns, err)
		}
		for _, name := range strings.Fields(test.in) {
			if !n.Has(name) {
				t.Errorf("%q has not %s", test.patterns, name)
			}
		}
		for _, name := range strings.Fields(test.out) {
			if n.Has(name) {
				t.Errorf("%q has %s", test.patterns, name)
			}
		}
	}
	for _, wrong := range []string{"!a", "a,", "*,!", "*,[", "a/b", "*,!!a", "a b"} {
		if _, err := ParseNamespaces(strings.Split(wrong, ",")); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}

func FuzzNamespaces(f *testing.F) {
	f.Add("*,!kube-system", "kube-system")
	f.Add("[", "a")
	f.Add("!a", "")
	f.Fuzz(func(t *testing.T, patterns, name string) {
		n, err := ParseNamespaces(strings.Split(patterns, ","))
		if err == nil && slices.Contains(n, "!"+name) && n.Has(name) && !strings.ContainsAny(name, `*?[\`) {
			t.Errorf("%q has %q", patterns, name)
		}
	})
}

// TestSetNamespaces: a set does not write where it may not, and what it has there from before stays until the set is gone.
func TestSetNamespaces(t *testing.T) {
	h, s, most := randomHubOf(t), newSpokes(t), usual
	h.placements[Name{"shop", "all"}] = []string{"c1"}
	h.networkPolicies = []Object{tree(t, `{metadata: {name: deny, namespace: shop, labels: {a: b}}, spec: {podSelector: {}}}`)}
	set := &fleetv1alpha1.NetworkPolicySet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "base"},
		Spec:       fleetv1alpha1.NetworkPolicySetSpec{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, Placement: "all", TargetNamespace: "kube-system"},
	}
	h.sets = []*fleetv1alpha1.NetworkPolicySet{set}
	deny := Key{"networking.k8s.io", "networkpolicies", Name{"kube-system", "deny"}}
	s.user("c1", namespaceKey("kube-system"))
	s.user("c1", namespaceKey("shop"))
	h.namespaces = DefaultNamespaces
	s.settle(h.bundles(), most)
	if s.objects["c1"][deny] != nil {
		t.Error("it is in kube-system")
	}
	told := slices.ContainsFunc(h.bundles().problems, func(p Problem) bool {
		return p.Source == SetSource(Name{"shop", "base"}) && p.Reason == ReasonNamespace && strings.Contains(p.Message, "into namespaces kube-system")
	})
	if !told {
		t.Errorf("%+v", h.bundles().problems)
	}
	h.namespaces = nil
	s.settle(h.bundles(), most)
	if s.objects["c1"][deny] == nil {
		t.Error("it is not in kube-system")
	}
	h.namespaces = DefaultNamespaces
	s.settle(h.bundles(), most)
	if s.objects["c1"][deny] == nil {
		t.Error("it is not in kube-system any more")
	}
	set.Spec.TargetNamespace = ""
	s.settle(h.bundles(), most)
	if s.objects["c1"][deny] != nil || s.objects["c1"][Key{deny.Group, deny.Resource, Name{"shop", "deny"}}] == nil {
		t.Errorf("%v", s.objects["c1"])
	}
}
