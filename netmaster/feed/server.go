// Package feed streams to each node just what it needs, and takes what nodes say to the engine's owner. docs/feed.md tells
// the protocol.
package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/lease"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

// Event is something a node said; exactly one of the pointers is set. Events of one node come in order, those of an earlier
// connection before those of a later one.
type Event struct {
	Node      string
	Connected *wire.Hello // Announced is complete
	Announce  *wire.Announcement
	Withdraw  *wire.Announcement
	Ack       *wire.Ack
	Drift     *wire.Drift
	Gone      bool // the connection ended, and there is no other
}

// Config is what a server needs. Events is called from the nodes' goroutines and returns when the owner has taken the
// event over: a node is sent nothing before what it announced counts.
type Config struct {
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Version    string // of this program
	// Versions of the protocol to speak; zero: all that this build knows.
	Versions wire.Versions
	Events   func(context.Context, Event) error
	// Refused, if set, is told why a node that showed its certificate is not served; once a minute for the same reason.
	Refused func(node, message string)
	// Leader is this netmaster's part in an election; nil: there is none, and this is the only one.
	Leader Leader
	// HelloTimeout bounds how long a node may take to say hello, SendTimeout how long it may take to take a message: 0 means a
	// minute.
	HelloTimeout, SendTimeout time.Duration
}

// Leader is this netmaster's part in an election.
type Leader interface {
	// Term is in which this one serves; or why it serves nobody. A stream is of one term, and ends with it.
	Term() (term lease.Term, standby string)
	// Await returns when this one serves, or another one is seen to lead; after a while in any case.
	Await(ctx context.Context)
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
	Errors    []wire.RuleError `json:"errors,omitempty"`
	// Refused is why the node is not connected, if it tried.
	Refused string `json:"refused,omitempty"`
	// TrafficMode is how its pods and other nodes' reach each other; empty if it has not told.
	TrafficMode string `json:"trafficMode,omitempty"`
	// DryRuns: it knows of them, and is sent their rules.
	DryRuns bool `json:"dryRuns,omitempty"`
}

// Server is the feed's side of netmaster. Publish belongs to the engine's owner; all else is safe for concurrent use.
type Server struct {
	feed.UnimplementedFeedServer
	cfg     Config
	ready   chan struct{}
	isReady sync.Once
	metrics metrics

	mu       sync.Mutex
	mirror   *mirror
	infos    []policy.NodeInfo
	told     *feed.MasterMessage // infos, for all nodes alike; nil: not made yet
	claims   map[string]*conn    // the newest stream of each node, from its hello on
	conns    map[string]*conn    // those that are sent updates
	last     map[string]NodeStatus
	refusals map[string]refusal // by node; "": those whose certificate is no node's
	rollouts rollouts
	watches  watches
	guests   map[*guest]struct{}
	busy     sync.WaitGroup // guests, and the goroutines that serve them
}

// NewServer makes a server that holds nodes back until Ready.
func NewServer(cfg Config) *Server {
	if cfg.HelloTimeout == 0 {
		cfg.HelloTimeout = time.Minute
	}
	if cfg.SendTimeout == 0 {
		cfg.SendTimeout = time.Minute
	}
	cfg.Versions = cfg.Versions.OrOwn()
	m := newMetrics(cfg.Registerer)
	return &Server{cfg: cfg, ready: make(chan struct{}), metrics: m, mirror: newMirror(), claims: map[string]*conn{},
		conns: map[string]*conn{}, last: map[string]NodeStatus{}, refusals: map[string]refusal{}, rollouts: newRollouts(m.realised), watches: watches{}, guests: map[*guest]struct{}{}}
}

// Ready lets nodes be served: the state that was published is complete.
func (s *Server) Ready() { s.isReady.Do(func() { close(s.ready) }) }

// Publish takes changes over and wakes the nodes that they concern. It never waits for a node.
func (s *Server) Publish(c *policy.Changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mirror.apply(c)
}

// SetNodes tells every node of all others, if anything of them changed.
func (s *Server) SetNodes(infos []policy.NodeInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.infos
	s.infos = slices.Clone(infos)
	sort.Slice(s.infos, func(i, j int) bool { return s.infos[i].Name < s.infos[j].Name })
	s.forgetGone()
	if reflect.DeepEqual(before, s.infos) { // as after a restart, when the API server has what the policy DB had
		return
	}
	s.told = nil
	for _, c := range s.conns {
		select {
		case c.infos <- struct{}{}:
		default:
		}
	}
}

// tellInfos is the message that tells of all nodes, made once for all: it is as long as there are nodes, and goes to as many.
func (s *Server) tellInfos() (*feed.MasterMessage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told == nil {
		m, err := wire.Packed(wire.FromNodes(s.infos))
		if err != nil {
			return nil, err
		}
		s.told = m
	}
	return s.told, nil
}

// forgetGone makes no change wait for a node that is neither in the API nor connected.
func (s *Server) forgetGone() {
	for node := range s.rollouts.byNode {
		_, there := slices.BinarySearchFunc(s.infos, node, func(n policy.NodeInfo, name string) int { return strings.Compare(n.Name, name) })
		if !there && s.conns[node] == nil {
			s.rollouts.forget(node)
			s.watches.tell(aboutNode(node))
		}
	}
}

// Infos is what is known of all nodes of the API server, connected or not.
func (s *Server) Infos() []policy.NodeInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.infos)
}

// reply is an answer that is waited for.
type reply struct {
	body []byte
	done chan error
}

const maxReply = 256 << 20

// answer takes a part of an answer. One that nobody waits for is dropped.
func (s *Server) answer(c *conn, r *feed.Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := c.streams[r.Id]; a != nil {
		if a.take(r) {
			delete(c.streams, r.Id)
		}
		return
	}
	waiting := c.replies[r.Id]
	if waiting == nil {
		return
	}
	waiting.body = append(waiting.body, r.Body...)
	if r.More && r.Error == "" && len(waiting.body) < maxReply {
		return
	}
	delete(c.replies, r.Id)
	var err error
	switch {
	case r.Error != "":
		err = errors.New(r.Error)
	case r.More:
		err = fmt.Errorf("the answer is larger than %d bytes", maxReply)
	}
	waiting.done <- err
}

// ask registers a question to a connected node.
func (s *Server) ask(node string) (*conn, uint64, *reply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conns[node]
	if c == nil {
		return nil, 0, nil, fmt.Errorf("node %s is not connected", node)
	}
	c.queryID++
	r := &reply{done: make(chan error, 1)}
	c.replies[c.queryID] = r
	return c, c.queryID, r, nil
}

// Query asks a node and waits for the answer.
func (s *Server) Query(ctx context.Context, node string, body []byte) ([]byte, error) {
	c, id, r, err := s.ask(node)
	if err != nil {
		return nil, err
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(c.replies, id)
	}()
	select {
	case c.send <- wire.FromQuery(id, body):
	case err := <-r.done:
		return nil, err
	case <-ctx.Done():
		return nil, fmt.Errorf("node %s takes no question: %w", node, ctx.Err())
	}
	select {
	case err := <-r.done:
		return r.body, err
	case <-ctx.Done():
		return nil, fmt.Errorf("node %s does not answer: %w", node, ctx.Err())
	}
}

// Nodes is the status of every node that has a span or a connection, or had one, or was refused.
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
	delete(known, "") // refusals of those whose certificate is no node's
	out := make([]NodeStatus, 0, len(known))
	for _, name := range slices.Sorted(maps.Keys(known)) {
		out = append(out, s.statusOf(name))
	}
	return out
}

// OneTrafficMode tells that no two connected nodes say they are in different modes.
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

// Node is the status of one node, connected or not.
func (s *Server) Node(name string) NodeStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statusOf(name)
}

func (s *Server) status(c *conn) NodeStatus {
	v := s.mirror.view(c.hello.Node)
	st := NodeStatus{Name: c.hello.Node, Connected: true, Since: c.since, Version: c.hello.Program, Sent: c.sent, Realised: c.realised,
		Rules: len(v.rules), Groups: len(v.groups) + len(v.applied), Errors: c.errs, TrafficMode: c.hello.TrafficMode, DryRuns: c.knowsDryRuns()}
	if v.pending != nil {
		st.Pending = len(v.pending.rules) + len(v.pending.groups)
	}
	return st
}
