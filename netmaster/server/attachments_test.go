package server

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/query"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// attachedElsewhere returns the shop with a running db.
func attachedElsewhere(t *testing.T) []runtime.Object {
	objects := shop(t)
	for _, o := range objects {
		if p, ok := o.(*corev1.Pod); ok && p.Name == "db" {
			p.Status.Conditions = sandbox(corev1.ConditionTrue)
		}
	}
	return objects
}

func db() *wire.Announcement {
	address := netip.MustParseAddr("10.0.1.1")
	return &wire.Announcement{Namespace: "ns", Name: "db", UID: "uid-db", Addresses: []netip.Addr{address}}
}

// problem returns a condition: netctl status has a problem with this text.
func (m *master) problem(text string) func() bool {
	return func() bool {
		return slices.ContainsFunc(m.status().Problems, func(p string) bool { return strings.Contains(p, text) })
	}
}

// A running pod that its node does not announce makes its policy not in force, until it is announced.
func TestPodNotAttached(t *testing.T) {
	w := newWorld(t, attachedElsewhere(t)...)
	a := new(asking)
	m := w.start(func(c *Config) { c.Enforcement, c.AttachmentGrace = a, time.Nanosecond })
	n1 := held(m, "node1")
	until(t, "the condition", a.is("False PodsNotEnforced, generation 0 copy \"\", 0 of 1: it is not enforced for "+
		"pods that are not wired by Flowkeep, on node1 (ns/db): "))
	until(t, "the metric", func() bool { return m.metric("netmaster_pods_not_enforced") == 1 })
	until(t, "the problem", m.problem("ns/db on node1 is not wired by Flowkeep"))
	if !w.logged("a running pod is not attached by Flowkeep") {
		t.Error("it was not logged")
	}
	got, err := m.await(inspect.WaitFor{Most: 100 * time.Millisecond})
	if err != nil || got.Done || states(got.Nodes) != "node1 partial " ||
		!strings.Contains(got.Nodes[0].Reason, "ns/db is not wired") {
		t.Errorf("%+v, %v", got, err)
	}
	n1.say(announce(db()))
	until(t, "it is in force", a.is("True InForce"))
	until(t, "the metric is 0", func() bool { return m.metric("netmaster_pods_not_enforced") == 0 })
	if m.problem("is not wired by Flowkeep")() {
		t.Error("the problem stays")
	}
}

// A new leader awaits each node's announcements: in the meantime the policy is neither in force nor not in force.
func TestPodNotAttached_TakeOver(t *testing.T) {
	w := newWorld(t, attachedElsewhere(t)...)
	e := &election{terms: make(chan *played)}
	m := w.start(func(c *Config) { c.Election, c.AttachmentGrace = e, time.Hour })
	first := e.begin(1)
	until(t, "it leads", m.leads(1))
	n1 := held(m, "node1")
	defer n1.end()
	pending := func() bool {
		got, err := m.await(inspect.WaitFor{Most: time.Millisecond})
		return err == nil && states(got.Nodes) == "node1 pending " && strings.Contains(got.Nodes[0].Reason, "ns/db")
	}
	until(t, "the announcement is awaited", pending)
	if err := first.end(); err != nil {
		t.Fatal(err)
	}
	until(t, "it is a standby", func() bool { return m.metric("netmaster_leads") == 0 })
	second := e.begin(2)
	until(t, "it leads again", m.leads(2))
	n1.comeBack(m)
	until(t, "the announcement is awaited again", pending)
	n1.say(announce(db()))
	until(t, "it is in force", func() bool {
		got, err := m.await(inspect.WaitFor{Most: time.Second})
		return err == nil && got.Done
	})
	if got := m.metric("netmaster_pods_not_enforced"); got != 0 {
		t.Errorf("%v pods are not enforced before the grace period ends", got)
	}
	if err := second.end(); err != nil {
		t.Fatal(err)
	}
}

// A fence does not start the grace period again: node1 is away afterwards, so that it could not end.
func TestPodNotAttached_Fenced(t *testing.T) {
	w := newWorld(t, attachedElsewhere(t)...)
	e := &election{terms: make(chan *played)}
	m := w.start(func(c *Config) { c.Election, c.AttachmentGrace = e, time.Nanosecond })
	term := e.begin(1)
	until(t, "it leads", m.leads(1))
	n1 := held(m, "node1")
	notEnforced := func(want float64) func() bool {
		return func() bool { return m.metric("netmaster_pods_not_enforced") == want }
	}
	until(t, "it is not attached", notEnforced(1))
	term.fence(true)
	until(t, "it is fenced", func() bool { return w.logged("fenced: cannot confirm the Lease") })
	until(t, "it is not known", notEnforced(0))
	n1.end()
	term.fence(false)
	until(t, "it is not attached still", notEnforced(1))
	if err := term.end(); err != nil {
		t.Fatal(err)
	}
}

// engineOwner runs calls on an engine without an owner goroutine.
type engineOwner struct{ *resolve.Engine }

func (o engineOwner) Do(_ context.Context, f func(*resolve.Engine)) error {
	f(o.Engine)
	return nil
}

// Responses from the cache follow the set of pods that are not attached, which changes without a change of the engine.
func TestPodNotAttached_CachedAnswers(t *testing.T) {
	s := newServer(Config{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	s.feed = feed.NewServer(feed.Config{})
	pod := &policy.Endpoint{Namespace: "ns", Name: "db", UID: "u", Node: "node1", Addresses: db().Addresses}
	owner := engineOwner{resolve.New(1)}
	owner.Apply(resolve.Batch{Namespaces: []policy.Namespace{{Name: "ns"}}, Endpoints: []*policy.Endpoint{pod}})
	answers := query.NewServer(query.Config{
		Owner:      owner,
		Cache:      labelcache.New(labelcache.Config{}),
		Labels:     s.counted,
		Unattached: s.unattached.Load,
	})
	question := matrixAt(1)
	source := func(want string, notEnforced bool) {
		t.Helper()
		a, err := answers.Answer(t.Context(), &question)
		if err != nil {
			t.Fatal(err)
		}
		if a.Cached == nil || a.Cached.Source != want {
			t.Errorf("the response is from %+v, want %s", a.Cached, want)
		}
		if got := strings.Contains(string(a.Body), `"notEnforced":["ns/db"]`); got != notEnforced {
			t.Errorf("the matrix is outdated: %s", a.Body)
		}
	}
	unannounced := attachment.Pod{UnannouncedPod: resolve.UnannouncedPod{Endpoint: pod, Selected: true}, Overdue: true}
	for _, step := range []struct {
		pods        []attachment.Pod
		notEnforced bool
	}{{nil, false}, {[]attachment.Pod{unannounced}, true}, {nil, false}} {
		s.setUnattached(attachment.NewSet(step.pods))
		source("engine", step.notEnforced)
		s.setUnattached(attachment.NewSet(slices.Clone(step.pods))) // a look that finds the same
		source("in-process", step.notEnforced)
	}
}

func TestAttachmentPause(t *testing.T) {
	for spent, want := range map[time.Duration]time.Duration{
		0:                      time.Second,
		100 * time.Millisecond: 2 * time.Second,
		time.Minute:            5 * time.Second,
	} {
		if got := attachmentPause(spent); got != want {
			t.Errorf("after %v: %v, want %v", spent, got, want)
		}
	}
}
