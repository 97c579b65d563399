package controller

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/flowkeep/flowkeep/internal/apitest"
	"k8s.io/client-go/rest"
)

// line is what a controller's requests go through. It fails those that the test wants to, and can be cut.
type line struct {
	mu sync.Mutex
	// cut is true when nothing goes through any more; left is how many writes of works go through until then, if it is not negative.
	cut  bool
	left int
	// answer is what the API server answers, in the place of its own, to requests that match.
	answer  int
	matches func(*http.Request) bool
}

func newLine() *line { return &line{left: -1} }

// through has a controller's requests go through the line.
func (l *line) through(identity string) func(*Options) {
	return func(o *Options) {
		o.Identity = identity
		o.API = rest.CopyConfig(o.API)
		o.API.Wrap(func(next http.RoundTripper) http.RoundTripper { return &hop{l, next} })
	}
}

type hop struct {
	*line
	next http.RoundTripper
}

func (h *hop) RoundTrip(r *http.Request) (*http.Response, error) {
	h.mu.Lock()
	writes := (r.Method == http.MethodPatch || r.Method == http.MethodPost) && strings.Contains(r.URL.Path, "/manifestworks")
	if writes && h.left == 0 {
		h.cut = true
	} else if writes && h.left > 0 {
		h.left--
	}
	cut, answer := h.cut, h.answer
	if h.matches == nil || !h.matches(r) {
		answer = 0
	}
	h.mu.Unlock()
	switch {
	case cut:
		return nil, errors.New("the line is cut")
	case answer != 0:
		return &http.Response{
			StatusCode: answer, Status: http.StatusText(answer), Request: r, Header: http.Header{"Content-Type": {"application/json"}, "Retry-After": {"1"}},
			Body: http.NoBody,
		}, nil
	}
	return h.next.RoundTrip(r)
}

func (l *line) set(how func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	how()
}

// generations of the test's works, by cluster.
func (h *hubWorld) generations() map[string]int64 {
	h.Helper()
	found := map[string]int64{}
	for _, w := range h.works() {
		found[w.Namespace] += w.Generation
	}
	return found
}

// TestTakeOver: an instance dies in the midst of an edit's writes. Another, which has waited, goes on when the Lease is over: it makes the writes that
// were not made, and no other. A third, to which the second gives the Lease, makes none.
func TestTakeOver(t *testing.T) {
	h := newHubWorld(t, 4)
	h.gateway("web", "edge", "all")
	h.policy("LimitPolicy", "slow", 5, "web")
	h.agents()
	dies := newLine()
	h.options = dies.through("first")
	first := h.start()
	h.expect(4, "Namespace/"+h.id, "Gateway/web", "LimitPolicy/slow")
	h.says("Gateway", "web", "Programmed", "True")
	first.idle()
	h.options = newLine().through("second")
	second := h.start()
	second.eventually(func() error {
		second.mu.Lock()
		defer second.mu.Unlock()
		if !strings.HasPrefix(second.reason, "standby") {
			return fmt.Errorf("it says %q", second.reason)
		}
		return nil
	})

	before := h.generations()
	dies.set(func() { dies.left = 2 })
	h.policy("LimitPolicy", "slow", 6, "web")
	h.eventually(func() error {
		done := 0
		for cluster, is := range h.generations() {
			done += int(is - before[cluster])
		}
		dies.mu.Lock()
		defer dies.mu.Unlock()
		if !dies.cut || done != 2 {
			return fmt.Errorf("%d of its writes are done", done)
		}
		return nil
	})
	first.killed = true
	first.stop()      // it can't give the Lease back
	second.caughtUp() // so that it writes the rest only
	if n := second.writes(); n != 0 {
		t.Errorf("while another leads %v writes are made: %v", n, second.written())
	}
	lease := LeaseOf(h.controller)
	h.patch("Lease", lease, `{spec: {leaseDurationSeconds: 1}}`) // instead of waiting for 30
	edited := func() error {
		for cluster, is := range h.generations() {
			if is != before[cluster]+1 {
				return fmt.Errorf("the work of %s is of generation %d, and was of %d", cluster, is, before[cluster])
			}
		}
		return nil
	}
	h.eventually(edited)
	second.idle()
	h.must(edited())
	if n := second.metric("flowkeep_policy_sync_work_writes_total"); n != 2 {
		t.Errorf("the second makes %v writes of works", n)
	}
	if holder := fmt.Sprint(h.get("Lease", lease)["spec"].(map[string]any)["holderIdentity"]); holder != "second" {
		t.Errorf("the Lease is %s's", holder)
	}

	h.options = newLine().through("third")
	third := h.start()
	third.eventually(func() error {
		third.mu.Lock()
		defer third.mu.Unlock()
		if !strings.HasPrefix(third.reason, "standby") {
			return fmt.Errorf("it says %q", third.reason)
		}
		return nil
	})
	second.stop()
	third.ready()
	third.idle()
	if n := third.writes(); n != 0 {
		t.Errorf("the third makes %v writes although nothing has changed: %v", n, third.written())
	}
	before = h.generations()
	h.policy("LimitPolicy", "slow", 7, "web")
	h.eventually(edited)
	third.idle()
	h.must(edited())
}

// TestListsThatFail: while the API server answers lists with errors nothing goes from spokes that is not certain to be gone, from the start and later.
func TestListsThatFail(t *testing.T) {
	for _, code := range []int{http.StatusInternalServerError, http.StatusTooManyRequests} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			h := newHubWorld(t, 1)
			h.gateway("web", "edge", "all")
			h.policy("LimitPolicy", "slow", 5, "web")
			h.policy("LimitPolicy", "fast", 5, "web")
			h.agents()
			all := []string{"Namespace/" + h.id, "Gateway/web", "LimitPolicy/slow", "LimitPolicy/fast"}
			fails := newLine()
			fails.matches = func(r *http.Request) bool {
				return r.Method == http.MethodGet && strings.Contains(r.URL.Path, h.group+"/v1/limitpolicies")
			}
			fails.answer = code
			h.options = fails.through("test")
			r := h.start()
			asked := func(name string) {
				h.eventually(func() error {
					if why := h.condition("GatewayClass", h.className("edge"), "Accepted"); why == "" {
						return fmt.Errorf("the class says nothing of %s", name)
					}
					return nil
				})
			}
			asked("its parameters")
			if have := h.carried(); len(have) > 0 {
				t.Errorf("works carry %v", sorted(have))
			}
			fails.set(func() { fails.answer = 0 })
			h.expect(1, all...)
			r.idle()

			r.stop() // the next one does not get its first lists, and knows works that nothing asks for, as far as it knows
			fails.set(func() { fails.answer = code })
			h.remove("LimitPolicy", "fast")
			writes := h.start()
			writes.idle("limitpolicies")
			if writes.metric("flowkeep_policy_sync_decision_seconds") == 0 {
				t.Error("it has not decided on any bundle")
			}
			h.expect(1, all...)
			if n := writes.metric("flowkeep_policy_sync_work_writes_total"); n != 0 {
				t.Errorf("%v writes", n)
			}
			fails.set(func() { fails.answer = 0 })
			h.expect(1, all[:3]...)
			writes.idle()
		})
	}
}

// TestDefinitionsThatAreNotThere: a hub gets the kinds that policy sync needs after its start, loses them, and has them again.
func TestDefinitionsThatAreNotThere(t *testing.T) {
	if why := apitest.Missing(); why != "" {
		t.Skip(why)
	}
	s, err := apitest.Start("admin,admin,1,system:masters\npolicy-sync,policy-sync,2\n")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	cfg := &rest.Config{Host: s.URL, BearerToken: "admin", QPS: 1000, Burst: 2000, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	h := newBareWorld(t, cfg)
	roles, err := objectsOf(rolesFile)
	h.must(err)
	for _, o := range roles {
		h.must(prepare(h.Context(), h.hub, o))
	}
	r := h.start()
	defer r.stop() // before the API server
	lacks := func(what string) {
		t.Helper()
		h.eventually(func() error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if !strings.Contains(r.reason, what) {
				return fmt.Errorf("it says %q, not %q", r.reason, what)
			}
			return nil
		})
	}
	lacks("gatewayclasses.gateway.networking.k8s.io")
	h.must(prepareHub(cfg))
	h.furnish(1)
	h.gateway("web", "edge", "all")
	h.policy("LimitPolicy", "slow", 5, "web")
	h.agents()
	all := []string{"Namespace/" + h.id, "Gateway/web", "LimitPolicy/slow"}
	h.expect(1, all...)
	r.idle()
	for _, in := range []*input{clusters, decisions, placements, gateways, classes} {
		h.remove("CustomResourceDefinition", in.resource.GroupResource().String()) // and with it all objects of the kind
		lacks(in.resource.GroupResource().String())
		h.expect(1, all...)
	}
	h.must(prepareHub(cfg))
	h.furnish(1)
	h.gateway("web", "edge", "all")
	r.idle()
	h.expect(1, all...)
	h.remove("LimitPolicy", "slow")
	h.expect(1, all[:2]...)
}
