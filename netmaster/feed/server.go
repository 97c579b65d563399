// Package feed streams to each node the rules and groups that it needs, and passes nodes' messages to the engine's
// owner. The protocol is described in docs/feed.md.
package feed

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/lease"
	"github.com/flowkeep/flowkeep/internal/limit"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

// Event is a message of a node. Exactly one of the pointers is set. Events of a node are ordered, also across
// connections.
type Event struct {
	Node      string
	Connected *wire.Hello // Announced is complete
	Announce  *wire.Announcement
	Withdraw  *wire.Announcement
	Ack       *wire.Ack
	Drift     *wire.Drift
	Links     *policy.Links
	Gone      bool // the connection ended, and there is no newer one
}

// Config configures a Server. The nodes' goroutines call Events, which must return only after the owner has
// processed the event: a node is sent nothing before its announcements are effective.
type Config struct {
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Version    string // of this program
	// Versions of the protocol to support; zero: all that this build supports.
	Versions wire.Versions
	Events   func(context.Context, Event) error
	// Refused, if set, is called with the reason for rejecting an authenticated node, at most once a minute for each
	// reason.
	Refused func(node, message string)
	// Admit, if set, returns why a node may not connect. The nodes' goroutines call it.
	Admit func(node string) error
	// Leader provides the terms of an election; nil: this is the only netmaster.
	Leader Leader
	// HelloTimeout bounds the handshake, SendTimeout the delivery of a message to a node. The default is a minute.
	HelloTimeout, SendTimeout time.Duration
}

// Leader provides the terms of an election.
type Leader interface {
	// Term returns the present term, or why this netmaster does not serve. A stream ends with its term.
	Term() (term lease.Term, standby string)
	// Await waits until this netmaster serves or another leader is observed, for a limited time.
	Await(ctx context.Context)
}

// NodeStatus is the state of a node.
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
	Errors    []wire.RuleError `json:"errors,omitempty"`
	// Refused is why the node's last connection was rejected.
	Refused string `json:"refused,omitempty"`
	// TrafficMode is how packets travel between nodes; empty if unknown.
	TrafficMode string `json:"trafficMode,omitempty"`
	// DryRuns reports whether the node supports dry runs and receives their rules.
	DryRuns bool `json:"dryRuns,omitempty"`
}

// Server serves the feed. Call Publish and Follow on the owner goroutine; all else is safe for concurrent use.
type Server struct {
	feed.UnimplementedFeedServer
	cfg     Config
	ready   chan struct{}
	isReady sync.Once
	metrics metrics
	// hellos, announced and lingers limit the rates of hellos, announcements and lingering streams of each node.
	hellos, announced, lingers *limit.Rate
	// inbound and replies limit the messages of each node: replies those responses that no query awaits, inbound all
	// others.
	inbound, replies *limit.Rate
	delays           *limit.Rate // limits log lines
	shared           *wire.Shared

	mu            sync.Mutex
	mirror        *mirror
	infos         []policy.NodeInfo
	nodes         nodeList
	services      serviceSet
	handshakes    map[string]*handshake // streams in the handshake
	claims        map[string]*conn      // newest stream of each node, after its hello
	conns         map[string]*conn      // streams that receive updates
	last          map[string]NodeStatus
	refusals      map[string]refusal // by node; "": peers without a node's certificate
	rollouts      rollouts
	watches       watches
	sessions      map[*session]struct{}
	responseBytes int            // memory of responses, in bytes
	busy          sync.WaitGroup // guests, and the goroutines that serve them
}

// NewServer returns a server that delays nodes until Ready is called.
func NewServer(cfg Config) *Server {
	if cfg.HelloTimeout == 0 {
		cfg.HelloTimeout = time.Minute
	}
	if cfg.SendTimeout == 0 {
		cfg.SendTimeout = time.Minute
	}
	cfg.Versions = cfg.Versions.OrOwn()
	m := newMetrics(cfg.Registerer)
	return &Server{cfg: cfg, ready: make(chan struct{}), metrics: m,
		hellos:    limit.NewRate(helloInterval, helloBurst, maxNodes),
		announced: limit.NewRate(announceInterval, announceBurst, maxNodes),
		inbound:   limit.NewRate(inboundInterval, inboundBurst, maxNodes),
		replies:   limit.NewRate(inboundInterval, repliesBurst, maxNodes),
		delays:    limit.NewRate(refusalInterval, 1, maxNodes),
		nodes:     nodeList{keyedSet: keyedSet{kind: feed.KeyedSet_KEYED_SET_NODES}},
		services:  serviceSet{keyedSet: keyedSet{kind: feed.KeyedSet_KEYED_SET_SERVICES}},
		lingers:   limit.NewRate(lingerTime/lingerBurst, lingerBurst, maxNodes),
		shared:    wire.NewShared(), mirror: newMirror(),
		handshakes: map[string]*handshake{}, claims: map[string]*conn{},
		conns: map[string]*conn{}, last: map[string]NodeStatus{}, refusals: map[string]refusal{},
		rollouts: newRollouts(m.realised), sessions: map[*session]struct{}{},
		watches: watches{by: map[about]map[*Watch]struct{}{}}}
}

// Ready starts serving nodes. Call it when the published state is complete.
func (s *Server) Ready() { s.isReady.Do(func() { close(s.ready) }) }

// Publish applies changes and wakes the nodes that they concern. It does not block on nodes.
func (s *Server) Publish(c *policy.Changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mirror.apply(c)
	s.watches.changes.Add(1)
}

// forgetGone removes nodes that are neither in the API nor connected from rollouts.
func (s *Server) forgetGone() {
	for node := range s.rollouts.byNode {
		_, there := slices.BinarySearchFunc(s.infos, node,
			func(n policy.NodeInfo, name string) int { return strings.Compare(n.Name, name) })
		if !there && s.conns[node] == nil {
			s.rollouts.forget(node)
			s.watches.signal(aboutNode(node))
		}
	}
}

// Infos returns all nodes of the API server, connected or not.
func (s *Server) Infos() []policy.NodeInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.infos)
}

// addResponse adds a part of a response. It drops responses that no query awaits.
func (s *Server) addResponse(c *conn, r *feed.Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := c.streams[r.Id]; a != nil {
		if s.streamed(a, r) {
			delete(c.streams, r.Id)
		}
		return
	}
	waiting := c.replies[r.Id]
	if waiting == nil {
		return
	}
	if s.take(waiting, r.Body, r.More, r.Error) {
		delete(c.replies, r.Id)
	}
}

// registerQuery registers a query to a connected node.
func (s *Server) registerQuery(node string, bound bound) (*conn, uint64, *reply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conns[node]
	if c == nil {
		return nil, 0, nil, fmt.Errorf("node %s is not connected", node)
	}
	c.queryID++
	r := &reply{bound: bound, done: make(chan error, 1)}
	c.replies[c.queryID] = r
	return c, c.queryID, r, nil
}

// Query queries a node and waits for the response.
func (s *Server) Query(ctx context.Context, node string, body []byte) ([]byte, error) {
	c, id, r, err := s.registerQuery(node, boundOf(body))
	if err != nil {
		return nil, err
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(c.replies, id)
		s.responseBytes -= len(r.body)
	}()
	select {
	case c.send <- wire.FromQuery(id, body):
	case err := <-r.done:
		return nil, err
	case <-ctx.Done():
		return nil, fmt.Errorf("node %s does not accept the query: %w", node, ctx.Err())
	}
	select {
	case err := <-r.done:
		if err == nil {
			err = r.bound.check(r.body)
		}
		if err != nil {
			return nil, err
		}
		return r.body, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("node %s does not respond: %w", node, ctx.Err())
	}
}

// Nodes returns the status of every node that is in the API, is connected or was rejected.
func (s *Server) Nodes() []NodeStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := map[string]struct{}{}
	for name := range s.mirror.nodes {
		known[name] = struct{}{}
	}
	for name := range s.last {
		known[name] = struct{}{}
	}
	for name := range s.refusals {
		known[name] = struct{}{}
	}
	for name := range s.conns {
		known[name] = struct{}{}
	}
	for name := range known {
		if _, refused := s.refusals[name]; !refused && !s.isThere(name) {
			delete(known, name)
		}
	}
	delete(known, "") // peers without a node's certificate
	out := make([]NodeStatus, 0, len(known))
	for _, name := range slices.Sorted(maps.Keys(known)) {
		out = append(out, s.statusOf(name))
	}
	return out
}

// OneTrafficMode reports whether all connected nodes are in one traffic mode, as far as they report it.
func (s *Server) OneTrafficMode() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	mode := ""
	for _, c := range s.conns {
		if c.hello.TrafficMode != "" && mode != "" && c.hello.TrafficMode != mode {
			return false
		}
		mode = cmp.Or(mode, c.hello.TrafficMode)
	}
	return true
}

// Node returns the status of a node, connected or not.
func (s *Server) Node(name string) NodeStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statusOf(name)
}

func (s *Server) status(c *conn) NodeStatus {
	v := s.mirror.view(c.hello.Node)
	st := NodeStatus{
		Name:        c.hello.Node,
		Connected:   true,
		Since:       c.since,
		Version:     c.hello.Program,
		Sent:        c.sent,
		Realised:    c.realised,
		Rules:       len(v.rules),
		Groups:      len(v.groups) + len(v.applied),
		Errors:      c.errs,
		TrafficMode: c.hello.TrafficMode,
		DryRuns:     c.knowsDryRuns(),
	}
	if v.pending != nil {
		st.Pending = len(v.pending.rules) + len(v.pending.groups)
	}
	return st
}
