package connections

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

// tracker is conntrack with these lines.
type tracker struct {
	mu     sync.Mutex
	lines  []string
	dumps  int
	asked  int // for openers
	misses int // lines that Forget leaves
	broken error
	forgot []netip.Addr
	takes  time.Duration // to read it
}

func (c *tracker) Dump(context.Context) (string, error) {
	time.Sleep(c.takes)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dumps++
	return strings.Join(c.lines, "\n"), c.broken
}

// Openers are those of the lines.
func (c *tracker) Openers(context.Context) (map[netip.Addr]bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	found := map[netip.Addr]bool{}
	for _, line := range c.lines {
		if t, _, err := ParseLine(line); err == nil {
			found[t.Src] = true
		}
	}
	return found, c.broken
}

func (c *tracker) Forget(_ context.Context, a netip.Addr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return c.broken
	}
	c.forgot = append(c.forgot, a)
	c.lines = slices.DeleteFunc(slices.Clone(c.lines), func(line string) bool {
		t, _, err := ParseLine(line)
		if err != nil || t.Src != a {
			return false
		}
		c.misses--
		return c.misses < 0
	})
	return nil
}

func (c *tracker) set(broken error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = broken
}

func value(c prometheus.Collector) float64 {
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil || len(families) != 1 {
		return -1
	}
	return families[0].GetMetric()[0].GetCounter().GetValue()
}

func line(src string, sport int, dst string, dport int) string {
	return fmt.Sprintf("tcp,orig=(src=%s,dst=%s,sport=%d,dport=%d),reply=(src=%s,dst=%s,sport=%d,dport=%d),zone=65521,protoinfo=(state=ESTABLISHED)", src, dst, sport, dport, dst, src, dport, sport)
}

// counting runs a counter in a bubble of its own time; f is called in it.
func counting(t *testing.T, ct *tracker, f func(ctx context.Context, c *Counter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := New(Config{Conntrack: ct, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
		go c.Run(ctx)
		f(ctx, c)
		cancel()
		synctest.Wait()
	})
}

var (
	server  = netip.MustParseAddr("10.0.0.1")
	alice   = netip.MustParseAddr("10.0.0.2")
	bob     = netip.MustParseAddr("10.0.0.3")
	carol   = netip.MustParseAddr("10.0.0.4")
	servers = policy.Key{1}
	clients = policy.Key{2}
)

// allowing is an update that isolates the server and lets these clients in on port 80.
func allowing(members ...netip.Addr) *policy.NodeUpdate {
	return &policy.NodeUpdate{
		Rules: []policy.RuleChange{
			{Key: policy.Key{10}, Rule: &policy.Rule{Key: policy.Key{10}, Direction: policy.Ingress, AppliedTo: servers, Origins: []policy.Origin{{Policy: "shop/db", Rule: -1}}}},
			{Key: policy.Key{11}, Rule: &policy.Rule{Key: policy.Key{11}, Direction: policy.Ingress, AppliedTo: servers, Peers: []policy.Key{clients},
				Ports: []policy.PortRange{{Protocol: policy.TCP, First: 80, Last: 80}}, Origins: []policy.Origin{{Policy: "shop/db", Rule: 0}}}},
		},
		Groups: []policy.GroupUpdate{{Key: servers, Kind: policy.AppliedToGroup, Replace: true, Added: []netip.Addr{server}}, {Key: clients, Kind: policy.PeerGroup, Replace: true, Added: members}},
	}
}

func leaves(a netip.Addr) *policy.NodeUpdate {
	return &policy.NodeUpdate{Groups: []policy.GroupUpdate{{Key: clients, Kind: policy.PeerGroup, Removed: []netip.Addr{a}}}}
}

func TestAClientThatLosesItsPermissionIsCounted(t *testing.T) {
	ct := &tracker{lines: []string{line("10.0.0.2", 1, "10.0.0.1", 80), line("10.0.0.2", 2, "10.0.0.1", 80), line("10.0.0.3", 3, "10.0.0.1", 80), "nonsense",
		line("10.0.0.2", 4, "10.0.0.9", 80), line("10.0.0.9", 5, "10.0.0.2", 80)}}
	counting(t, ct, func(_ context.Context, c *Counter) {
		c.Begin(allowing(alice, bob))
		c.Updated(&policy.NodeUpdate{Groups: []policy.GroupUpdate{{Key: clients, Kind: policy.PeerGroup, Added: []netip.Addr{netip.MustParseAddr("10.0.0.4")}}}})
		synctest.Wait()
		if ct.dumps != 0 {
			t.Errorf("conntrack was read %d times for what can't cut", ct.dumps)
		}
		c.Updated(leaves(alice))
		synctest.Wait()
		recent, sum, problem := c.Recent()
		if sum != 2 || len(recent) != 1 || recent[0].Count != 2 || recent[0].Protocols[policy.TCP] != 2 || recent[0].Example.Src != alice {
			t.Fatalf("counted %d: %+v", sum, recent)
		}
		if why, want := recent[0].Why(), "lived on shop/db ingress[0]; denied by shop/db ingress"; why != want {
			t.Errorf("%q, want %q", why, want)
		}
		if problem == nil || !strings.Contains(problem.Error(), "nonsense") {
			t.Errorf("a line that cannot be read is not told: %v", problem)
		}
		if n := value(c.total.WithLabelValues("permission")); n != 2 {
			t.Errorf("the metric says %v", n)
		}
		c.Updated(leaves(alice)) // again: they are dead already
		time.Sleep(time.Minute)
		if _, sum, _ := c.Recent(); sum != 2 {
			t.Errorf("dead connections were counted again: %d", sum)
		}
	})
}

// The first policy of a pod ends what it does not allow, and no more; a permission by another rule keeps a connection.
func TestWhatIsStillAllowedIsNotCounted(t *testing.T) {
	ct := &tracker{lines: []string{line("10.0.0.2", 1, "10.0.0.1", 80), line("10.0.0.3", 2, "10.0.0.1", 80), line("10.0.0.3", 3, "10.0.0.1", 81)}}
	counting(t, ct, func(_ context.Context, c *Counter) {
		c.Begin(&policy.NodeUpdate{})
		c.Updated(allowing(alice, bob))
		synctest.Wait()
		recent, sum, _ := c.Recent()
		if sum != 1 || recent[0].Example.DstPort != 81 || recent[0].Why() != "lived while nothing isolated the pod; denied by shop/db ingress" {
			t.Fatalf("counted %d: %+v", sum, recent)
		}
		u := leaves(alice)
		u.Rules = []policy.RuleChange{{Key: policy.Key{12}, Rule: &policy.Rule{Key: policy.Key{12}, Direction: policy.Ingress, AppliedTo: servers, Blocks: []policy.IPBlock{{CIDR: netip.MustParsePrefix("10.0.0.0/24"),
			Except: []netip.Prefix{netip.MustParsePrefix("10.0.0.3/32")}}}, AnyPort: true}}}
		c.Updated(u)
		time.Sleep(time.Minute)
		if _, sum, _ := c.Recent(); sum != 1 {
			t.Errorf("counted %d: another rule allows alice", sum)
		}
	})
}

func TestTheConnectionsOfAPodThatIsGoneAreForgotten(t *testing.T) {
	ct := &tracker{lines: []string{line("10.0.0.2", 1, "10.0.0.1", 80), line("10.0.0.3", 2, "10.0.0.1", 80), line("10.0.0.3", 2, "10.0.0.2", 80)}}
	counting(t, ct, func(ctx context.Context, c *Counter) {
		c.Begin(allowing(alice, bob))
		c.Gone(ctx, "shop/alice", []netip.Addr{alice})
		if !slices.Equal(ct.forgot, []netip.Addr{alice}) {
			t.Fatalf("forgot %v when Gone had returned", ct.forgot)
		}
		if recent, sum, _ := c.Recent(); sum != 2 || recent[0].Why() != "pod shop/alice is gone" {
			t.Errorf("counted %d: %+v", sum, recent)
		}
		c.Gone(ctx, "shop/nobody", nil)
	})
}

// A switch that does not answer delays nobody for long, and is asked again until it has forgotten.
func TestASwitchThatIsAwayForgetsLater(t *testing.T) {
	ct := &tracker{broken: errors.New("away")}
	counting(t, ct, func(ctx context.Context, c *Counter) {
		c.Begin(allowing(alice))
		c.Gone(ctx, "shop/alice", []netip.Addr{alice})
		if _, _, problem := c.Recent(); problem == nil || value(c.failed) != 1 {
			t.Errorf("nothing is told: %v", problem)
		}
		ct.set(nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !slices.Equal(ct.forgot, []netip.Addr{alice}) {
			t.Errorf("forgot %v", ct.forgot)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	New(Config{Conntrack: ct}).Gone(ctx, "shop/alice", []netip.Addr{alice}) // nobody runs it: ends with ctx
}

// An address whose last pod's connections are still to be forgotten is not free: forgotten later, the next pod's would go too.
func TestAnAddressIsFreeWhenItIsForgotten(t *testing.T) {
	ct := &tracker{broken: errors.New("away")}
	counting(t, ct, func(ctx context.Context, c *Counter) {
		c.Begin(allowing(alice))
		c.Had([]netip.Addr{alice, bob})
		for range 3 { // the runtime repeats itself
			c.Gone(ctx, "shop/alice", []netip.Addr{alice})
		}
		if err := c.Free(ctx, []netip.Addr{bob}); err != nil {
			t.Error(err)
		}
		early, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		if err := c.Free(early, []netip.Addr{bob, alice}); err == nil {
			t.Error("free while the switch remembers")
		}
		ct.set(nil)
		if err := c.Free(ctx, []netip.Addr{bob, alice}); err != nil || !slices.Equal(ct.forgot, []netip.Addr{alice}) {
			t.Errorf("free: %v; forgotten %v, want once", err, ct.forgot)
		}
	})
	c := New(Config{Conntrack: ct}) // nobody runs it
	over, cancel := context.WithCancel(t.Context())
	cancel()
	c.Gone(over, "shop/alice", []netip.Addr{alice})
	if c.Free(over, []netip.Addr{alice}) == nil {
		t.Error("free before anybody has looked")
	}
}

// Nobody knows what an address was owed before the start: its first pod waits until it is forgotten, once, and nobody else does. The
// connections of pods that go on are left alone.
func TestAnAddressOfBeforeTheStartIsForgottenBeforeItsFirstPod(t *testing.T) {
	ct := &tracker{broken: errors.New("away")}
	counting(t, ct, func(ctx context.Context, c *Counter) {
		c.Had([]netip.Addr{bob})
		if err := c.Free(ctx, []netip.Addr{bob}); err != nil {
			t.Error(err)
		}
		for range 2 { // the kubelet tries again
			early, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			if err := c.Free(early, []netip.Addr{alice}); err == nil {
				t.Error("free while the switch may remember another pod of before the start")
			}
			cancel()
		}
		ct.set(nil)
		for range 2 {
			if err := c.Free(ctx, []netip.Addr{alice, bob}); err != nil || !slices.Equal(ct.forgot, []netip.Addr{alice}) {
				t.Errorf("free: %v; forgotten %v, want alice's once", err, ct.forgot)
			}
		}
		c.Gone(ctx, "shop/alice", []netip.Addr{alice})
		if err := c.Free(ctx, []netip.Addr{alice}); err != nil || !slices.Equal(ct.forgot, []netip.Addr{alice, alice}) {
			t.Errorf("after the pod's end: %v; forgotten %v, want alice's twice", err, ct.forgot)
		}
	})
}

// Where nothing is left of an address its first pod does not wait, and all are read together, once: to forget one takes the switch seconds where it knows
// many connections.
func TestWhatNothingIsLeftOfIsFree(t *testing.T) {
	ct := &tracker{lines: []string{opened(alice)}}
	counting(t, ct, func(ctx context.Context, c *Counter) {
		for _, addrs := range [][]netip.Addr{{carol}, {bob}, {carol, bob}} {
			if err := c.Free(ctx, addrs); err != nil || len(ct.forgot) > 0 || ct.asked != 1 {
				t.Errorf("%v; forgotten %v in %d readings", err, ct.forgot, ct.asked)
			}
		}
		if err := c.Free(ctx, []netip.Addr{alice, carol}); err != nil || !slices.Equal(ct.forgot, []netip.Addr{alice}) {
			t.Errorf("%v; forgotten %v", err, ct.forgot)
		}
	})
}

// opened is a connection of the address's, as a dump tells it.
func opened(by netip.Addr) string {
	return "udp,orig=(src=" + by.String() + ",dst=" + bob.String() + ",sport=1,dport=2)"
}

// Open vSwitch that forgets may leave some out: it is asked until nothing is left, and nobody has the address before.
func TestWhatTheSwitchMissedIsForgottenToo(t *testing.T) {
	ct := &tracker{lines: []string{opened(alice), opened(alice), opened(alice), opened(carol)}, misses: 4}
	counting(t, ct, func(ctx context.Context, c *Counter) {
		c.Gone(ctx, "shop/both", []netip.Addr{alice, carol})
		if err := c.Free(ctx, []netip.Addr{alice, carol}); err != nil || len(ct.lines) > 0 {
			t.Errorf("free: %v; left are %v", err, ct.lines)
		}
	})
}

// slow is conntrack that a switch which hangs does not show.
type slow struct{ tracker }

func (s *slow) Dump(ctx context.Context) (string, error) {
	_, _ = s.tracker.Dump(ctx)
	<-ctx.Done()
	return "", ctx.Err()
}

// A switch that hangs does not keep the counter from what changes for long.
func TestAHangingSwitchIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ct := new(slow)
		c := New(Config{Conntrack: ct, Logger: slog.New(slog.DiscardHandler)})
		go c.Run(ctx)
		c.Begin(allowing(alice))
		for range 120 {
			c.Updated(leaves(alice))
			time.Sleep(time.Second)
		}
		cancel()
		synctest.Wait() // the counter asks at the very moment in which this loop ends
		if ct.dumps < 5 {
			t.Errorf("asked %d times in two minutes", ct.dumps)
		}
	})
}

// busy is conntrack that takes a minute to forget.
type busy struct {
	tracker
	cutShort int
}

func (b *busy) Forget(ctx context.Context, a netip.Addr) error {
	select {
	case <-time.After(time.Minute):
		return b.tracker.Forget(ctx, a)
	case <-ctx.Done():
		b.cutShort++
		return ctx.Err()
	}
}

// thirtyGone are the addresses of pods that end at once, on a busy switch.
func thirtyGone() (*busy, *Counter, []netip.Addr) {
	ct := new(busy)
	var addrs []netip.Addr
	for n := range byte(30) {
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, 1, 0, n}))
	}
	return ct, New(Config{Conntrack: ct, Logger: slog.New(slog.DiscardHandler)}), addrs
}

// Many pods that die at once on a busy switch are forgotten one after another; the switch is not cut short.
func TestABusySwitchIsNotCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ct, c, addrs := thirtyGone()
		go c.Run(ctx)
		c.Gone(ctx, "shop/all", addrs)
		if ct.cutShort != 0 || len(ct.forgot) != len(addrs) {
			t.Errorf("forgotten are %d of %d, cut short %d times", len(ct.forgot), len(addrs), ct.cutShort)
		}
		cancel()
		synctest.Wait()
	})
}

// A pod that starts waits for what is at work, and not for all that are gone.
func TestAnAddressThatAPodWaitsForComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ct, c, addrs := thirtyGone()
		ct.lines = []string{opened(alice)}
		go c.Run(ctx)
		go c.Gone(ctx, "shop/all", addrs)
		synctest.Wait()
		if err := c.Free(ctx, []netip.Addr{alice, addrs[20]}); err != nil || len(ct.forgot) != 3 {
			t.Errorf("free: %v; before it %v", err, ct.forgot)
		}
		cancel()
		synctest.Wait()
	})
}

// A storm of changes reads conntrack a few times, and still counts what came and went.
func TestManyChangesAreCountedTogether(t *testing.T) {
	ct := &tracker{lines: []string{line("10.0.0.2", 1, "10.0.0.1", 80)}, takes: 100 * time.Millisecond} // all of them come meanwhile
	counting(t, ct, func(_ context.Context, c *Counter) {
		c.Begin(allowing(bob))
		for range 1000 {
			c.Updated(&policy.NodeUpdate{Groups: []policy.GroupUpdate{{Key: clients, Kind: policy.PeerGroup, Added: []netip.Addr{alice}}}})
			c.Updated(leaves(alice))
		}
		time.Sleep(time.Minute)
		if _, sum, _ := c.Recent(); sum == 0 || ct.dumps > 5 {
			t.Errorf("counted %d, reading conntrack %d times", sum, ct.dumps)
		}
	})
}

func TestOnlyTheLatestAreKept(t *testing.T) {
	c := New(Config{Logger: slog.New(slog.DiscardHandler)})
	for i := range kept + 10 {
		c.tell([]Cut{{Reason: EndpointGone, Endpoint: fmt.Sprint(i), Count: 1}})
	}
	if recent, sum, _ := c.Recent(); len(recent) != kept || recent[0].Endpoint != "10" || sum != kept+10 {
		t.Errorf("%d kept from %q on, %d counted", len(recent), recent[0].Endpoint, sum)
	}
}
