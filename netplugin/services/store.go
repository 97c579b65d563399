// Package services keeps the Services of the cluster on a node, as netmaster sends them: in memory, and on disk for a
// restart without a netmaster. No policy depends on it: a failure of its file or of an entry is logged and no more.
package services

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/service"
)

const (
	// writeInterval is between two writes to disk. What is not on disk at a restart comes from netmaster.
	writeInterval = 10 * time.Second
	// followInterval is that of a store that is followed: flows are made of it, and a crash must not lead to those of
	// an earlier state. Changes come once a second.
	followInterval = time.Second / 2
	// retryInterval is the pause after a failed write.
	retryInterval = 30 * time.Second
	// closeTimeout is how long the end of the process waits for the disk.
	closeTimeout = 5 * time.Second
)

// Store is the Services that a node holds. It is safe for concurrent use.
type Store struct {
	// Writing is called before each write, and its result after it. May be nil; set it before Run.
	Writing func(of string) (end func())

	log  *slog.Logger
	wake chan struct{} // something is not on disk

	mu      sync.Mutex
	set     keyed.Set
	touched map[string]struct{} // keys that differ from the table, while a delta comes in parts
	table   table
	changes changes
	unsaved map[string]struct{} // keys that differ from the file
	problem error               // of the last write

	writing sync.Mutex // held while the file is used
	file    file
}

// Open reads what the file has. One that cannot be read is set aside.
func Open(path string, log *slog.Logger) (*Store, error) {
	s := &Store{
		log:     log,
		wake:    make(chan struct{}, 1),
		touched: map[string]struct{}{},
		table:   newTable(),
		unsaved: map[string]struct{}{},
		file:    file{path: path},
	}
	values, setAside, err := s.file.load()
	if err != nil {
		return nil, err
	}
	if setAside != "" {
		log.Error("the Services on disk were unreadable; netmaster sends them again", "file", setAside)
	}
	whole := keyed.Delta{Whole: true, More: true}
	for key, value := range values {
		whole.Put = append(whole.Put, keyed.Entry{Key: key, Value: value})
		s.touched[key] = struct{}{}
	}
	if err := s.set.Apply(&whole); err != nil {
		return nil, err
	}
	s.decode()
	return s, nil
}

// Sums returns what the node holds, for a hello.
func (s *Store) Sums() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set.Sums()
}

// Clear empties the set of the next hello. What is known stays until netmaster has sent all of it.
func (s *Store) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.touchAll()
	s.set.Clear()
}

func (s *Store) touchAll() {
	for key := range s.set.All() {
		s.touched[key] = struct{}{}
	}
}

// Apply takes a delta over. What is known changes with its last part, and only if that is what netmaster holds; else it
// fails with keyed.ErrMismatch.
func (s *Store) Apply(d *keyed.Delta) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.Whole || len(d.Buckets) > 0 {
		s.touchAll()
	}
	for i := range d.Put {
		s.touched[d.Put[i].Key] = struct{}{}
	}
	for _, key := range d.Removed {
		s.touched[key] = struct{}{}
	}
	if err := s.set.Apply(d); err != nil || d.More {
		return err
	}
	if len(s.touched) > 0 {
		maps.Copy(s.unsaved, s.touched)
		s.signal()
	}
	s.decode()
	return nil
}

// decode takes over into the table what was touched. An entry that makes no sense is as if it were gone.
func (s *Store) decode() {
	for key := range s.touched {
		value, there := s.set.Get(key)
		if there && value == nil {
			value = []byte{}
		}
		e, err := wire.ToServiceEntry(key, value)
		if err != nil {
			s.log.Error("a Service makes no sense and is left out", "error", err)
			e, _ = wire.ToServiceEntry(key, nil) // which does not fail
		}
		s.changes.entered(&s.table, &e)
		s.table.put(&e)
	}
	clear(s.touched)
}

func (s *Store) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run writes what changes to disk until ctx ends.
func (s *Store) Run(ctx context.Context) {
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
		pause := s.interval()
		if err := s.Flush(); err != nil {
			pause = retryInterval
			s.signal()
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// interval returns the time between two writes.
func (s *Store) interval() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changes.node != "" {
		return followInterval
	}
	return writeInterval
}

// Flush writes what is not on disk.
func (s *Store) Flush() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	changes, before := s.unwritten()
	if len(changes) == 0 {
		return before
	}
	err := s.save(changes)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.problem = err; err == nil {
		return nil
	}
	for key := range changes {
		s.unsaved[key] = struct{}{}
	}
	if before == nil {
		s.log.Error("could not write the Services to disk; a restart without a netmaster has older ones", "error", err)
	}
	return err
}

func (s *Store) save(changes map[string][]byte) error {
	if s.Writing != nil {
		defer s.Writing("the Services")()
	}
	return s.file.save(changes)
}

// unwritten returns the values that differ from the file, and the error of the last write.
func (s *Store) unwritten() (map[string][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.touched) > 0 { // a delta has come in part: the rest signals again
		return nil, s.problem
	}
	changes := make(map[string][]byte, len(s.unsaved))
	for key := range s.unsaved {
		value, there := s.set.Get(key)
		if there && value == nil {
			value = []byte{}
		}
		changes[key] = value
	}
	clear(s.unsaved)
	return changes, s.problem
}

// Close writes what is not on disk, and closes the file; it waits for a disk that hangs no longer than 5 s.
func (s *Store) Close() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Flush() // which logs it
		s.writing.Lock()
		defer s.writing.Unlock()
		_ = s.file.close()
	}()
	select {
	case <-done:
	case <-time.After(closeTimeout):
	}
}

// Holding is how much a node holds.
type Holding struct {
	Services, Slices, Endpoints int
	Zone                        string // of the node that was requested
	Problem                     error  // why it is not on disk
}

// Holding returns how much there is, and the zone of a node.
func (s *Store) Holding(node string) Holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Holding{
		Services:  len(s.table.services),
		Slices:    len(s.table.of),
		Endpoints: s.table.endpoints,
		Zone:      s.table.zones[node],
		Problem:   s.problem,
	}
}

// Get returns a Service by namespace/name, and the slices behind it without endpoints that have ended; nil: there is
// none. The caller changes nothing of it.
func (s *Store) Get(id string, local *Local) (*service.Service, []*service.Slice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	svc := s.table.services[id]
	if svc == nil {
		return nil, nil
	}
	all := slices.SortedFunc(maps.Values(s.table.slices[id]), func(a, b *service.Slice) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return svc, local.without(all)
}
