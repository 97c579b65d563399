// Package store is the configured policy DB: what the engine was given, what it resolved, and what each node has realised,
// in one bbolt file. It is written off the hot path, a transaction for all that is waiting; netmaster serves from it at
// once after a restart. A file that cannot be read is set aside: it never makes anything open.
package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// Schema is the layout's version.
const Schema = "1"

var (
	bucketMeta       = []byte("meta")
	bucketNamespaces = []byte("namespaces")
	bucketEndpoints  = []byte("endpoints")
	bucketPolicies   = []byte("policies")
	bucketRules      = []byte("rules")
	bucketGroups     = []byte("groups") // key → bucket of addresses
	bucketNodes      = []byte("nodes")
	buckets          = [][]byte{bucketMeta, bucketNamespaces, bucketEndpoints, bucketPolicies, bucketRules, bucketGroups, bucketNodes}

	keySchema   = []byte("schema")
	keyRevision = []byte("revision")
)

// ErrNewer is returned for a file that a newer netmaster wrote.
var ErrNewer = errors.New("the policy DB was written by another version of netmaster: use that one, or move the file away")

// Change is what is to be written. A nil value deletes.
type Change struct {
	Namespaces map[string]*policy.Namespace
	Endpoints  map[string]*policy.Endpoint
	Policies   map[string]*policy.Policy
	Resolved   *policy.Changes
	Nodes      map[string]*NodeRecord
}

// NodeRecord is what a node last acknowledged.
type NodeRecord struct {
	Realised uint64 `json:"realised"`
	Errors   int    `json:"errors,omitempty"`
}

// Contents is everything in the store.
type Contents struct {
	Revision   uint64
	Namespaces map[string]*policy.Namespace
	Endpoints  map[string]*policy.Endpoint
	Policies   map[string]*policy.Policy
	Rules      map[policy.Key]*policy.Rule
	Groups     map[policy.Key][]netip.Addr
	Nodes      map[string]*NodeRecord
}

// Empty tells that nothing was ever written.
func (c *Contents) Empty() bool { return len(c.Namespaces) == 0 }

// Store is safe for concurrent use.
type Store struct {
	db       *bolt.DB
	setAside string

	mu      sync.Mutex
	waiting []Change
	failed  error
	wake    chan struct{}
	done    chan struct{}
	written uint64
}

// Open opens or creates the file. SetAside tells if an unreadable one was moved out of the way.
func Open(path string) (*Store, error) {
	db, err := tryOpen(path)
	var aside string
	switch {
	case err == nil:
	case errors.Is(err, ErrNewer):
		return nil, fmt.Errorf("%s: %w", path, err)
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("%s is in use: is another netmaster running with this --state-dir?", path)
	default:
		kept := fmt.Sprintf("%s.corrupt-%s", path, time.Now().UTC().Format("20060102T150405.000"))
		if renameErr := os.Rename(path, kept); renameErr != nil {
			return nil, errors.Join(err, renameErr)
		}
		aside = fmt.Sprintf("%s could not be read (%v); it was kept as %s and a new one begun", path, err, kept)
		if db, err = tryOpen(path); err != nil {
			return nil, err
		}
	}
	s := &Store{db: db, setAside: aside, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go s.writer(s.wake)
	return s, nil
}

func tryOpen(path string) (_ *bolt.DB, err error) {
	defer recovered(&err)
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: 2 * time.Second})
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range buckets {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		meta := tx.Bucket(bucketMeta)
		switch string(meta.Get(keySchema)) {
		case Schema:
			return nil
		case "":
			return meta.Put(keySchema, []byte(Schema))
		}
		return ErrNewer
	})
	if err == nil {
		_, err = load(db)
	}
	if err != nil {
		closeQuietly(db)
		return nil, err
	}
	return db, nil
}

func closeQuietly(db *bolt.DB) {
	defer func() { _ = recover() }()
	db.Close()
}

// recovered turns bbolt's panics on broken pages into errors.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("broken file: %v", p)
	}
}

// SetAside is empty, or tells that and why an older file was moved away.
func (s *Store) SetAside() string { return s.setAside }

// Close writes what is waiting and closes the file.
func (s *Store) Close() error {
	s.mu.Lock()
	wake := s.wake
	s.wake = nil
	s.mu.Unlock()
	if wake == nil {
		return nil
	}
	close(wake)
	<-s.done
	return s.db.Close()
}

// Write queues a change and returns at once. After a failure the next write says all of the waiting again.
func (s *Store) Write(c Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wake == nil {
		return
	}
	s.waiting = append(s.waiting, c)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Problem is why the last write failed; nil if it did not. Waiting is how many changes are not on disk yet.
func (s *Store) Problem() (waiting int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting), s.failed
}

func (s *Store) writer(wake <-chan struct{}) {
	defer close(s.done)
	for range wake {
		s.flush()
	}
	s.flush()
}

func (s *Store) flush() {
	s.mu.Lock()
	batch := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	if len(batch) == 0 {
		return
	}
	err := s.db.Update(func(tx *bolt.Tx) error {
		for i := range batch {
			if err := write(tx, &batch[i]); err != nil {
				return err
			}
		}
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
	if err != nil { // kept for the next try; the newest state of a key is written last
		s.waiting = append(batch, s.waiting...)
		return
	}
	s.written += uint64(len(batch))
}

func write(tx *bolt.Tx, c *Change) error {
	return errors.Join(putAll(tx.Bucket(bucketNamespaces), c.Namespaces), putAll(tx.Bucket(bucketEndpoints), c.Endpoints),
		putAll(tx.Bucket(bucketPolicies), c.Policies), putAll(tx.Bucket(bucketNodes), c.Nodes), writeResolved(tx, c.Resolved))
}

func putAll[T any](b *bolt.Bucket, values map[string]*T) error {
	for k, v := range values {
		if err := put(b, []byte(k), v); err != nil {
			return err
		}
	}
	return nil
}

func put[T any](b *bolt.Bucket, key []byte, v *T) error {
	if v == nil {
		return b.Delete(key)
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.Put(key, text)
}

func writeResolved(tx *bolt.Tx, c *policy.Changes) error {
	if c == nil {
		return nil
	}
	rules, groups := tx.Bucket(bucketRules), tx.Bucket(bucketGroups)
	for i := range c.Rules {
		if err := put(rules, c.Rules[i].Key[:], c.Rules[i].Rule); err != nil {
			return err
		}
	}
	for i := range c.Groups {
		if err := writeGroup(groups, &c.Groups[i]); err != nil {
			return err
		}
	}
	return put(tx.Bucket(bucketMeta), keyRevision, &c.Revision)
}

func writeGroup(groups *bolt.Bucket, g *policy.GroupChange) error {
	if g.Gone {
		if groups.Bucket(g.Key[:]) == nil {
			return nil
		}
		return groups.DeleteBucket(g.Key[:])
	}
	b, err := groups.CreateBucketIfNotExists(g.Key[:])
	if err != nil {
		return err
	}
	for _, a := range g.Removed {
		if err := b.Delete(a.AsSlice()); err != nil {
			return err
		}
	}
	for _, a := range g.Added {
		if err := b.Put(a.AsSlice(), nil); err != nil {
			return err
		}
	}
	return nil
}

// Load reads everything that is on disk.
func (s *Store) Load() (*Contents, error) { return load(s.db) }

func load(db *bolt.DB) (out *Contents, err error) {
	defer recovered(&err)
	out = &Contents{Rules: map[policy.Key]*policy.Rule{}, Groups: map[policy.Key][]netip.Addr{}}
	err = db.View(func(tx *bolt.Tx) error {
		if text := tx.Bucket(bucketMeta).Get(keyRevision); text != nil {
			if err := json.Unmarshal(text, &out.Revision); err != nil {
				return fmt.Errorf("revision: %w", err)
			}
		}
		return errors.Join(getAll(tx.Bucket(bucketNamespaces), &out.Namespaces), getAll(tx.Bucket(bucketEndpoints), &out.Endpoints),
			getAll(tx.Bucket(bucketPolicies), &out.Policies), getAll(tx.Bucket(bucketNodes), &out.Nodes),
			loadRules(tx.Bucket(bucketRules), out), loadGroups(tx.Bucket(bucketGroups), out))
	})
	return out, err
}

func getAll[T any](b *bolt.Bucket, to *map[string]*T) error {
	*to = map[string]*T{}
	return b.ForEach(func(k, v []byte) error {
		value := new(T)
		if err := json.Unmarshal(v, value); err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
		(*to)[string(k)] = value
		return nil
	})
}

func loadRules(b *bolt.Bucket, to *Contents) error {
	return b.ForEach(func(k, v []byte) error {
		r := new(policy.Rule)
		if err := json.Unmarshal(v, r); err != nil {
			return fmt.Errorf("rule %x: %w", k, err)
		}
		if !bytes.Equal(k, r.Key[:]) {
			return fmt.Errorf("rule %x holds rule %s", k, r.Key)
		}
		to.Rules[r.Key] = r
		return nil
	})
}

func loadGroups(b *bolt.Bucket, to *Contents) error {
	return b.ForEachBucket(func(k []byte) error {
		if len(k) != len(policy.Key{}) {
			return fmt.Errorf("group %x: bad key", k)
		}
		key := policy.Key(k)
		to.Groups[key] = nil
		return b.Bucket(k).ForEach(func(a, _ []byte) error {
			addr, ok := netip.AddrFromSlice(a)
			if !ok {
				return fmt.Errorf("group %s: %x is no address", key, a)
			}
			to.Groups[key] = append(to.Groups[key], addr)
			return nil
		})
	})
}

// Check finds what cannot be: rules whose key is not that of their content, rules that refer to groups that are not there.
func (c *Contents) Check() []string {
	var problems []string
	for key, r := range c.Rules {
		if policy.RuleKey(r) != key {
			problems = append(problems, fmt.Sprintf("rule %s: its key is not that of its content", key))
		}
		for _, p := range r.Peers {
			if _, ok := c.Groups[p]; !ok {
				problems = append(problems, fmt.Sprintf("rule %s: peer group %s is missing", key, p))
			}
		}
		for _, o := range r.Origins {
			if c.Policies[o.Policy] == nil {
				problems = append(problems, fmt.Sprintf("rule %s: policy %s is missing", key, o.Policy))
			}
		}
	}
	for id, e := range c.Endpoints {
		if e.ID() != id || strings.Count(id, "/") != 1 {
			problems = append(problems, fmt.Sprintf("endpoint %s holds %s", id, e.ID()))
		}
	}
	return problems
}
