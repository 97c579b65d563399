// Package feed is the node's end of the stream from netmaster: it says what the node holds, takes updates over whole, and
// announces the pods that are wired here.
package feed

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// Handler is the agent. Its calls come one after another from one goroutine.
type Handler interface {
	// State is what the node holds and has wired, for the hello.
	State(context.Context) (revision uint64, held []feed.Held, announced []feed.Announcement, err error)
	// Update realises an update; errors of single rules are told to netmaster.
	Update(context.Context, policy.NodeUpdate) ([]feed.RuleError, error)
	Nodes(context.Context, []policy.NodeInfo) error
	Query(context.Context, []byte) ([]byte, error)
}

// Config is what a client needs. TLS is called for each connection.
type Config struct {
	Servers []string
	TLS     func() (*tls.Config, error)
	Node    string
	Version string
	Logger  *slog.Logger
	Handler Handler
}

// Client keeps a stream to netmaster open. Announce, Withdraw and Connected are safe for concurrent use.
type Client struct {
	cfg Config

	mu        sync.Mutex
	connected bool
	outbox    []feed.NodeMessage
	wake      chan struct{}
}

// New makes a client; Run starts it.
func New(cfg Config) *Client { return &Client{cfg: cfg, wake: make(chan struct{}, 1)} }

// Connected tells whether netmaster is being listened to.
func (c *Client) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.connected
}

// Announce tells netmaster of a wired pod now; after a reconnection the hello does.
func (c *Client) Announce(a feed.Announcement) { c.queue(feed.NodeMessage{Announce: &a}) }

// Withdraw tells netmaster that a pod's addresses are free again.
func (c *Client) Withdraw(a feed.Announcement) { c.queue(feed.NodeMessage{Withdraw: &a}) }

// queue drops the message while there is no connection: the next hello tells the whole state.
func (c *Client) queue(m feed.NodeMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.connected {
		return
	}
	c.outbox = append(c.outbox, m)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Client) setConnected(up bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected, c.outbox = up, nil
}

func (c *Client) takeOutbox() []feed.NodeMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.outbox
	c.outbox = nil
	return out
}

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Run keeps the stream until ctx ends.
func (c *Client) Run(ctx context.Context) {
	wait := firstRetry
	for i := 0; ctx.Err() == nil; i++ {
		server := c.cfg.Servers[i%len(c.cfg.Servers)]
		began := time.Now()
		err := c.session(ctx, server)
		c.setConnected(false)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > lastRetry {
			wait = firstRetry
		}
		c.cfg.Logger.Warn("no connection to netmaster; enforcing what is known", "server", server, "error", err, "retry", wait)
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-ctx.Done():
		}
		wait = min(2*wait, lastRetry)
	}
}

// session is one connection, from hello to its end.
func (c *Client) session(ctx context.Context, server string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tlsConfig, err := c.cfg.TLS()
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+server, grpc.WithTransportCredentials(credentials.NewTLS(tlsConfig)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second, PermitWithoutStream: true}))
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := feed.Open(ctx, conn)
	if err != nil {
		return err
	}
	s := &session{client: c, stream: stream, acks: make(chan feed.NodeMessage, 16)}
	// From here on announcements are queued, so that none falls between the hello's state and the stream.
	c.setConnected(true)
	if err := s.hello(ctx); err != nil {
		return err
	}
	c.cfg.Logger.Info("connected to netmaster", "server", server)
	failed := make(chan error, 2)
	go func() { failed <- s.send(ctx) }()
	go func() { failed <- s.receive(ctx) }()
	err = <-failed
	cancel()
	return errors.Join(err, <-failed)
}

type session struct {
	client *Client
	stream grpc.BidiStreamingClient[feed.NodeMessage, feed.MasterMessage]
	acks   chan feed.NodeMessage
}

// heldPerHello keeps a hello far below feed.MaxMessage.
const heldPerHello = 10000

func (s *session) hello(ctx context.Context) error {
	cfg := &s.client.cfg
	revision, held, announced, err := cfg.Handler.State(ctx)
	if err != nil {
		return err
	}
	for {
		n := min(len(held), heldPerHello)
		h := feed.Hello{Node: cfg.Node, Version: cfg.Version, MinVersion: feed.MinVersion, MaxVersion: feed.MaxVersion,
			Revision: revision, Held: held[:n], Announced: announced, More: n < len(held)}
		if err := s.stream.Send(&feed.NodeMessage{Hello: &h}); err != nil {
			return s.reason(err)
		}
		held, announced = held[n:], nil
		if !h.More {
			return nil
		}
	}
}

// reason asks the stream why sending failed: Send itself only tells io.EOF.
func (s *session) reason(err error) error {
	if _, why := s.stream.Recv(); why != nil {
		return why
	}
	return err
}

func (s *session) send(ctx context.Context) error {
	for {
		var messages []feed.NodeMessage
		select {
		case <-ctx.Done():
			return nil
		case <-s.client.wake:
			messages = s.client.takeOutbox()
		case m := <-s.acks:
			messages = append(messages, m)
		}
		for i := range messages {
			if err := s.stream.Send(&messages[i]); err != nil {
				return fmt.Errorf("send: %w", err)
			}
		}
	}
}

func (s *session) receive(ctx context.Context) error {
	var update policy.NodeUpdate
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return err
		}
		switch {
		case m.Update != nil:
			update.Revision = m.Update.Revision
			update.Rules = append(update.Rules, m.Update.Rules...)
			update.Groups = append(update.Groups, m.Update.Groups...)
			update.Settled = append(update.Settled, m.Update.Settled...)
			if !m.Update.Last {
				continue
			}
			if err := s.realise(ctx, update); err != nil {
				return err
			}
			update = policy.NodeUpdate{}
		case m.Nodes != nil:
			err = s.client.cfg.Handler.Nodes(ctx, *m.Nodes)
		case m.Query != nil:
			go s.query(ctx, m.Query)
		}
		if err != nil {
			return err
		}
	}
}

func (s *session) realise(ctx context.Context, u policy.NodeUpdate) error {
	if err := validate(&u); err != nil {
		return fmt.Errorf("netmaster sent what makes no sense: %w", err)
	}
	errs, err := s.client.cfg.Handler.Update(ctx, u)
	if err != nil {
		return err
	}
	return s.post(ctx, feed.NodeMessage{Ack: &feed.Ack{Revision: u.Revision, Errors: errs}})
}

func (s *session) post(ctx context.Context, m feed.NodeMessage) error {
	select {
	case s.acks <- m:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// validate refuses what would make a rule mean something else than netmaster meant.
func validate(u *policy.NodeUpdate) error {
	for _, r := range u.Rules {
		if r.Rule != nil && (r.Rule.Key != r.Key || policy.RuleKey(r.Rule) != r.Key) {
			return fmt.Errorf("rule %s: its key is not that of its content", r.Key)
		}
	}
	for _, g := range u.Groups {
		if g.Kind != policy.PeerGroup && g.Kind != policy.AppliedToGroup {
			return fmt.Errorf("group %s: unknown kind %d", g.Key, g.Kind)
		}
		for _, a := range g.Added {
			if !a.IsValid() || a.Zone() != "" {
				return fmt.Errorf("group %s: %q is no address", g.Key, a)
			}
		}
	}
	return nil
}

// replyPart is how many bytes of an answer go into a message.
const replyPart = 1 << 20

func (s *session) query(ctx context.Context, q *feed.Query) {
	body, err := s.client.cfg.Handler.Query(ctx, q.Body)
	if err != nil {
		_ = s.post(ctx, feed.NodeMessage{Reply: &feed.Reply{ID: q.ID, Error: err.Error()}})
		return
	}
	for {
		n := min(len(body), replyPart)
		r := feed.Reply{ID: q.ID, Body: body[:n], More: n < len(body)}
		body = body[n:]
		if s.post(ctx, feed.NodeMessage{Reply: &r}) != nil || !r.More {
			return
		}
	}
}
