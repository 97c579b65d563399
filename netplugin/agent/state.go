package agent

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/flowkeep/flowkeep/internal/schema"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/policydb/policy"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// stateLayout is that of the state file. A file of a schema that is further away is set aside, and the node starts from what netmaster sends.
var stateLayout = schema.Layout{Writes: 1}

var (
	bucketMeta  = []byte("meta")
	bucketRules = []byte("rules")
	// bucketDryRuns has the rules of policies in a dry run: a netplugin of before, which would take them for rules in force, does not look there.
	bucketDryRuns = []byte("dry-runs")
	bucketGroups  = []byte("groups") // kind byte + key → bucket of addresses
	bucketIDs     = []byte("ids")    // space byte + content → id
	keyRevision   = []byte("revision")
	keyEpoch      = []byte("epoch")
	keyNodes      = []byte("nodes")
)

// state is the file of the rule set. While it misses a change that the switch may have, the staleMark exists.
type state struct {
	db *bolt.DB
}

// openState opens or creates the file. A file that can't be read is renamed to NAME.corrupt-TIME and told in setAside; what the system refuses, as a full
// disk does, says nothing of the file, and is an error.
func openState(path string) (s *state, setAside string, err error) {
	return openStateAs(path, &stateLayout)
}

func openStateAs(path string, layout *schema.Layout) (s *state, setAside string, err error) {
	s, err = tryOpenState(path, layout)
	if err == nil {
		return s, "", nil
	}
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, "", fmt.Errorf("%s is in use: is another netplugin running on this node?", path)
	}
	if refused := schema.Refused(err); refused != nil {
		return nil, "", refused
	}
	aside := fmt.Sprintf("%s.corrupt-%s", path, time.Now().UTC().Format("20060102T150405.000"))
	if renameErr := os.Rename(path, aside); renameErr != nil {
		return nil, "", errors.Join(err, renameErr)
	}
	s, openErr := tryOpenState(path, layout)
	return s, fmt.Sprintf("%s: %v; kept as %s", path, err, aside), openErr
}

func tryOpenState(path string, layout *schema.Layout) (_ *state, err error) {
	defer func() { // bbolt panics on some broken pages
		if p := recover(); p != nil {
			err = fmt.Errorf("open %s: %v", path, p)
		}
	}()
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: 2 * time.Second})
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	s := &state{db: db}
	if err := s.init(layout); err != nil {
		db.Close()
		return nil, err
	}
	if _, _, err := s.load(); err != nil {
		db.Close()
		return nil, err
	}
	return s, nil
}

func (s *state) init(layout *schema.Layout) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		if err := layout.Settle(tx); err != nil {
			return err
		}
		for _, name := range [][]byte{bucketMeta, bucketRules, bucketDryRuns, bucketGroups, bucketIDs} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *state) close() error { return s.db.Close() }

// load reads everything back.
func (s *state) load() (r *ruleset, ids []pipeline.Assignment, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("read: %v", p)
		}
	}()
	r = newRuleset()
	err = s.db.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		r.known = meta.Get(keyRevision) != nil
		return errors.Join(loadIDs(tx.Bucket(bucketIDs), &ids), getJSON(meta, keyRevision, &r.revision), getJSON(meta, keyEpoch, &r.epoch), getJSON(meta, keyNodes, &r.nodes),
			loadRules(tx.Bucket(bucketRules), r), loadRules(tx.Bucket(bucketDryRuns), r), loadGroups(tx.Bucket(bucketGroups), r))
	})
	return r, ids, err
}

func loadRules(b *bolt.Bucket, r *ruleset) error {
	return b.ForEach(func(k, v []byte) error {
		rule := new(policy.Rule)
		if err := json.Unmarshal(v, rule); err != nil {
			return fmt.Errorf("rule %x: %w", k, err)
		}
		if len(k) != len(rule.Key) || rule.Key != policy.Key(k) {
			return fmt.Errorf("rule %x holds %s", k, rule.Key)
		}
		r.rules[rule.Key] = rule
		return nil
	})
}

func loadGroups(b *bolt.Bucket, r *ruleset) error {
	return b.ForEachBucket(func(k []byte) error {
		if len(k) != 1+len(policy.Key{}) {
			return fmt.Errorf("group %x: bad key", k)
		}
		set := map[netip.Addr]struct{}{}
		r.groups[groupID{policy.GroupKind(k[0]), policy.Key(k[1:])}] = set
		return b.Bucket(k).ForEach(func(a, _ []byte) error {
			addr, ok := netip.AddrFromSlice(a)
			if !ok {
				return fmt.Errorf("group %x: bad address %x", k, a)
			}
			set[addr] = struct{}{}
			return nil
		})
	})
}

func loadIDs(b *bolt.Bucket, ids *[]pipeline.Assignment) error {
	return b.ForEach(func(k, v []byte) error {
		if len(k) != 1+len(policy.Key{}) || len(v) != 4 {
			return fmt.Errorf("id %x: %x", k, v)
		}
		*ids = append(*ids, pipeline.Assignment{Space: pipeline.IDSpace(k[0]), Content: policy.Key(k[1:]), ID: binary.BigEndian.Uint32(v)})
		return nil
	})
}

func saveIDs(b *bolt.Bucket, ids []pipeline.Assignment) error {
	for _, a := range ids {
		k := append([]byte{byte(a.Space)}, a.Content[:]...)
		var err error
		if a.ID == 0 {
			err = b.Delete(k)
		} else {
			err = b.Put(k, binary.BigEndian.AppendUint32(nil, a.ID))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// change is a part of the rule set to write to disk.
type change struct {
	whole  bool               // the rule set is replaced: what the file has besides is deleted
	update *policy.NodeUpdate // nil: none; with whole: netmaster has not sent the rules yet
	ids    []pipeline.Assignment
	epoch  uint64             // 0: unchanged
	nodes  *[]policy.NodeInfo // nil: unchanged
}

// save writes the changes in one transaction, in their order.
func (s *state) save(changes []change) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		for i := range changes {
			if err := saveChange(tx, &changes[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

func saveChange(tx *bolt.Tx, c *change) error {
	meta := tx.Bucket(bucketMeta)
	if c.whole {
		if err := clearRuleset(tx); err != nil {
			return err
		}
	}
	if err := saveIDs(tx.Bucket(bucketIDs), c.ids); err != nil {
		return err
	}
	if c.update != nil {
		if err := saveUpdate(tx, c.update); err != nil {
			return err
		}
	}
	if c.epoch != 0 {
		if err := putJSON(meta, keyEpoch, c.epoch); err != nil {
			return err
		}
	}
	if c.nodes != nil {
		return putJSON(meta, keyNodes, *c.nodes)
	}
	return nil
}

// clearRuleset deletes all but the epoch and the nodes.
func clearRuleset(tx *bolt.Tx) error {
	for _, name := range [][]byte{bucketRules, bucketDryRuns, bucketGroups, bucketIDs} {
		if err := tx.DeleteBucket(name); err != nil {
			return err
		}
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	return tx.Bucket(bucketMeta).Delete(keyRevision)
}

func saveUpdate(tx *bolt.Tx, u *policy.NodeUpdate) error {
	if err := saveRules(tx, u.Rules); err != nil {
		return err
	}
	for _, g := range u.Groups {
		if err := saveGroup(tx.Bucket(bucketGroups), g); err != nil {
			return err
		}
	}
	return putJSON(tx.Bucket(bucketMeta), keyRevision, u.Revision)
}

func saveRules(tx *bolt.Tx, changes []policy.RuleChange) error {
	inForce, dryRuns := tx.Bucket(bucketRules), tx.Bucket(bucketDryRuns)
	for _, c := range changes {
		var err error
		switch {
		case c.Rule == nil:
			err = errors.Join(inForce.Delete(c.Key[:]), dryRuns.Delete(c.Key[:]))
		case c.Rule.Audit:
			err = putJSON(dryRuns, c.Key[:], c.Rule)
		default:
			err = putJSON(inForce, c.Key[:], c.Rule)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func saveGroup(b *bolt.Bucket, g policy.GroupUpdate) error {
	key := append([]byte{byte(g.Kind)}, g.Key[:]...)
	if (g.Gone || g.Replace) && b.Bucket(key) != nil {
		if err := b.DeleteBucket(key); err != nil {
			return err
		}
	}
	if g.Gone {
		return nil
	}
	set, err := b.CreateBucketIfNotExists(key)
	if err != nil {
		return err
	}
	for _, a := range g.Removed {
		if err := set.Delete(a.AsSlice()); err != nil {
			return err
		}
	}
	for _, a := range g.Added {
		if err := set.Put(a.AsSlice(), nil); err != nil {
			return err
		}
	}
	return nil
}

func putJSON(b *bolt.Bucket, key []byte, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.Put(key, text)
}

// getJSON leaves v alone where the key is absent.
func getJSON(b *bolt.Bucket, key []byte, v any) error {
	text := b.Get(key)
	if text == nil {
		return nil
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}
