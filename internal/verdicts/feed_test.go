package verdicts

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apifeed "github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/wire"
	masterfeed "github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	nodefeed "github.com/flowkeep/flowkeep/netplugin/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// master is an engine and a feed server over real mutual TLS on loopback.
type master struct {
	t      *testing.T
	dir    string
	mu     sync.Mutex
	engine *resolve.Engine
	feed   *masterfeed.Server
	grpc   *grpc.Server
	door   *door
	addr   string
	// events are told before they are resolved; config changes what start makes.
	events func(masterfeed.Event)
	config func(*masterfeed.Config)
}

func files(dir, name string) mtls.Files {
	return mtls.Files{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func startMaster(t *testing.T, change ...func(*master)) *master {
	t.Helper()
	m := &master{t: t, dir: t.TempDir(), engine: resolve.New(0)}
	for _, f := range change {
		f(m)
	}
	must(t, mtls.Init(m.dir))
	must(t, mtls.IssueServer(m.dir, []string{"127.0.0.1"}))
	for _, n := range policytest.Nodes {
		must(t, mtls.IssueNode(m.dir, n))
	}
	m.door = newDoor(t)
	m.start()
	t.Cleanup(func() { m.grpc.Stop() })
	return m
}

func (m *master) start() {
	m.t.Helper()
	conf, err := files(m.dir, "server").ServerConfig()
	must(m.t, err)
	l := m.door.open()
	m.addr = l.Addr().String()
	cfg := masterfeed.Config{Logger: slog.New(slog.DiscardHandler), Version: "test", Events: m.event}
	if m.config != nil {
		m.config(&cfg)
	}
	m.feed = masterfeed.NewServer(cfg)
	// As netmaster has it: by default a server ends a connection on which netplugin's pings come for half a minute.
	pings := keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}
	m.grpc = grpc.NewServer(grpc.Creds(credentials.NewTLS(conf)), grpc.MaxRecvMsgSize(apifeed.MaxNodeMessage),
		grpc.KeepaliveEnforcementPolicy(pings))
	apifeed.RegisterFeedServer(m.grpc, m.feed)
	g := m.grpc
	go func() { _ = g.Serve(l) }()
}

func (m *master) event(_ context.Context, ev masterfeed.Event) error {
	if m.events != nil {
		m.events(ev)
	}
	var b resolve.Batch
	switch {
	case ev.Connected != nil:
		n := resolve.NodeAnnouncements{Node: ev.Node}
		for _, a := range ev.Connected.Announced {
			n.All = append(n.All, resolve.Announcement{Node: ev.Node, Namespace: a.Namespace, Name: a.Name, UID: a.UID, Addresses: a.Addresses})
		}
		b.NodeAnnounced = append(b.NodeAnnounced, n)
	case ev.Announce != nil:
		a := ev.Announce
		b.Announced = []resolve.Announcement{{Node: ev.Node, Namespace: a.Namespace, Name: a.Name, UID: a.UID, Addresses: a.Addresses}}
	default:
		return nil
	}
	m.apply(b)
	return nil
}

func (m *master) apply(b resolve.Batch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ch, _ := m.engine.Apply(b)
	m.feed.Publish(&ch)
}

// restart replaces the server by one that starts from the world alone, as from the policy DB.
func (m *master) restart(b resolve.Batch, revision uint64) {
	m.t.Helper()
	m.grpc.Stop()
	m.mu.Lock()
	m.engine = resolve.New(revision)
	m.mu.Unlock()
	m.start()
	m.apply(b)
	m.feed.Ready()
}

// holder is a node that only remembers what it was sent.
type holder struct {
	streams, told atomic.Int64 // that are being answered; answers
	mu            sync.Mutex
	revision      uint64
	epoch         uint64
	rules         map[policy.Key]*policy.Rule
	members       map[wire.Held]map[netip.Addr]struct{} // by kind and key
	settled       []string
	announced     []wire.Announcement
	received      int // rules and groups that came
	hellos        int // that began
	wrong         []wire.RuleError
	changed       chan struct{}
}

func newHolder() *holder {
	return &holder{rules: map[policy.Key]*policy.Rule{}, members: map[wire.Held]map[netip.Addr]struct{}{}, changed: make(chan struct{}, 1)}
}

func (h *holder) State(_ context.Context, begin func()) (nodefeed.Holding, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	begin()
	h.hellos++
	var held []wire.Held
	for k, r := range h.rules {
		held = append(held, wire.Held{Key: k, Hash: r.Hash()})
	}
	for id, set := range h.members {
		id.Hash = policy.MembersHash(func(yield func(netip.Addr) bool) {
			for a := range set {
				if !yield(a) {
					return
				}
			}
		})
		held = append(held, id)
	}
	return nodefeed.Holding{Revision: h.revision, Epoch: h.epoch, Held: held, Announced: h.announced}, nil
}

func (h *holder) Obey(_ context.Context, epoch uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.epoch = max(h.epoch, epoch)
	return nil
}

func (h *holder) Update(
	_ context.Context, u policy.NodeUpdate, led func() error, acknowledge func([]wire.RuleError),
) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := led(); err != nil {
		return err
	}
	h.revision = u.Revision
	h.received += len(u.Rules) + len(u.Groups)
	for _, r := range u.Rules {
		if r.Rule == nil {
			delete(h.rules, r.Key)
		} else {
			h.rules[r.Key] = r.Rule
		}
	}
	for _, g := range u.Groups {
		id := wire.Held{Group: g.Kind, Key: g.Key}
		if g.Gone {
			delete(h.members, id)
			continue
		}
		if h.members[id] == nil || g.Replace {
			h.members[id] = map[netip.Addr]struct{}{}
		}
		for _, a := range g.Removed {
			delete(h.members[id], a)
		}
		for _, a := range g.Added {
			h.members[id][a] = struct{}{}
		}
		for _, k := range g.Alike {
			h.members[wire.Held{Group: g.Kind, Key: k}] = maps.Clone(h.members[id])
		}
	}
	for _, s := range u.Settled {
		h.settled = append(h.settled, s.ID)
	}
	select {
	case h.changed <- struct{}{}:
	default:
	}
	acknowledge(h.wrong)
	return nil
}

func (h *holder) Nodes(context.Context, []policy.NodeInfo) error { return nil }

func (h *holder) Query(_ context.Context, q []byte) ([]byte, error) {
	return []byte(strings.Repeat(string(q), 700000)), nil
}

// Stream answers with the question again and again, for as long as somebody listens; "few" three times.
func (h *holder) Stream(ctx context.Context, q []byte, send func([]byte) error) error {
	defer h.streams.Add(-1)
	h.streams.Add(1)
	for i := 0; string(q) != "few" || i < 3; i++ {
		if string(q) == "wrong" && i == 3 {
			return errors.New("something is wrong")
		}
		if err := send(q); err != nil {
			return err
		}
		h.told.Add(1)
	}
	return ctx.Err()
}

func (m *master) client(node, certificate string, h *holder) *nodefeed.Client {
	return nodefeed.New(nodefeed.Config{Servers: []string{m.addr}, TLS: func() (*tls.Config, error) { return files(m.dir, certificate).ClientConfig() },
		Node: node, Version: "test", Logger: slog.New(slog.DiscardHandler), Handler: h})
}

// join runs a client until the returned function is called.
func (m *master) join(node, certificate string, h *holder) (stop func()) {
	return run(m.client(node, certificate, h))
}

func run(c *nodefeed.Client) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	return func() { cancel(); <-done }
}

// until waits for a condition on the holder, checked at each update.
func (h *holder) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(3 * time.Minute)
	for {
		h.mu.Lock()
		good := ok()
		h.mu.Unlock()
		if good {
			return
		}
		select {
		case <-h.changed:
		case <-time.After(20 * time.Millisecond):
		case <-limit:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// A node may begin anew: its next hello says all, and what it wanted before there was a stream is of no consequence.
func TestStream_Restarts(t *testing.T) {
	hellos := make(chan struct{}, 10)
	m := startMaster(t, func(m *master) {
		m.events = func(ev masterfeed.Event) {
			if ev.Connected != nil {
				hellos <- struct{}{}
			}
		}
	})
	m.feed.Ready()
	h := newHolder()
	c := m.client(policytest.Nodes[0], policytest.Nodes[0], h)
	c.Anew("nobody listens")
	defer run(c)()
	for range 3 {
		<-hellos
		h.until(t, "netmaster's answer", c.Connected)
		c.Anew("a test")
	}
	<-hellos
	h.until(t, "netmaster's answer", c.Connected)
	if len(hellos) > 0 {
		t.Errorf("%d more hellos", len(hellos))
	}
}

// wanted is what a fresh engine says the node should hold.
func wanted(b resolve.Batch, node string) *holder {
	h := newHolder()
	ch, _ := resolve.New(0).Apply(b)
	_ = h.Update(context.Background(), nodeUpdate(ch, node), func() error { return nil }, func([]wire.RuleError) {})
	maps.DeleteFunc(h.members, func(id wire.Held, set map[netip.Addr]struct{}) bool {
		return id.Group == policy.PeerGroup && len(set) == 0 // no node is sent an empty one
	})
	return h
}

func (h *holder) same(o *holder) bool {
	return reflect.DeepEqual(h.rules, o.rules) && reflect.DeepEqual(h.members, o.members)
}

func worldBatch(w *policy.World) resolve.Batch {
	return resolve.Batch{Namespaces: w.Namespaces, Endpoints: w.Endpoints, Policies: w.Policies}
}

// TestNodesHoldTheirSpanThroughAnything: random changes, with disconnections and restarts of netmaster between them; at the
// end a node holds exactly its span, and a restart that changes nothing sends nothing.
func TestNodesHoldTheirSpanThroughAnything(t *testing.T) {
	m := startMaster(t)
	g := policytest.New(7)
	w := g.World(12, 5)
	m.apply(worldBatch(w))
	m.feed.Ready()
	node := policytest.Nodes[0]
	h := newHolder()
	stop := m.join(node, node, h)
	for i := range 40 {
		e, p := g.Endpoint(g.IntN(12)), g.Policy(g.IntN(5))
		for j := range w.Endpoints {
			if w.Endpoints[j].ID() == e.ID() {
				w.Endpoints[j] = e
			}
		}
		for j := range w.Policies {
			if w.Policies[j].ID() == p.ID() {
				w.Policies[j] = p
			}
		}
		m.apply(resolve.Batch{Endpoints: []*policy.Endpoint{e}, Policies: []*policy.Policy{p}})
		switch i % 10 {
		case 3:
			stop()
			stop = m.join(node, node, h)
		case 7:
			m.restart(worldBatch(w), 1000*uint64(i))
		}
	}
	want := wanted(worldBatch(w), node)
	h.until(t, "the node's span", func() bool { return h.same(want) })
	h.mu.Lock()
	before := h.received
	h.mu.Unlock()
	m.restart(worldBatch(w), 1_000_000)
	h.until(t, "the restarted netmaster's revision", func() bool { return h.revision > 1_000_000 })
	stop()
	if h.received != before || !h.same(want) {
		t.Errorf("a restart that changed nothing sent %d rules and groups", h.received-before)
	}
}

// TestAnnouncedPodsSettle: a node's announcement is answered when the pod is resolved, whichever comes first.
func TestAnnouncedPodsSettle(t *testing.T) {
	m := startMaster(t)
	m.feed.Ready()
	node := policytest.Nodes[0]
	h := newHolder()
	h.announced = []wire.Announcement{{Namespace: "ns", Name: "early", UID: "u1", Addresses: []netip.Addr{policytest.Address(1, false)}}}
	stop := m.join(node, node, h)
	defer stop()
	h.until(t, "the connection", func() bool { return len(m.feed.Nodes()) == 1 && m.feed.Nodes()[0].Connected })
	m.apply(resolve.Batch{Namespaces: []policy.Namespace{{Name: "ns"}}, Endpoints: []*policy.Endpoint{{Namespace: "ns", Name: "early", UID: "other", Node: node}}})
	m.apply(resolve.Batch{Endpoints: []*policy.Endpoint{{Namespace: "ns", Name: "early", UID: "u1", Node: node}}})
	h.until(t, "the announced pod to settle", func() bool { return len(h.settled) == 1 && h.settled[0] == "ns/early" })
}

func TestANodeCannotClaimAnothersName(t *testing.T) {
	m := startMaster(t)
	m.apply(worldBatch(policytest.New(1).World(12, 5)))
	m.feed.Ready()
	h := newHolder()
	c := m.client(policytest.Nodes[0], policytest.Nodes[1], h)
	stop := run(c)
	h.until(t, "the refusal", func() bool { return strings.Contains(c.Problem(), "claims to be node") })
	stop()
	if n := len(h.rules) + len(h.members); n != 0 || h.revision != 0 {
		t.Errorf("a node with another's certificate was sent %d rules and groups", n)
	}
	for _, n := range m.feed.Nodes() {
		if n.Connected {
			t.Errorf("%s counts as connected", n.Name)
		}
	}
}

// TestNothingIsSentBeforeTheStateIsComplete: an empty state must not wipe a node.
func TestNothingIsSentBeforeTheStateIsComplete(t *testing.T) {
	m := startMaster(t)
	node := policytest.Nodes[0]
	h := newHolder()
	w := policytest.New(3).World(12, 5)
	h.rules = wanted(worldBatch(w), node).rules
	had := len(h.rules)
	stop := m.join(node, node, h)
	defer stop()
	h.until(t, "a hello", func() bool { return h.hellos > 0 })
	time.Sleep(200 * time.Millisecond)
	if len(h.rules) != had || h.received != 0 {
		t.Fatal("a netmaster that knows nothing yet took rules away")
	}
	m.apply(worldBatch(w))
	m.feed.Ready()
	want := wanted(worldBatch(w), node)
	h.until(t, "the node's span", func() bool { return h.same(want) })
}

func TestQueriesOfAnySizeAreAnswered(t *testing.T) {
	m := startMaster(t)
	m.feed.Ready()
	node := policytest.Nodes[0]
	stop := m.join(node, node, newHolder())
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	for {
		answer, err := m.feed.Query(ctx, node, []byte(`"question"`))
		if err == nil {
			if len(answer) != 7_000_000 {
				t.Errorf("%d bytes came", len(answer))
			}
			return
		}
		if ctx.Err() != nil {
			t.Fatal(fmt.Errorf("no answer: %w", err))
		}
		time.Sleep(10 * time.Millisecond)
	}
}
