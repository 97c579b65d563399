package conntrack

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

// The zones of the connections here.
const (
	ofPolicies = 65521
	ofServices = 65522
)

// tracker is conntrack with these lines.
type tracker struct {
	mu      sync.Mutex
	lines   []string // of all zones; those that name none are of zone 0
	dumps   int      // of the policies' zone
	misses  int      // lines that Forget leaves
	broken  error
	away    error // why it is not settled
	unread  error // why it shows nothing
	refuses error // why it forgets nothing
	forgot  []netip.Addr
	asked   []ofctl.Connections
	forgets func()        // called when it has forgotten, with the lock
	takes   time.Duration // to read it
}

func (c *tracker) Settled(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.away
}

func (c *tracker) Dump(_ context.Context, zone uint16) (string, error) {
	time.Sleep(c.takes)
	c.mu.Lock()
	defer c.mu.Unlock()
	if zone == ofPolicies {
		c.dumps++
	}
	if c.unread != nil {
		return "", c.unread
	}
	return strings.Join(slices.DeleteFunc(slices.Clone(c.lines), func(line string) bool { return !in(zone, line) }), "\n"), c.broken
}

func in(zone uint16, line string) bool { return strings.Contains(line, fmt.Sprintf(",zone=%d", zone)) }

func (c *tracker) Forget(_ context.Context, those []ofctl.Connections) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return c.broken
	}
	c.forgot, c.asked = append(c.forgot, those[0].Addr), append(c.asked, those...)
	if c.refuses != nil {
		return c.refuses
	}
	c.lines = slices.DeleteFunc(slices.Clone(c.lines), func(line string) bool {
		if !slices.ContainsFunc(those, func(k ofctl.Connections) bool { return isOf(line, k) }) {
			return false
		}
		c.misses--
		return c.misses < 0
	})
	if c.forgets != nil {
		c.forgets()
	}
	return nil
}

// isOf tells whether the switch would remove a connection that it is asked to; it never removes SCTP, as with the kernel's tracker.
func isOf(line string, k ofctl.Connections) bool {
	t, _, err := ParseLine(line)
	if from, replyErr := replySource(line); k.Reply {
		right := from.Addr() == k.Addr && (k.Port == 0 || from.Port() == k.Port) &&
			(k.To.Port() == 0 || k.To == netip.AddrPortFrom(t.Dst, t.DstPort))
		return err == nil && replyErr == nil && in(k.Zone, line) && uint8(t.Protocol) == k.Protocol && right
	}
	return err == nil && in(k.Zone, line) && uint8(t.Protocol) == k.Protocol && t.Protocol != policy.SCTP && (k.From && t.Src == k.Addr || !k.From && t.Dst == k.Addr)
}

func (c *tracker) set(broken error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken, c.away = broken, broken
}

// configured is a counter's configuration with this conntrack.
func configured(ct Conntrack) Config {
	return Config{Conntrack: ct, Zones: []uint16{ofPolicies, ofServices}, Forgettable: map[uint8]bool{6: true, 17: true, 132: false}, Logger: slog.New(slog.DiscardHandler)}
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
		c := New(configured(ct))
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
	ct := &tracker{lines: []string{line("10.0.0.2", 1, "10.0.0.1", 80), line("10.0.0.2", 2, "10.0.0.1", 80), line("10.0.0.3", 3, "10.0.0.1", 80), "nonsense,zone=65521",
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
func TestCounter_SkipsAllowedConnections(t *testing.T) {
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

// slow is conntrack that a switch which hangs does not show.
type slow struct{ tracker }

func (s *slow) Dump(ctx context.Context, zone uint16) (string, error) {
	_, _ = s.tracker.Dump(ctx, zone)
	<-ctx.Done()
	return "", ctx.Err()
}

// A switch that hangs does not keep the counter from what changes for long.
func TestCounter_RetriesHangingSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ct := new(slow)
		c := New(configured(ct))
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
		c.report([]Cut{{Reason: EndpointGone, Endpoint: fmt.Sprint(i), Count: 1}})
	}
	if recent, sum, _ := c.Recent(); len(recent) != kept || recent[0].Endpoint != "10" || sum != kept+10 {
		t.Errorf("%d kept from %q on, %d counted", len(recent), recent[0].Endpoint, sum)
	}
}
