package access

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

// Request is what somebody wants to do with the API group inspect.flowkeep.io.
type Request struct {
	User      User
	Verb      string
	Resource  string
	Name      string
	Namespace string // empty: in the whole cluster
}

// Reviewer asks the API server whether somebody may. A reason may come with a denial.
type Reviewer interface {
	Review(ctx context.Context, r *Request) (allowed bool, reason string, err error)
}

const (
	// verdictsLast is how long a verdict is believed; so long may somebody go on whose role was taken away.
	verdictsLast = 10 * time.Second
	// mostVerdicts bounds what is remembered.
	mostVerdicts = 1024
	// reviewTime is how long the API server may take.
	reviewTime = 5 * time.Second
)

type verdict struct {
	allowed bool
	reason  string
	until   time.Time
}

// judge remembers verdicts, denials too, for a short time. Failures are not remembered. Safe for concurrent use.
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
	ctx, cancel := context.WithTimeout(ctx, reviewTime)
	defer cancel()
	v := verdict{until: j.now().Add(verdictsLast)}
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

// remember makes room by forgetting what is over, and if that is not enough, anything.
func (j *judge) remember(key [sha256.Size]byte, v verdict) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.known) >= mostVerdicts {
		for k, old := range j.known {
			if !j.now().Before(old.until) {
				delete(j.known, k)
			}
		}
	}
	for k := range j.known {
		if len(j.known) < mostVerdicts {
			break
		}
		delete(j.known, k)
	}
	j.known[key] = v
}
