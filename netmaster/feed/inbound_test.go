package feed

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"google.golang.org/grpc/codes"
)

// sendAll sends a message again and again, but not without end where none waits, until ctx ends. It returns how many
// were taken so far.
func sendAll(ctx context.Context, l *line, m *feed.NodeMessage) (taken func() int) {
	count := make(chan int, 1)
	count <- 0
	go func() {
		for range 3 * max(inboundBurst, repliesBurst) {
			select {
			case l.in <- m:
				n := <-count
				count <- n + 1
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() int {
		n := <-count
		count <- n
		return n
	}
}

// Messages of any kind are read at the pace of their node, whichever stream they come on; other nodes wait for none.
func TestInbound_EveryKindIsPaced(t *testing.T) {
	large := make([]byte, 1<<20)
	for name, m := range map[string]*feed.NodeMessage{
		"beat":            wire.FromBeat(1),
		"acknowledgement": wire.FromAck(&wire.Ack{}),
		"drift":           {Message: &feed.NodeMessage_Drift{Drift: &feed.Drift{Missing: 1}}},
		"resend":          wire.FromResend(feed.KeyedSet_KEYED_SET_NODES),
		"unknown":         {},
		"answer":          {Message: &feed.NodeMessage_Reply{Reply: &feed.Reply{Id: 9, Body: large, More: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHostile(func(*Config) {})
				defer h.end()
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				l := h.dial("node1")
				l.hello("node1")
				synctest.Wait()
				taken := sendAll(ctx, l, m)
				synctest.Wait()
				first, cost, burst := taken(), units(m), inboundBurst
				if m.GetReply() != nil {
					burst = repliesBurst
				}
				if most := burst/cost + 12; first > most || first < burst/cost-1 {
					t.Errorf("%d messages at once, want about %d", first, burst/cost)
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				want := int(10 * time.Second / inboundInterval / time.Duration(cost))
				if got := taken() - first; got < want-2 || got > want+2 {
					t.Errorf("%d messages in 10 s, want %d", got, want)
				}
				other := h.dial("node2")
				other.hello("node2")
				other.in <- wire.FromBeat(7)
				synctest.Wait()
				if h.count("hello node2") != 1 {
					t.Error("another node waits")
				}
			})
		})
	}
}

// Parts of a hello without end are paced too.
func TestInbound_HelloIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHostile(func(c *Config) { c.HelloTimeout = time.Hour })
		defer h.end()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		taken := sendAll(ctx, h.dial("node1"), part("node1"))
		synctest.Wait()
		if n := taken(); n > inboundBurst+12 {
			t.Errorf("%d parts at once", n)
		}
	})
}

// An answer that a query waits for is not paced: 64 MB of flows come as fast as the node sends them.
func TestInbound_AwaitedAnswersAreNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHostile(func(*Config) {})
		defer h.end()
		l := h.dial("node1")
		l.hello("node1")
		synctest.Wait()
		s := h.Server
		s.replies = s.inbound // a burst that the answer exceeds
		answer := make(chan int, 1)
		go func() {
			body, err := s.Query(t.Context(), "node1", []byte(`{"kind": "flows"}`))
			if err != nil {
				t.Error(err)
			}
			answer <- len(body)
		}()
		synctest.Wait()
		began := time.Now()
		for part := range wire.ReplyParts(1, make([]byte, 60<<20)) {
			l.in <- part
		}
		if n := <-answer; n != 60<<20 || time.Since(began) > 0 {
			t.Errorf("an answer of %d bytes after %v", n, time.Since(began))
		}
	})
}

// A node announces no more pods than it may have, also where all have one name and another UID each.
func TestAnnouncements_UIDsAreCounted(t *testing.T) {
	for _, withdraws := range []bool{true, false} {
		t.Run(map[bool]string{true: "withdrawn", false: "kept"}[withdraws], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHostile(func(*Config) {})
				defer h.end()
				l := h.dial("node1")
				l.hello("node1")
				synctest.Wait()
				for i := range wire.MaxAnnounced + 20 {
					a := wire.FromAnnouncement(&wire.Announcement{Namespace: "ns", Name: "pod", UID: fmt.Sprint(i)})
					l.in <- &feed.NodeMessage{Message: &feed.NodeMessage_Announce{Announce: a}}
					if withdraws {
						l.in <- &feed.NodeMessage{Message: &feed.NodeMessage_Withdraw{Withdraw: a}}
					}
					time.Sleep(3 * announceInterval)
					synctest.Wait()
					if ended(l) != codes.OK {
						break
					}
				}
				want := map[bool]codes.Code{true: codes.OK, false: codes.ResourceExhausted}[withdraws]
				if code := ended(l); code != want {
					t.Errorf("the stream: %v, want %v", code, want)
				}
			})
		})
	}
}
