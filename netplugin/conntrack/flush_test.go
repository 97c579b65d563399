package conntrack

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

	"github.com/flowkeep/flowkeep/ofctl"
)

// opened is a connection of the address's, as a dump tells it.
func opened(by netip.Addr) string {
	return "udp,orig=(src=" + by.String() + ",dst=" + bob.String() + ",sport=1,dport=2),zone=65521"
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
	ct := &tracker{lines: []string{opened(alice)}, broken: errors.New("away")}
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
	New(configured(ct)).Gone(ctx, "shop/alice", []netip.Addr{alice}) // nobody runs it: ends with ctx
}

// An address whose last pod's connections are still to be forgotten is not free: forgotten later, the next pod's would go too.
func TestAnAddressIsFreeWhenItIsForgotten(t *testing.T) {
	ct := &tracker{lines: []string{opened(alice)}, broken: errors.New("away")}
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
	c := New(configured(ct)) // nobody runs it
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
	ct := &tracker{lines: []string{opened(alice)}, broken: errors.New("away")}
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
		ct.lines = []string{opened(alice)}
		c.Gone(ctx, "shop/alice", []netip.Addr{alice})
		if err := c.Free(ctx, []netip.Addr{alice}); err != nil || !slices.Equal(ct.forgot, []netip.Addr{alice, alice}) {
			t.Errorf("after the pod's end: %v; forgotten %v, want alice's twice", err, ct.forgot)
		}
	})
}

// Where nothing is left of an address its first pod does not wait, and all are read together, once. What others had opened to it is left of it too: whoever
// has it could answer.
func TestWhatNothingIsLeftOfIsFree(t *testing.T) {
	ct := &tracker{lines: []string{opened(alice)}} // to bob
	counting(t, ct, func(ctx context.Context, c *Counter) {
		dave := netip.MustParseAddr("10.0.0.5")
		for _, addrs := range [][]netip.Addr{{carol}, {dave}, {carol, dave}} {
			if err := c.Free(ctx, addrs); err != nil || len(ct.forgot) > 0 || ct.dumps != 1 {
				t.Errorf("%v; forgotten %v in %d readings", err, ct.forgot, ct.dumps)
			}
		}
		if err := c.Free(ctx, []netip.Addr{bob, carol}); err != nil || !slices.Equal(ct.forgot, []netip.Addr{bob}) || len(ct.lines) > 0 {
			t.Errorf("%v; forgotten %v, left %v", err, ct.forgot, ct.lines)
		}
		ct.lines = []string{opened(alice)}
		if err := c.Free(ctx, []netip.Addr{alice, carol}); err != nil || !slices.Equal(ct.forgot, []netip.Addr{bob, alice}) {
			t.Errorf("%v; forgotten %v", err, ct.forgot)
		}
	})
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

// busy is conntrack that takes a minute to forget.
type busy struct {
	tracker
	cutShort int
}

func (b *busy) Forget(ctx context.Context, those []ofctl.Connections) error {
	select {
	case <-time.After(time.Minute):
		return b.tracker.Forget(ctx, those)
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
		ct.lines = append(ct.lines, opened(addrs[n]))
	}
	return ct, New(configured(ct)), addrs
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
		ct.lines = append(ct.lines, opened(alice))
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

// connection is a line of a dump.
func connection(protocol string, zone int, from, to netip.Addr) string {
	return fmt.Sprintf("%[1]s,orig=(src=%[3]v,dst=%[4]v,sport=1,dport=2),reply=(src=%[4]v,dst=%[3]v,sport=2,dport=1),zone=%[2]d", protocol, zone, from, to)
}

// gone ends a pod that has the addresses and waits until they are free; it tells how long that took.
func gone(ctx context.Context, t *testing.T, c *Counter, addrs ...netip.Addr) time.Duration {
	t.Helper()
	began := time.Now()
	ended, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c.Gone(ended, "shop/gone", addrs)
	if err := c.Free(ctx, addrs); err != nil {
		t.Errorf("not free: %v", err)
	}
	return time.Since(began)
}

// What the kernel tracks in zones of others, its own stack's first of all, keeps nobody waiting: the switch is not to forget it, and does not.
func TestFlush_LeavesOtherZones(t *testing.T) {
	others := []string{connection("tcp", 7, alice, bob), "tcp,orig=(src=10.0.0.2,dst=10.0.0.3,sport=1,dport=2),reply=(src=10.0.0.3,dst=10.0.0.2,sport=2,dport=1)", connection("udp", 6552, bob, alice)}
	ct := &tracker{lines: append([]string{connection("udp", ofServices, alice, bob)}, others...)}
	counting(t, ct, func(ctx context.Context, c *Counter) {
		if took := gone(ctx, t, c, alice); took > secondLook || len(ct.forgot) != 1 || !slices.Equal(ct.lines, others) {
			t.Errorf("free after %v, asked %d times, left are %v", took, len(ct.forgot), ct.lines)
		}
	})
}

// Nor does what the switch cannot forget, or forgets in some versions only.
func TestWhatTheSwitchCannotForgetIsNotOwed(t *testing.T) {
	ct := &tracker{lines: []string{opened(alice)}}
	for _, protocol := range []string{"icmp", "igmp", "dccp", "47", "89", "sctp"} {
		ct.lines = append(ct.lines, connection(protocol, ofPolicies, alice, bob))
	}
	counting(t, ct, func(ctx context.Context, c *Counter) {
		if took := gone(ctx, t, c, alice); took > secondLook || len(ct.lines) != 6 {
			t.Errorf("free after %v; left are %v", took, ct.lines)
		}
		if len(ct.asked) != 2 || ct.asked[0].Protocol+ct.asked[1].Protocol != 17+132 {
			t.Errorf("asked for %+v, want UDP and SCTP once", ct.asked)
		}
	})
}

// The switch looks through all its connections for each zone, protocol and end: it is asked for those only that there are.
func TestFlush_DeletesListedConnections(t *testing.T) {
	ct := &tracker{lines: []string{connection("tcp", ofPolicies, alice, bob), connection("tcp", ofPolicies, alice, carol), connection("udp", ofServices, bob, alice)}}
	counting(t, ct, func(ctx context.Context, c *Counter) {
		gone(ctx, t, c, alice, carol)
		want := []ofctl.Connections{{Zone: ofPolicies, Protocol: 6, Addr: alice, From: true}, {Zone: ofServices, Protocol: 17, Addr: alice}, {Zone: ofPolicies, Protocol: 6, Addr: carol}}
		if len(ct.asked) != len(want) || slices.ContainsFunc(want, func(k ofctl.Connections) bool { return !slices.Contains(ct.asked, k) }) {
			t.Errorf("asked for %+v, want %+v", ct.asked, want)
		}
		ct.asked = nil
		if gone(ctx, t, c, alice); len(ct.asked) > 0 || len(ct.lines) > 0 {
			t.Errorf("of nothing asked for %+v, left are %v", ct.asked, ct.lines)
		}
	})
}

// Peers that go on sending to an address that nobody has keep the next pod from nothing.
func TestPeersThatGoOnAreNotWaitedFor(t *testing.T) {
	ct := &tracker{lines: []string{connection("udp", ofPolicies, bob, alice)}}
	ct.forgets = func() { ct.lines = []string{connection("udp", ofPolicies, bob, alice)} }
	counting(t, ct, func(ctx context.Context, c *Counter) {
		if took := gone(ctx, t, c, alice); took > secondLook || len(ct.forgot) != peerPasses {
			t.Errorf("free after %v, asked %d times", took, len(ct.forgot))
		}
	})
}

// TestForgetDeletesLatePeerConnections: a packet in flight makes an entry after the first deletion, and the switch
// leaves one out.
func TestForgetDeletesLatePeerConnections(t *testing.T) {
	for name, after := range map[string]time.Duration{"missed": 0, "in flight": secondLook / 2} {
		t.Run(name, func(t *testing.T) {
			ct := &tracker{lines: []string{connection("tcp", ofPolicies, bob, alice)}}
			late := sync.OnceFunc(func() {
				time.AfterFunc(after, func() {
					ct.mu.Lock()
					defer ct.mu.Unlock()
					ct.lines = append(ct.lines, connection("udp", ofServices, bob, alice))
				})
			})
			ct.forgets = late
			counting(t, ct, func(ctx context.Context, c *Counter) {
				took := gone(ctx, t, c, alice)
				if time.Sleep(secondLook); took > secondLook || len(ct.lines) > 0 {
					t.Errorf("free after %v, left are %v", took, ct.lines)
				}
			})
		})
	}
}

// errorsOf counts what is logged as an error.
type errorsOf struct {
	slog.Handler
	n *int
}

func (h errorsOf) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		*h.n++
	}
	return nil
}

// counted is counting with the errors that are logged.
func counted(t *testing.T, ct *tracker, f func(ctx context.Context, c *Counter, errors *int)) {
	t.Helper()
	counting(t, ct, func(ctx context.Context, c *Counter) {
		n := new(int)
		c.cfg.Logger = slog.New(errorsOf{slog.NewTextHandler(nil, nil), n})
		f(ctx, c, n)
	})
}

// A connection that comes again and again, as somebody outside can make it who sends with a dead pod's address, keeps the next pod waiting for a while, and not
// for ever. That is told once, and the switch is not asked when the address is another's.
func TestNoPodWaitsForEver(t *testing.T) {
	ct := &tracker{lines: []string{opened(alice), opened(carol)}}
	ct.forgets = func() { ct.lines = []string{opened(alice)} }
	counted(t, ct, func(ctx context.Context, c *Counter, errors *int) {
		if took := gone(ctx, t, c, carol); took > secondLook {
			t.Errorf("another waited %v", took)
		}
		if took := gone(ctx, t, c, alice); took < patience || took > patience+restMost+2*time.Second || *errors != 1 {
			t.Errorf("free after %v, %d errors told", took, *errors)
		}
		ct.forgot = nil
		if time.Sleep(time.Hour); len(ct.forgot) > 0 || *errors != 1 {
			t.Errorf("asked to forget %v when the address was another's, %d errors told", ct.forgot, *errors)
		}
	})
}

// TestPatienceBeginsWithAWaitingPod: a deletion that has failed for an hour frees the address of no pod that begins to
// wait.
func TestPatienceBeginsWithAWaitingPod(t *testing.T) {
	ct := &tracker{lines: []string{opened(alice)}, unread: errors.New("it hangs")}
	counted(t, ct, func(ctx context.Context, c *Counter, errors *int) {
		ended, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		c.Gone(ended, "shop/alice", []netip.Addr{alice})
		time.Sleep(time.Hour)
		began := time.Now()
		if err := c.Free(ctx, []netip.Addr{alice}); err != nil || *errors != 1 {
			t.Errorf("not free: %v; %d errors logged", err, *errors)
		}
		if took := time.Since(began); took < patience || took > patience+restMost+2*time.Second {
			t.Errorf("free after %v", took)
		}
	})
}

// TestPatienceAddsUpOverAttempts: the kubelet ends an attempt before patience is over, and pauses. Pauses do not count.
func TestPatienceAddsUpOverAttempts(t *testing.T) {
	const attempt, pause = 25 * time.Second, 10 * time.Minute
	ct := &tracker{lines: []string{opened(alice)}, unread: errors.New("it hangs")}
	counted(t, ct, func(ctx context.Context, c *Counter, errors *int) {
		for n := 1; ; n++ {
			limited, cancel := context.WithTimeout(ctx, attempt)
			err := c.Free(limited, []netip.Addr{alice})
			cancel()
			if err == nil {
				if n != 3 || *errors != 1 {
					t.Errorf("free in attempt %d, want 3; %d errors logged", n, *errors)
				}
				return
			}
			if n == 9 {
				t.Fatal("not free after nine attempts")
			}
			time.Sleep(pause)
		}
	})
}

// As long as nobody waits the switch is asked on.
func TestFlush_ContinuesWithoutWaiters(t *testing.T) {
	ct := &tracker{lines: []string{opened(alice)}, unread: errors.New("it hangs")}
	counted(t, ct, func(ctx context.Context, c *Counter, errors *int) {
		ended, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		c.Gone(ended, "shop/alice", []netip.Addr{alice})
		time.Sleep(time.Hour)
		ct.mu.Lock()
		ct.unread = nil
		ct.mu.Unlock()
		if err := c.Free(ctx, []netip.Addr{alice}); err != nil || len(ct.lines) > 0 || *errors > 0 {
			t.Errorf("%v; left are %v; %d errors told", err, ct.lines, *errors)
		}
	})
}

// A switch that is away ends nobody's patience: when it is back, it is asked, and for a while again.
func TestASwitchThatIsAwayIsWaitedFor(t *testing.T) {
	ct := &tracker{lines: []string{opened(alice)}, unread: errors.New("it hangs")}
	counted(t, ct, func(ctx context.Context, c *Counter, errors *int) {
		turn := func(after time.Duration, away, unread error) {
			time.AfterFunc(after+300*time.Millisecond, func() { // between the times at which it is asked: one question sees both turned, or none
				ct.mu.Lock()
				defer ct.mu.Unlock()
				ct.away, ct.unread = away, unread
			})
		}
		turn(10*time.Second, context.DeadlineExceeded, nil)
		turn(time.Hour, nil, context.DeadlineExceeded)
		turn(time.Hour+10*time.Second, nil, nil)
		if took := gone(ctx, t, c, alice); took < time.Hour+10*time.Second || took > time.Hour+15*time.Second || len(ct.lines) > 0 || *errors > 0 {
			t.Errorf("free after %v, left are %v, %d errors told", took, ct.lines, *errors)
		}
	})
}

// A switch that has no such thing keeps nobody from being wired, is asked once an address, and told of once.
func TestFlush_UnsupportedIsLoggedOnce(t *testing.T) {
	ct := &tracker{lines: []string{opened(alice), opened(carol)}, refuses: fmt.Errorf("%w: bad request", ErrCannot)}
	counted(t, ct, func(ctx context.Context, c *Counter, errors *int) {
		for _, a := range []netip.Addr{alice, carol, alice} {
			if took := gone(ctx, t, c, a); took > 0 {
				t.Errorf("free after %v", took)
			}
		}
		if time.Sleep(time.Hour); len(ct.forgot) != 3 || *errors != 1 {
			t.Errorf("asked to forget %v, %d errors told", ct.forgot, *errors)
		}
	})
}

// Whether all is forgotten could not be looked at: nobody has the address before it was.
func TestFlush_UnreadConnectionsStayPending(t *testing.T) {
	ct := &tracker{lines: []string{opened(alice), opened(alice)}, misses: 1}
	ct.forgets = func() {
		if len(ct.lines) > 0 {
			ct.unread = errors.New("too late")
			time.AfterFunc(5*time.Second, func() {
				ct.mu.Lock()
				defer ct.mu.Unlock()
				ct.unread = nil
			})
		}
	}
	counting(t, ct, func(ctx context.Context, c *Counter) {
		if took := gone(ctx, t, c, alice); took < 5*time.Second || len(ct.lines) > 0 {
			t.Errorf("free after %v, left are %v", took, ct.lines)
		}
	})
}

// Where there are too many connections for a list, or it has what cannot be read, whatever the address may have is forgotten, and once more for what was missed.
func TestFlush_UnlistedIsDeletedTwice(t *testing.T) {
	for name, ct := range map[string]*tracker{
		"too many":   {lines: []string{opened(alice), opened(alice), connection("tcp", ofServices, bob, alice)}, misses: 2, unread: fmt.Errorf("%w: 1000000", ErrTooMany)},
		"unreadable": {lines: []string{"nonsense,zone=65522", opened(alice), opened(alice)}, misses: 1},
	} {
		t.Run(name, func(t *testing.T) {
			counting(t, ct, func(ctx context.Context, c *Counter) {
				gone(ctx, t, c, alice, carol)
				if slices.ContainsFunc(ct.lines, func(line string) bool { return strings.Contains(line, alice.String()) }) || !slices.Equal(ct.forgot, []netip.Addr{alice, alice, carol, carol}) {
					t.Errorf("forgot %v, left are %v", ct.forgot, ct.lines)
				}
				if want := 4 * len(c.cfg.Zones) * 2 * len(c.cfg.Forgettable); len(ct.asked) != want {
					t.Errorf("asked %d times, want %d", len(ct.asked), want)
				}
			})
		})
	}
}

// First pods of many addresses wait for one list, and not for each other's when the switch does not answer.
func TestFirstPodsWaitTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ct := new(slow)
		c := New(configured(ct))
		go c.Run(ctx)
		began, free := time.Now(), make(chan error)
		for n := range byte(30) {
			go func() { free <- c.Free(ctx, []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, n})}) }()
		}
		for range 30 {
			if err := <-free; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took > 2*patience {
			t.Errorf("free after %v", took)
		}
		cancel()
		synctest.Wait()
	})
}

// Nobody is woken for an address of which nothing is left.
func TestFlush_NothingPendingWakesNoGoroutine(t *testing.T) {
	c := New(configured(new(tracker)))
	c.left = map[netip.Addr]bool{}
	if err := c.Free(t.Context(), []netip.Addr{alice}); err != nil || len(c.wake)+len(c.urgent) > 0 {
		t.Errorf("%v; woken: %v", err, len(c.wake)+len(c.urgent) > 0)
	}
}
