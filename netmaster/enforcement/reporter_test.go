package enforcement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// cluster is a real engine and the real feed's watches, nodes that say what the test wants, and an API server that keeps objects.
type cluster struct {
	*testing.T
	feed     *feed.Server
	reg      *prometheus.Registry
	reporter *Reporter
	log      strings.Builder
	open     int // watches; the reporter's own

	mu      sync.Mutex
	engine  *resolve.Engine
	changes uint64
	reads   []time.Duration   // how long the engine was asked, each time
	acked   map[string]uint64 // by node: up to which revision it has all; absent: it is away
	since   map[string]uint64 // by policy: the revision of its last edit
	errs    map[string]error  // what a write of an object fails with
	unheard string
	breaks  bool // to look at nodes panics
	blind   bool // unannounced pods were not looked for yet
	news    *News
	version int
	objects map[string]*v1alpha1.NetworkPolicyEnforcement
	writes  []string // what was written, in order
	onWrite func(*v1alpha1.NetworkPolicyEnforcement)
}

// play runs a test on a clock that stands still while anything can be done.
func play(t *testing.T, f func(c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{T: t, feed: feed.NewServer(feed.Config{}), reg: prometheus.NewRegistry(), engine: resolve.New(0), acked: map[string]uint64{}, since: map[string]uint64{},
			errs: map[string]error{}, objects: map[string]*v1alpha1.NetworkPolicyEnforcement{}}
		c.reporter = New(Config{API: c, Owner: c, Nodes: c, Watch: c.watch, Unsynced: func() string { c.mu.Lock(); defer c.mu.Unlock(); return c.unheard },
			Changes: func() uint64 { c.mu.Lock(); defer c.mu.Unlock(); return c.changes }, Logger: slog.New(slog.NewTextHandler(&c.log, nil)), Registerer: c.reg})
		c.reporter.cfg.Unattached = c.unannounced
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); c.reporter.Run(ctx) }()
		defer func() {
			cancel()
			if <-done; c.open != 0 {
				t.Errorf("%d watches are left open", c.open)
			}
			if objects, answers := c.metric("objects"), c.metric("answers"); objects > 0 || answers > 0 {
				t.Errorf("its metrics tell of %v objects and %v answers when it has ended", objects, answers)
			}
		}()
		synctest.Wait()
		f(c)
	})
}

func (c *cluster) unannounced() *attachment.Set {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blind {
		return nil
	}
	return new(attachment.Set)
}

func (c *cluster) passes(d time.Duration) { time.Sleep(d); synctest.Wait() }

// Do is the engine's owner.
func (c *cluster) Do(ctx context.Context, f func(*resolve.Engine)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	began := time.Now()
	f(c.engine)
	c.reads = append(c.reads, time.Since(began))
	return ctx.Err()
}

// counted is a watch that is known to be open.
type counted struct {
	*feed.Watch
	open *int
}

func (w counted) Close() { w.Watch.Close(); *w.open-- }

func (c *cluster) watch(id string) Watch {
	c.open++
	return counted{c.feed.Watch(id), &c.open}
}

// Standing is of nodes that have all up to a revision.
func (c *cluster) Standing(id string, e *policy.Extent) (out []feed.Standing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.breaks {
		panic("impossible")
	}
	for _, name := range e.Nodes {
		revision, there := c.acked[name]
		out = append(out, feed.Standing{NodeStatus: feed.NodeStatus{Name: name, Connected: there, Version: "x", Realised: revision, Sent: c.engine.Revision()}, Needs: true, Behind: revision < c.since[id]})
	}
	return out
}

// Follow and Write are the API server.
func (c *cluster) Follow(ctx context.Context, n *News) {
	c.mu.Lock()
	c.news = n
	for _, o := range c.objects {
		n.Put(o)
	}
	c.mu.Unlock()
	<-ctx.Done()
}

func (c *cluster) Write(_ context.Context, o *v1alpha1.NetworkPolicyEnforcement) (*v1alpha1.NetworkPolicyEnforcement, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := o.Namespace + "/" + o.Name
	e := enforced(&o.Status)
	c.writes = append(c.writes, fmt.Sprintf("%s %s %s of %d%s", o.Name, e.Status, e.Reason, o.Status.PolicyGeneration, o.Status.Copy))
	now := c.objects[key]
	switch {
	case c.errs[key] != nil:
		return nil, c.errs[key]
	case now == nil:
		return nil, apierrors.NewNotFound(schema.GroupResource{}, o.Name)
	case now.ResourceVersion != o.ResourceVersion:
		return nil, apierrors.NewConflict(schema.GroupResource{}, o.Name, errors.New("another version"))
	}
	if c.onWrite != nil {
		c.onWrite(o)
	}
	return c.store(o.DeepCopy()), nil
}

func (c *cluster) store(o *v1alpha1.NetworkPolicyEnforcement) *v1alpha1.NetworkPolicyEnforcement {
	c.version++
	o.ResourceVersion = strconv.Itoa(c.version)
	c.objects[o.Namespace+"/"+o.Name] = o
	c.news.Put(o)
	return o
}

// ask makes an object that asks for a policy.
func (c *cluster) ask(name, policyName string, generation int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := &v1alpha1.NetworkPolicyEnforcement{}
	if before := c.objects["ns/"+name]; before != nil {
		o = before.DeepCopy()
	}
	o.Namespace, o.Name, o.Generation, o.Spec.Policy = "ns", name, generation, policyName
	c.store(o)
}

func (c *cluster) change(b resolve.Batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var edits []feed.PolicyChange
	for _, p := range b.Policies {
		edits = append(edits, feed.PolicyChange{ID: p.ID()})
	}
	for _, id := range b.DeletedPolicies {
		edits = append(edits, feed.PolicyChange{ID: id})
	}
	changes, _ := c.engine.Apply(b)
	c.feed.Publish(&changes)
	for _, e := range edits {
		c.since[e.ID] = c.engine.Revision()
	}
	c.feed.Follow(edits)
	c.changes++
}

// write puts a policy for the pods of an app; a generation has ports of its own, so that it is another to nodes too.
func (c *cluster) write(name, app string, generation int64, more ...func(*policy.Policy)) {
	p := &policy.Policy{Namespace: "ns", Name: name, UID: "uid-" + name, Generation: generation, IsolatesIngress: true,
		AppliedTo: policy.Selector{Requirements: []policy.Requirement{{Key: "app", Operator: policy.In, Values: []string{app}}}},
		Ingress:   []policy.PolicyRule{{AnyPeer: true, Ports: []policy.PolicyPort{{Protocol: policy.TCP, First: uint16(generation), Last: uint16(generation)}}}}}
	for _, f := range more {
		f(p)
	}
	c.change(resolve.Batch{Policies: []*policy.Policy{p}})
}

func copyOf(hash string) func(*policy.Policy) { return func(p *policy.Policy) { p.Copy = hash } }

func (c *cluster) pod(name, app, node string) {
	c.change(resolve.Batch{Namespaces: []policy.Namespace{{Name: "ns"}}, Endpoints: []*policy.Endpoint{{Namespace: "ns", Name: name, UID: name, Node: node,
		Labels: map[string]string{"app": app}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(len(name)), byte(c.changes)})}}}})
}

// has makes nodes have all that there is now.
func (c *cluster) has(nodes ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range nodes {
		c.acked[n] = c.engine.Revision()
	}
}

func (c *cluster) leaves(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.acked, node)
}

// wrote checks what was written since the last time.
func (c *cluster) wrote(want ...string) {
	c.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.writes, want) {
		c.Errorf("written is %q, and not %q", c.writes, want)
	}
	c.writes = nil
}

func (c *cluster) fails(key string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs[key] = err
}

func (c *cluster) metric(name string) (sum float64) {
	c.Helper()
	families, err := c.reg.Gather()
	if err != nil {
		c.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "flowkeep_netmaster_enforcement_"+name {
			for _, m := range f.GetMetric() {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func (c *cluster) is(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// A policy on two nodes from its first version to its end.
func TestReports(t *testing.T) {
	play(t, func(c *cluster) {
		c.pod("a1", "a", "n1")
		c.pod("a2", "a", "n2")
		c.write("p", "a", 1, copyOf("x"))
		c.has("n1", "n2")
		c.ask("r", "p", 1)
		c.passes(200 * time.Millisecond)
		c.wrote("r True InForce of 1x")
		c.passes(10 * time.Minute)
		c.wrote() // written only when changed

		c.write("p", "a", 2, copyOf("y"))
		c.passes(500 * time.Millisecond)
		c.has("n1", "n2")
		c.passes(500 * time.Millisecond)
		c.wrote("r True InForce of 2y")

		c.write("p", "a", 3, copyOf("z"))
		c.has("n2")
		c.passes(1500 * time.Millisecond)
		c.wrote("r Unknown Pending of 3z")
		c.passes(10 * time.Minute)
		c.wrote()
		c.has("n1")
		c.passes(idleInterval + time.Second)
		c.wrote("r True InForce of 3z")

		c.write("p", "a", 3, copyOf("w")) // as labels do
		c.passes(500 * time.Millisecond)
		c.has("n1", "n2")
		c.passes(500 * time.Millisecond)
		c.wrote("r True InForce of 3w")

		c.write("p", "nobody", 4)
		c.passes(500 * time.Millisecond)
		c.wrote("r True NoPods of 4")

		c.write("p", "a", 4, func(p *policy.Policy) { p.DryRun = true })
		c.passes(500 * time.Millisecond)
		c.wrote("r False DryRun of 4")
		c.has("n1", "n2")
		c.write("p", "a", 4)
		c.passes(1500 * time.Millisecond)
		c.wrote("r Unknown Pending of 4")
		c.has("n1", "n2")
		c.passes(time.Second)
		c.wrote("r True InForce of 4")

		c.change(resolve.Batch{DeletedPolicies: []string{"ns/p"}})
		c.passes(1500 * time.Millisecond)
		c.wrote("r Unknown NoPolicy of 0")
		c.ask("r", "q", 2)
		c.write("q", "a", 9)
		c.has("n1", "n2")
		c.passes(500 * time.Millisecond)
		c.wrote("r True InForce of 9")
		if c.open != 1 {
			t.Errorf("%d watches", c.open)
		}
	})
}

// Restarts of nodes and of netmaster say nothing; an absence that lasts does.
func TestAbsences(t *testing.T) {
	play(t, func(c *cluster) {
		c.pod("a1", "a", "n1")
		c.write("p", "a", 1)
		c.has("n1")
		c.ask("r", "p", 1)
		c.passes(time.Second)
		c.wrote("r True InForce of 1")
		c.leaves("n1")
		c.passes(restartDelay - time.Second)
		c.has("n1")
		c.passes(time.Minute)
		c.wrote()
		c.leaves("n1")
		c.passes(restartDelay + idleInterval + time.Second)
		c.wrote("r Unknown NodesAway of 1")
		if m := enforced(&c.objects["ns/r"].Status).Message; !strings.Contains(m, "n1 (not connected") {
			t.Error(m)
		}
		c.passes(10 * time.Minute)
		c.wrote()
		c.has("n1")
		c.passes(idleInterval + time.Second)
		c.wrote("r True InForce of 1")
	})
}

// After a takeover nodes are away, and then announce their pods. The two reasons share one delay.
func TestAbsences_ReasonChanges(t *testing.T) {
	play(t, func(c *cluster) {
		c.pod("a1", "a", "n1")
		c.write("p", "a", 1)
		c.ask("r", "p", 1)
		c.is(func() {
			o := c.objects["ns/r"].DeepCopy()
			o.Status = *told("False", "PodsNotEnforced", "m", 1, "", 1)
			c.store(o)
		})
		c.passes(8 * time.Second)
		c.is(func() { c.acked["n1"] = 0 }) // connected, and has acknowledged nothing
		c.passes(announceDelay - 10*time.Second)
		c.wrote()
		c.passes(4 * time.Second)
		c.wrote("r Unknown Pending of 1")
	})
}

// Pods on another node need the policy there too.
func TestPodsMove(t *testing.T) {
	play(t, func(c *cluster) {
		c.write("p", "a", 1)
		c.ask("r", "p", 1)
		c.passes(time.Second)
		c.wrote("r True NoPods of 1")
		c.pod("a1", "a", "n1")
		c.passes(restartDelay + 2*idleInterval)
		c.wrote("r Unknown NodesAway of 1")
		c.has("n1")
		c.passes(idleInterval + time.Second)
		c.wrote("r True InForce of 1")
	})
}

// Of what can't be written others' answers are as they would be; it is tried again, and said now and then.
func TestFailedWritesAreRetried(t *testing.T) {
	for _, failure := range []struct {
		name        string
		err         error
		others      time.Duration // until when others' are written
		least, most int           // writes in ten minutes
	}{
		{"an API server in trouble", errors.New("etcd is tired"), settleDelay + failurePause + 2*time.Second, 15, 25},
		{"one that refuses", apierrors.NewForbidden(schema.GroupResource{}, "r", errors.New("etcd is tired")), settleDelay + 2*time.Second, 15, 25},
	} {
		t.Run(failure.name, func(t *testing.T) {
			play(t, func(c *cluster) {
				for i := range 200 {
					c.ask(fmt.Sprintf("s%d", i), "p", 1)
				}
				c.ask("r", "p", 1)
				c.fails("ns/r", failure.err)
				c.passes(failure.others)
				for key, o := range c.objects {
					if s := enforced(&o.Status).Reason; s != v1alpha1.ReasonNoPolicy && key != "ns/r" {
						t.Errorf("%s is %q", key, s)
					}
				}
				c.is(func() { c.writes = nil })
				c.passes(10 * time.Minute)
				if n := len(c.writes); n < failure.least || n > failure.most {
					t.Errorf("%d writes in ten minutes", n)
				}
				if n := strings.Count(c.log.String(), "etcd is tired"); n < 2 || n > 11 {
					t.Errorf("it was said %d times:\n%s", n, c.log.String())
				}
				c.fails("ns/r", nil)
				c.passes(rejectedPause + time.Second)
				if s := enforced(&c.objects["ns/r"].Status).Reason; s != v1alpha1.ReasonNoPolicy {
					t.Errorf("then it is %q", s)
				}
			})
		})
	}
}

// While all can't be written, few writes are tried.
func TestWrite_APIServerUnavailable(t *testing.T) {
	play(t, func(c *cluster) {
		for i := range 200 {
			c.ask(fmt.Sprintf("r%d", i), "p", 1)
			c.fails(fmt.Sprintf("ns/r%d", i), errors.New("etcd is tired"))
		}
		c.passes(time.Minute)
		if n := len(c.writes); n < 5 || n > 13 {
			t.Errorf("%d writes in a minute", n)
		}
	})
}

// Policies that are edited all the time take no turns from others.
func TestReporterStarvesNoObject(t *testing.T) {
	play(t, func(c *cluster) {
		c.pod("a1", "a", "n1")
		c.pod("b1", "b", "n2")
		c.write("q", "b", 1)
		c.has("n1", "n2")
		c.ask("q", "q", 1)
		for i := range 100 {
			c.ask(fmt.Sprintf("r%d", i), fmt.Sprintf("p%d", i), 1)
		}
		c.passes(3 * time.Second)
		c.is(func() { c.writes = nil })
		c.leaves("n2")
		for n := range 250 {
			for i := range 100 {
				c.write(fmt.Sprintf("p%d", i), "a", int64(n+1))
			}
			c.has("n1")
			c.passes(tickInterval)
		}
		if !slices.Contains(c.writes, "q Unknown NodesAway of 1") {
			t.Error("it was not said that a node is away")
		}
	})
}

// An object that changed unheard is not written over.
func TestWriteConflictIsRetried(t *testing.T) {
	play(t, func(c *cluster) {
		c.ask("r", "p", 1)
		c.is(func() {
			o := c.objects["ns/r"].DeepCopy()
			o.ResourceVersion = "1000"
			c.objects["ns/r"] = o
		})
		c.passes(10 * time.Second)
		if n := len(c.writes); n < 3 || n > 12 || enforced(&c.objects["ns/r"].Status).Status != "" {
			t.Errorf("%d writes: %q", n, c.writes)
		}
		c.is(func() { c.news.Put(c.objects["ns/r"]) })
		c.passes(2 * time.Second)
		if enforced(&c.objects["ns/r"].Status).Reason != v1alpha1.ReasonNoPolicy {
			t.Errorf("%q", c.writes)
		}
		if c.log.Len() > 0 {
			t.Error(c.log.String())
		}
	})
}

func TestNoStatusBeforeSync(t *testing.T) {
	play(t, func(c *cluster) {
		c.is(func() { c.unheard, c.blind = "netmaster has just begun", true })
		c.ask("r", "p", 1)
		c.passes(time.Minute)
		c.wrote()
		c.is(func() { c.unheard = "" })
		c.passes(time.Minute)
		c.wrote()
		c.is(func() { c.blind = false })
		c.passes(2 * time.Second)
		c.wrote("r Unknown NoPolicy of 0")
	})
}

// Objects that go, one by one or with their kind, are forgotten.
func TestObjectsGo(t *testing.T) {
	play(t, func(c *cluster) {
		for i := range 10 {
			c.ask(fmt.Sprintf("r%d", i), "p", 1)
		}
		c.passes(2 * time.Second)
		if n := c.metric("objects"); n != 10 {
			t.Errorf("%v objects", n)
		}
		c.is(func() { delete(c.objects, "ns/r3"); c.news.Gone("ns/r3"); c.news.Gone("ns/never") })
		c.passes(time.Second)
		if n := c.metric("objects"); n != 9 {
			t.Errorf("%v objects after one went", n)
		}
		c.is(func() { c.writes = nil; clear(c.objects); c.news.Clear() })
		c.passes(time.Second)
		if n := c.metric("objects"); n != 0 {
			t.Errorf("%v objects after all went", n)
		}
		c.passes(time.Hour)
		c.wrote()
		c.ask("r3", "p", 1)
		c.passes(2 * time.Second)
		c.wrote("r3 Unknown NoPolicy of 0")
	})
}

// Something impossible ends neither reports nor the process.
func TestReporterRestartsAfterPanic(t *testing.T) {
	play(t, func(c *cluster) {
		c.is(func() { c.breaks = true })
		c.ask("r", "p", 1)
		c.passes(recoveryDelay / 2)
		if !strings.Contains(c.log.String(), "panicked and restarts") || !strings.Contains(c.log.String(), "impossible") {
			t.Errorf("said was %s", c.log.String())
		}
		c.wrote()
		c.is(func() { c.breaks = false })
		c.passes(recoveryDelay)
		c.wrote("r Unknown NoPolicy of 0")
	})
}

// The engine and the feed are asked a little at a time, also where thousands ask.
func TestManyObjects(t *testing.T) {
	play(t, func(c *cluster) {
		const many = 3000
		c.pod("a1", "a", "n1")
		for i := range many {
			c.write(fmt.Sprintf("p%d", i), "a", 1)
			c.ask(fmt.Sprintf("r%d", i), fmt.Sprintf("p%d", i), 1)
		}
		c.has("n1")
		c.is(func() { c.reads = nil })
		c.passes(10 * time.Second)
		if n := len(c.writes); n != many {
			t.Errorf("%d writes", n)
		}
		c.is(func() { c.writes = nil })
		c.write("p7", "a", 2)
		c.has("n1")
		c.passes(time.Second)
		c.wrote("r7 True InForce of 2")
		if n := len(c.reads); n > 120 {
			t.Errorf("the engine was asked %d times within 11 s", n)
		}
		for range 50 { // others' edits
			c.pod("b1", "b", "n1")
			c.passes(100 * time.Millisecond)
		}
		c.wrote()
		c.leaves("n1")
		c.passes(30 * time.Second)
		if n := len(c.writes); n != many {
			t.Errorf("%d writes after the node went", n)
		}
	})
}

// Whatever happens in whatever order: True is only ever written of a version that all nodes with pods of it have, and when nothing happens any
// more, what is written is so.
func TestEnforcedMatchesNodes(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			play(t, func(c *cluster) { c.history(rand.New(rand.NewPCG(seed, 7))) })
		})
	}
}

func (c *cluster) history(h *rand.Rand) {
	nodes := []string{"n1", "n2", "n3"}
	generations := map[string]int64{}
	edited := map[string]map[int64]uint64{"p": {}, "q": {}} // the revision that a generation came with
	c.onWrite = func(o *v1alpha1.NetworkPolicyEnforcement) {
		e := enforced(&o.Status)
		if e.Status != metav1.ConditionTrue {
			return
		}
		id := "ns/" + o.Spec.Policy
		for _, n := range c.engine.Extent(id).Nodes {
			if since := edited[o.Spec.Policy][o.Status.PolicyGeneration]; c.acked[n] < since {
				c.Errorf("%s: generation %d, of revision %d, is said to be in force, and %s has acknowledged %d", id, o.Status.PolicyGeneration, since, n, c.acked[n])
			}
		}
	}
	c.ask("r", "p", 1)
	c.ask("s", "q", 1)
	for range 200 {
		name, node := []string{"p", "q"}[h.IntN(2)], nodes[h.IntN(3)]
		switch h.IntN(8) {
		case 0, 1:
			generations[name]++
			c.write(name, []string{"a", "b"}[h.IntN(2)], generations[name])
			c.is(func() { edited[name][generations[name]] = c.engine.Revision() })
		case 2:
			if h.IntN(4) == 0 {
				c.change(resolve.Batch{DeletedPolicies: []string{"ns/" + name}})
			}
		case 3, 4:
			c.has(node)
		case 5:
			c.is(func() { // it is back with less than it could have
				if _, there := c.acked[node]; !there {
					c.acked[node] = c.engine.Revision() / 2
				}
			})
		case 6:
			c.leaves(node)
		case 7:
			c.ask("r", []string{"p", "q"}[h.IntN(2)], int64(100+h.IntN(100)))
		}
		c.passes(time.Duration(h.IntN(3000)) * time.Millisecond)
		if h.IntN(3) == 0 { // pods come between looks: the extent that the check above takes is then as it was at the last of them
			c.pod("pod-"+node, []string{"a", "b"}[h.IntN(2)], node)
			c.passes(idleInterval + time.Second)
		}
	}
	c.passes(2 * time.Minute)
	for key, o := range c.objects {
		id := "ns/" + o.Spec.Policy
		p := c.engine.PolicyObject(id)
		want := metav1.ConditionTrue
		if p == nil || slices.ContainsFunc(c.engine.Extent(id).Nodes, func(n string) bool { _, there := c.acked[n]; return !there || c.acked[n] < c.since[id] }) {
			want = metav1.ConditionUnknown
		}
		if e := enforced(&o.Status); e.Status != want || p != nil && o.Status.PolicyGeneration != p.Generation || e.ObservedGeneration != o.Generation {
			c.Errorf("%s is %+v, want %s of %+v", key, o.Status, want, p)
		}
	}
}
