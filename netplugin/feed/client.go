// Package feed is the node's end of the stream from netmaster: it says what the node holds, takes updates over whole, and
// announces the pods that are wired here.
package feed

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// Handler is the agent. Its calls come one after another from one goroutine.
type Handler interface {
	// State is what the node holds and has wired, for the hello.
	State(context.Context) (revision uint64, held []wire.Held, announced []wire.Announcement, err error)
	// Update realises an update; all that is not in force now, of this or an earlier update, is told to netmaster.
	Update(context.Context, policy.NodeUpdate) ([]wire.RuleError, error)
	Nodes(context.Context, []policy.NodeInfo) error
	Query(context.Context, []byte) ([]byte, error)
	// Stream answers by calling send until there is no more, send fails or ctx ends: nobody listens any longer then. Answers are no
	// larger than wire.MaxStreamed. Its calls, and those of Query, come from goroutines of their own.
	Stream(ctx context.Context, question []byte, send func([]byte) error) error
}

// Config is what a client needs. TLS is called for each connection.
type Config struct {
	Servers []string
	TLS     func() (*tls.Config, error)
	Node    string
	Version string
	// TrafficMode is told to netmaster, which says so where nodes differ.
	TrafficMode string
	Logger      *slog.Logger
	Handler     Handler
}

// Client keeps a stream to netmaster open. Announce, Withdraw, Report, Drifted, Connected and Problem are safe for concurrent
// use.
type Client struct {
	cfg Config

	mu        sync.Mutex
	open      bool // what is said is kept for the stream
	connected bool // netmaster has accepted the hello
	problem   string
	outbox    []*feed.NodeMessage
	drift     *wire.Drift // not told yet
	wake      chan struct{}
}

// New makes a client; Run starts it.
func New(cfg Config) *Client { return &Client{cfg: cfg, wake: make(chan struct{}, 1)} }

// Connected tells whether netmaster has accepted this node and is being listened to.
func (c *Client) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.connected
}

// Problem is why there is no connection; empty while there is one.
func (c *Client) Problem() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connected {
		return ""
	}
	return cmp.Or(c.problem, "no connection was tried yet")
}

// Announce tells netmaster of a wired pod now; after a reconnection the hello does.
func (c *Client) Announce(a wire.Announcement) {
	c.queue(&feed.NodeMessage{Message: &feed.NodeMessage_Announce{Announce: wire.FromAnnouncement(&a)}})
}

// Withdraw tells netmaster that a pod's addresses are free again.
func (c *Client) Withdraw(a wire.Announcement) {
	c.queue(&feed.NodeMessage{Message: &feed.NodeMessage_Withdraw{Withdraw: wire.FromAnnouncement(&a)}})
}

// Report tells netmaster what is not in force where that changed without an update.
func (c *Client) Report(a wire.Ack) { c.queue(wire.FromAck(&a)) }

// Drifted tells netmaster that the switch's flows were not as they should be. While netmaster is away it is kept.
func (c *Client) Drifted(d wire.Drift) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drift != nil {
		c.drift.Add(d)
	} else {
		c.drift = &d
	}
	c.rouse()
}

// queue drops the message while there is no stream: the next hello tells the whole state, and the update that answers it is
// acknowledged.
func (c *Client) queue(m *feed.NodeMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open {
		return
	}
	c.outbox = append(c.outbox, m)
	c.rouse()
}

func (c *Client) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Client) setOpen(open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open, c.connected, c.outbox = open, false, nil
}

func (c *Client) setConnected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected = true
}

func (c *Client) takeOutbox() []*feed.NodeMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.outbox
	c.outbox = nil
	if c.drift != nil {
		out = append(out, wire.FromDrift(c.drift))
		c.drift = nil
	}
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
		c.setOpen(false)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > lastRetry {
			wait = firstRetry
		}
		c.failed(server, err, wait)
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-ctx.Done():
		}
		wait = min(2*wait, lastRetry)
	}
}

// failed says why there is no connection; what netmaster refused is more than a warning, for trying again will not mend it.
func (c *Client) failed(server string, err error, wait time.Duration) {
	c.mu.Lock()
	c.problem = err.Error()
	c.mu.Unlock()
	log := c.cfg.Logger.With("server", server, "error", err, "retry", wait)
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.ResourceExhausted:
		log.Error("netmaster refuses this node; enforcing the last good rules")
	default:
		log.Warn("no connection to netmaster; enforcing what is known")
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
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(feed.MaxMasterMessage), grpc.MaxCallSendMsgSize(feed.MaxNodeMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second, PermitWithoutStream: true}))
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := feed.NewFeedClient(conn).Stream(ctx)
	if err != nil {
		return err
	}
	s := &session{client: c, stream: stream, posts: make(chan *feed.NodeMessage, 16), queries: make(chan struct{}, maxQueries), streams: newStreams()}
	// From here on announcements are queued, so that none falls between the hello's state and the stream.
	c.setOpen(true)
	if err := s.hello(ctx); err != nil {
		return err
	}
	if err := s.welcome(server); err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- s.send(ctx) }()
	go func() { failed <- s.receive(ctx) }()
	first := <-failed
	cancel()
	second := <-failed
	return cmp.Or(first, second)
}
