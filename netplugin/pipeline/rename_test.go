package pipeline

import (
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// A peer that chooses pods which another one chooses already changes no flow of their addresses, nor does its end; its
// first pod that differs changes those of the others once.
func TestRename_FewFlowsChange(t *testing.T) {
	c := New(testConfig, nil)
	c.Apply(equalPeers(1, true))
	if mods, _ := c.Take(); len(mods) < 5000 {
		t.Fatalf("%d flows for 5,000 addresses", len(mods))
	}
	second := rule(policy.Rule{Direction: policy.Ingress, AppliedTo: key(0), AnyPort: true, Peers: []policy.Key{key(9)}})
	alike := policy.GroupUpdate{Key: key(1), Kind: policy.PeerGroup, Alike: []policy.Key{key(9)}}
	for _, step := range []struct {
		what   string
		update policy.NodeUpdate
	}{
		{"a second peer", policy.NodeUpdate{Rules: []policy.RuleChange{second}, Groups: []policy.GroupUpdate{alike}}},
		{"its end", policy.NodeUpdate{
			Rules:  []policy.RuleChange{{Key: second.Key}},
			Groups: []policy.GroupUpdate{{Key: key(9), Kind: policy.PeerGroup, Gone: true}},
		}},
	} {
		c.Apply(step.update)
		mods, ids := c.Take()
		if len(mods) == 0 || len(mods) > 10 {
			t.Errorf("%s changes %d flows", step.what, len(mods))
		}
		for _, a := range ids {
			if a.Space == ClassIDs && a.ID > 1 {
				t.Errorf("%s makes a class: %+v", step.what, a)
			}
		}
	}
}
