// Package authoritytest is a cluster for tests of the authority: objects with versions, which can fail and change behind one's back.
package authoritytest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/authority"
)

// Store is an authority.Store in memory. Its fields are not to be changed while it is used; its methods are safe for concurrent use.
type Store struct {
	// Fail, if set, is asked before each call, by its name, and again after those that write: "PutAuthority", then "PutAuthority done".
	Fail func(call string) error
	// Ahead is the skew.
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

func (s *Store) read(call string, o *object) (authority.Stored, error) {
	if err := s.fails(call); err != nil {
		return authority.Stored{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return authority.Stored{Text: slices.Clone(o.text), Version: o.version}, nil
}

func (s *Store) write(call string, o *object, old authority.Stored, text []byte) error {
	if err := s.fails(call); err != nil {
		return err
	}
	s.mu.Lock()
	if old.Version != o.version {
		s.mu.Unlock()
		return authority.ErrChanged
	}
	o.text, o.version = slices.Clone(text), o.version+1
	s.writes++
	s.mu.Unlock()
	return s.fails(call + " done")
}

// Authority is of authority.Store.
func (s *Store) Authority(context.Context) (authority.Stored, error) {
	return s.read("Authority", &s.secret)
}

// PutAuthority is of authority.Store.
func (s *Store) PutAuthority(_ context.Context, old authority.Stored, text []byte) error {
	return s.write("PutAuthority", &s.secret, old, text)
}

// Published is of authority.Store.
func (s *Store) Published(context.Context) (authority.Stored, error) {
	return s.read("Published", &s.published)
}

// Publish is of authority.Store.
func (s *Store) Publish(_ context.Context, old authority.Stored, text []byte) error {
	return s.write("Publish", &s.published, old, text)
}

// Trust is of authority.Store.
func (s *Store) Trust(_ context.Context, bundle []byte) error {
	if err := s.fails("Trust"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trusted = slices.Clone(bundle)
	return nil
}

// Skew is of authority.Store.
func (s *Store) Skew() time.Duration { return s.Ahead }

// SetSecret is what somebody does by hand.
func (s *Store) SetSecret(text []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secret = object{slices.Clone(text), s.secret.version + 1}
}

// SetPublished is what somebody does by hand.
func (s *Store) SetPublished(text []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.published = object{slices.Clone(text), s.published.version + 1}
}

// Contents are what is there now.
func (s *Store) Contents() (secret, published []byte, writes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.secret.text), slices.Clone(s.published.text), s.writes
}
