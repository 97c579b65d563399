package access

import (
	"context"
	"strings"
	"sync"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits of concurrent requests, in all and for a user. The last places are reserved for users who may query the
// status of the cluster, so that no tenant can lock out administrators. Waiting requests have places of their own.
const (
	maxRequests  = 64
	maxOfUser    = 8
	keptRequests = 16

	maxWatches       = 1000
	maxWatchesOfUser = 250
	keptWatches      = 200
)

// places limits concurrent requests. Safe for concurrent use.
type places struct {
	all, each, kept int

	mu    sync.Mutex
	taken int
	users map[string]int
}

func newPlaces(all, each, kept int) *places {
	return &places{all: all, each: each, kept: kept, users: map[string]int{}}
}

// outcome is the result of taking a place.
type outcome int

const (
	placeTaken outcome = iota
	noneOfUser         // the user has the maximum
	keptOnly           // only reserved places are left
	noneLeft
)

// take takes a place. With kept, it may be a reserved one.
func (p *places) take(user string, kept bool) outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.users[user] >= p.each:
		return noneOfUser
	case p.taken >= p.all:
		return noneLeft
	case p.taken >= p.all-p.kept && !kept:
		return keptOnly
	}
	p.taken++
	p.users[user]++
	return placeTaken
}

func (p *places) leave(user string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.users[user]--; p.users[user] == 0 {
		delete(p.users, user)
	}
}

// takePlace takes a place for a request, and returns a function that releases it.
func (s *Server) takePlace(ctx context.Context, r *Request) (leave func(), err error) {
	of, user := s.requests, tenantOf(r.User.Name)
	if s.waits(r) {
		of = s.watches
	}
	got := of.take(user, false)
	if got == keptOnly && s.maySeeStatus(ctx, r) {
		got = of.take(user, true)
	}
	switch got {
	case placeTaken:
		return func() { of.leave(user) }, nil
	case noneOfUser:
		return nil, status.Errorf(codes.ResourceExhausted,
			"%d requests of %q are answered at this moment: try again later", of.each, user)
	}
	return nil, status.Errorf(codes.ResourceExhausted,
		"%d requests are answered at this moment: try again later", of.all)
}

// waits reports whether a request mostly waits for events.
func (s *Server) waits(r *Request) bool {
	return r.Resource == inspect.AskWait || r.Verb == "watch" && s.cfg.Questions.Lasts(r.Resource)
}

// maySeeStatus reports whether the user of a request may query the status of the cluster.
func (s *Server) maySeeStatus(ctx context.Context, r *Request) bool {
	allowed, _, err := s.judge.review(ctx, &Request{
		User:     r.User,
		Verb:     "get",
		Resource: inspect.AskStatus,
		Name:     inspect.AnswerName,
	})
	return err == nil && allowed
}

const serviceAccounts = "system:serviceaccount:"

// tenantOf returns the name that a user's limit applies to: for a ServiceAccount its namespace, because a
// tenant can create many of them there.
func tenantOf(user string) string {
	rest, ok := strings.CutPrefix(user, serviceAccounts)
	if !ok {
		return user
	}
	namespace, _, _ := strings.Cut(rest, ":")
	return serviceAccounts + namespace
}
