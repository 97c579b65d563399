// Package feed streams to each node just what it needs, and takes what nodes say to the engine's owner. docs/feed.md tells
// the protocol.
package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Event is something a node said; exactly one of the pointers is set. Events of one node come in order.
type Event struct {
	Node      string
	Connected *feed.Hello // Announced is complete
	Announce  *feed.Announcement
	Withdraw  *feed.Announcement
	Ack       *feed.Ack
	Gone      bool // the connection ended
}

// Config is what a server needs. Events is called from the nodes' goroutines and returns when the owner has taken the
// event over: a node is sent nothing before what it announced counts.
type Config struct {
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Events     func(context.Context, Event) error
}

// NodeStatus is what is known of a node.
type NodeStatus struct {
	Name      string           `json:"name"`
	Connected bool             `json:"connected"`
	Since     time.Time        `json:"since"`
	Version   string           `json:"version,omitempty"`
	Sent      uint64           `json:"sent"`
	Realised  uint64           `json:"realised"`
	Pending   int              `json:"pending"`
	Rules     int              `json:"rules"`
	Groups    int              `json:"groups"`
	Errors    []feed.RuleError `json:"errors,omitempty"`
}

// Server is the feed's side of netmaster. Publish belongs to the engine's owner; all else is safe for concurrent use.
type Server struct {
	cfg     Config
	ready   chan struct{}
	isReady sync.Once
	metrics metrics

	mu     sync.Mutex
	mirror *mirror
	infos  []policy.NodeInfo
	conns  map[string]*conn
	last   map[string]NodeStatus // of nodes that are away
}

// conn is one node's stream.
type conn struct {
	hello   feed.Hello
	since   time.Time
	cancel  context.CancelFunc
	send    chan feed.MasterMessage // queries; updates are built when they can be sent
	infos   chan struct{}
	sent    uint64
	realise uint64
	errs    []feed.RuleError
	queryID uint64
	replies map[uint64]*reply
}

type reply struct {
	body []byte
	done chan error
}

// NewServer makes a server that holds nodes back until Ready.
func NewServer(cfg Config) *Server {
	s := &Server{cfg: cfg, ready: make(chan struct{}), mirror: newMirror(), conns: map[string]*conn{}, last: map[string]NodeStatus{}}
	s.metrics = newMetrics(cfg.Registerer)
	return s
}

// Ready lets nodes be served: the state that was published is complete.
func (s *Server) Ready() { s.isReady.Do(func() { close(s.ready) }) }

// Publish takes changes over and wakes the nodes that they concern. It never waits for a node.
func (s *Server) Publish(c *policy.Changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mirror.apply(c)
}

// SetNodes tells every node of all others.
func (s *Server) SetNodes(infos []policy.NodeInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.infos = slices.Clone(infos)
	sort.Slice(s.infos, func(i, j int) bool { return s.infos[i].Name < s.infos[j].Name })
	for _, c := range s.conns {
		select {
		case c.infos <- struct{}{}:
		default:
		}
	}
}

// Stream serves one node until its connection ends.
func (s *Server) Stream(stream grpc.BidiStreamingServer[feed.NodeMessage, feed.MasterMessage]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	hello, err := s.receiveHello(ctx, stream)
	if err != nil {
		s.metrics.refused.Inc()
		s.cfg.Logger.Warn("refused a node", "reason", status.Convert(err).Message())
		return err
	}
	log := s.cfg.Logger.With("node", hello.Node, "version", hello.Version)
	select {
	case <-s.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := s.cfg.Events(ctx, Event{Node: hello.Node, Connected: &hello}); err != nil {
		return err
	}
	c := &conn{hello: hello, since: time.Now(), cancel: cancel, send: make(chan feed.MasterMessage), infos: make(chan struct{}, 1), replies: map[uint64]*reply{}}
	s.attach(c)
	defer s.detach(c)
	log.Info("node connected", "held", len(hello.Held), "endpoints", len(hello.Announced))
	failed := make(chan error, 2)
	go func() { failed <- s.sender(ctx, stream, c) }()
	go func() { failed <- s.receiver(ctx, stream, c) }()
	err = <-failed
	log.Info("node disconnected", "reason", err)
	return err
}

func (s *Server) receiveHello(ctx context.Context, stream grpc.BidiStreamingServer[feed.NodeMessage, feed.MasterMessage]) (feed.Hello, error) {
	var hello feed.Hello
	for first := true; first || hello.More; first = false {
		m, err := stream.Recv()
		if err != nil {
			return hello, err
		}
		if m.Hello == nil {
			return hello, status.Error(codes.InvalidArgument, "the first message must be a hello")
		}
		held, announced := append(hello.Held, m.Hello.Held...), append(hello.Announced, m.Hello.Announced...)
		hello = *m.Hello
		hello.Held, hello.Announced = held, announced
	}
	if hello.MinVersion > feed.MaxVersion || hello.MaxVersion < feed.MinVersion {
		return hello, status.Errorf(codes.FailedPrecondition, "node %s speaks versions %d to %d of the feed, this netmaster %d to %d: upgrade the older of the two",
			hello.Node, hello.MinVersion, hello.MaxVersion, feed.MinVersion, feed.MaxVersion)
	}
	for i := range hello.Announced {
		if err := hello.Announced[i].Validate(); err != nil {
			return hello, status.Errorf(codes.InvalidArgument, "node %s: %v", hello.Node, err)
		}
	}
	return hello, authorise(ctx, hello.Node)
}

// authorise holds the node's name against its certificate.
func authorise(ctx context.Context, node string) error {
	p, _ := peer.FromContext(ctx)
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return status.Error(codes.Unauthenticated, "the feed needs a client certificate: netmaster pki issue --node makes one")
	}
	name, ok := mtls.Node(info.State.PeerCertificates[0])
	if !ok || name != node {
		return status.Errorf(codes.PermissionDenied, "%s claims to be node %q, its certificate is %q's", p.Addr, node, info.State.PeerCertificates[0].Subject.CommonName)
	}
	return nil
}

// attach makes c the node's connection and ends an earlier one.
func (s *Server) attach(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.conns[c.hello.Node]; old != nil {
		old.cancel()
	}
	s.conns[c.hello.Node] = c
	s.mirror.resume(s.mirror.view(c.hello.Node), c.hello.Held)
	c.infos <- struct{}{}
	s.metrics.connected.Set(float64(len(s.conns)))
}

func (s *Server) detach(c *conn) {
	s.mu.Lock()
	current := s.conns[c.hello.Node] == c
	if current {
		s.last[c.hello.Node] = s.status(c)
		delete(s.conns, c.hello.Node)
		s.mirror.view(c.hello.Node).pending = nil
	}
	for _, r := range c.replies {
		r.done <- errors.New("the node's connection ended")
	}
	c.replies = nil
	s.metrics.connected.Set(float64(len(s.conns)))
	s.mu.Unlock()
	if current {
		_ = s.cfg.Events(context.Background(), Event{Node: c.hello.Node, Gone: true})
	}
}

func (s *Server) sender(ctx context.Context, stream grpc.BidiStreamingServer[feed.NodeMessage, feed.MasterMessage], c *conn) error {
	s.mu.Lock()
	wake := s.mirror.view(c.hello.Node).pending.wake
	s.mu.Unlock()
	for {
		var messages []feed.MasterMessage
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-c.send:
			messages = append(messages, m)
		case <-c.infos:
			s.mu.Lock()
			infos := s.infos
			s.mu.Unlock()
			messages = append(messages, feed.MasterMessage{Nodes: &infos})
		case <-wake:
			messages = s.due(c)
		}
		for i := range messages {
			if err := stream.Send(&messages[i]); err != nil {
				return err
			}
		}
	}
}

// due is the parts of the next update.
func (s *Server) due(c *conn) []feed.MasterMessage {
	s.mu.Lock()
	v := s.mirror.view(c.hello.Node)
	if s.conns[c.hello.Node] != c || v.pending == nil {
		s.mu.Unlock()
		return nil
	}
	u := s.mirror.take(v)
	if u != nil {
		c.sent = u.Revision
	}
	s.mu.Unlock()
	if u == nil {
		return nil
	}
	s.metrics.rules.Add(float64(len(u.Rules)))
	s.metrics.groups.Add(float64(len(u.Groups)))
	return split(u)
}

func (s *Server) receiver(ctx context.Context, stream grpc.BidiStreamingServer[feed.NodeMessage, feed.MasterMessage], c *conn) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		event := Event{Node: c.hello.Node, Announce: m.Announce, Withdraw: m.Withdraw, Ack: m.Ack}
		switch {
		case m.Reply != nil:
			s.answer(c, m.Reply)
			continue
		case m.Announce != nil:
			err = m.Announce.Validate()
		case m.Withdraw != nil:
			err = m.Withdraw.Validate()
		case m.Ack != nil:
			s.acknowledged(c, m.Ack)
		default:
			continue // of a newer version
		}
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		if err := s.cfg.Events(ctx, event); err != nil {
			return err
		}
	}
}

func (s *Server) acknowledged(c *conn, a *feed.Ack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.realise, c.errs = a.Revision, a.Errors
}

func (s *Server) answer(c *conn, r *feed.Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := c.replies[r.ID]
	if waiting == nil {
		return
	}
	waiting.body = append(waiting.body, r.Body...)
	if r.More && r.Error == "" && len(waiting.body) < maxReply {
		return
	}
	delete(c.replies, r.ID)
	var err error
	switch {
	case r.Error != "":
		err = errors.New(r.Error)
	case r.More:
		err = fmt.Errorf("the answer is larger than %d bytes", maxReply)
	}
	waiting.done <- err
}

const maxReply = 256 << 20

// Query asks a node and waits for the answer.
func (s *Server) Query(ctx context.Context, node string, body []byte) ([]byte, error) {
	s.mu.Lock()
	c := s.conns[node]
	if c == nil {
		s.mu.Unlock()
		return nil, fmt.Errorf("node %s is not connected", node)
	}
	c.queryID++
	id, r := c.queryID, &reply{done: make(chan error, 1)}
	c.replies[id] = r
	s.mu.Unlock()
	select {
	case c.send <- feed.MasterMessage{Query: &feed.Query{ID: id, Body: body}}:
	case err := <-r.done:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case err := <-r.done:
		return r.body, err
	case <-ctx.Done():
		return nil, fmt.Errorf("node %s does not answer: %w", node, ctx.Err())
	}
}

// Nodes is the status of every node that has a span or a connection, or had one.
func (s *Server) Nodes() []NodeStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := map[string]NodeStatus{}
	for name := range s.mirror.nodes {
		known[name] = NodeStatus{Name: name}
	}
	for name, st := range s.last {
		st.Connected = false
		known[name] = st
	}
	for name, c := range s.conns {
		known[name] = s.status(c)
	}
	out := make([]NodeStatus, 0, len(known))
	for _, st := range known {
		out = append(out, st)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

func (s *Server) status(c *conn) NodeStatus {
	v := s.mirror.view(c.hello.Node)
	st := NodeStatus{Name: c.hello.Node, Connected: true, Since: c.since, Version: c.hello.Version, Sent: c.sent, Realised: c.realise,
		Rules: len(v.rules), Groups: len(v.groups) + len(v.applied), Errors: c.errs}
	if v.pending != nil {
		st.Pending = len(v.pending.rules) + len(v.pending.groups)
	}
	return st
}

type metrics struct {
	connected     prometheus.Gauge
	refused       prometheus.Counter
	rules, groups prometheus.Counter
}

func newMetrics(r prometheus.Registerer) metrics {
	m := metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{Name: "flowkeep_netmaster_feed_nodes", Help: "Nodes connected to the feed."}),
		refused:   prometheus.NewCounter(prometheus.CounterOpts{Name: "flowkeep_netmaster_feed_refused_total", Help: "Connections refused: wrong name, version or first message."}),
		rules:     prometheus.NewCounter(prometheus.CounterOpts{Name: "flowkeep_netmaster_feed_rules_sent_total", Help: "Rules sent to nodes, removals included."}),
		groups:    prometheus.NewCounter(prometheus.CounterOpts{Name: "flowkeep_netmaster_feed_groups_sent_total", Help: "Groups sent to nodes, whole or as patches."}),
	}
	if r != nil {
		r.MustRegister(m.connected, m.refused, m.rules, m.groups)
	}
	return m
}
