package enforcement

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	"k8s.io/client-go/rest"
)

const listPath = "/apis/fleet.flowkeep.io/v1alpha1/networkpolicyenforcements"

type object = map[string]any

// apiServer is one in miniature: it may not know the kind, or refuse it; it has objects in namespace ns, with versions, a list, watches and
// statuses.
type apiServer struct {
	*testing.T
	mu       sync.Mutex
	refuses  int // an HTTP status; 0: it serves
	objects  map[string]object
	version  int
	watchers map[chan object]struct{}
	asked    int
	log      strings.Builder
}

func (s *apiServer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(b)
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	w.Header().Set("Content-Type", "application/json")
	name, isStatus := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/apis/fleet.flowkeep.io/v1alpha1/namespaces/ns/networkpolicyenforcements/"), "/status")
	switch {
	case s.refuses != 0:
		s.fail(w, s.refuses)
	case r.URL.Path == listPath && r.URL.Query().Get("watch") != "":
		s.watch(w, r)
	case r.URL.Path == listPath:
		list := []object{}
		for _, o := range s.objects {
			list = append(list, o)
		}
		s.send(w, object{"kind": "NetworkPolicyEnforcementList", "apiVersion": "fleet.flowkeep.io/v1alpha1", "metadata": object{"resourceVersion": strconv.Itoa(s.version)}, "items": list})
	case r.Method == http.MethodPut && isStatus && s.objects[name] == nil:
		s.fail(w, http.StatusNotFound)
	case r.Method == http.MethodPut && isStatus:
		var o object
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			s.Error(err)
		}
		now := s.objects[name]
		if o["metadata"].(object)["resourceVersion"] != now["metadata"].(object)["resourceVersion"] {
			s.fail(w, http.StatusConflict)
			return
		}
		s.store(name, object{"spec": now["spec"], "status": o["status"]})
		s.send(w, s.objects[name])
	default:
		s.Errorf("asked for %s %s", r.Method, r.URL)
	}
}

func (s *apiServer) send(w http.ResponseWriter, v any) {
	if err := json.NewEncoder(w).Encode(v); err != nil {
		s.Error(err)
	}
}

func (s *apiServer) fail(w http.ResponseWriter, code int) {
	reasons := map[int]string{404: "NotFound", 403: "Forbidden", 409: "Conflict", 503: "ServiceUnavailable"}
	w.WriteHeader(code)
	s.send(w, object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reasons[code], "message": "by the test"})
}

// watch gives the mutex back while nothing happens.
func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	ch := make(chan object, 100)
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		s.fail(w, 403)
		return
	}
	s.watchers[ch] = struct{}{}
	s.mu.Unlock()
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for open := true; open; {
		select {
		case ev, ok := <-ch:
			if open = ok; ok {
				s.send(w, ev)
				w.(http.Flusher).Flush()
			}
		case <-r.Context().Done():
			open = false
		}
	}
	s.mu.Lock()
	delete(s.watchers, ch)
}

func (s *apiServer) store(name string, o object) {
	s.version++
	kind := "ADDED"
	if s.objects[name] != nil {
		kind = "MODIFIED"
	}
	o["kind"], o["apiVersion"] = "NetworkPolicyEnforcement", "fleet.flowkeep.io/v1alpha1"
	o["metadata"] = object{"namespace": "ns", "name": name, "uid": "u", "generation": 1, "resourceVersion": strconv.Itoa(s.version), "managedFields": []any{object{"manager": "hub"}}}
	s.objects[name] = o
	for ch := range s.watchers {
		ch <- object{"type": kind, "object": o}
	}
}

func (s *apiServer) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// refuse ends watches, as an API server does when a kind goes.
func (s *apiServer) refuse(code int) {
	s.do(func() {
		s.refuses = code
		for ch := range s.watchers {
			close(ch)
			delete(s.watchers, ch)
		}
	})
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("never happened: " + what)
		}
	}
}

// The kind comes, goes, and comes again; whatever the API server says, it is said once.
func TestFollow_CRDComesAndGoes(t *testing.T) {
	s := &apiServer{T: t, objects: map[string]object{}, watchers: map[chan object]struct{}{}, refuses: 404}
	at := httptest.NewServer(s)
	defer at.Close()
	c, err := NewClient(&rest.Config{Host: at.URL, QPS: 1000, Burst: 1000}, slog.New(slog.NewTextHandler(s, nil)))
	if err != nil {
		t.Fatal(err)
	}
	c.pollInterval = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	n, done := newNews(), make(chan struct{})
	go func() { defer close(done); c.Follow(ctx, n) }()
	defer func() { cancel(); <-done }()
	seen := map[string]*v1alpha1.NetworkPolicyEnforcement{}
	sees := func(want string) {
		t.Helper()
		until(t, "seen is "+want, func() bool {
			for key, o := range n.take() {
				if seen[key] = o; o == nil {
					delete(seen, key)
				}
			}
			text := ""
			for _, name := range []string{"a", "b"} {
				if o := seen["ns/"+name]; o != nil {
					text += fmt.Sprintf("%s:%s:%v ", name, o.Spec.Policy, enforced(&o.Status).Reason)
					if o.ManagedFields != nil {
						t.Error("managed fields are kept")
					}
				}
			}
			return text == want
		})
	}
	says := func(text string, times int) {
		t.Helper()
		s.do(func() {
			if got := strings.Count(s.log.String(), text); got != times {
				t.Errorf("%q was said %d times, want %d:\n%s", text, got, times, s.log.String())
			}
		})
	}
	asked := func(more int) {
		before := 0
		s.do(func() { before = s.asked })
		until(t, "it is asked again", func() bool {
			after := 0
			s.do(func() { after = s.asked })
			return after > before+more
		})
	}
	asked(5)
	says("has no NetworkPolicyEnforcement", 1)
	s.refuse(403)
	asked(5)
	says("may not list", 1)
	s.refuse(503)
	asked(5)
	s.do(func() {
		s.refuses = 0
		s.store("a", object{"spec": object{"policy": "p"}})
	})
	sees("a:p: ")
	says(`msg="enforcement is reported"`, 1)
	until(t, "it is watched", func() bool {
		watched := false
		s.do(func() { watched = len(s.watchers) > 0 })
		return watched
	})
	s.do(func() { s.store("b", object{"spec": object{"policy": "q"}}) })
	sees("a:p: b:q: ")

	o := seen["ns/a"].DeepCopy()
	o.Status = answer(o, &Knowledge{})
	written, err := c.Write(t.Context(), o)
	if err != nil || written.ResourceVersion == o.ResourceVersion || enforced(&written.Status).Reason != v1alpha1.ReasonNoPolicy {
		t.Errorf("%+v, %v", written, err)
	}
	sees("a:p:NoPolicy b:q: ")
	if _, err := c.Write(t.Context(), o); !isOvertaken(err) {
		t.Errorf("of an older version: %v", err)
	}
	o.Name = "c"
	if _, err := c.Write(t.Context(), o); !isOvertaken(err) {
		t.Errorf("of none: %v", err)
	}

	s.refuse(404)
	sees("")
	asked(5)
	says("has no NetworkPolicyEnforcement", 2)
	s.do(func() {
		s.refuses = 0
		delete(s.objects, "a")
	})
	sees("b:q: ")
}
