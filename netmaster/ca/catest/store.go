// Package catest provides an in-memory store for tests of the CA, with versions, failures and concurrent changes.
package catest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/ca"
)

// Store is a ca.Store in memory. Set its fields before use. Its methods are safe for concurrent use.
type Store struct {
	// Fail, if set, returns the error of a call by its name, and of writing calls again after the write, as in
	// "PutAuthority done".
	Fail func(call string) error
	// Ahead is the clock skew.
	Ahead time.Duration

	mu                sync.Mutex
	secret, published object
	trusted           []byte
	writes            int
}

type object struct {
	text    []byte
	version int
}

func (s *Store) fails(call string) error {
	if s.Fail == nil {
		return nil
	}
	return s.Fail(call)
}

func (s *Store) read(call string, o *object) (ca.Stored, error) {
	if err := s.fails(call); err != nil {
		return ca.Stored{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return ca.Stored{Text: slices.Clone(o.text), Version: o.version}, nil
}

func (s *Store) write(call string, o *object, old ca.Stored, text []byte) error {
	if err := s.fails(call); err != nil {
		return err
	}
	s.mu.Lock()
	if old.Version != o.version {
		s.mu.Unlock()
		return ca.ErrChanged
	}
	o.text, o.version = slices.Clone(text), o.version+1
	s.writes++
	s.mu.Unlock()
	return s.fails(call + " done")
}

// Authority implements ca.Store.
func (s *Store) Authority(context.Context) (ca.Stored, error) {
	return s.read("Authority", &s.secret)
}

// PutAuthority implements ca.Store.
func (s *Store) PutAuthority(_ context.Context, old ca.Stored, text []byte) error {
	return s.write("PutAuthority", &s.secret, old, text)
}

// Published implements ca.Store.
func (s *Store) Published(context.Context) (ca.Stored, error) {
	return s.read("Published", &s.published)
}

// Publish implements ca.Store.
func (s *Store) Publish(_ context.Context, old ca.Stored, text []byte) error {
	return s.write("Publish", &s.published, old, text)
}

// Trust implements ca.Store.
func (s *Store) Trust(_ context.Context, bundle []byte) error {
	if err := s.fails("Trust"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trusted = slices.Clone(bundle)
	return nil
}

// Skew implements ca.Store.
func (s *Store) Skew() time.Duration { return s.Ahead }

// SetSecret simulates a manual change of the Secret.
func (s *Store) SetSecret(text []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secret = object{slices.Clone(text), s.secret.version + 1}
}

// SetPublished simulates a manual change of the ConfigMap.
func (s *Store) SetPublished(text []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.published = object{slices.Clone(text), s.published.version + 1}
}

// Contents returns the present objects and the number of writes.
func (s *Store) Contents() (secret, published []byte, writes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.secret.text), slices.Clone(s.published.text), s.writes
}
