// Package server runs netmaster: it owns the engine and connects it to watches, nodes, stores and clients.
package server

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	apifeed "github.com/flowkeep/flowkeep/api/feed"
	apiinspect "github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/limit"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/netmaster/budget"
	"github.com/flowkeep/flowkeep/netmaster/claims"
	"github.com/flowkeep/flowkeep/netmaster/enforcement"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/history"
	"github.com/flowkeep/flowkeep/netmaster/nodenet"
	"github.com/flowkeep/flowkeep/netmaster/query"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/services"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
	"github.com/flowkeep/flowkeep/policydb/store"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// Config configures netmaster.
type Config struct {
	Listen    string
	Listener  net.Listener // replaces Listen if set
	TLS       mtls.Source
	StateDir  string
	Memcached []string
	// CacheKey returns the key that encrypts entries in memcached; nil: memcached is not shared.
	CacheKey   func() []byte
	Version    string
	Watcher    *watch.Watcher
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Health     *process.Health
	Report     Reporter
	Access     AccessConfig
	Page       PageConfig
	// Enforcement updates the status of NetworkPolicyEnforcement objects; nil: disabled.
	Enforcement enforcement.API
	// Election elects the leader; nil: this is the only netmaster.
	Election Election
	// Roster publishes standbys and the leader's address; nil: disabled.
	Roster *watch.Roster
	// Fresh lists objects from the API server, to check caches after a takeover and before new pods are served; nil:
	// the watches are trusted.
	Fresh watch.Lister
	// Gather bounds how long a new leader waits for nodes that may know pods before the API server does; 0: a
	// default of some seconds.
	Gather time.Duration
	// Advertise points a Service to the leader; nil: nodes have a list of addresses.
	Advertise *watch.Advertiser
	// Registration keeps the APIService while netmaster is reachable; nil: it is managed elsewhere.
	Registration Registration
	// Conditions writes Node conditions about network problems; nil: disabled.
	Conditions nodenet.Conditions
	// NoPodCIDRs accepts announced addresses of nodes without podCIDRs, unless another node has them.
	NoPodCIDRs bool
	// StaticPodNamespaces are the namespaces whose static pods match peer selectors.
	StaticPodNamespaces []string
	History             history.Config // of past states for explain --at
	// Budgets limit the cost of a tenant's objects; zero: policy.DefaultBudgets. The Watcher must have the same.
	Budgets policy.Budgets
	// ServiceBudgets limit Services; zero: service.DefaultBudgets. The Watcher must have the same.
	ServiceBudgets service.Budgets
	// ServiceExternalIPs sends spec.externalIPs of Services to nodes.
	ServiceExternalIPs bool
	// AttachmentGrace is the time after which a running pod that its node has not announced counts as not attached; 0:
	// attachment.Grace.
	AttachmentGrace time.Duration
	Self            *process.Self // included in support bundles; may be nil
}

// Registration maintains netmaster's APIService. It calls stops at the end of ctx to learn whether netmaster stops.
type Registration interface {
	Run(ctx context.Context, term uint64, stops func() bool)
}

// Reporter writes Kubernetes Events.
type Reporter interface {
	Emit(reason wellknown.EventReason, namespace, name, uid, message string)
}

// server is netmaster. The first block of fields is set before any goroutine starts and is safe for concurrent use;
// the second belongs to the owner goroutine, which runs loop.
type server struct {
	cfg            Config
	log            *slog.Logger
	metrics        metrics
	watcher        *watch.Watcher
	store          *store.Store
	cache          *labelcache.Cache
	history        *history.History
	feed           *feed.Server
	services       *services.Keeper
	calls          chan func()
	stopped        chan struct{}              // closed when the owner goroutine has ended
	stopping       atomic.Bool                // netmaster is shutting down
	synced         chan struct{}              // closed when caches are synced
	now            atomic.Pointer[leadership] // nil: not the leader
	admission      atomic.Pointer[admission]  // nil: caches are not synced yet
	termStarts     termStarts
	listWanted     chan struct{}               // holds an element while a pod waits for a list that has not begun
	termEnded      chan struct{}               // holds an element after the end of a term
	standbys       atomic.Pointer[standbyList] // nil: not the leader, or not read yet
	trusting       <-chan struct{}             // closed when the front proxy CA is known; nil: no aggregated API
	reporter       *enforcement.Reporter       // nil: disabled
	behind         int                         // consecutive takeovers that failed because watches were stale
	storedRevision uint64                      // of the policy DB at startup
	failures       failures
	drifts         drifts
	nodesChanged   atomic.Uint64                  // incremented by changes of Nodes
	webUIProblem   atomic.Value                   // string: why the web UI failed
	unattached     atomic.Pointer[attachment.Set] // running pods that no node announced; nil: not looked for yet
	// incremented, within a term, by everything that may change the members of a selector
	labels atomic.Uint64
	nonce  uint64 // random term of labels without an election

	engine         *resolve.Engine
	stored         *store.Contents // until the first complete batch was compared with it
	ledger         *budget.Ledger
	pods           *budget.Pods
	reported       reportedProblems
	announced      map[string]map[string]*store.Announcement // by node, by Announcement.Key
	nodes          map[string]bool                           // existing nodes that are not refused
	refusedNodes   map[string]bool                           // existing nodes that an administrator refuses
	podCIDRs       map[string][]netip.Prefix                 // of nodes, as last known
	claims         *claims.Ledger
	reportedClaims map[claims.Refusal]bool // reported as Events
	segments       segments
	static         staticPods
	refusals       *limit.Rate // limits log lines and Events about ignored announcements, by node
	unknownPods    unknownPods
	apiProblem     string
	trafficProblem string
	gate           gate
	intake         intake
	preparing      *preparing // nil: none in progress
}

func newServer(cfg Config) *server {
	s := &server{
		cfg:       cfg,
		log:       cfg.Logger,
		history:   history.New(cfg.History),
		metrics:   newMetrics(cfg.Registerer),
		calls:     make(chan func()),
		stopped:   make(chan struct{}),
		synced:    make(chan struct{}),
		termEnded: make(chan struct{}, 1),
		watcher:   cfg.Watcher,
		failures: failures{
			byNode: map[string]map[string]*failure{},
		},
		drifts:      drifts{byNode: map[string]*pendingDrift{}},
		reported:    newReportedProblems(),
		announced:   map[string]map[string]*store.Announcement{},
		nodes:       map[string]bool{},
		refusals:    limit.NewRate(refusalInterval, 1, maxRefusals),
		unknownPods: newUnknownPods(),
		nonce:       rand.Uint64(),
	}
	if cfg.Budgets == (policy.Budgets{}) {
		s.cfg.Budgets = policy.DefaultBudgets
	}
	if cfg.ServiceBudgets == (service.Budgets{}) {
		s.cfg.ServiceBudgets = service.DefaultBudgets
	}
	s.ledger, s.pods = budget.NewLedger(s.cfg.Budgets), budget.NewPods(s.cfg.Budgets)
	s.intake.deletion = s.deletion
	s.listWanted = make(chan struct{}, 1)
	s.refusedNodes, s.claims = map[string]bool{}, claims.New(nil)
	s.reportedClaims, s.static = map[claims.Refusal]bool{}, staticPods{}
	if cfg.Election != nil {
		s.cfg.Report = leaderReporter{cfg.Report, s}
	}
	return s
}

// Run serves until ctx ends. It returns an error if a component fails.
func Run(ctx context.Context, cfg Config) error {
	s := newServer(cfg)
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	var err error
	if s.store, err = store.Open(filepath.Join(cfg.StateDir, "policy.db")); err != nil {
		return err
	}
	defer s.close()
	if text := s.store.SetAside(); text != "" {
		s.metrics.storeCorrupt.Inc()
		s.log.Error("the policy DB was unreadable and is rebuilt from the API server", "detail", text)
	}
	s.cache = labelcache.New(labelcache.Config{Servers: cfg.Memcached, Registerer: cfg.Registerer, Key: cfg.CacheKey})
	s.feed = feed.NewServer(feed.Config{Logger: s.log, Registerer: cfg.Registerer, Version: cfg.Version,
		Events: s.event, Refused: s.refused, Admit: s.admit, Leader: s.feedLeader()})
	s.services = services.New(s.watcher.Served, s.feed, s.cfg.Report, s.cfg.ServiceBudgets, s.log)
	return s.run(ctx)
}

// close writes pending changes to the policy DB.
func (s *server) close() {
	if err := s.store.Close(); err != nil {
		s.log.Error("the policy DB is incomplete; the next start waits for the API server", "error", err)
	}
}

// guard ends the server once the API server was restored to an older state.
func (s *server) guard(ctx context.Context, failed chan<- error) {
	if err := s.watcher.Guard(ctx); err != nil {
		failed <- err
	}
}

// newGRPCServer returns a server with the limits of connections from nodes and netctl.
func newGRPCServer(tls credentials.TransportCredentials) *grpc.Server {
	return grpc.NewServer(
		grpc.Creds(knownPeers{tls}),
		grpc.MaxRecvMsgSize(apifeed.MaxNodeMessage),
		grpc.MaxSendMsgSize(apiinspect.MaxMessage),
		grpc.MaxConcurrentStreams(64),
		grpc.ConnectionTimeout(20*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(
			keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)
}

func (s *server) run(ctx context.Context) error {
	tls, err := mtls.ServerCredentials(s.cfg.TLS)
	if err != nil {
		return err
	}
	listener := s.cfg.Listener
	if listener == nil {
		if listener, err = net.Listen("tcp", s.cfg.Listen); err != nil {
			return fmt.Errorf("listen for nodes and netctl: %w (choose another address with --listen)", err)
		}
	}
	g := newGRPCServer(tls)
	apifeed.RegisterFeedServer(g, s.feed)
	leader := s.peerOf()
	defer leader.close()
	answers := s.newAnswers(leader)
	apiinspect.Register(g, answers)
	shown := s.startWebUI(answers)
	s.cfg.Health.SetReady("state", "waiting for the API server")
	if err := s.restore(); err != nil {
		return err
	}
	until := ctx
	ctx, cancel := context.WithCancel(
		context.WithoutCancel(ctx)) // release the Lease only after nodes are disconnected
	var all sync.WaitGroup
	defer func() { s.stopping.Store(true); cancel(); all.Wait() }()
	failed := make(chan error, 5)
	all.Go(func() { s.watcher.Run(ctx) })
	all.Go(func() { s.guard(ctx, failed) })
	all.Go(func() { s.cache.Run(ctx) })
	all.Go(func() { s.services.Run(ctx) })
	all.Go(func() { s.loop(ctx) })
	if err := s.serveAccess(ctx, answers, &all, failed); err != nil {
		return err
	}
	s.reporter = s.newReporter()
	all.Go(func() {
		if err := s.compete(ctx); err != nil {
			failed <- err
		}
	})
	if s.cfg.Election != nil && s.cfg.Roster != nil {
		all.Go(func() { s.announceStandby(ctx) })
	}
	all.Go(func() { shown(ctx) })
	all.Go(func() { failed <- g.Serve(s.bounded(listener)) })
	defer g.Stop()
	s.log.Info("serving", "address", listener.Addr().String(), "version", s.cfg.Version)
	select {
	case <-until.Done():
		s.log.Info("stopping; nodes go on with the rules they have")
		return nil
	case err := <-failed:
		return err
	}
}

// newAnswers returns the query server. A standby forwards queries to the leader.
func (s *server) newAnswers(leader *peer) *query.Server {
	return query.NewServer(query.Config{
		Owner:      s,
		Nodes:      s.feed,
		API:        s.watcher,
		Services:   s.watcher,
		Frontends:  s.services,
		History:    s.history,
		Store:      s.store,
		Cache:      s.cache,
		Version:    s.cfg.Version,
		Budgets:    s.cfg.Budgets,
		Problems:   s.problems,
		Unattached: s.unattached.Load,
		Answering:  s.answering,
		Leader:     s.leads,
		Unsynced:   s.unsynced,
		Labels:     s.counted,
		Self:       s.cfg.Self,
		Peer:       leader.leader(),
		Identity:   s.identity(),
	})
}
