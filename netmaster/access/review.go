package access

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

// Request is an action of a user on the API group inspect.flowkeep.io.
type Request struct {
	User      User
	Verb      string
	Resource  string
	Name      string
	Namespace string // empty: cluster-wide
}

// Reviewer asks the API server whether a request is allowed. A denial may have a reason.
type Reviewer interface {
	Review(ctx context.Context, r *Request) (allowed bool, reason string, err error)
}

const (
	// verdictTTL is how long a verdict is reused; a revoked role remains effective as long.
	verdictTTL = 10 * time.Second
	// maxVerdicts limits the cached verdicts.
	maxVerdicts = 1024
	// reviewTimeout bounds a review.
	reviewTimeout = 5 * time.Second
)

type verdict struct {
	allowed bool
	reason  string
	until   time.Time
}

// judge caches verdicts, including denials, but not errors. Safe for concurrent use.
type judge struct {
	reviewer Reviewer
	now      func() time.Time

	mu    sync.Mutex
	known map[[sha256.Size]byte]verdict
}

func newJudge(r Reviewer) *judge {
	return &judge{reviewer: r, now: time.Now, known: map[[sha256.Size]byte]verdict{}}
}

func (j *judge) review(ctx context.Context, r *Request) (allowed bool, reason string, err error) {
	text, err := json.Marshal(r) // maps are sorted
	if err != nil {
		return false, "", err
	}
	key := sha256.Sum256(text)
	if v, ok := j.recall(key); ok {
		return v.allowed, v.reason, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	v := verdict{until: j.now().Add(verdictTTL)}
	if v.allowed, v.reason, err = j.reviewer.Review(ctx, r); err != nil {
		return false, "", fmt.Errorf("whether %q may is not known: %w", r.User.Name, err)
	}
	j.remember(key, v)
	return v.allowed, v.reason, nil
}

func (j *judge) recall(key [sha256.Size]byte) (verdict, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	v, ok := j.known[key]
	return v, ok && j.now().Before(v.until)
}

// remember caches a verdict. It evicts expired verdicts or, if that is not enough, any.
func (j *judge) remember(key [sha256.Size]byte, v verdict) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.known) >= maxVerdicts {
		for k, old := range j.known {
			if !j.now().Before(old.until) {
				delete(j.known, k)
			}
		}
	}
	for k := range j.known {
		if len(j.known) < maxVerdicts {
			break
		}
		delete(j.known, k)
	}
	j.known[key] = v
}
