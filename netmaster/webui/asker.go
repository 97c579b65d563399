package webui

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
	// responseTTL is how long a response is reused for the same query.
	responseTTL = time.Second
	// maxAtOnce limits concurrent queries for browsers.
	maxAtOnce = 4
	// maxWaiting limits distinct queries that wait or have reusable responses.
	maxWaiting = 64
	// queryTimeout bounds a query.
	queryTimeout = time.Minute
)

var errBusy = status.Error(codes.Unavailable, "netmaster is busy with other queries of the web UI: retry")

// asker sends queries. Concurrent equal queries share one response, so that many browsers cost as much as one. Safe
// for concurrent use.
type asker struct {
	inspector Inspector
	places    chan struct{}

	mu     sync.Mutex
	shared map[string]*shared
}

type shared struct {
	done   chan struct{} // closed when the rest is set
	answer *inspect.Answer
	err    error
}

func newAsker(i Inspector) *asker {
	return &asker{inspector: i, places: make(chan struct{}, maxAtOnce), shared: map[string]*shared{}}
}

// put returns the response. The query continues for other callers when ctx ends.
func (a *asker) put(ctx context.Context, q *inspect.Question) (*inspect.Answer, error) {
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
		return s.answer, s.err
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// join starts or shares a query. It returns nil if too many wait.
func (a *asker) join(ctx context.Context, key string, q *inspect.Question) *shared {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.shared[key]; s != nil {
		return s
	}
	if len(a.shared) >= maxWaiting {
		return nil
	}
	s := &shared{done: make(chan struct{})}
	a.shared[key] = s
	go func() {
		defer time.AfterFunc(responseTTL, func() { a.forget(key) })
		defer close(s.done)
		s.answer, s.err = a.alone(context.WithoutCancel(ctx), q)
	}()
	return s
}

func (a *asker) forget(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.shared, key)
}

func (a *asker) alone(ctx context.Context, q *inspect.Question) (*inspect.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	select {
	case a.places <- struct{}{}:
		defer func() { <-a.places }()
	case <-ctx.Done():
		return nil, errBusy
	}
	return a.inspector.Answer(ctx, q)
}

// get sends a query and decodes the response.
func get[T any](ctx context.Context, a *asker, q inspect.Question) (T, error) {
	out, _, err := getCached[T](ctx, a, q)
	return out, err
}

// getCached sends a query like get, and also returns the state of the response.
func getCached[T any](ctx context.Context, a *asker, q inspect.Question) (out T, of *inspect.Cached, err error) {
	answer, err := a.put(ctx, &q)
	if err != nil {
		return out, nil, err
	}
	if of, ok := ctx.Value(originKey{}).(*origin); ok && of.cached == nil {
		of.cached = answer.Cached
	}
	return out, answer.Cached, json.Unmarshal(answer.Body, &out)
}

// origin is the state that a response is of, and where its answer was found: that of the first answer that has them.
type origin struct{ cached *inspect.Cached }

type originKey struct{}

// noteOrigin returns a context in which getCached notes the origin. One goroutine uses it.
func noteOrigin(ctx context.Context) (context.Context, *origin) {
	of := new(origin)
	return context.WithValue(ctx, originKey{}, of), of
}
