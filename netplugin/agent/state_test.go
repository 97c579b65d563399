package agent

import (
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/flowkeep/flowkeep/internal/schema"
	"github.com/flowkeep/flowkeep/internal/schema/schematest"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/policydb/policy"
	bolt "go.etcd.io/bbolt"
)

// TestDryRunsAreKeptApart: they are what they were after a restart, and where a netplugin of before reads rules, there are none.
func TestDryRunsAreKeptApart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	rule := func(n byte, dryRun bool) policy.RuleChange {
		return policy.RuleChange{Key: policy.Key{n}, Rule: &policy.Rule{Key: policy.Key{n}, Direction: policy.Ingress, DryRun: dryRun}}
	}
	save := func(rules ...policy.RuleChange) (inForce int) {
		s, _, err := openState(path)
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		if err := s.save([]change{{update: &policy.NodeUpdate{Revision: 1, Rules: rules}}}); err != nil {
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
		for k, dryRun := range want {
			if r.rules[k] == nil || r.rules[k].DryRun != dryRun {
				t.Errorf("%s: rule %s is %+v", what, k, r.rules[k])
			}
		}
		u := r.asUpdate()
		if err := s.save([]change{{whole: true, update: &u}}); err != nil {
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

// The highest epoch that was obeyed is never forgotten: not with an older one, an update, or when all is written anew.
func TestTheHighestEpochIsKept(t *testing.T) {
	a, _, _ := running(t)
	for _, epoch := range []uint64{7, 5, 0} {
		if err := a.Obey(t.Context(), epoch); err != nil {
			t.Fatal(err)
		}
	}
	kept := func(after string) {
		t.Helper()
		if err := a.disk.saver.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		r, _, err := a.disk.state.load()
		if err != nil || r.epoch != 7 {
			t.Errorf("after %s: %d on disk (%v)", after, r.epoch, err)
		}
		if have, err := a.State(t.Context(), func() {}); err != nil || have.Epoch != 7 {
			t.Errorf("after %s: a hello would say %d (%v)", after, have.Epoch, err)
		}
	}
	kept("obedience")
	if _, err := updated(t, a, rules(1, allow(80))); err != nil {
		t.Fatal(err)
	}
	kept("an update")
	if err := a.do(t.Context(), func() { a.disk.saver.whole = true }); err != nil {
		t.Fatal(err)
	}
	if _, err := updated(t, a, rules(2, allow(81))); err != nil {
		t.Fatal(err)
	}
	kept("a disk that was full")
}

// TestTheStateOfTheNextVersion is read as this version wrote it, and that of the one before by the next. What is further away is set aside.
func TestTheStateOfTheNextVersion(t *testing.T) {
	now, next := schematest.Versions(stateLayout.Writes, string(bucketRules))
	path := filepath.Join(t.TempDir(), "rules.db")
	s, _, err := openState(path)
	if err != nil {
		t.Fatal(err)
	}
	u, ids := rules(9, allow(80), allow(81)), []pipeline.Assignment{{Space: 1, Content: policy.Key{5}, ID: 7}}
	if err := errors.Join(s.save([]change{{update: &u, ids: ids, epoch: 4}}), s.close()); err != nil {
		t.Fatal(err)
	}
	before := schematest.Contents(t, path)
	schematest.Settle(t, path, next)
	if schematest.Contents(t, path) == before {
		t.Fatal("the next version writes the same")
	}
	s, aside, err := openStateAs(path, &now)
	if err != nil || aside != "" {
		t.Fatal(err, aside)
	}
	r, have, err := s.load()
	if err != nil || len(r.rules) != 2 || r.groups.Len() != 2 || r.revision != 9 || r.epoch != 4 || !sameAssignments(have, ids) {
		t.Errorf("%+v, %v, %v", r, have, err)
	}
	s.close()
	if after := schematest.Contents(t, path); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	schematest.Claim(t, path, strconv.Itoa(now.Writes+2))
	s, aside, err = openStateAs(path, &now)
	if err != nil || !strings.Contains(aside, "newer version than the next") || len(schematest.SetAside(t, path)) != 1 {
		t.Errorf("%v, %q", err, aside)
	}
	s.close()
}

// TestWhatTheStateHolds is known to the version before, which passes over what it does not know: a rule that says less there would open. So a field
// that takes something away raises stateLayout, or is in a bucket of its own, as dry runs are; then this text is changed (docs/decisions/021).
func TestWhatTheStateHolds(t *testing.T) {
	for _, c := range []struct{ have, want string }{
		{schematest.Shape(policy.Rule{}), "{key:text direction:uint8 appliedTo:text anyPeer:bool peers:[text] blocks:[{cidr:text except:[text]}] anyPort:bool " +
			"ports:[{protocol:uint8 first:uint16 last:uint16}] audit:bool origins:[{policy:string rule:int}]}"},
		{schematest.Shape(policy.NodeInfo{}), "{name:string addresses:[text] podCIDRs:[text] " +
			// no node receives uid, createdAt and refused; the version before lacks traffic mode auto, which links are for
			"uid:string createdAt:int64 links:{onLink:[text]} refused:bool}"},
	} {
		if c.have != c.want {
			t.Errorf("a file holds\n%s\nwhere the version before has\n%s", c.have, c.want)
		}
	}
}

// TestAFullDiskSetsNothingAside: what the system refuses, also in the midst of a step from a neighbour's schema, says nothing of the file. It stays, and
// is read when there is room. EFBIG is internal/schema's to test: a limit for files would also end the log that go test
// keeps of this package's many tests.
func TestAFullDiskSetsNothingAside(t *testing.T) {
	dir := schematest.SmallDisk(t)
	_, next := schematest.Versions(stateLayout.Writes, string(bucketRules))
	path := filepath.Join(dir, "rules.db")
	s, _, err := openState(path)
	if err != nil {
		t.Fatal(err)
	}
	changes := policy.NodeUpdate{Revision: 9}
	for port := range uint16(300) {
		changes.Rules = append(changes.Rules, rules(9, allow(port+1)).Rules...)
	}
	if err := errors.Join(s.save([]change{{update: &changes, epoch: 4}}), s.close()); err != nil {
		t.Fatal(err)
	}
	before := schematest.Contents(t, path)
	refused := func(by schema.Layout, want error) {
		t.Helper()
		s, aside, err := openStateAs(path, &by)
		if err != nil || !errors.Is(s.refused, want) || len(schematest.SetAside(t, path)) != 0 {
			t.Fatalf("error %v, set aside %q; want %v", err, aside, want)
		}
	}
	empty := schematest.Fill(t, dir)
	refused(next, syscall.ENOSPC)
	empty()
	if after := schematest.Contents(t, path); after != before {
		t.Error("the file was changed")
	}
	s, aside, err := openState(path)
	if err != nil || aside != "" {
		t.Fatal(err, aside)
	}
	defer s.close()
	if r, _, err := s.load(); err != nil || len(r.rules) != 300 || r.epoch != 4 {
		t.Errorf("%d rules, epoch %d, %v", len(r.rules), r.epoch, err)
	}
}
