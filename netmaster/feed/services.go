package feed

import (
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
)

// serviceSet is the keyed set of Services. It publishes staged changes at most once a second, so that all streams
// share one encoded delta.
type serviceSet struct {
	keyedSet

	mu     sync.Mutex
	begun  bool              // the complete first state was staged; nothing is sent before
	staged map[string][]byte // unpublished changes; nil: removed
	timer  *time.Timer       // nil: none is due
	last   time.Time         // last publication; zero: never
}

// take stages changes, and reports whether to publish at once. Otherwise it calls due later.
func (s *serviceSet) take(changes map[string][]byte, now time.Time, due func()) (atOnce bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.staged == nil {
		s.staged = make(map[string][]byte, len(changes))
	}
	for key, value := range changes {
		s.staged[key] = value
	}
	switch {
	case !s.begun:
		s.begun = true
		return true
	case s.timer == nil && len(s.staged) > 0:
		s.timer = time.AfterFunc(max(keyedDelay, s.last.Add(keyedInterval).Sub(now)), due)
	}
	return false
}

// publish publishes the staged changes, and reports whether the set changed.
func (s *serviceSet) publish(now time.Time) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun {
		return false
	}
	s.keyedSet.mu.Lock() // streams must not see a partial update
	defer s.keyedSet.mu.Unlock()
	changed = s.last.IsZero()
	for key, value := range s.staged {
		if value == nil {
			changed = s.source.Remove(key) || changed
		} else {
			changed = s.source.Put(key, value) || changed
		}
	}
	s.staged, s.last = nil, now
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if changed {
		s.shared = nil
	}
	return changed
}

// isPublished reports whether streams may see the set.
func (s *serviceSet) isPublished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.last.IsZero()
}

// PutServices sets values of the keyed set of Services; a nil value removes one. The first call must be complete:
// nodes keep what they hold until then. Changes are sent at most once a second.
func (s *Server) PutServices(changes map[string][]byte) {
	if s.services.take(changes, time.Now(), s.PublishServices) {
		s.PublishServices()
	}
}

// PublishServices publishes staged changes at once, as after a takeover.
func (s *Server) PublishServices() {
	if !s.services.publish(time.Now()) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		s.servicesChanged(c)
	}
}

// servicesChanged wakes the sender of a node that supports Services.
func (s *Server) servicesChanged(c *conn) {
	if c.version >= feed.Services && s.services.isPublished() {
		wake(c.services.changed)
	}
}
