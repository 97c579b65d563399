package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/lease"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/enforcement"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sure is a term that nobody takes away.
type sure struct{ epoch uint64 }

func (t sure) Epoch() uint64 { return t.epoch }
func (sure) Valid() bool     { return true }
func (t sure) Confirm(context.Context, bool) (uint64, time.Duration, error) {
	return t.epoch, 3 * time.Second, nil
}
func (sure) Above(context.Context, uint64) error { return nil }
func (sure) Changed() <-chan struct{}            { return nil }

// elected is of a netmaster that leads as soon as it may.
type elected struct{}

func newElected(cfg *Config) { cfg.Election = elected{} }

func (elected) Run(ctx context.Context, lead func(context.Context, lease.Term) error) error {
	return lead(ctx, sure{7})
}
func (elected) Leader() string { return "this one" }

var always = make(chan struct{})

func init() { close(always) }

func (elected) Sighted() <-chan struct{} { return always }

// election is one that a test decides.
type election struct {
	terms   chan *played
	sighted chan struct{} // nil: always
	asked   chan struct{} // has an element when somebody begins to wait; nil: nobody cares
}

// played is a term of it.
type played struct {
	sure
	over    atomic.Bool
	fenced  atomic.Bool
	changed atomic.Pointer[chan struct{}]
	lost    context.CancelFunc
	ctx     context.Context
	done    chan error
}

func (t *played) Valid() bool { return !t.over.Load() && !t.fenced.Load() }

// Changed implements lease.Term.
func (t *played) Changed() <-chan struct{} { return *t.changed.Load() }

// fence has the Lease not be renewed, or be renewed again.
func (t *played) fence(fenced bool) {
	t.fenced.Store(fenced)
	next := make(chan struct{})
	close(*t.changed.Swap(&next))
}
func (t *played) Confirm(ctx context.Context, _ bool) (uint64, time.Duration, error) {
	if t.over.Load() {
		return 0, 0, errors.New("over")
	}
	return t.epoch, 3 * time.Second, nil
}

func (e *election) Run(ctx context.Context, lead func(context.Context, lease.Term) error) error {
	for {
		select {
		case t := <-e.terms:
			stop := context.AfterFunc(ctx, t.lost)
			err := lead(t.ctx, t)
			stop()
			t.done <- err
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}
func (*election) Leader() string { return "" }
func (e *election) Sighted() <-chan struct{} {
	if e.asked != nil {
		e.asked <- struct{}{}
	}
	if e.sighted != nil {
		return e.sighted
	}
	return always
}

// begin has the netmaster lead.
func (e *election) begin(epoch uint64) *played {
	t := &played{sure: sure{epoch}, done: make(chan error, 1)}
	first := make(chan struct{})
	t.changed.Store(&first)
	t.ctx, t.lost = context.WithCancel(context.Background())
	e.terms <- t
	return t
}

// end has it lose the Lease, and returns when it stands by.
func (t *played) end() error {
	t.over.Store(true)
	t.lost()
	return <-t.done
}

func wired(name, address string) []wire.Announcement {
	return []wire.Announcement{{Namespace: "ns", Name: name, UID: "uid-" + name, Addresses: []netip.Addr{netip.MustParseAddr(address)}}}
}

// A pod that was wired while no netmaster was there, or just before it ended, is settled by the hello: nobody announces it again.
func TestHelloSettlesAnnouncedPods(t *testing.T) {
	w := newWorld(t, shop(t)...)
	m := w.start(newElected)
	n := w.node("node1")
	n.wired = append(wired("db", "10.0.1.1"), wired("unheard-of", "10.0.1.2")...)
	m.ready()
	until(t, "it leads", func() bool { return w.logged(`msg="became leader"`) })
	n.connect(m)
	until(t, "db is settled", n.is(func() bool { return n.updates > 0 && n.settled["ns/db"] }))
	until(t, "its metrics tell", m.leads(7))
	if n.is(func() bool { return len(n.settled) != 1 || n.updates != 1 })() {
		t.Errorf("settled: %v", n.settled)
	}
	n.end()
	n.settled = map[string]bool{}
	n.wired = nil
	n.connect(m)
	until(t, "node1 is served again", n.is(func() bool { return n.updates > 0 }))
	if n.is(func() bool { return len(n.settled) > 0 })() {
		t.Error("settled what it does not announce any more")
	}
}

// Who takes over knows nothing of pods that a node told the leader of before, and the API server was not yet: other nodes are not told to drop them.
func TestTakeOver_WaitsForNodesWithAnnouncements(t *testing.T) {
	w := newWorld(t, append(shop(t), pod("web2", "web", "node2", ""), pod("web3", "web", "gone", ""))...)
	m := w.start(newElected)
	n1, n2 := w.node("node1"), w.node("node2")
	n2.wired = append(wired("web", "10.0.2.1"), wired("web2", "10.0.2.7")...)
	until(t, "it leads", func() bool { return w.logged(`msg="became leader"`) })
	n2.connect(m)
	n1.connect(m)
	until(t, "web2 is a peer", n1.is(func() bool { return n1.peers() == "10.0.2.1 10.0.2.7" }))
	m.stop()
	n1.end()
	n2.end()

	w.dir = t.TempDir()
	w.log.Reset()
	m = w.start(newElected)
	until(t, "another leads", func() bool { return w.logged(`msg="became leader"`) })
	n1.connect(m)
	until(t, "node1 has come", n1.is(func() bool { return n1.welcomed }))
	n2.connect(m)
	until(t, "node1 is served", n1.is(func() bool { return n1.updates > 0 }))
	if n1.is(func() bool { return n1.sent > 0 || n1.peers() != "10.0.2.1 10.0.2.7" })() {
		t.Errorf("node1 was sent %d, and its peers are %s", n1.sent, n1.peers())
	}
	m.stop()
	n1.end()
	n2.end()

	w.log.Reset()
	m = w.start(newElected, func(cfg *Config) { cfg.Gather = 50 * time.Millisecond })
	until(t, "another leads", func() bool { return w.logged(`msg="became leader"`) })
	n1.connect(m)
	until(t, "node1 is served without node2", n1.is(func() bool { return n1.updates > 0 && n1.peers() == "10.0.2.1" }))
	if !w.logged("nodes=1 one=node2") {
		t.Error("nobody is told who was not waited for")
	}
}

// Who loses the Lease while it takes over stands by, and takes over the next time.
func TestTakeOver_LeaseLost(t *testing.T) {
	objects := shop(t)
	for _, o := range objects {
		o.(metav1.Object).SetResourceVersion("1") // newer than what is listed in the end: nothing
	}
	w := newWorld(t, objects...)
	e := &election{terms: make(chan *played)}
	asked, answers := make(chan struct{}, 100), make(chan struct{})
	m := w.start(func(cfg *Config) {
		cfg.Election = e
		cfg.Watcher.Keep()
		cfg.Fresh = unanswered(cfg.Fresh, func() { asked <- struct{}{} }, answers)
	})
	m.ready()
	for epoch := range uint64(3) {
		term := e.begin(epoch + 1)
		<-asked
		if err := term.end(); err != nil || w.logged(`msg="became leader"`) {
			t.Errorf("it goes on: %v", err)
		}
	}
	close(answers)
	term := e.begin(4)
	n := w.node("node1")
	until(t, "it takes over", func() bool { return w.logged(`msg="became leader" epoch=4`) })
	n.connect(m)
	until(t, "node1 is served", n.is(func() bool { return n.updates > 0 }))
	if err := term.end(); err != nil {
		t.Error(err)
	}
}

// Watches that are behind time and again are not waited for any more: another process makes new ones.
func TestTakeOver_WatchesStayBehind(t *testing.T) {
	s := &server{log: slog.New(slog.DiscardHandler)}
	late, other := fmt.Errorf("pods: %w", watch.ErrBehind), errors.New("other")
	for i, c := range []struct {
		err         error
		again, ends bool
	}{{late, true, false}, {late, true, false}, {nil, false, false}, {late, true, false}, {other, false, true}, {late, true, false}, {late, false, true}} {
		if again, err := s.failed(c.err); again != c.again || (err != nil) != c.ends || c.ends && !errors.Is(err, c.err) {
			t.Errorf("the %d. take-over: %v, %v", i+1, again, err)
		}
	}
}

// A node that comes before others to one that leads again is told of their pods what the API server has: not that they are gone because nobody has announced
// them to this leader.
func TestSecondTermKeepsConnections(t *testing.T) {
	w := newWorld(t, append(shop(t), pod("ended", "web", "node2", "10.0.2.9"))...)
	e := &election{terms: make(chan *played)}
	m := w.start(func(cfg *Config) { cfg.Election = e })
	m.ready()
	n1, n2 := w.node("node1"), w.node("node2")
	for epoch := range uint64(4) {
		term := e.begin(epoch + 1)
		until(t, "it leads", m.leads(epoch+1))
		n1.connect(m)
		until(t, "node1 is served", n1.is(func() bool { return n1.updates > 0 }))
		if n1.is(func() bool { return n1.peers() != "10.0.2.1 10.0.2.9" || epoch > 0 && n1.sent > 1 })() {
			t.Errorf("epoch %d: the peers are %s after %d changes", epoch+1, n1.peers(), n1.sent)
		}
		n2.wired = append(wired("web", "10.0.2.1"), wired("ended", "10.0.2.9")...)
		n2.connect(m)
		until(t, "node2 is served", n2.is(func() bool { return n2.updates > 0 }))
		n2.say(withdraw(&n2.wired[1]))
		until(t, "node1 knows", n1.is(func() bool { return n1.peers() == "10.0.2.1" }))
		if err := term.end(); err != nil {
			t.Fatal(err)
		}
		n1.end()
		n2.end()
	}
}

// A node that comes while nobody leads waits until it is served, or until another one leads.
func TestNodesAwaitALeader(t *testing.T) {
	w := newWorld(t, shop(t)...)
	e := &election{terms: make(chan *played), sighted: make(chan struct{}), asked: make(chan struct{}, 9)}
	m := w.start(func(cfg *Config) { cfg.Election = e })
	m.ready()
	n := w.node("node1")
	n.connect(m)
	until(t, "it waits", func() bool { return len(e.asked) == 1 })
	term := e.begin(1)
	until(t, "node1 is served by the stream it had", n.is(func() bool { return n.updates > 0 || n.ended != nil }))
	if n.is(func() bool { return n.ended != nil })() {
		t.Fatalf("who waited was refused: %v", n.ended)
	}
	if err := term.end(); err != nil {
		t.Error(err)
	}
	until(t, "it is told", n.is(func() bool { return n.ended != nil }))
	n.end()
	n.ended = nil
	n.connect(m)
	until(t, "it waits again", func() bool { return len(e.asked) == 2 })
	close(e.sighted)
	until(t, "it is sent on", n.is(func() bool { return status.Code(n.ended) == codes.Unavailable }))
}

// Who waits for a leader does until one serves here, another one is seen to lead, it goes, or it has waited for long: a term that has begun, and does not
// serve yet, is no reason to send it on.
func TestAwait(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(s *server, e *election, gone func())
		after   time.Duration
	}{
		"nothing happens": {func(*server, *election, func()) {}, maxHold},
		"a term begins and never serves": {func(s *server, _ *election, _ func()) {
			s.now.Store(&leadership{served: make(chan struct{})})
			s.termStarts.now()
		}, maxHold},
		"a term begins and serves": {func(s *server, _ *election, _ func()) {
			l := &leadership{served: make(chan struct{})}
			s.now.Store(l)
			s.termStarts.now()
			time.Sleep(100 * time.Millisecond)
			close(l.served)
		}, 600 * time.Millisecond},
		"another one leads": {func(_ *server, e *election, _ func()) { close(e.sighted) }, 500 * time.Millisecond},
		"it goes":           {func(_ *server, _ *election, gone func()) { gone() }, 500 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := &election{sighted: make(chan struct{})}
			s := &server{cfg: Config{Election: e}}
			ctx, gone := context.WithCancel(t.Context())
			defer gone()
			began, waited := time.Now(), make(chan time.Duration, 1)
			go func() {
				s.Await(ctx)
				waited <- time.Since(began)
			}()
			time.Sleep(500 * time.Millisecond)
			c.happens(s, e, gone)
			if took := <-waited; took != c.after {
				t.Errorf("%s: it waited for %s, want %s", name, took, c.after)
			}
		})
	}
}

// A leader whose clock is behind that of the one before gives out lower revisions: nodes take them, and what they had of the one before acknowledges nothing.
func TestTakeOver_ClockBehind(t *testing.T) {
	w := newWorld(t, shop(t)...)
	e := &election{terms: make(chan *played)}
	m := w.start(func(cfg *Config) { cfg.Election = e })
	m.ready()
	term := e.begin(2)
	n := w.node("node1")
	const before = 1 << 50 // of a leader in a time to come
	n.revision, n.mute = before, true
	n.connect(m)
	until(t, "node1 is served", n.is(func() bool { return n.updates > 0 }))
	if n.at() >= before {
		t.Fatalf("the revision is %d", n.at())
	}
	key := policy.Key{1}
	n.say(wire.FromAck(&wire.Ack{Revision: before, Errors: []wire.RuleError{{Rules: []policy.Key{key}, Message: "said early"}}}))
	said := func() bool { return len(m.status().Nodes[0].Errors) == 1 }
	until(t, "it is heard", said)
	if st := m.status().Nodes[0]; st.Realised != 0 || st.Pending == 0 && st.Sent == 0 {
		t.Errorf("revision %d of %d is in force, by what was told of another leader's", st.Realised, st.Sent)
	}
	n.deaf(false)
	until(t, "it is in force", func() bool { st := m.status().Nodes[0]; return st.Realised == st.Sent && st.Realised == n.at() })
	if err := term.end(); err != nil {
		t.Error(err)
	}
}

// A netmaster that loses the Lease time and again stands by each time, with its watches warm, answers nobody, believes nothing that was said to
// it before, and leaves no goroutine behind.
func TestLeader_SecondTerm(t *testing.T) {
	w := newWorld(t, append(shop(t), pod("web2", "web", "node2", ""))...)
	e := &election{terms: make(chan *played)}
	m := w.start(func(cfg *Config) { cfg.Election = e })
	m.ready()
	before := goleak.IgnoreCurrent()
	n1, n2 := w.node("node1"), w.node("node2")
	for epoch := range uint64(25) {
		term := e.begin(epoch + 1)
		until(t, "it leads", m.leads(epoch+1))
		n2.wired = wired("web", "10.0.2.1")
		web2 := fmt.Sprintf("10.0.2.%d", 10+epoch) // another pod each time
		if epoch%2 == 0 {
			n2.wired = append(n2.wired, wired("web2", web2)...)
		}
		n2.connect(m)
		n1.connect(m)
		want := "10.0.2.1"
		if epoch%2 == 0 {
			want += " " + web2
		}
		until(t, "node1 knows what node2 says", n1.is(func() bool { return n1.updates > 0 && n1.peers() == want }))
		waited := make(chan error, 1)
		if epoch%5 == 0 {
			n1.deaf(true)
			w.put(generation(t, int64(epoch)+10, webToDB))
			go func() {
				_, err := m.await(inspect.WaitFor{Generation: int64(epoch) + 10})
				waited <- err
			}()
		} else {
			waited <- status.Error(codes.Unavailable, "")
		}
		if err := term.end(); err != nil {
			t.Fatal(err)
		}
		if err := <-waited; status.Code(err) != codes.Unavailable {
			t.Errorf("who waited is told %v by a standby", err)
		}
		n1.mute = false
		until(t, "the nodes are told", func() bool {
			return n1.is(func() bool { return n1.ended != nil })() && n2.is(func() bool { return n2.ended != nil })()
		})
		n1.end()
		n2.end()
		n1.ended, n2.ended = nil, nil
		if m.metric("netmaster_feed_nodes") != 0 || m.health.NotReady() != "" {
			t.Error("a standby serves nodes, or is not ready")
		}
		n1.connect(m)
		until(t, "a standby refuses nodes", n1.is(func() bool { return status.Code(n1.ended) == codes.Unavailable }))
		n1.end()
		n1.ended = nil
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

// lingering is work of a term that takes its time to end.
type lingering struct {
	asking
	until chan struct{}
}

func (l *lingering) Follow(ctx context.Context, n *enforcement.News) {
	l.asking.Follow(ctx, n)
	<-l.until
}

// Nodes are sent away as soon as the Lease is lost, also where something else that was begun in the term has not ended yet; it is waited for.
func TestNodesDoNotWaitForOtherWork(t *testing.T) {
	w := newWorld(t, shop(t)...)
	e, work := &election{terms: make(chan *played)}, &lingering{until: make(chan struct{})}
	end := sync.OnceFunc(func() { close(work.until) })
	defer end()
	m := w.start(func(cfg *Config) { cfg.Election, cfg.Enforcement = e, work })
	m.ready()
	term := e.begin(1)
	until(t, "it leads", func() bool { return w.logged(`msg="became leader"`) })
	n := w.node("node1")
	n.connect(m)
	until(t, "the term's work is under way", work.is("InForce"))
	stands := make(chan error, 1)
	go func() { stands <- term.end() }()
	until(t, "node1 is told", n.is(func() bool { return status.Code(n.ended) == codes.Unavailable }))
	if w.logged("stands by") {
		t.Error("something is left of the term, and it stands by")
	}
	end()
	if err := <-stands; err != nil || !w.logged("stands by") {
		t.Errorf("it does not stand by: %v", err)
	}
}

// unanswered is a lister, like the one that is none, of an API server that does not answer until it may; then it has nothing.
func unanswered[T any, F ~func(context.Context, string) (*T, error)](_ F, asked func(), may <-chan struct{}) F {
	return func(ctx context.Context, _ string) (*T, error) {
		select {
		case <-may:
			return new(T), nil
		default:
		}
		asked()
		<-ctx.Done()
		return nil, ctx.Err()
	}
}

// TestFencedLeaderGoesOn: a leader whose Lease is not renewed for a while sends nothing, answers no client and stops
// its work, and keeps its nodes; when the Lease is renewed it goes on where it was, without a hello.
func TestFencedLeaderGoesOn(t *testing.T) {
	w := newWorld(t, shop(t)...)
	e := &election{terms: make(chan *played)}
	work := &lingering{until: make(chan struct{})}
	close(work.until)
	m := w.start(func(cfg *Config) { cfg.Election, cfg.Enforcement = e, work })
	m.ready()
	term := e.begin(1)
	until(t, "it leads", func() bool { return m.metric("netmaster_leads") == 1 })
	n := w.node("node1")
	n.connect(m)
	until(t, "node1 is served", n.is(func() bool { return n.updates > 0 }))
	for range 2 {
		term.fence(true)
		until(t, "it is fenced", func() bool {
			return w.logged("fenced: cannot confirm the Lease") && m.metric("netmaster_leads") == 0
		})
		if _, err := m.await(inspect.WaitFor{Generation: 1}); status.Code(err) != codes.Unavailable {
			t.Errorf("a fenced leader answers: %v", err)
		}
		updates := 0
		n.is(func() bool { updates = n.updates; return true })()
		revision := m.metric("netmaster_revision")
		w.put(generation(t, 5, `{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}`))
		until(t, "the engine has the change", func() bool { return m.metric("netmaster_revision") > revision })
		if n.is(func() bool { return n.updates != updates || n.ended != nil })() {
			t.Error("a fenced leader sends updates, or has ended the stream")
		}
		term.fence(false)
		until(t, "the change comes by the stream that was", n.is(func() bool {
			return n.updates > updates && n.ended == nil
		}))
		w.put(generation(t, 6, webToDB))
		until(t, "it leads on", func() bool { return m.metric("netmaster_leads") == 1 })
		until(t, "it comes too", n.is(func() bool { return n.updates > updates+1 && n.ended == nil }))
		w.mu.Lock()
		w.log.Reset()
		w.mu.Unlock()
	}
	if err := term.end(); err != nil {
		t.Error(err)
	}
	until(t, "node1 is sent away", n.is(func() bool { return status.Code(n.ended) == codes.Unavailable }))
}
