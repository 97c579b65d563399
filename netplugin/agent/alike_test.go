package agent

import (
	"errors"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/groups"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
	bolt "go.etcd.io/bbolt"
)

// randomGroups is an update of peer groups of which some are like others.
func randomGroups(g policytest.Gen, revision uint64) policy.NodeUpdate {
	out := policy.NodeUpdate{Revision: revision}
	keys := g.Perm(8)
	for len(keys) > 0 && g.IntN(3) > 0 {
		u := policy.GroupUpdate{Key: policy.Key{byte(keys[0])}, Kind: policy.PeerGroup, Gone: g.IntN(5) == 0}
		if keys = keys[1:]; u.Gone {
			out.Groups = append(out.Groups, u)
			continue
		}
		u.Replace = g.IntN(4) == 0
		for n := range 8 {
			if g.IntN(4) == 0 {
				u.Added = append(u.Added, policytest.Address(n, false))
			} else if g.IntN(4) == 0 && !u.Replace {
				u.Removed = append(u.Removed, policytest.Address(n, false))
			}
		}
		for len(keys) > 0 && g.IntN(2) == 0 {
			u.Alike, keys = append(u.Alike, policy.Key{byte(keys[0])}), keys[1:]
		}
		out.Groups = append(out.Groups, u)
	}
	return out
}

func sameGroups(a, b *groups.Replica) bool {
	same := a.Len() == b.Len()
	for id, set := range a.All() {
		same = same && b.Set(id) != nil && b.Set(id).Hash() == set.Hash()
	}
	return same && len(a.Sets()) == len(b.Sets())
}

// TestState_AlikeGroups checks that the groups that a node received are on its disk, each set once, after any history
// of updates and after a rewrite of the file.
func TestState_AlikeGroups(t *testing.T) {
	s, _, err := openState(filepath.Join(t.TempDir(), "rules.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	r, g := newRuleset(), policytest.New(11)
	for revision := range uint64(150) {
		stored := r.apply(randomGroups(g, revision))
		c := change{update: &stored}
		if g.IntN(20) == 0 {
			all := r.asUpdate()
			c = change{whole: true, update: &all, unknown: g.IntN(2) == 0}
		}
		if err := s.save([]change{c}); err != nil {
			t.Fatal(err)
		}
		have, _, err := s.load()
		if err == nil && (have.known == c.unknown || have.known && have.revision != revision) {
			t.Fatalf("revision %d: known %v, revision %d", revision, have.known, have.revision)
		}
		if err != nil || !sameGroups(r.groups, have.groups) {
			t.Fatalf("revision %d: %d groups, want %d (%v)", revision, have.groups.Len(), r.groups.Len(), err)
		}
	}
}

// older is what an older netplugin does with the file: it knows neither bucketAlike nor that the revision can be there.
type older struct{ *bolt.DB }

// known reports whether it takes the rules for complete: else it keeps its flows until netmaster has sent them.
func (o older) known() (known bool) {
	_ = o.View(func(tx *bolt.Tx) error {
		known = tx.Bucket(bucketMeta).Get(keyRevision) != nil
		return nil
	})
	return known
}

// update adds a member to group 1.
func (o older) update() error {
	return o.Update(func(tx *bolt.Tx) error {
		set := tx.Bucket(bucketGroups).Bucket(groupKey(policy.PeerGroup, policy.Key{1}))
		added := policytest.Address(9, false)
		return errors.Join(set.Put(added.AsSlice(), nil), putJSON(tx.Bucket(bucketMeta), keyRevision, uint64(2)))
	})
}

// rewrite writes all that it holds, which is group 1, while netmaster has not sent the rules.
func (o older) rewrite() error {
	return o.Update(func(tx *bolt.Tx) error {
		_ = tx.DeleteBucket(bucketGroups)
		sets, err := tx.CreateBucket(bucketGroups)
		if err != nil {
			return err
		}
		_, err = sets.CreateBucket(groupKey(policy.PeerGroup, policy.Key{1}))
		return errors.Join(err, tx.Bucket(bucketMeta).Delete(keyRevision))
	})
}

// An older netplugin takes a file with groups that are like others for incomplete. After it has written the file, such a
// group permits nothing until netmaster sends it, and is not there again when the file is written the next time.
func TestState_AlikeGroupsAfterDowngrade(t *testing.T) {
	id := func(n byte) policy.GroupID { return policy.PeerGroup.ID(policy.Key{n}) }
	u := policy.NodeUpdate{Revision: 1, Groups: []policy.GroupUpdate{{
		Key:     id(1).Key,
		Kind:    policy.PeerGroup,
		Replace: true,
		Added:   []netip.Addr{policytest.Address(1, false)},
		Alike:   []policy.Key{id(2).Key},
	}}}
	for _, c := range []struct {
		name    string
		writes  func(older) error
		known   bool
		members int // of group 1
	}{
		{"nothing", func(older) error { return nil }, true, 1},
		{"an update", older.update, true, 2},
		{"all, incomplete", older.rewrite, false, 0},
		{"an update, then all, incomplete", func(o older) error { return errors.Join(o.update(), o.rewrite()) }, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _, err := openState(filepath.Join(t.TempDir(), "rules.db"))
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			stored := newRuleset().apply(u)
			if err := s.save([]change{{update: &stored}}); err != nil {
				t.Fatal(err)
			}
			if o := (older{s.db}); o.known() {
				t.Error("an older netplugin takes the file for complete")
			} else if err := c.writes(o); err != nil {
				t.Fatal(err)
			}
			alike := c.name == "nothing"
			for _, when := range []string{"read", "written"} {
				have, _, err := s.load()
				known := c.known || when == "written"
				if err != nil || have.known != known || have.groups.Set(id(1)).Len() != c.members || (have.groups.Set(id(2)) != nil) != alike {
					t.Errorf("%s: known %v, %d members, %d groups (%v)", when, have.known, have.groups.Set(id(1)).Len(), have.groups.Len(), err)
				}
				if err := s.save([]change{{update: &policy.NodeUpdate{Revision: 3}}}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
