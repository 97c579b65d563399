// Package store is the configured policy DB: the engine's input, its output, and what each node has realised, in one
// bbolt file. netmaster serves from it immediately after a restart.
//
// Writes are asynchronous: Write only queues the newest value of each key, and one goroutine writes all queued keys in
// one transaction. While writing fails, the queue is at most as large as the file plus the live state, and the write
// is retried.
//
// A checksum over all entries detects changed or lost entries. A file that cannot be read completely is moved aside
// and a new one created; this never allows a connection. A file of the version before or after is migrated to this
// version's schema (internal/schema). A file of a still newer netmaster is rejected and left unchanged.
package store

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/schema"
	"github.com/flowkeep/flowkeep/policydb/policy"
	bolt "go.etcd.io/bbolt"
)

// Change is a set of values to write. A nil value in a map deletes the key. Values are shared and must not be changed
// later.
type Change struct {
	Namespaces map[string]*policy.Namespace
	Endpoints  map[string]*policy.Endpoint // by ID
	Policies   map[string]*policy.Policy   // by ID
	Resolved   *policy.Changes
	// Whole says that Resolved is everything: what the store has besides goes.
	Whole     bool
	Nodes     map[string]*NodeRecord
	Announced map[string]*Announcement // by Announcement.Key
	// Infos, if not nil, replaces what is known of the nodes.
	Infos *[]policy.NodeInfo
}

// NodeRecord is what a node last acknowledged.
type NodeRecord struct {
	Realised uint64 `json:"realised"`
	Errors   int    `json:"errors,omitempty"`
}

// Announcement is a pod that a node said it has wired.
type Announcement struct {
	Node      string       `json:"node"`
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	UID       string       `json:"uid,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

// Key returns "node/namespace/name".
func (a *Announcement) Key() string { return a.Node + "/" + a.Namespace + "/" + a.Name }

// Contents is everything in the store.
type Contents struct {
	Revision   uint64
	Namespaces map[string]*policy.Namespace
	Endpoints  map[string]*policy.Endpoint
	Policies   map[string]*policy.Policy
	Rules      map[policy.Key]*policy.Rule
	Groups     map[policy.Key][]netip.Addr // peer groups
	Nodes      map[string]*NodeRecord
	Announced  map[string]*Announcement
	Infos      []policy.NodeInfo
}

// Empty reports whether nothing was ever written: every cluster has namespaces.
func (c *Contents) Empty() bool { return len(c.Namespaces) == 0 }

// Store is safe for concurrent use.
type Store struct {
	db       *bolt.DB
	setAside string
	wake     chan struct{}
	flushes  chan chan error
	stop     chan struct{}
	stopping sync.Once
	done     chan struct{}

	mu     sync.Mutex
	next   *pending
	failed error
	onDisk uint64    // the newest revision that is
	opened *Contents // what was on disk at Open, until something is written
}

// Open opens or creates the file. SetAside reports if an unreadable file was moved aside. Open fails if another
// process uses the file, if a netmaster newer than the next version wrote it, or on an I/O error.
func Open(path string) (*Store, error) { return openAs(path, &layout) }

func openAs(path string, layout *schema.Layout) (*Store, error) {
	db, contents, aside, err := openOrSetAside(path, layout)
	if err != nil {
		return nil, err
	}
	s := &Store{db: db, setAside: aside, opened: contents, next: newPending(), wake: make(chan struct{}, 1),
		flushes: make(chan chan error), stop: make(chan struct{}), done: make(chan struct{})}
	go s.writer()
	return s, nil
}

// SetAside returns the path of an older file that was moved aside and the reason, or "".
func (s *Store) SetAside() string { return s.setAside }

// Load reads everything that is on disk.
func (s *Store) Load() (*Contents, error) {
	s.mu.Lock()
	c := s.opened
	s.opened = nil
	s.mu.Unlock()
	if c != nil {
		return c, nil
	}
	return load(s.db)
}

// Write notes a change and returns at once. Changes must come in the order of their revisions. After Close it does
// nothing.
func (s *Store) Write(c Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = nil
	s.next.add(&c)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Flush returns when all that was written before is on disk, or with the reason why it is not.
func (s *Store) Flush(ctx context.Context) error {
	reply := make(chan error, 1)
	select {
	case s.flushes <- reply:
		return <-reply
	case <-s.done:
		return errors.New("the policy DB is closed")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// OnDisk returns the newest revision that was written since Open; 0: none was.
func (s *Store) OnDisk() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.onDisk
}

// Problem returns the number of keys that are not on disk yet and the error of the last write, nil if it succeeded.
func (s *Store) Problem() (waiting int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next.size(), s.failed
}

// Close writes what is waiting and closes the file. Its error is that of the last write.
func (s *Store) Close() error {
	s.stopping.Do(func() { close(s.stop) })
	<-s.done
	_, err := s.Problem()
	return errors.Join(err, s.db.Close())
}

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

func (s *Store) writer() {
	defer close(s.done)
	wait := firstRetry
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		var reply chan error
		select {
		case <-s.wake:
			if s.ailing() {
				continue // the timer tries again
			}
		case <-retry.C:
		case reply = <-s.flushes:
		case <-s.stop:
			_ = s.flush()
			return
		}
		err := s.flush()
		if reply != nil {
			reply <- err
		}
		if err == nil {
			wait = firstRetry
			continue
		}
		retry.Reset(wait)
		wait = min(2*wait, lastRetry)
	}
}

func (s *Store) ailing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed != nil
}

// flush writes what is waiting; what could not be written waits on, with what came meanwhile on top.
func (s *Store) flush() error {
	s.mu.Lock()
	batch := s.next
	s.next = newPending()
	s.mu.Unlock()
	if batch.empty() {
		return nil
	}
	err := write(s.db, batch)
	if err != nil {
		prune(s.db, batch)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
	if err != nil {
		batch.absorb(s.next)
		s.next = batch
	} else {
		s.onDisk = max(s.onDisk, batch.revision)
	}
	return err
}
