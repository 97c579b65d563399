package page

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// fresh is how long an answer serves all who ask the same.
	fresh = time.Second
	// mostAtOnce is how many questions netmaster works on for browsers.
	mostAtOnce = 4
	// mostWaiting is how many different questions may wait, or have answers that are fresh.
	mostWaiting = 64
	// patience bounds a question.
	patience = time.Minute
)

var errBusy = status.Error(codes.Unavailable, "netmaster is busy with other questions of this page: try again")

// asker puts questions. Who asks what another is waiting for waits for the same answer, so that many browsers cost what one
// does. Safe for concurrent use.
type asker struct {
	inspector Inspector
	places    chan struct{}

	mu     sync.Mutex
	shared map[string]*shared
}

type shared struct {
	done chan struct{} // closed when the rest is set
	body []byte
	err  error
}

func newAsker(i Inspector) *asker {
	return &asker{inspector: i, places: make(chan struct{}, mostAtOnce), shared: map[string]*shared{}}
}

// put gives the answer's JSON. The question goes on for others when ctx ends.
func (a *asker) put(ctx context.Context, q *inspect.Question) ([]byte, error) {
	key, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	s := a.join(ctx, string(key), q)
	if s == nil {
		return nil, errBusy
	}
	select {
	case <-s.done:
		return s.body, s.err
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// join gives nil where too many wait already.
func (a *asker) join(ctx context.Context, key string, q *inspect.Question) *shared {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.shared[key]; s != nil {
		return s
	}
	if len(a.shared) >= mostWaiting {
		return nil
	}
	s := &shared{done: make(chan struct{})}
	a.shared[key] = s
	go func() {
		defer time.AfterFunc(fresh, func() { a.forget(key) })
		defer close(s.done)
		s.body, s.err = a.alone(context.WithoutCancel(ctx), q)
	}()
	return s
}

func (a *asker) forget(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.shared, key)
}

func (a *asker) alone(ctx context.Context, q *inspect.Question) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case a.places <- struct{}{}:
		defer func() { <-a.places }()
	case <-ctx.Done():
		return nil, errBusy
	}
	answer, err := a.inspector.Answer(ctx, q)
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

// get asks and decodes.
func get[T any](ctx context.Context, a *asker, q inspect.Question) (T, error) {
	var out T
	body, err := a.put(ctx, &q)
	if err == nil {
		err = json.Unmarshal(body, &out)
	}
	return out, err
}
