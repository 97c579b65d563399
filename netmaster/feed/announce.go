package feed

import (
	"context"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Rate limits of announcements and withdrawals, since each may change rules on all nodes. Announcements above the
// limit are delayed, without affecting other nodes. A new hello does not refill the burst, since it contains
// attached pods. Between two announcements of a burst is a gap, in which other tenants' changes are taken and sent.
const (
	announceInterval = 100 * time.Millisecond
	announceBurst    = 256
	announceGap      = 5 * time.Millisecond
)

// announcement is a queued announcement or withdrawal.
type announcement struct {
	wire.Announcement
	withdraw bool
	links    *policy.Links // if set, these are announced instead of a pod
}

// podKey returns the key by which a stream's pods are counted. Pods of one name with different UIDs count separately.
func podKey(a *wire.Announcement) string { return a.ID() + " " + a.UID }

// announcements is the queue of a stream's announcements. Safe for concurrent use.
type announcements struct {
	mu   sync.Mutex
	list []announcement
	more chan struct{}
}

func newAnnouncements() *announcements { return &announcements{more: make(chan struct{}, 1)} }

// add queues an announcement. It fails if more are queued than a node may have pods.
func (q *announcements) add(a announcement) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) >= wire.MaxAnnounced {
		return status.Errorf(codes.ResourceExhausted,
			"more than %d announcements are queued: the rate limit is one in %s", wire.MaxAnnounced, announceInterval)
	}
	q.list = append(q.list, a)
	select {
	case q.more <- struct{}{}:
	default:
	}
	return nil
}

// next removes and returns the oldest announcement. It waits if there is none.
func (q *announcements) next(ctx context.Context) (announcement, error) {
	for {
		q.mu.Lock()
		if len(q.list) > 0 {
			a := q.list[0]
			q.list = q.list[1:]
			q.mu.Unlock()
			return a, nil
		}
		q.list = nil
		q.mu.Unlock()
		select {
		case <-q.more:
		case <-ctx.Done():
			return announcement{}, reason(ctx)
		}
	}
}

// announced queues a message if it is an announcement or a withdrawal, and reports whether it is.
func (c *conn) announced(m *feed.NodeMessage) (is bool, err error) {
	var a announcement
	switch m := m.Message.(type) {
	case *feed.NodeMessage_Announce:
		a.Announcement, err = wire.ToAnnouncement(m.Announce)
	case *feed.NodeMessage_Withdraw:
		a.withdraw = true
		a.Announcement, err = wire.ToAnnouncement(m.Withdraw)
	case *feed.NodeMessage_Links:
		if a.links, err = wire.ToLinks(m.Links); a.links == nil {
			a.links = new(policy.Links)
		}
	default:
		return false, nil
	}
	if err != nil {
		return true, status.Errorf(codes.InvalidArgument, "node %s: %v", c.hello.Node, err)
	}
	return true, c.announcements.add(a)
}

// announcer passes announcements to the owner at a limited rate.
func (s *Server) announcer(ctx context.Context, c *conn) error {
	for {
		a, err := c.announcements.next(ctx)
		if err != nil {
			return err
		}
		ev := Event{Node: c.hello.Node, Announce: &a.Announcement}
		if a.links != nil {
			ev = Event{Node: c.hello.Node, Links: a.links}
		} else if a.withdraw {
			delete(c.pods, podKey(&a.Announcement))
			ev = Event{Node: c.hello.Node, Withdraw: &a.Announcement}
		} else if err := c.count(&a.Announcement); err != nil {
			return err
		}
		if err := s.pace(ctx, c.hello.Node); err != nil {
			return err
		}
		if err := s.deliver(ctx, c, ev); err != nil {
			return err
		}
		if err := sleep(ctx, announceGap); err != nil {
			return err
		}
	}
}

// delayed counts a delayed announcement, and logs its node once a minute.
func (s *Server) delayed(node string) {
	s.metrics.delayed.Inc()
	if s.delays.Allow(node, time.Now()) {
		s.cfg.Logger.Warn("a node exceeds its announcement rate: its announcements are delayed",
			"node", node, "interval", announceInterval)
	}
}

// pace waits until the node may announce something.
func (s *Server) pace(ctx context.Context, node string) error {
	for waited := false; ; waited = true {
		wait := s.announced.Take(node, time.Now())
		if wait == 0 {
			return nil
		}
		if !waited {
			s.delayed(node)
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}
