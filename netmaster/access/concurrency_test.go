package access

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// serving holds requests until they are let go.
type serving struct {
	p    *place
	all  sync.WaitGroup
	held chan struct{} // has an element for each that is held
	end  chan struct{}
}

func newServing(t *testing.T) *serving {
	s := &serving{p: newPlace(t), held: make(chan struct{}, maxWatches), end: make(chan struct{})}
	s.p.questions.answer = func(ctx context.Context, q *inspect.Question) (any, error) {
		if q.From == "briefly" {
			return q, nil
		}
		s.held <- struct{}{}
		select {
		case <-s.end:
		case <-ctx.Done():
		}
		return q, nil
	}
	s.p.roles.only = map[string]string{}
	return s
}

// finish lets go what is held.
func (s *serving) finish() { close(s.end); s.all.Wait() }

// hold begins requests of users, and returns when all of them are served.
func (s *serving) hold(method, path string, users ...string) {
	s.p.t.Helper()
	c := s.p.client(s.p.front, true)
	_, _ = s.p.do(c, s.p.request(http.MethodGet, inspect.Prefix, nil, "jane")) // all go over one connection
	for _, user := range users {
		s.all.Go(func() {
			if code, text := s.p.do(c, s.p.request(method, path, nil, user)); code != http.StatusOK {
				s.p.t.Errorf("%s of %s: %d: %s", path, user, code, text)
			}
		})
	}
	for range users {
		<-s.held
	}
}

// briefly returns the status of a request that is not held.
func (s *serving) briefly(path, kind, user string) int {
	s.p.t.Helper()
	question := strings.NewReader(`{"kind":"` + kind + `","from":"briefly"}`)
	code, _ := s.p.do(s.p.client(s.p.front, true), s.p.request(http.MethodPost, path, question, user))
	return code
}

func (s *serving) allow(user, resource string) { s.p.roles.only[user] = resource }

func repeat(user string, n int) (out []string) {
	for range n {
		out = append(out, user)
	}
	return out
}

// A user has some places of those for queries, and a ServiceAccount those of its namespace.
func TestPlaces_PerUser(t *testing.T) {
	s := newServing(t)
	defer s.finish()
	const prefix = "system:serviceaccount:"
	const first, second, other = prefix + "evil:a", prefix + "evil:b", prefix + "shop:a"
	for _, user := range []string{first, second, other} {
		s.allow(user, "drops")
	}
	const drops = inspect.Prefix + "/drops"
	s.hold(http.MethodPost, drops, append(repeat(first, maxOfUser-1), second)...)
	for user, want := range map[string]int{
		first:  http.StatusTooManyRequests,
		second: http.StatusTooManyRequests,
		other:  http.StatusOK,
		"jane": http.StatusOK,
	} {
		if code := s.briefly(drops, "drops", user); code != want {
			t.Errorf("%s: %d", user, code)
		}
	}
}

// The last places are for users who may query the status, and there is an end to these.
func TestPlaces_ReservedForStatus(t *testing.T) {
	s := newServing(t)
	defer s.finish()
	const drops = inspect.Prefix + "/drops"
	var users []string
	for i := range (maxRequests - keptRequests) / maxOfUser {
		user := fmt.Sprint("tenant", i)
		s.allow(user, "drops")
		users = append(users, repeat(user, maxOfUser)...)
	}
	s.hold(http.MethodPost, drops, users...)
	s.allow("late", "drops")
	if code := s.briefly(drops, "drops", "late"); code != http.StatusTooManyRequests {
		t.Errorf("a tenant: %d", code)
	}
	for _, path := range []string{drops, inspect.Prefix + "/status"} {
		if code := s.briefly(path, strings.TrimPrefix(path, inspect.Prefix+"/"), "jane"); code != http.StatusOK {
			t.Errorf("%s of an administrator: %d", path, code)
		}
	}
	users = nil
	for i := range keptRequests / maxOfUser {
		s.p.roles.may[fmt.Sprint("admin", i)] = true
		users = append(users, repeat(fmt.Sprint("admin", i), maxOfUser)...)
	}
	s.hold(http.MethodPost, drops, users...)
	if code := s.briefly(drops, "drops", "jane"); code != http.StatusTooManyRequests {
		t.Errorf("more than all: %d", code)
	}
}

// Requests that wait, by whichever verb, take no places of queries, and each user some of their own.
func TestWaitersTakeNoPlacesOfQueries(t *testing.T) {
	s := newServing(t)
	defer s.finish()
	const wait = inspect.Prefix + "/namespaces/evil/wait"
	s.allow("tenant", "wait")
	question := func() io.Reader { return strings.NewReader(`{"kind":"wait","id":"evil/none"}`) }
	c := s.p.client(s.p.front, true)
	_, _ = s.p.do(c, s.p.request(http.MethodGet, inspect.Prefix, nil, "jane")) // all go over one connection
	for range maxWatchesOfUser {
		s.all.Go(func() {
			code, text := s.p.do(c, s.p.request(http.MethodPost, wait, question(), "tenant"))
			if code != http.StatusOK {
				t.Errorf("%d: %s", code, text)
			}
		})
	}
	for range maxWatchesOfUser {
		<-s.held
	}
	another := s.p.client(s.p.front, true) // a connection has no more than 250 streams
	code, text := s.p.do(another, s.p.request(http.MethodPost, wait, question(), "tenant"))
	if code != http.StatusTooManyRequests {
		t.Errorf("one more: %d: %s", code, text)
	}
	if code := s.briefly(inspect.Prefix+"/status", "status", "jane"); code != http.StatusOK {
		t.Errorf("an administrator: %d", code)
	}
}

// flood opens connections from an address that say nothing, each again when it is closed, until the returned function
// is called.
func flood(t *testing.T, from, to string, n int) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	var all sync.WaitGroup
	var opened sync.WaitGroup
	opened.Add(n)
	for range n {
		all.Go(func() {
			first := sync.OnceFunc(opened.Done)
			defer first()
			for ctx.Err() == nil {
				c, err := dialer.DialContext(ctx, "tcp", to)
				if err != nil {
					continue
				}
				first()
				stop := context.AfterFunc(ctx, func() { c.Close() })
				_, _ = io.Copy(io.Discard, c)
				stop()
				c.Close()
				retry := time.NewTimer(5 * time.Second)
				select {
				case <-retry.C:
				case <-ctx.Done():
				}
				retry.Stop()
			}
		})
	}
	opened.Wait()
	return func() { cancel(); all.Wait() }
}

// TestConnectionsWithoutCertificate_Silent: silent connections do not keep the API server out, also with its address.
func TestConnectionsWithoutCertificate_Silent(t *testing.T) {
	for name, from := range map[string]string{"another address": "127.0.0.7", "its address": "127.0.0.1"} {
		t.Run(name, func(t *testing.T) {
			var closed atomic.Int64
			p := newPlaceWith(t, func(s *Server) { s.cfg.Closed = func(string) { closed.Add(1) } })
			end := flood(t, from, p.address, 3000)
			defer end()
			var longest time.Duration
			for range 20 { // as discovery does after a change of the leader, each over a new connection
				began := time.Now()
				code, text := p.do(p.client(p.front, true), p.request(http.MethodGet, inspect.Prefix, nil, "jane"))
				if code != http.StatusOK {
					t.Fatalf("%d: %s", code, text)
				}
				longest = max(longest, time.Since(began))
			}
			if kept := 3000 - closed.Load(); kept > maxOfAddress {
				t.Errorf("%d silent connections of one address were kept open", kept)
			}
			t.Logf("with 3,000 silent connections an answer takes %v at most", longest)
		})
	}
}
