package query

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Leader is the netmaster that leads while this one is a standby. Its errors are gRPC statuses.
type Leader interface {
	// State returns the leader's state, at most about a second old, with its identity.
	State(ctx context.Context) (labelcache.Stamp, error)
	Ask(ctx context.Context, q *inspect.Question) (*inspect.Answer, error)
	Follow(ctx context.Context, q *inspect.Question, send func(*inspect.Answer) error) error
}

// isOfState reports whether the response depends only on the query and on the leader's state, and so can be cached.
func isOfState(q *inspect.Question) bool {
	switch q.Kind {
	case inspect.AskMatrix, inspect.AskLint, inspect.AskEndpoints, inspect.AskPolicies:
		return true
	case inspect.AskDiff:
		return q.Diff != nil && !q.Diff.Connections
	case inspect.AskExplain:
		return isModelOnly(q)
	}
	return false
}

// isModelOnly reports whether an explanation is of the present policies, without the switches' proof, and to an end
// that is not called a Service.
func isModelOnly(q *inspect.Question) bool {
	if q.To == nil || q.At != nil || !q.Unproved {
		return false
	}
	_, _, isService := inspect.ServiceOf(q.To.Name)
	return !isService
}

// ofNow is an answer that turned out to depend on more than the question and the leader's state.
type ofNow struct{ any }

// encoded encodes an answer, and reports whether it may be kept.
func encoded(v any, err error) (body []byte, isOfState bool, _ error) {
	if err != nil {
		return nil, false, err
	}
	now, isOfNow := v.(ofNow)
	if isOfNow {
		v = now.any
	}
	body, err = json.Marshal(v)
	return body, !isOfNow, err
}

// stampFor returns the state that a cached response is valid for. Only responses about policies depend on what nodes
// report.
func stampFor(q *inspect.Question, at labelcache.Stamp) labelcache.Stamp {
	if q.Kind != inspect.AskPolicies || q.Names {
		at.Standing = 0
	}
	return at
}

// resolved returns the state of the engine, without what nodes report.
func (s *sources) resolved() labelcache.Stamp {
	at := s.cfg.Labels()
	at.Standing = 0
	return at
}

// cacheQuery returns the cache key of a query. It contains the version, as another version may encode the response
// differently.
func (s *Server) cacheQuery(q *inspect.Question) (query string, ok bool) {
	if !isOfState(q) {
		return "", false
	}
	plain := *q
	plain.Forwarded = false
	query, err := s.queryOf("answer/"+q.Kind, &plain)
	return query, err == nil
}

// queryOf returns a cache key made of everything, except the engine's state, that a value depends on.
func (s *sources) queryOf(purpose string, inputs ...any) (string, error) {
	text, err := json.Marshal(inputs)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append([]byte(s.cfg.Version+"\x00"), text...))
	return purpose + "/" + hex.EncodeToString(sum[:]), nil
}

// throughCache returns the cached value of a key at this netmaster's state, or computes it. The function now returns
// that state. A value is not cached if it does not depend on the state alone, if the state changed meanwhile, or if
// the state is not settled.
func (s *sources) throughCache(
	ctx context.Context,
	query string,
	now func() labelcache.Stamp,
	compute func(context.Context) (body []byte, isOfState bool, err error),
) (body []byte, at labelcache.Stamp, from labelcache.Source, err error) {
	if !s.isSettled() {
		body, _, err = compute(ctx)
		return body, labelcache.Stamp{}, labelcache.Computed, err
	}
	before := now()
	return s.cfg.Cache.Do(ctx, query, before, func(ctx context.Context) ([]byte, labelcache.Stamp, error) {
		body, isOfState, err := compute(ctx)
		if !isOfState || now() != before || !s.isSettled() {
			return body, labelcache.Stamp{}, err
		}
		return body, before, err
	})
}

// compute returns the response to a query about this netmaster's own state.
func (s *Server) compute(ctx context.Context, q *inspect.Question) (*inspect.Answer, error) {
	query, ok := s.cacheQuery(q)
	if !ok {
		v, err := s.answers[q.Kind](ctx, q)
		if err != nil {
			return nil, err
		}
		if a, isWhole := v.(*inspect.Answer); isWhole {
			return a, nil
		}
		body, _, err := encoded(v, nil)
		return &inspect.Answer{Body: body}, err
	}
	now := func() labelcache.Stamp { return stampFor(q, s.cfg.Labels()) }
	body, at, from, err := s.throughCache(ctx, query, now, func(ctx context.Context) ([]byte, bool, error) {
		return encoded(s.answers[q.Kind](ctx, q))
	})
	if err != nil {
		return nil, err
	}
	return &inspect.Answer{Body: body, Cached: cached(from, at, "")}, nil
}

// cached describes where a response came from. A standby passes its identity.
func cached(from labelcache.Source, at labelcache.Stamp, standby string) *inspect.Cached {
	if at == (labelcache.Stamp{}) {
		return nil
	}
	return &inspect.Cached{
		Source:   string(from),
		Epoch:    at.Epoch,
		Term:     at.Term,
		Revision: at.Revision,
		Standing: at.Standing,
		Standby:  standby,
	}
}

// standbyAnswer responds from the cache if it holds the leader's current state, and forwards all else to the leader.
func (s *Server) standbyAnswer(ctx context.Context, q *inspect.Question, standby string) (*inspect.Answer, error) {
	if s.cfg.Peer == nil || q.Forwarded {
		return nil, errStandby(standby)
	}
	kept := s.cachedAnswerOf(q)
	if kept != nil {
		if at, err := s.cfg.Peer.State(ctx); err == nil {
			if a := kept.get(stampFor(q, at)); a != nil {
				return a, nil
			}
		}
	}
	forwarded := *q
	forwarded.Forwarded = true
	a, err := s.cfg.Peer.Ask(ctx, &forwarded)
	if err == nil && kept != nil && a.Cached != nil {
		kept.put(a)
	}
	return a, err
}

// cachedAnswer is the cache entry of a response of the leader.
type cachedAnswer struct {
	s     *sources
	query string
	// body converts the cached value to the response's body, and value converts it back.
	body  func(value []byte, at labelcache.Stamp, from labelcache.Source) ([]byte, error)
	value func(body []byte) ([]byte, error)
}

// cachedAnswerOf returns the cache entry for a query; nil if its response cannot be cached.
func (s *Server) cachedAnswerOf(q *inspect.Question) *cachedAnswer {
	if q.Kind == inspect.AskLookup {
		if spec, err := lookupSpec(q); err == nil {
			return &cachedAnswer{
				s:     s.sources,
				query: labelcache.Members(spec.Key(), 0),
				body:  lookupBody,
				value: lookupValue,
			}
		}
		return nil
	}
	query, ok := s.cacheQuery(q)
	if !ok {
		return nil
	}
	return &cachedAnswer{
		s:     s.sources,
		query: query,
		body:  func(value []byte, _ labelcache.Stamp, _ labelcache.Source) ([]byte, error) { return value, nil },
		value: func(body []byte) ([]byte, error) { return body, nil },
	}
}

// get returns the response at a state; nil if it is not cached.
func (k *cachedAnswer) get(at labelcache.Stamp) *inspect.Answer {
	value, from, ok := k.s.cfg.Cache.Get(k.query, at)
	if !ok {
		return nil
	}
	body, err := k.body(value, at, from)
	if err != nil {
		return nil
	}
	return &inspect.Answer{Body: body, Cached: cached(from, at, k.s.cfg.Identity)}
}

// fallback stores the leader's response in this process only: the leader has already written it to memcached.
func (k *cachedAnswer) put(a *inspect.Answer) {
	if value, err := k.value(a.Body); err == nil {
		k.s.cfg.Cache.Put(k.query, stampOf(a.Cached), value, false)
	}
}

func stampOf(c *inspect.Cached) labelcache.Stamp {
	return labelcache.Stamp{Epoch: c.Epoch, Term: c.Term, Revision: c.Revision, Standing: c.Standing}
}

func errStandby(why string) error {
	return status.Error(codes.Unavailable, "this netmaster does not respond: "+why)
}

// unsynced returns why the engine may be behind the API server; empty if it is synced.
func (s *sources) unsynced() string {
	if s.cfg.Unsynced == nil {
		return ""
	}
	return s.cfg.Unsynced()
}

// isSettled reports whether values may be cached: the engine is synced, and unannounced pods have been looked for.
func (s *sources) isSettled() bool { return s.unsynced() == "" && s.cfg.Unattached().IsKnown() }

// state returns the leader's state to another netmaster. It fails while the engine is not synced.
func (s *Server) state(ctx context.Context) (*inspect.Answer, error) {
	_, done, err := s.answering(ctx)
	if err != nil {
		return nil, err
	}
	at := s.cfg.Labels()
	if err := done(nil); err != nil {
		return nil, err
	}
	if why := s.unsynced(); why != "" {
		return nil, status.Error(codes.FailedPrecondition, why)
	}
	body, err := json.Marshal(inspect.State{
		Epoch:    at.Epoch,
		Term:     at.Term,
		Revision: at.Revision,
		Standing: at.Standing,
	})
	return &inspect.Answer{Body: body}, err
}
