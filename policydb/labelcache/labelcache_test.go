package labelcache

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memcached starts a real one on a unix socket and gives a function that kills it.
func memcached(t *testing.T, socket string) (kill func()) {
	t.Helper()
	program, err := exec.LookPath("memcached")
	if err != nil {
		t.Skip("memcached is not installed: apt-get install memcached")
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-s", socket, "-u", me.Username, "-vv")
	cmd.SysProcAttr = diesWithParent()
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	drained := make(chan struct{})
	listening := make(chan struct{})
	go func() {
		defer close(drained)
		open := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if !open && strings.Contains(lines.Text(), "server listening") {
				open = true
				close(listening)
			}
		}
	}()
	killed := false
	kill = func() {
		if killed {
			return
		}
		killed = true
		_ = cmd.Process.Kill()
		<-drained
		_ = cmd.Wait()
		_ = os.Remove(socket)
	}
	t.Cleanup(kill)
	select {
	case <-listening:
	case <-drained:
		t.Fatal("memcached ended at once")
	}
	return kill
}

// patient makes a cache that takes a late answer for no outage: what is tested here is not how fast the machine is.
func patient(cfg Config) *Cache {
	c := New(cfg)
	c.fetchTimeout = time.Minute
	for _, s := range c.servers {
		s.client.Timeout = time.Minute
	}
	return c
}

func run(t *testing.T, c *Cache) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

// until waits for what the background does.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for tick := time.NewTicker(2 * time.Millisecond); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("never happened: " + what)
		}
	}
}

func at(revision uint64) Stamp { return Stamp{Term: 1, Revision: revision} }

func answer(revision uint64, value string) Computation {
	return func(context.Context) ([]byte, Stamp, error) { return []byte(value), at(revision), nil }
}

func refuse(context.Context) ([]byte, Stamp, error) {
	return nil, Stamp{}, errors.New("must not be computed")
}

func mustGet(t *testing.T, c *Cache, query string, revision uint64, compute Computation, want string, from Source) {
	t.Helper()
	got, of, source, err := c.Do(t.Context(), query, at(revision), compute)
	if err != nil || string(got) != want || source != from || of != at(revision) {
		t.Fatalf("got %q at %v from %s, error %v; want %q from %s", got, of, source, err, want, from)
	}
}

// shared are netmasters that share a key and a memcached.
func shared(socket string) Config {
	return Config{Servers: []string{socket}, Key: func() []byte { return []byte("the netmasters' secret") }}
}

func (c *Cache) has(query string, of Stamp) func() bool {
	return func() bool { _, ok := c.Lookups().fetch(query, of); return ok }
}

func TestInProcess(t *testing.T) {
	c := New(Config{MaxBytes: 600})
	mustGet(t, c, "k", 5, answer(5, "a"), "a", Computed)
	mustGet(t, c, "k", 5, refuse, "a", InProcess)
	mustGet(t, c, "k", 6, answer(6, "b"), "b", Computed) // another revision is another state
	c.Put("k", at(4), []byte("old"), true)
	mustGet(t, c, "k", 6, refuse, "b", InProcess)
	c.Put("l", at(6), nil, true)
	mustGet(t, c, "k", 6, refuse, "b", InProcess)
	c.Put("m", at(6), nil, true) // l was not used for the longest time
	mustGet(t, c, "k", 6, refuse, "b", InProcess)
	mustGet(t, c, "l", 6, answer(6, "l"), "l", Computed)
	if s := c.Stats(); s.Entries != 2 || s.Bytes > 600 || s.Hits != 4 || s.Misses != 3 || s.Sources[2].Count != 3 {
		t.Errorf("%+v", s)
	}
	if _, _, _, err := c.Do(t.Context(), "x", at(1), refuse); err == nil {
		t.Error("the error of the computation is lost")
	}
	if c.Stats().Connected {
		t.Error("connected to no memcached")
	}
}

// TestPut_TooLargeForTheProcess: a value above the cache's size displaces no other, is counted once, and is still the
// newest of its query.
func TestPut_TooLargeForTheProcess(t *testing.T) {
	const size = 600
	largest := size - (&item{query: "k"}).cost()
	for name, share := range map[string]bool{"in process": false, "shared": true} {
		t.Run(name, func(t *testing.T) {
			c := New(Config{MaxBytes: size, Servers: []string{"127.0.0.1:1"}})
			c.Put("kept", at(6), nil, false)
			c.Put("k", at(5), nil, false)
			c.Put("k", at(6), make([]byte, largest+1), share)
			if s := c.Stats(); s.Entries != 1 || s.TooLarge != 1 || len(c.queue) == 1 != share {
				t.Errorf("%+v, %d wait for memcached", s, len(c.queue))
			}
			mustGet(t, c, "kept", 6, refuse, "", InProcess)
			if _, _, ok := c.Get("k", at(5)); ok {
				t.Error("the old value is still cached")
			}
			c.Put("k", at(7), make([]byte, largest), false)
			if v, _, ok := c.Get("k", at(7)); !ok || len(v) != largest || c.Stats().TooLarge != 1 {
				t.Errorf("%d bytes, %+v", len(v), c.Stats())
			}
		})
	}
	c := New(shared("127.0.0.1:1"))
	c.Put("k", at(1), make([]byte, defaultBytes+1), true)
	if s := c.Stats(); s.TooLarge != 1 || s.Entries != 0 {
		t.Errorf("a value that is too large for both: %+v", s)
	}
}

// A value of a state that changed while it was computed is returned and not kept.
func TestDo_TheStateChanges(t *testing.T) {
	c := New(Config{})
	changed := func(context.Context) ([]byte, Stamp, error) { return []byte("mixed"), Stamp{}, nil }
	if v, of, _, err := c.Do(t.Context(), "k", at(1), changed); err != nil || string(v) != "mixed" || of != (Stamp{}) {
		t.Errorf("%q at %v: %v", v, of, err)
	}
	if _, _, ok := c.Get("k", Stamp{}); ok || c.Stats().Entries != 0 {
		t.Error("it was kept")
	}
}

// The values of one leader do not serve under another, whose revisions may be lower; nor do those of an earlier term
// with the same number.
func TestAnotherLeadersEntries(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "m")
	memcached(t, socket)
	before, now := patient(shared(socket)), patient(shared(socket))
	run(t, before)
	old := Stamp{Epoch: 2, Term: 7, Revision: 9000}
	before.Put("k", old, []byte("old"), true)
	until(t, "it is in memcached", now.has("k", old))
	for _, other := range []Stamp{{Epoch: 3, Term: 7, Revision: 9000}, {Epoch: 2, Term: 8, Revision: 9000}, {Epoch: 2, Term: 7, Revision: 8999}} {
		if v, from, ok := now.Get("k", other); ok {
			t.Errorf("%q from %s serves %v", v, from, other)
		}
	}
	if r := now.Stats().Refused; r != 0 {
		t.Errorf("%d values of other states count as false", r)
	}
	now.Put("k", Stamp{Epoch: 3, Revision: 5}, []byte("new"), false)
	now.Put("k", Stamp{Epoch: 2, Term: 7, Revision: 9001}, []byte("old"), false)
	if v, from, ok := now.Get("k", Stamp{Epoch: 3, Revision: 5}); !ok || string(v) != "new" || from != InProcess {
		t.Errorf("%q from %s", v, from)
	}
}

// Two netmasters share what one computed, in one part or in several; neither uses what is of another state.
func TestSharedThroughMemcached(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "m")
	memcached(t, socket)
	a, b := patient(shared(socket)), patient(shared(socket))
	run(t, a)
	run(t, b)
	large := strings.Repeat("0123456789abcdef", 3*partSize/16) + "end"
	for query, value := range map[string]string{Members(policy.Key{1}, 0): "ns/a ns/b", "empty": "", "large": large} {
		a.Put(query, at(7), []byte(value), true)
		until(t, "the value is in memcached", b.has(query, at(7)))
		mustGet(t, b, query, 7, refuse, value, Memcached)
		mustGet(t, b, query, 7, refuse, value, InProcess)
		mustGet(t, b, query, 8, answer(8, "c"), "c", Computed)
		until(t, "the newer value is in memcached", a.has(query, at(8)))
		mustGet(t, a, query, 8, refuse, "c", Memcached)
	}
	a.Put("private", at(7), []byte("x"), false)
	a.Put("public", at(7), []byte("x"), true)
	until(t, "the other is in memcached", b.has("public", at(7)))
	if b.has("private", at(7))() {
		t.Error("what is not to be shared is in memcached")
	}
	other := patient(Config{Servers: []string{socket}, Key: func() []byte { return []byte("another secret") }})
	none := patient(Config{Servers: []string{socket}})
	if other.has("public", at(7))() || none.has("public", at(7))() {
		t.Error("a netmaster with another key uses it")
	}
}

func TestTooLargeForMemcached(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "m")
	memcached(t, socket)
	c := patient(shared(socket))
	run(t, c)
	c.Put("k", at(1), make([]byte, maxValue+1), true)
	if st := c.Stats(); st.TooLarge != 1 || st.Errors > 0 {
		t.Errorf("%+v", st)
	}
	if v, source, _ := c.Get("k", at(1)); len(v) != maxValue+1 || source != InProcess {
		t.Errorf("%d bytes from %s", len(v), source)
	}
}

// What waits for memcached is bounded in number and in bytes.
func TestPut_NeverWaits(t *testing.T) {
	c := New(shared("127.0.0.1:1"))
	for i := range 10 {
		c.Put(fmt.Sprint("large", i), at(1), make([]byte, maxValue), true)
	}
	if n := c.Stats().Dropped; n != 10-maxQueueBytes/maxValue {
		t.Errorf("%d were dropped", n)
	}
	for i := range 2 * maxQueue {
		c.Put(fmt.Sprint(i), at(1), nil, true)
	}
	if len(c.queue) != maxQueue || c.queued.Load() > maxQueueBytes {
		t.Errorf("%d wait, with %d bytes", len(c.queue), c.queued.Load())
	}
}

// memcached dies and comes back: look-ups go on all the time, do not query it one by one, and the state is shown.
func TestOutage(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "m")
	kill := memcached(t, socket)
	reg := prometheus.NewRegistry()
	cfg := shared(socket)
	cfg.Registerer = reg
	c := patient(cfg)
	var dials atomic.Int64
	c.servers[0].client.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	run(t, c)
	c.Put("k", at(1), []byte("a"), true)
	until(t, "memcached has it", c.has("k", at(1)))
	if up := metric(t, reg, "flowkeep_labelcache_memcached_up"); up != 1 {
		t.Errorf("up is %v", up)
	}
	kill()
	before := dials.Load()
	for i := range uint64(1000) {
		mustGet(t, c, "k", i+2, answer(i+2, "b"), "b", Computed)
	}
	if n := dials.Load() - before; n > 100 { // one, and one more each second
		t.Errorf("for 1,000 look-ups memcached, which is away, was dialled %d times", n)
	}
	if st := c.Stats(); st.Connected || !strings.Contains(st.Problem, socket) || metric(t, reg, "flowkeep_labelcache_memcached_up") != 0 {
		t.Errorf("%+v does not show the outage", st)
	}
	memcached(t, socket)
	until(t, "memcached is found again", func() bool { return c.Stats().Connected })
	c.Put("k", at(5000), []byte("c"), true)
	until(t, "memcached is used again", c.has("k", at(5000)))
}

// With one of two servers dead the queries of the other still hit.
func TestOneOfTwoDies(t *testing.T) {
	dir := t.TempDir()
	sockets := []string{filepath.Join(dir, "1"), filepath.Join(dir, "2")}
	memcached(t, sockets[0])
	kill := memcached(t, sockets[1])
	c := patient(Config{Servers: sockets})
	run(t, c)
	of := map[string]string{}
	for i := range 100 {
		query := fmt.Sprintf("k%d", i)
		of[c.owner(query).addr] = query
		c.Put(query, at(1), nil, true)
	}
	if len(of) != 2 {
		t.Fatalf("all queries on one server: %v", of)
	}
	until(t, "both have theirs", func() bool { return c.has(of[sockets[0]], at(1))() && c.has(of[sockets[1]], at(1))() })
	kill()
	_ = c.has(of[sockets[1]], at(1))()
	if !c.has(of[sockets[0]], at(1))() {
		t.Error("the living server is not used")
	}
	if c.Stats().Connected {
		t.Error("the dead server is not shown")
	}
}

func metric(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// One answer that is late is not told; two in a row are, and what else fails is at once.
func TestLateAnswers(t *testing.T) {
	slow := &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
	for _, c := range []struct {
		errs []error
		told bool
	}{{[]error{slow}, false}, {[]error{slow, slow}, true}, {[]error{slow, nil, slow}, false}, {[]error{syscall.ECONNREFUSED}, true}} {
		s := newServer("127.0.0.1:1")
		for _, err := range c.errs {
			_ = s.note(err)
		}
		if told := s.problem() != ""; told != c.told || s.up() != (c.errs[len(c.errs)-1] == nil) {
			t.Errorf("%v: told %v, up %v", c.errs, told, s.up())
		}
	}
}
