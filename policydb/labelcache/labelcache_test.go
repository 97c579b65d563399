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

func answer(revision uint64, ids ...string) func(context.Context) (Entry, error) {
	return func(context.Context) (Entry, error) { return Entry{Revision: revision, Endpoints: ids}, nil }
}

func refuse(context.Context) (Entry, error) { return Entry{}, errors.New("must not be computed") }

func mustGet(t *testing.T, c *Cache, key string, revision uint64, compute func(context.Context) (Entry, error), want string, from Source) {
	t.Helper()
	e, source, err := c.Get(context.Background(), key, 0, revision, compute)
	if got := strings.Join(e.Endpoints, " "); err != nil || got != want || source != from {
		t.Fatalf("got %q from %s, error %v; want %q from %s", got, source, err, want, from)
	}
}

func TestInProcess(t *testing.T) {
	c := New(Config{MaxEntries: 2})
	mustGet(t, c, "k", 5, answer(5, "ns/a"), "ns/a", Computed)
	mustGet(t, c, "k", 5, refuse, "ns/a", InProcess)
	mustGet(t, c, "k", 6, answer(6, "ns/b"), "ns/b", Computed) // the old entry is not believed
	c.Put("k", Entry{Revision: 4, Endpoints: []string{"ns/old"}})
	mustGet(t, c, "k", 1, refuse, "ns/b", InProcess) // nor does it come back
	c.Put("l", Entry{Revision: 6})
	mustGet(t, c, "k", 6, refuse, "ns/b", InProcess)
	c.Put("m", Entry{Revision: 6}) // l was not used for the longest time
	mustGet(t, c, "k", 6, refuse, "ns/b", InProcess)
	mustGet(t, c, "l", 6, answer(6, "ns/l"), "ns/l", Computed)
	if n := c.Stats().Entries; n != 2 {
		t.Errorf("%d entries", n)
	}
	if _, _, err := c.Get(context.Background(), "x", 0, 1, refuse); err == nil {
		t.Error("the error of the computation is lost")
	}
	if c.Stats().Connected {
		t.Error("connected to no memcached")
	}
}

// What a leader of before computed is not believed, though its clock, and so its revisions, were ahead of those of the one of now; nor does it come back.
func TestAnotherLeadersEntries(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "m")
	memcached(t, socket)
	before, now := New(Config{Servers: []string{socket}}), New(Config{Servers: []string{socket}})
	run(t, before)
	run(t, now)
	before.Put("k", Entry{Epoch: 2, Revision: 9000, Endpoints: []string{"ns/old"}})
	until(t, "it is in memcached", func() bool { e, ok := now.fetch("k"); return ok && e.Epoch == 2 })
	computed := func(context.Context) (Entry, error) {
		return Entry{Epoch: 3, Revision: 5, Endpoints: []string{"ns/new"}}, nil
	}
	if e, source, err := now.Get(t.Context(), "k", 3, 5, computed); err != nil || source != Computed || e.Endpoints[0] != "ns/new" {
		t.Errorf("%v from %s: %v", e, source, err)
	}
	now.Put("k", Entry{Epoch: 2, Revision: 9001, Endpoints: []string{"ns/old"}})
	if e, source, err := now.Get(t.Context(), "k", 3, 5, refuse); err != nil || source != InProcess || e.Endpoints[0] != "ns/new" {
		t.Errorf("%v from %s: %v", e, source, err)
	}
}

// Two replicas share what one computed; neither believes what is older than it needs.
func TestSharedThroughMemcached(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "m")
	memcached(t, socket)
	a, b := patient(Config{Servers: []string{socket}}), patient(Config{Servers: []string{socket}, MaxEntries: 1})
	run(t, a)
	run(t, b)
	key := Key(&policy.GroupSpec{Namespace: "ns", Pods: &policy.Selector{}})
	a.Put(key, Entry{Revision: 7, Endpoints: []string{"ns/a", "ns/b"}})
	until(t, "the entry is in memcached", func() bool { _, ok := b.fetch(key); return ok })
	mustGet(t, b, key, 7, refuse, "ns/a ns/b", Memcached)
	mustGet(t, b, key, 7, refuse, "ns/a ns/b", InProcess)
	mustGet(t, b, key, 8, answer(8, "ns/c"), "ns/c", Computed)
	until(t, "the newer entry is in memcached", func() bool { e, ok := a.fetch(key); return ok && e.Revision == 8 })
	mustGet(t, a, key, 8, refuse, "ns/c", Memcached)
}

func TestGarbageIsNotBelieved(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "m")
	memcached(t, socket)
	c := patient(Config{Servers: []string{socket}})
	run(t, c)
	for _, value := range []string{"", "x", "{}", `{"revision":-1}`, `{"endpoints":["ns/evil"]}`, `[]`, "\x00"} {
		if err := c.owner("k").set("k", []byte(value)); err != nil {
			t.Fatal(err)
		}
		before := c.Stats().Errors
		if _, ok := c.fetch("k"); ok || c.Stats().Errors == before {
			t.Errorf("%q was believed, or nothing was counted", value)
		}
		if !c.owner("k").up() {
			t.Error("garbage is not an outage")
		}
	}
}

func TestTooLargeForMemcached(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "m")
	memcached(t, socket)
	c := patient(Config{Servers: []string{socket}})
	run(t, c)
	ids := make([]string, 100000)
	for i := range ids {
		ids[i] = fmt.Sprintf("namespace-%d/pod-%d", i%100, i)
	}
	c.Put("k", Entry{Revision: 1, Endpoints: ids})
	until(t, "the entry is dropped", func() bool { return c.dropped.Load() == 1 })
	if st := c.Stats(); !st.Connected || st.Errors > 0 {
		t.Errorf("%+v", st)
	}
	if e, source, _ := c.Get(context.Background(), "k", 0, 1, refuse); len(e.Endpoints) != len(ids) || source != InProcess {
		t.Errorf("%d endpoints from %s", len(e.Endpoints), source)
	}
}

// memcached dies and comes back: look-ups go on all the time, do not ask it one by one, and the state is told.
func TestOutage(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "m")
	kill := memcached(t, socket)
	reg := prometheus.NewRegistry()
	c := patient(Config{Servers: []string{socket}, Registerer: reg})
	var dials atomic.Int64
	c.servers[0].client.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	run(t, c)
	c.Put("k", Entry{Revision: 1, Endpoints: []string{"ns/a"}})
	until(t, "memcached has it", func() bool { _, ok := c.fetch("k"); return ok })
	if up := metric(t, reg, "flowkeep_labelcache_memcached_up"); up != 1 {
		t.Errorf("up is %v", up)
	}
	kill()
	before := dials.Load()
	for i := range uint64(1000) {
		mustGet(t, c, "k", i+2, answer(i+2, "ns/b"), "ns/b", Computed)
	}
	if n := dials.Load() - before; n > 100 { // one, and one more each second
		t.Errorf("for 1,000 look-ups memcached, which is away, was asked %d times", n)
	}
	if st := c.Stats(); st.Connected || !strings.Contains(st.Problem, socket) || metric(t, reg, "flowkeep_labelcache_memcached_up") != 0 {
		t.Errorf("%+v does not tell the outage", st)
	}
	memcached(t, socket)
	until(t, "memcached is found again", func() bool { return c.Stats().Connected })
	c.Put("k", Entry{Revision: 5000, Endpoints: []string{"ns/c"}})
	until(t, "memcached is used again", func() bool { e, ok := c.fetch("k"); return ok && e.Revision == 5000 })
}

// With one of two servers dead the keys of the other still hit.
func TestOneOfTwoDies(t *testing.T) {
	dir := t.TempDir()
	sockets := []string{filepath.Join(dir, "1"), filepath.Join(dir, "2")}
	memcached(t, sockets[0])
	kill := memcached(t, sockets[1])
	c := patient(Config{Servers: sockets})
	run(t, c)
	of := map[string]string{}
	for i := range 100 {
		key := fmt.Sprintf("k%d", i)
		of[c.owner(key).addr] = key
		c.Put(key, Entry{Revision: 1})
	}
	if len(of) != 2 {
		t.Fatalf("all keys on one server: %v", of)
	}
	until(t, "both have theirs", func() bool {
		_, one := c.fetch(of[sockets[0]])
		_, two := c.fetch(of[sockets[1]])
		return one && two
	})
	kill()
	_, _ = c.fetch(of[sockets[1]])
	if _, ok := c.fetch(of[sockets[0]]); !ok {
		t.Error("the living server is not asked")
	}
	if c.Stats().Connected {
		t.Error("the dead server is not told")
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

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"revision":1,"endpoints":["ns/a"]}`))
	f.Add([]byte(`{"revision":18446744073709551615}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, value []byte) {
		if e, err := decode(value); err == nil && e.Revision == 0 {
			t.Errorf("%q gives an entry that is older than all", value)
		}
	})
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
