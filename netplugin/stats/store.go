package stats

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/flowkeep/flowkeep/internal/schema"
	"github.com/flowkeep/flowkeep/policydb/policy"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// layout is the file's. A file of a schema that is too far away is set aside, and counting starts at zero.
var layout = schema.Layout{Writes: 1}

var (
	bucketMeta   = []byte("meta")
	bucketFlows  = []byte("flows")
	bucketPlaces = []byte("places")
	keySince     = []byte("since")
	keyBoot      = []byte("boot")
)

// Kept is what a file holds.
type Kept struct {
	Since  time.Time
	flows  map[flowID]reading
	places map[Place]*record
}

// Store is a ledger's file. Not safe for concurrent use.
type Store struct {
	path, boot string
	db         *bolt.DB // nil: the system refuses to open the file for writing
	refused    error    // why db is nil
}

// Open opens or creates the file, and returns the ledger that continues it. Boot distinguishes one start of the machine
// from another: the clock of which readings are does not go on over it. A file that cannot be read is renamed to
// NAME.corrupt-TIME and returned in setAside. What the system refuses, as a full or read-only disk does, proves nothing
// of the file: the ledger has what can be read, and Write tries again.
func Open(path, boot string, now time.Time, clock time.Duration) (s *Store, l *Ledger, setAside string, err error) {
	return openAs(path, &layout, boot, now, clock)
}

func openAs(path string, layout *schema.Layout, boot string, now time.Time, clock time.Duration) (s *Store, l *Ledger, setAside string, err error) {
	s, l, err = tryOpen(path, layout, boot, now, clock)
	if err == nil {
		return s, l, "", nil
	}
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, nil, "", fmt.Errorf("%s is in use: is another netplugin running on this node?", path)
	}
	without := &Store{path: path, boot: boot, refused: schema.Refused(err)}
	if without.refused != nil {
		return without, readOnly(path, layout, boot, now, clock), "", nil //nolint:nilerr // the store has it
	}
	aside := fmt.Sprintf("%s.corrupt-%s", path, now.UTC().Format("20060102T150405.000"))
	if without.refused = schema.Refused(os.Rename(path, aside)); without.refused != nil {
		return without, NewLedger(now, clock), "", nil //nolint:nilerr // the store has it
	}
	setAside = fmt.Sprintf("%s: %v; kept as %s", path, err, aside)
	s, l, err = tryOpen(path, layout, boot, now, clock)
	if without.refused = schema.Refused(err); without.refused != nil {
		return without, NewLedger(now, clock), setAside, nil //nolint:nilerr // the store has it
	}
	return s, l, setAside, err
}

// Refused returns why the file is not open for writing; nil: it is.
func (s *Store) Refused() error { return s.refused }

func tryOpen(path string, layout *schema.Layout, boot string, now time.Time, clock time.Duration) (s *Store, l *Ledger, err error) {
	var db *bolt.DB
	defer func() { // bbolt panics on some broken pages
		if p := recover(); p != nil {
			err = fmt.Errorf("open %s: %v", path, p)
		}
		if err != nil && db != nil {
			db.Close()
		}
	}()
	if db, err = schema.Open(path); err != nil {
		return nil, nil, fmt.Errorf("open: %w", err)
	}
	l = NewLedger(now, clock)
	kept := Kept{flows: map[flowID]reading{}, places: map[Place]*record{}}
	fresh, current := false, false
	err = db.View(func(tx *bolt.Tx) error {
		if current = isCurrent(tx, layout, boot); current {
			return kept.load(tx, boot)
		}
		return nil
	})
	if err == nil && !current { // a start writes nothing on a disk that is full or hangs, unless it must
		err = db.Update(func(tx *bolt.Tx) error {
			fresh, err = settle(tx, layout, boot, now)
			if err != nil || fresh {
				return err
			}
			return kept.load(tx, boot)
		})
	}
	if err != nil {
		return nil, nil, err
	}
	if !fresh {
		l.restored(now, &kept)
	}
	return &Store{path: path, boot: boot, db: db}, l, nil
}

// readOnly returns the ledger of a file that cannot be written, an empty one if it cannot be read either.
func readOnly(path string, layout *schema.Layout, boot string, now time.Time, clock time.Duration) (l *Ledger) {
	l = NewLedger(now, clock)
	defer func() { _ = recover() }() // bbolt panics on some broken pages
	db, err := schema.OpenReadOnly(path)
	if err != nil {
		return l
	}
	defer db.Close()
	kept := Kept{flows: map[flowID]reading{}, places: map[Place]*record{}}
	err = db.View(func(tx *bolt.Tx) error {
		if have, err := schema.Of(tx); err != nil || have != layout.Writes {
			return errors.Join(err, errors.New("another schema"))
		}
		return kept.load(tx, boot)
	})
	if err == nil {
		l.restored(now, &kept)
	}
	return l
}

var buckets = [][]byte{bucketMeta, bucketFlows, bucketPlaces}

// isCurrent reports whether a file has all that settle would give it, and readings of this start of the machine.
func isCurrent(tx *bolt.Tx, layout *schema.Layout, boot string) bool {
	have, err := schema.Of(tx)
	if err != nil || have != layout.Writes {
		return false
	}
	for _, name := range buckets {
		if tx.Bucket(name) == nil {
			return false
		}
	}
	return string(tx.Bucket(bucketMeta).Get(keyBoot)) == boot
}

// settle brings a file to the schema, and reports whether it is a new one.
func settle(tx *bolt.Tx, layout *schema.Layout, boot string, now time.Time) (fresh bool, err error) {
	have, err := schema.Of(tx)
	if err == nil {
		err = layout.Settle(tx)
	}
	if err != nil {
		return false, err
	}
	for _, name := range buckets {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return false, err
		}
	}
	if have != 0 {
		return false, nil
	}
	return true, begin(tx.Bucket(bucketMeta), boot, now)
}

func begin(meta *bolt.Bucket, boot string, now time.Time) error {
	return errors.Join(meta.Put(keySince, []byte(now.UTC().Format(time.RFC3339))), meta.Put(keyBoot, []byte(boot)))
}

func (k *Kept) load(tx *bolt.Tx, boot string) error {
	meta := tx.Bucket(bucketMeta)
	var err error
	if k.Since, err = time.Parse(time.RFC3339, string(meta.Get(keySince))); err != nil {
		return fmt.Errorf("when counting began: %w", err)
	}
	another := string(meta.Get(keyBoot)) != boot
	if another && tx.Writable() { // the switch's flows are new ones
		if err := errors.Join(meta.Put(keyBoot, []byte(boot)), tx.DeleteBucket(bucketFlows)); err != nil {
			return err
		}
		if _, err := tx.CreateBucket(bucketFlows); err != nil {
			return err
		}
	}
	if !another || tx.Writable() {
		if err := tx.Bucket(bucketFlows).ForEach(k.loadFlow); err != nil {
			return err
		}
	}
	return tx.Bucket(bucketPlaces).ForEach(k.loadPlace)
}

func (id flowID) key() []byte {
	b := binary.BigEndian.AppendUint64(nil, id.cookie)
	if id.connections {
		return append(b, 1)
	}
	return append(b, 0)
}

func (r reading) value() []byte {
	b := binary.BigEndian.AppendUint64(nil, r.packets)
	b = binary.BigEndian.AppendUint64(b, r.bytes)
	return binary.BigEndian.AppendUint64(b, uint64(r.created))
}

func (k *Kept) loadFlow(key, v []byte) error {
	if len(key) != 9 || len(v) != 24 {
		return fmt.Errorf("flow %x: %x", key, v)
	}
	be := binary.BigEndian
	k.flows[flowID{be.Uint64(key), key[8] == 1}] = reading{be.Uint64(v), be.Uint64(v[8:]), time.Duration(be.Uint64(v[16:]))}
	return nil
}

// saved is a record on disk; times in Unix seconds, 0: none.
type saved struct {
	Count
	Since int64        `json:"since"`
	Last  int64        `json:"last,omitempty"`
	Gone  int64        `json:"gone,omitempty"`
	Keys  []policy.Key `json:"keys,omitempty"`
}

func seconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

func timeOf(s int64) time.Time {
	if s == 0 {
		return time.Time{}
	}
	return time.Unix(s, 0)
}

func (k *Kept) loadPlace(key, v []byte) error {
	var p Place
	var s saved
	if err := errors.Join(json.Unmarshal(key, &p), json.Unmarshal(v, &s)); err != nil {
		return fmt.Errorf("place %s: %w", key, err)
	}
	k.places[p] = &record{count: s.Count, since: timeOf(s.Since), last: timeOf(s.Last), gone: timeOf(s.Gone), keys: s.Keys}
	return nil
}

// pair is a key and its value; no value: the key goes.
type pair struct{ key, value []byte }

// batch is what has changed since the last write.
type batch struct {
	dirtyFlows    map[flowID]struct{}
	dirtyPlaces   map[Place]struct{}
	flows, places []pair
}

// due takes what has changed out of the ledger's books.
func (l *Ledger) due() (b batch, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.dirtyFlows {
		p := pair{key: id.key()}
		if r, ok := l.flows[id]; ok {
			p.value = r.value()
		}
		b.flows = append(b.flows, p)
	}
	for place := range l.dirtyPlaces {
		p := pair{}
		var keyErr, valueErr error
		p.key, keyErr = json.Marshal(place)
		if r := l.places[place]; r != nil {
			p.value, valueErr = json.Marshal(saved{r.count, seconds(r.since), seconds(r.last), seconds(r.gone), r.keys})
		}
		if err := errors.Join(keyErr, valueErr); err != nil {
			return b, err
		}
		b.places = append(b.places, p)
	}
	b.dirtyFlows, b.dirtyPlaces = l.dirtyFlows, l.dirtyPlaces
	l.dirtyFlows, l.dirtyPlaces = map[flowID]struct{}{}, map[Place]struct{}{}
	return b, nil
}

// owe puts back what could not be written.
func (l *Ledger) owe(b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.Copy(l.dirtyFlows, b.dirtyFlows)
	maps.Copy(l.dirtyPlaces, b.dirtyPlaces)
}

// Write keeps what has changed since the last write, in one transaction; without changes it writes nothing. After an error
// the next call writes all of it.
func (s *Store) Write(l *Ledger) error {
	if err := s.reopen(); err != nil {
		return fmt.Errorf("open the counters: %w", err)
	}
	b, err := l.due()
	if err != nil || len(b.flows)+len(b.places) == 0 {
		return err
	}
	err = s.db.Update(func(tx *bolt.Tx) error {
		return errors.Join(put(tx.Bucket(bucketFlows), b.flows), put(tx.Bucket(bucketPlaces), b.places))
	})
	if err != nil {
		l.owe(&b)
		return fmt.Errorf("write the counters: %w", err)
	}
	return nil
}

func put(b *bolt.Bucket, pairs []pair) error {
	for _, p := range pairs {
		var err error
		if p.value == nil {
			err = b.Delete(p.key)
		} else {
			err = b.Put(p.key, p.value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reopen opens the file for writing where the system refused it before. The ledger goes on from what it has.
func (s *Store) reopen() error {
	if s.db != nil {
		return nil
	}
	now, _, _, err := Open(s.path, s.boot, time.Now(), 0)
	if err != nil {
		return err
	}
	s.db, s.refused = now.db, now.refused
	return s.refused
}

// Close ends the use of the file.
func (s *Store) Close() error {
	if s.db == nil {
		return nil
	}
	return s.db.Close()
}
