package feed

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// hostile is a server and the events that nodes sent to it.
type hostile struct {
	*Server
	mu     sync.Mutex
	events map[string]int
	lines  []*line
}

func newHostile(change func(*Config)) *hostile {
	h := &hostile{events: map[string]int{}}
	cfg := Config{Logger: slog.New(slog.DiscardHandler), Events: func(_ context.Context, ev Event) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		switch {
		case ev.Announce != nil:
			h.events["announce "+ev.Node]++
		case ev.Connected != nil:
			h.events["hello "+ev.Node]++
		}
		return nil
	}}
	change(&cfg)
	h.Server = NewServer(cfg)
	h.Ready()
	return h
}

func (h *hostile) count(event string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.events[event]
}

// dial opens a stream that ends with the test.
func (h *hostile) dial(node string) *line {
	l := dial(h.Server, node, 1<<20)
	h.lines = append(h.lines, l)
	return l
}

// end ends all streams.
func (h *hostile) end() {
	h.Expel(func(string) error { return errSuperseded })
	for _, l := range h.lines {
		<-l.done
	}
}

func part(node string) *feed.NodeMessage {
	h := &feed.Hello{Node: node, MinVersion: feed.MinVersion, MaxVersion: feed.MaxVersion, More: true}
	return &feed.NodeMessage{Message: &feed.NodeMessage_Hello{Hello: h}}
}

func ended(l *line) codes.Code {
	select {
	case err := <-l.done:
		l.done <- err
		return status.Code(err)
	default:
		return codes.OK
	}
}

// Of a node one stream says hello, the newest; it does not end the stream that is served before it has said all of it.
func TestHandshake_OneStreamPerNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHostile(func(*Config) {})
		defer h.end()
		served := h.dial("node1")
		served.hello("node1")
		synctest.Wait()
		var half []*line
		for range helloBurst - 1 {
			l := h.dial("node1")
			l.in <- part("node1")
			half = append(half, l)
			synctest.Wait()
			if ended(half[0]) != codes.OK {
				t.Error("the node may connect again at once")
			}
		}
		time.Sleep(lingerTime)
		synctest.Wait()
		for i, l := range half {
			if want := map[bool]codes.Code{true: codes.OK, false: codes.Aborted}[i == len(half)-1]; ended(l) != want {
				t.Errorf("unfinished hello %d: %v", i, ended(l))
			}
		}
		if code := ended(served); code != codes.OK || len(h.handshakes) != 1 {
			t.Errorf("the stream that is served: %v; %d say hello", code, len(h.handshakes))
		}
		half[len(half)-1].hello("node1")
		synctest.Wait()
		if ended(served) != codes.Aborted || len(h.handshakes) != 0 || h.count("hello node1") != 2 {
			t.Errorf("after the hello: %v, %d say hello, %d hellos", ended(served),
				len(h.handshakes), h.count("hello node1"))
		}
	})
}

// TestHandshake_FewStreamsLinger: a node can open many streams on each connection. Most end at once.
func TestHandshake_FewStreamsLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHostile(func(*Config) {})
		defer h.end()
		open := func() int {
			h.Server.mu.Lock()
			defer h.Server.mu.Unlock()
			return len(h.sessions)
		}
		for range 20 * lingerBurst {
			h.dial("node1")
			synctest.Wait()
		}
		if n := open(); n != lingerBurst+1 {
			t.Errorf("%d streams are open", n)
		}
		time.Sleep(lingerTime)
		synctest.Wait()
		if n := open(); n != 1 {
			t.Errorf("%d streams are open later", n)
		}
	})
}

// A node says hello once a second, after some at once; those of other nodes wait for none of it.
func TestHellosArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHostile(func(*Config) {})
		defer h.end()
		for second := range 10 {
			for range 20 {
				h.dial("node1").hello("node1")
				synctest.Wait()
			}
			if got, want := h.count("hello node1"), helloBurst+second; got != want {
				t.Fatalf("after %d seconds: %d hellos, want %d", second, got, want)
			}
			h.dial(fmt.Sprint("other", second)).hello(fmt.Sprint("other", second))
			synctest.Wait()
			if h.count(fmt.Sprint("hello other", second)) != 1 {
				t.Error("another node waits")
			}
			time.Sleep(helloInterval)
			synctest.Wait()
		}
	})
}

// Announcements of a node are taken at a rate, in order, also over new hellos, while its beats and those of others wait
// for nothing.
func TestAnnouncementsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leads := &terms{}
		leads.now.Store(&oneTerm{epoch: 1})
		h := newHostile(func(c *Config) { c.Leader = leads })
		defer h.end()
		say := func(l *line, n int) {
			for i := range n {
				addresses := []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}
				a := &wire.Announcement{Namespace: "ns", Name: "pod", UID: "u", Addresses: addresses}
				l.in <- &feed.NodeMessage{Message: &feed.NodeMessage_Announce{Announce: wire.FromAnnouncement(a)}}
			}
			synctest.Wait()
		}
		l := h.dial("node1")
		l.hello("node1")
		say(l, announceBurst+100)
		for i := range 10 {
			if got := h.count("announce node1"); got != i+1 {
				t.Errorf("%d after %d gaps", got, i)
			}
			time.Sleep(announceGap)
			synctest.Wait()
		}
		time.Sleep(2 * announceBurst * announceGap)
		synctest.Wait()
		refilled := int((10 + 2*announceBurst) * announceGap / announceInterval)
		first := h.count("announce node1")
		if first != announceBurst+refilled {
			t.Errorf("%d at once", first)
		}
		before := l.count()
		l.in <- wire.FromBeat(1)
		synctest.Wait()
		if l.count() == before {
			t.Error("a beat is not answered while announcements wait")
		}
		other := h.dial("node2")
		other.hello("node2")
		say(other, 50)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if h.count("announce node2") != 50 {
			t.Errorf("of another node %d are taken", h.count("announce node2"))
		}
		if got := h.count("announce node1"); got != first+50 {
			t.Errorf("%d after 5 s", got)
		}
		l = h.dial("node1")
		l.hello("node1")
		if say(l, 100); h.count("announce node1") > first+51 {
			t.Errorf("a hello gives a new burst: %d", h.count("announce node1"))
		}
		for range wire.MaxAnnounced + 100 {
			if ended(l) != codes.OK {
				break
			}
			say(l, 1)
			time.Sleep(inboundInterval) // announcements are read at the same rate
		}
		if ended(l) != codes.ResourceExhausted {
			t.Errorf("more than a node has pods wait: %v", ended(l))
		}
	})
}

// A node that may not connect is refused before its hello, and its stream ends when it may no longer.
func TestAdmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		may := true
		gone := status.Error(codes.FailedPrecondition, "gone")
		admit := func(node string) error {
			if node == "node1" && !may {
				return gone
			}
			return nil
		}
		h := newHostile(func(c *Config) { c.Admit = admit })
		defer h.end()
		served, other := h.dial("node1"), h.dial("node2")
		served.hello("node1")
		other.hello("node2")
		synctest.Wait()
		half := h.dial("node1")
		half.in <- part("node1")
		synctest.Wait()
		may = false
		h.Expel(admit)
		synctest.Wait()
		late := h.dial("node1")
		synctest.Wait()
		for name, l := range map[string]*line{"served": served, "half a hello": half, "late": late} {
			if ended(l) != codes.FailedPrecondition {
				t.Errorf("%s: %v", name, ended(l))
			}
		}
		if ended(other) != codes.OK || !strings.Contains(h.Node("node1").Refused, "gone") {
			t.Errorf("%v, %+v", ended(other), h.Node("node1"))
		}
	})
}

// Answers are bounded by the kind of the query, while they come, by their values, and all together; what they take is
// given back.
func TestAnswersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHostile(func(*Config) {})
		defer h.end()
		l := h.dial("node1")
		l.hello("node1")
		synctest.Wait()
		id := uint64(0)
		ask := func(kind string, body []byte) error {
			done := make(chan error, 1)
			go func() {
				_, err := h.Query(t.Context(), "node1", []byte(`{"kind":"`+kind+`"}`))
				done <- err
			}()
			synctest.Wait()
			id++
			for m := range wire.ReplyParts(id, body) {
				l.in <- m
			}
			synctest.Wait()
			return <-done
		}
		repeat := func(text string, n int) []byte { return []byte(`[` + strings.Repeat(text+",", n) + text + `]`) }
		for _, c := range []struct {
			kind string
			body []byte
			want string
		}{
			{"status", repeat(`"x"`, 3_000), ""},
			{"status", repeat(`"0123456789"`, 10_000), "larger than 65536 bytes"},
			{"counters", repeat(`{}`, 49_000), ""},
			{"counters", repeat(`{}`, 51_000), "objects"},
			{"counters", repeat(`0`, 600_000), "values"},
			{"counters", []byte(`"` + strings.Repeat(`{\"[,`, 100_000) + `"`), ""},
			{"drops", make([]byte, 9<<20), "larger than 8388608 bytes"},
			{"flows", make([]byte, 9<<20), ""},
			{"unheard-of", make([]byte, 17<<20), "larger than 16777216 bytes"},
		} {
			err := ask(c.kind, c.body)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s of %d bytes: %v", c.kind, len(c.body), err)
			}
		}
		h.Server.mu.Lock()
		if h.responseBytes != 0 {
			t.Errorf("%d bytes are held", h.responseBytes)
		}
		h.responseBytes = maxResponses - 100
		h.Server.mu.Unlock()
		if err := ask("counters", make([]byte, 101)); !errors.Is(err, errResponses) {
			t.Errorf("more than all answers may take: %v", err)
		}
		if err := ask("counters", make([]byte, 100)); err != nil {
			t.Error(err)
		}
	})
}

// Answers of streams are counted until they are taken.
func TestStreamedAnswersAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHostile(func(*Config) {})
		defer h.end()
		l := h.dial("node1")
		l.hello("node1")
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		release := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			each := func([]byte) error { <-release; return nil }
			done <- h.QueryStream(ctx, "node1", []byte(`{"kind":"capture"}`), each)
		}()
		synctest.Wait()
		for range 3 {
			l.in <- wire.FromStreamed(1, make([]byte, 1000))
		}
		synctest.Wait()
		held := func() int { h.Server.mu.Lock(); defer h.Server.mu.Unlock(); return h.responseBytes }
		if held() != 3000 {
			t.Errorf("%d bytes are held", held())
		}
		release <- struct{}{}
		synctest.Wait()
		if held() != 2000 {
			t.Errorf("%d bytes are held after one was taken", held())
		}
		cancel()
		close(release)
		<-done
		if held() != 0 {
			t.Errorf("%d bytes are held after the end", held())
		}
	})
}

// What was compared without the lock is added to what changed meanwhile: the node is sent the present state of both,
// and no patch of what it lacks.
func TestHello_ChangesDuringComparison(t *testing.T) {
	m := newMirror()
	key := func(n byte) policy.Key { return policy.Key{n} }
	addr := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, n}) }
	group := func(n byte, added ...netip.Addr) policy.GroupChange {
		return policy.GroupChange{Key: key(n), Added: added}
	}
	m.apply(&policy.Changes{Revision: 1, Groups: []policy.GroupChange{group(1, addr(1)), group(2, addr(2))},
		Nodes: []policy.NodeChange{{Node: "node1", AddGroups: []policy.Key{key(1), key(2)}}}})
	v := m.view("node1")
	held := []wire.Held{
		{Group: policy.PeerGroup, Key: key(1), Hash: m.groups[key(1)].hash()},
		{Group: policy.PeerGroup, Key: key(9)},
		{Key: key(8)},
	}
	p, want := m.begin(v)
	m.apply(&policy.Changes{Revision: 2, Groups: []policy.GroupChange{group(1, addr(3)), group(2, addr(4))}})
	p.add(want.compare(held))
	u := m.take(v)
	got := map[policy.Key]string{}
	for _, g := range u.Groups {
		got[g.Key] = fmt.Sprint(g.Replace, g.Gone, len(g.Added))
	}
	text, _ := json.Marshal(u)
	want2 := map[policy.Key]string{key(1): "false false 1", key(2): "true false 2", key(9): "false true 0"}
	if !maps.Equal(got, want2) || len(u.Rules) != 1 || u.Rules[0].Rule != nil {
		t.Errorf("%s", text)
	}
}

// A hello of the largest size holds the feed's lock for as long as what the node should hold takes.
func BenchmarkLargestHello(b *testing.B) {
	var all []wire.Held
	for n := range uint64(wire.MaxHeld) {
		var k policy.Key
		binary.BigEndian.PutUint64(k[:], (n+1)*0x9e3779b97f4a7c15)
		all = append(all, wire.Held{Key: k})
	}
	m := newMirror()
	var locked, taken time.Duration
	for b.Loop() {
		v := m.view("node1")
		began := time.Now()
		p, want := m.begin(v)
		locked += time.Since(began)
		d := want.compare(all)
		began = time.Now()
		p.add(d)
		locked += time.Since(began)
		began = time.Now()
		m.take(v)
		taken += time.Since(began)
	}
	b.ReportMetric(float64(locked.Microseconds())/float64(b.N), "µs-locked/op")
	b.ReportMetric(float64(taken.Microseconds())/float64(b.N), "µs-take/op")
}
