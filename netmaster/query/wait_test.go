package query

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// A wait for a policy that selects an unannounced pod ends only after a look that began after the wait. No node needs
// the policy, as the pod has no effective address.
func TestWait_UnannouncedPod(t *testing.T) {
	engine := resolve.New(1)
	address := netip.MustParseAddr("10.0.0.1")
	pod := &policy.Endpoint{Namespace: "a", Name: "p", UID: "u", Node: "n1", Addresses: []netip.Addr{address}}
	moved := *pod
	moved.Addresses = []netip.Addr{address.Next()}
	engine.Apply(resolve.Batch{
		Namespaces: []policy.Namespace{{Name: "a"}},
		Policies:   []*policy.Policy{{Namespace: "a", Name: "p", UID: "u", IsolatesIngress: true}},
		Endpoints:  []*policy.Endpoint{pod},
		Announced:  []resolve.Announcement{{Node: "n1", Namespace: "a", Name: "p", UID: "u", Addresses: pod.Addresses}},
	})
	engine.Apply(resolve.Batch{NodeAnnounced: []resolve.NodeAnnouncements{{Node: "n1"}}})
	engine.Apply(resolve.Batch{Endpoints: []*policy.Endpoint{&moved}})
	pods, _ := engine.Unannounced(0, 9)
	if len(pods) != 1 {
		t.Fatalf("unannounced: %v", pods)
	}
	set := func(pods []resolve.UnannouncedPod, age time.Duration) *attachment.Set {
		always := func(string) bool { return true }
		return attachment.NewTracker(time.Hour).Update(slices.Clone(pods), always, time.Now().Add(-age))
	}
	const notLooked = "netmaster has not looked yet"
	for name, c := range map[string]struct {
		set    *attachment.Set
		done   bool
		reason string
	}{
		"never looked":        {nil, false, notLooked},
		"an older look":       {set(nil, time.Hour), false, notLooked},
		"an older, with it":   {set(pods, time.Hour), false, ""},
		"a newer look":        {set(pods, -time.Hour), false, ""},
		"announced meanwhile": {set(nil, -time.Hour), true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewServer(Config{
				Owner:      &owner{engine: engine},
				Nodes:      &nodes{},
				Unattached: func() *attachment.Set { return c.set },
			})
			q := &inspect.Question{ID: "a/p", Wait: &inspect.WaitFor{UID: "u", Most: time.Millisecond}}
			v, err := s.policies.wait(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			got := v.(*inspect.Wait)
			if got.Done != c.done || !strings.HasPrefix(got.Reason, c.reason) || (got.Reason == "") != (c.reason == "") {
				t.Errorf("%+v", got)
			}
		})
	}
}

// A policy without unannounced pods is in force at once, however old the last look is.
func TestWait_OlderLook(t *testing.T) {
	engine := resolve.New(1)
	engine.Apply(resolve.Batch{Policies: []*policy.Policy{{Namespace: "a", Name: "p", UID: "u", IsolatesIngress: true}}})
	s := NewServer(Config{Owner: &owner{engine: engine}, Nodes: &nodes{}})
	q := &inspect.Question{ID: "a/p", Wait: &inspect.WaitFor{UID: "u", Most: time.Millisecond}}
	if v, err := s.policies.wait(t.Context(), q); err != nil || !v.(*inspect.Wait).Done {
		t.Errorf("%+v, %v", v, err)
	}
}
