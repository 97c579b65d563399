package agent

import (
	"bytes"
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
	// bucketAlike has groups with the members of another one: kind byte + key → key of the other, which is in groups.
	// While there are some, it has the revision too, and meta has none: an older netplugin, which does not look here,
	// takes the rules for incomplete then, and keeps its flows until netmaster has sent what is missing.
	bucketAlike = []byte("alike")
	bucketIDs   = []byte("ids") // space byte + content → id
	keyRevision = []byte("revision")
	keyAlike    = []byte("alike") // in bucketGroups while bucketAlike belongs to it
	keyEpoch    = []byte("epoch")
	keyNodes    = []byte("nodes")
)

// state is the file of the rule set. While it misses a change that the switch may have, the staleMark exists.
type state struct {
	path    string
	layout  *schema.Layout
	db      *bolt.DB // nil: the system refuses to open the file for writing
	refused error    // why db is nil
}

// openState opens or creates the file. A file that can't be read is renamed to NAME.corrupt-TIME and returned in
// setAside. What the system refuses, as a full or read-only disk does, proves nothing of the file: then the state has
// no db, is read as far as possible, and save tries again.
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
	without := &state{path: path, layout: layout, refused: schema.Refused(err)}
	if without.refused != nil {
		return without, "", nil //nolint:nilerr // the state has it
	}
	aside := fmt.Sprintf("%s.corrupt-%s", path, time.Now().UTC().Format("20060102T150405.000"))
	if without.refused = schema.Refused(os.Rename(path, aside)); without.refused != nil {
		return without, "", nil //nolint:nilerr // the state has it
	}
	setAside = fmt.Sprintf("%s: %v; kept as %s", path, err, aside)
	s, err = tryOpenState(path, layout)
	if without.refused = schema.Refused(err); without.refused != nil {
		return without, setAside, nil //nolint:nilerr // the state has it
	}
	return s, setAside, err
}

func tryOpenState(path string, layout *schema.Layout) (_ *state, err error) {
	defer func() { // bbolt panics on some broken pages
		if p := recover(); p != nil {
			err = fmt.Errorf("open %s: %v", path, p)
		}
	}()
	db, err := schema.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	s := &state{path: path, layout: layout, db: db}
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

// buckets are those that a file has.
var buckets = [][]byte{bucketMeta, bucketRules, bucketDryRuns, bucketGroups, bucketIDs}

// isCurrent reports whether a file has the schema and the buckets that init would give it.
func isCurrent(tx *bolt.Tx, layout *schema.Layout) bool {
	have, err := schema.Of(tx)
	if err != nil || have != layout.Writes {
		return false
	}
	for _, name := range buckets {
		if tx.Bucket(name) == nil {
			return false
		}
	}
	return true
}

// init writes only to a file that needs it: a start writes nothing on a disk that is full or hangs.
func (s *state) init(layout *schema.Layout) error {
	current := false
	err := s.db.View(func(tx *bolt.Tx) error {
		current = isCurrent(tx, layout)
		return nil
	})
	if err != nil || current {
		return err
	}
	return s.db.Update(func(tx *bolt.Tx) error {
		if err := layout.Settle(tx); err != nil {
			return err
		}
		for _, name := range buckets {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *state) close() error {
	if s.db == nil {
		return nil
	}
	return s.db.Close()
}

// reopen opens the file for writing where the system refused it before.
func (s *state) reopen() error {
	if s.db != nil {
		return nil
	}
	now, _, err := openStateAs(s.path, s.layout)
	if err != nil {
		return err
	}
	s.db, s.refused = now.db, now.refused
	return s.refused
}

// load reads everything back. Where the file is not open for writing it is opened for reading; an error then leaves
// netplugin without rules until netmaster sends them.
func (s *state) load() (r *ruleset, ids []pipeline.Assignment, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("read: %v", p)
		}
	}()
	db := s.db
	if db == nil {
		if db, err = schema.OpenReadOnly(s.path); err != nil {
			return newRuleset(), nil, err
		}
		defer db.Close()
	}
	r = newRuleset()
	err = db.View(func(tx *bolt.Tx) error {
		if s.db == nil && !isCurrent(tx, s.layout) {
			return errors.New("the file has another schema, and cannot be converted")
		}
		meta := tx.Bucket(bucketMeta)
		r.known = meta.Get(keyRevision) != nil
		return errors.Join(
			loadIDs(tx.Bucket(bucketIDs), &ids),
			getJSON(meta, keyRevision, &r.revision),
			getJSON(meta, keyEpoch, &r.epoch),
			getJSON(meta, keyNodes, &r.nodes),
			loadRules(tx.Bucket(bucketRules), r),
			loadRules(tx.Bucket(bucketDryRuns), r),
			loadGroups(tx.Bucket(bucketGroups), r),
			loadAlike(tx, r),
		)
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
		u := policy.GroupUpdate{Key: policy.Key(k[1:]), Kind: policy.GroupKind(k[0]), Replace: true}
		err := b.Bucket(k).ForEach(func(a, _ []byte) error {
			addr, ok := netip.AddrFromSlice(a)
			if !ok {
				return fmt.Errorf("group %x: bad address %x", k, a)
			}
			u.Added = append(u.Added, addr)
			return nil
		})
		r.groups.Apply(&u)
		return err
	})
}

// alikeIsCurrent reports whether bucketAlike belongs to the groups of the file. An older netplugin leaves it as it is,
// puts the revision into meta, and takes keyAlike away where it writes all groups.
func alikeIsCurrent(tx *bolt.Tx) bool {
	return tx.Bucket(bucketMeta).Get(keyRevision) == nil && tx.Bucket(bucketGroups).Get(keyAlike) != nil &&
		tx.Bucket(bucketAlike) != nil
}

// loadAlike reads which groups have the members of others, and the revision that is with them.
func loadAlike(tx *bolt.Tx, r *ruleset) error {
	if !alikeIsCurrent(tx) {
		return nil
	}
	b := tx.Bucket(bucketAlike)
	r.known = b.Get(keyRevision) != nil
	if err := getJSON(b, keyRevision, &r.revision); err != nil {
		return err
	}
	alike := map[policy.GroupID][]policy.Key{}
	err := b.ForEach(func(k, v []byte) error {
		if bytes.Equal(k, keyRevision) {
			return nil
		}
		if len(k) != 1+len(policy.Key{}) || len(v) != len(policy.Key{}) {
			return fmt.Errorf("group %x is like %x: bad key", k, v)
		}
		kind, key := policy.GroupKind(k[0]), policy.Key(k[1:])
		owner := kind.ID(policy.Key(v))
		if r.groups.Set(owner) != nil && r.groups.Set(kind.ID(key)) == nil {
			alike[owner] = append(alike[owner], key)
		}
		return nil
	})
	for owner, keys := range alike {
		r.groups.Apply(&policy.GroupUpdate{Key: owner.Key, Kind: owner.Kind, Alike: keys})
	}
	return err
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
	update *policy.NodeUpdate // nil: none
	// unknown says that netmaster has not sent the rules yet: the file has them without a revision.
	unknown bool
	ids     []pipeline.Assignment
	epoch   uint64             // 0: unchanged
	nodes   *[]policy.NodeInfo // nil: unchanged
}

// save writes the changes in one transaction, in their order.
func (s *state) save(changes []change) error {
	if err := s.reopen(); err != nil {
		return err
	}
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
	if c.unknown {
		alike, err := alikeBucket(tx)
		if err := errors.Join(err, meta.Delete(keyRevision)); err != nil {
			return err
		}
		if err := alike.Delete(keyRevision); err != nil {
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
	for _, name := range [][]byte{bucketRules, bucketDryRuns, bucketGroups, bucketAlike, bucketIDs} {
		if err := tx.DeleteBucket(name); err != nil && !errors.Is(err, bolterrors.ErrBucketNotFound) {
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
	sets := tx.Bucket(bucketGroups)
	alike, err := alikeBucket(tx)
	if err != nil {
		return err
	}
	for i := range u.Groups {
		g := &u.Groups[i]
		if err := errors.Join(saveGroup(sets, g), saveAlike(sets, alike, g)); err != nil {
			return err
		}
	}
	meta := tx.Bucket(bucketMeta)
	if hasAlike(alike) {
		err := putJSON(alike, keyRevision, u.Revision)
		return errors.Join(err, sets.Put(keyAlike, []byte{}), meta.Delete(keyRevision))
	}
	return errors.Join(putJSON(meta, keyRevision, u.Revision), sets.Delete(keyAlike), alike.Delete(keyRevision))
}

// alikeBucket returns bucketAlike, without what an older netplugin has left behind.
func alikeBucket(tx *bolt.Tx) (*bolt.Bucket, error) {
	if !alikeIsCurrent(tx) && tx.Bucket(bucketAlike) != nil {
		if err := tx.DeleteBucket(bucketAlike); err != nil {
			return nil, err
		}
	}
	return tx.CreateBucketIfNotExists(bucketAlike)
}

// hasAlike reports whether there are groups with the members of others. Their keys begin with a kind, before
// keyRevision.
func hasAlike(b *bolt.Bucket) bool {
	k, _ := b.Cursor().First()
	return k != nil && !bytes.Equal(k, keyRevision)
}

func saveRules(tx *bolt.Tx, changes []policy.RuleChange) error {
	inForce, dryRuns := tx.Bucket(bucketRules), tx.Bucket(bucketDryRuns)
	for _, c := range changes {
		var err error
		switch {
		case c.Rule == nil:
			err = errors.Join(inForce.Delete(c.Key[:]), dryRuns.Delete(c.Key[:]))
		case c.Rule.DryRun:
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

func groupKey(kind policy.GroupKind, k policy.Key) []byte { return append([]byte{byte(kind)}, k[:]...) }

// saveAlike writes which groups have the members of the one that is stored, which itself refers to no other.
func saveAlike(sets, alike *bolt.Bucket, g *policy.GroupUpdate) error {
	if err := alike.Delete(groupKey(g.Kind, g.Key)); err != nil {
		return err
	}
	for _, k := range g.Alike {
		key := groupKey(g.Kind, k)
		if sets.Bucket(key) != nil {
			if err := sets.DeleteBucket(key); err != nil {
				return err
			}
		}
		if err := alike.Put(key, g.Key[:]); err != nil {
			return err
		}
	}
	return nil
}

func saveGroup(b *bolt.Bucket, g *policy.GroupUpdate) error {
	key := groupKey(g.Kind, g.Key)
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
