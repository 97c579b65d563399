// Package feed is the node's end of the stream from netmaster: it says what the node holds, takes updates over whole, and
// announces the pods that are wired here.
package feed

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// Handler is the agent. Its calls come one after another from one goroutine.
type Handler interface {
	// State is what the node holds and has wired, and the highest epoch that it obeyed, for the hello. It calls begin at the moment that it tells of:
	// what is announced and withdrawn from then on follows the hello, what was before does not.
	State(ctx context.Context, begin func()) (Holding, error)
	// Obey is told of a leader before anything of it is taken over.
	Obey(ctx context.Context, epoch uint64) error
	// Update puts an update in force. It calls led just before it changes anything, and leaves all as it is if that fails.
	// It calls acknowledge once, now or later, with all that is not in force, of this or an earlier update. That blocks
	// nothing, and does nothing after a call of State.
	Update(ctx context.Context, u policy.NodeUpdate, led func() error, acknowledge func([]wire.RuleError)) error
	Nodes(context.Context, []policy.NodeInfo) error
	Query(context.Context, []byte) ([]byte, error)
	// Stream answers by calling send until there is no more, send fails or ctx ends: nobody listens any longer then. Answers are no
	// larger than wire.MaxStreamed. Its calls, and those of Query, come from goroutines of their own.
	Stream(ctx context.Context, question []byte, send func([]byte) error) error
}

// Holding is what a node says of itself in a hello.
type Holding struct {
	Revision, Epoch uint64
	Held            []wire.Held
	Announced       []wire.Announcement
}

// Config is what a client needs. TLS is called for each connection.
type Config struct {
	Servers []string
	TLS     func() (*tls.Config, error)
	Node    string
	Version string
	// TrafficMode is told to netmaster, which says so where nodes differ.
	TrafficMode string
	// Versions of the protocol to speak; zero: all that this build knows.
	Versions wire.Versions
	// ObeyUnelected: a netmaster that takes part in no election is obeyed after one that did.
	ObeyUnelected bool
	Logger        *slog.Logger
	Handler       Handler
	// Services are held beyond the process; nil: the node holds none.
	Services KeyedSet
	clock    func() time.Duration // nil: sinceBoot
}

// Client keeps a stream to netmaster open. Announce, Withdraw, Report, Drifted, Anew, Connected and Problem are safe for concurrent
// use.
type Client struct {
	cfg   Config
	nodes keyed.Set // as netmaster sent it; it belongs to the session, of which there is one at a time

	mu        sync.Mutex
	open      bool // messages are queued for the stream
	connected bool // netmaster has accepted the hello
	problem   string
	accepted  time.Time // when netmaster accepted the hello
	outbox    []*feed.NodeMessage
	drift     *wire.Drift // not sent yet
	links     *policy.Links
	wake      chan struct{}
	again     chan string // why the stream is to end
}

// New makes a client; Run starts it.
func New(cfg Config) *Client {
	if cfg.clock == nil {
		cfg.clock = sinceBoot
	}
	cfg.Versions = cfg.Versions.OrOwn()
	return &Client{cfg: cfg, wake: make(chan struct{}, 1), again: make(chan string, 1)}
}

// Connected reports whether netmaster has accepted this node and the stream is open.
func (c *Client) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.connected
}

// Problem returns why there is no connection, "" while there is one.
func (c *Client) Problem() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connected {
		return ""
	}
	return cmp.Or(c.problem, "no connection was tried yet")
}

// Announce announces an attached pod to netmaster. After a reconnection the hello does that.
func (c *Client) Announce(a wire.Announcement) {
	c.queue(&feed.NodeMessage{Message: &feed.NodeMessage_Announce{Announce: wire.FromAnnouncement(&a)}})
}

// Withdraw withdraws the addresses of a pod.
func (c *Client) Withdraw(a wire.Announcement) {
	c.queue(&feed.NodeMessage{Message: &feed.NodeMessage_Withdraw{Withdraw: wire.FromAnnouncement(&a)}})
}

// Report reports rules that are not in force to netmaster, without an update to acknowledge.
func (c *Client) Report(a wire.Ack) { c.queue(wire.FromAck(&a)) }

// Drifted reports drift of the switch's flows to netmaster. The report is kept while netmaster is away.
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

// Anew ends the stream, if there is one, for another: its hello takes the place of all that was said.
func (c *Client) Anew(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open {
		return
	}
	select {
	case c.again <- why:
	default:
	}
}

func (c *Client) linksNow() *policy.Links {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.links
}

// SetLinks sends netmaster the node's segments, if they changed; after a reconnection the hello has them.
func (c *Client) SetLinks(l *policy.Links) {
	c.mu.Lock()
	same := reflect.DeepEqual(c.links, l)
	c.links = l
	c.mu.Unlock()
	if !same {
		c.queue(wire.FromLinks(l))
	}
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

// setOpen records whether the stream is open and returns when netmaster accepted this node since the last call.
func (c *Client) setOpen(open bool) (accepted time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	accepted = c.accepted
	select {
	case <-c.again: // was of the stream before
	default:
	}
	c.open, c.connected, c.accepted, c.outbox = open, false, time.Time{}, nil
	return accepted
}

func (c *Client) setConnected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected, c.accepted = true, time.Now()
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

// Run keeps the stream until ctx ends.
func (c *Client) Run(ctx context.Context) {
	var r retries
	for i := 0; ctx.Err() == nil; i++ {
		server := c.cfg.Servers[i%len(c.cfg.Servers)]
		began, reach := time.Now(), r.reach()
		err := c.session(ctx, server, r.patience(), reach)
		accepted := c.setOpen(false)
		if ctx.Err() != nil {
			return
		}
		r.ended(accepted, err)
		late := errors.Is(err, errLate) || accepted.IsZero() && time.Since(began) >= reach && status.Code(err) == codes.Unavailable
		wait := r.failed(accepted, time.Now(), len(c.cfg.Servers), late)
		c.failed(server, err, wait)
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-ctx.Done():
		}
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

var errLate = errors.New("netmaster has not accepted this node")

// session runs one connection, from the hello to its end.
func (c *Client) session(ctx context.Context, server string, patience, reach time.Duration) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	tlsConfig, err := c.cfg.TLS()
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+server, grpc.WithTransportCredentials(credentials.NewTLS(tlsConfig)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(feed.MaxMasterMessage), grpc.MaxCallSendMsgSize(feed.MaxNodeMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: firstRetry, Multiplier: 1, MaxDelay: firstRetry}, MinConnectTimeout: reach}))
	if err != nil {
		return err
	}
	defer conn.Close()
	late := time.AfterFunc(patience, func() { end(fmt.Errorf("%w within %s", errLate, patience)) })
	defer late.Stop()
	stream, err := feed.NewFeedClient(conn).Stream(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	s := &session{changed: make(chan struct{}, 1), arrived: make(chan *feed.MasterMessage, mostArrived), client: c, stream: stream, posts: make(chan *feed.NodeMessage, 16), queries: make(chan struct{}, maxQueries), streams: newStreams()}
	if err := s.hello(ctx); err != nil {
		return cause(ctx, err)
	}
	if err := s.welcome(ctx, server); err != nil {
		return cause(ctx, err)
	}
	late.Stop()
	failed := make(chan error, 3)
	go func() { failed <- s.send(ctx) }()
	go func() { failed <- s.read(ctx) }()
	go func() { failed <- s.receive(ctx) }()
	first := <-failed
	end(nil)
	second, third := <-failed, <-failed
	return cmp.Or(first, second, third)
}

// cause returns why this side ended the session, or err if it did not.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); why != nil && !errors.Is(why, context.Canceled) {
		return why
	}
	return err
}
