package agent

import (
	"path/filepath"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
	bolt "go.etcd.io/bbolt"
)

// TestDryRunsAreKeptApart: they are what they were after a restart, and where a netplugin of before reads rules, there are none.
func TestDryRunsAreKeptApart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	rule := func(n byte, audit bool) policy.RuleChange {
		return policy.RuleChange{Key: policy.Key{n}, Rule: &policy.Rule{Key: policy.Key{n}, Direction: policy.Ingress, Audit: audit}}
	}
	save := func(rules ...policy.RuleChange) (inForce int) {
		s, _, err := openState(path)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		if err := s.save(policy.NodeUpdate{Revision: 1, Rules: rules}, nil); err != nil {
			t.Fatal(err)
		}
		_ = s.db.View(func(tx *bolt.Tx) error { inForce = tx.Bucket(bucketRules).Stats().KeyN; return nil })
		return inForce
	}
	expect := func(what string, want map[policy.Key]bool) {
		t.Helper()
		s, aside, err := openState(path)
		if err != nil || aside != "" {
			t.Fatal(err, aside)
		}
		defer s.close()
		r, _, err := s.load()
		if err != nil || len(r.rules) != len(want) {
			t.Fatalf("%s: %v, %v", what, r.rules, err)
		}
		for k, audit := range want {
			if r.rules[k] == nil || r.rules[k].Audit != audit {
				t.Errorf("%s: rule %s is %+v", what, k, r.rules[k])
			}
		}
		if err := s.replace(r, nil); err != nil {
			t.Error(err)
		}
	}
	if n := save(rule(1, false), rule(2, true), rule(3, true)); n != 1 {
		t.Errorf("a netplugin of before would enforce %d rules", n)
	}
	for _, what := range []string{"saved", "written anew"} {
		expect(what, map[policy.Key]bool{{1}: false, {2}: true, {3}: true})
	}
	save(policy.RuleChange{Key: policy.Key{1}}, policy.RuleChange{Key: policy.Key{3}})
	expect("removed", map[policy.Key]bool{{2}: true})
}
