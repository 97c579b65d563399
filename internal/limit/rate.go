package limit

import (
	"sync"
	"time"
)

// Rate is a token bucket for each of many keys. It is safe for concurrent use.
type Rate struct {
	every   time.Duration
	burst   int
	maxKeys int

	mu   sync.Mutex
	free map[string]time.Time // when all of a key's burst is free again
}

// NewRate returns a Rate that lets each key through once in every, and burst times at once. It remembers maxKeys keys.
func NewRate(every time.Duration, burst, maxKeys int) *Rate {
	return &Rate{every: every, burst: burst, maxKeys: maxKeys, free: map[string]time.Time{}}
}

// Allow takes a turn of a key, and reports whether there was one. Where too many keys are remembered, new ones have
// none.
func (r *Rate) Allow(key string, now time.Time) bool { return r.Take(key, now) == 0 }

// Take takes a turn of a key. If there is none it takes nothing, and returns in how long there is.
func (r *Rate) Take(key string, now time.Time) (wait time.Duration) { return r.TakeN(key, 1, now) }

// TakeN takes n turns of a key, at most its burst, as Take does one.
func (r *Rate) TakeN(key string, n int, now time.Time) (wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, known := r.free[key]
	if !known && !r.room(now) {
		return r.every
	}
	if at.Before(now) {
		at = now
	}
	at = at.Add(r.every * time.Duration(min(n, r.burst)))
	if wait = at.Sub(now) - r.every*time.Duration(r.burst); wait > 0 {
		return wait
	}
	r.free[key] = at
	return 0
}

// Reset gives all keys their bursts back.
func (r *Rate) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.free)
}

// room reports whether another key can be remembered. Keys with all of their burst are forgotten for it.
func (r *Rate) room(now time.Time) bool {
	if len(r.free) < r.maxKeys {
		return true
	}
	for k, t := range r.free {
		if !now.Before(t) {
			delete(r.free, k)
		}
	}
	return len(r.free) < r.maxKeys
}
