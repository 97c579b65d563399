// Package server is netmaster: the owner of the engine, and what works around it.
package server

import (
	"context"
	"fmt"
	"log/slog"
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
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netmaster/enforcement"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/history"
	"github.com/flowkeep/flowkeep/netmaster/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/netmaster/webhook"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/store"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// Config is netmaster's configuration.
type Config struct {
	Listen     string
	Listener   net.Listener // if set, in place of Listen
	TLS        mtls.Source
	StateDir   string
	Memcached  []string
	Version    string
	Watcher    *watch.Watcher
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Health     *process.Health
	Report     Reporter
	Access     AccessConfig
	// Webhook takes admission reviews, if it has an address.
	Webhook webhook.Listen
	Page    PageConfig
	// Enforcement is where objects ask whether policies are in force; nil: nowhere.
	Enforcement enforcement.API
	// Election is of one of several netmasters that serves; nil: there is this one only.
	Election Election
	// Roster is where a netmaster that stands by tells the leader of itself; nil: nowhere.
	Roster *watch.Roster
	// Fresh asks the API server what there is, for a netmaster that takes over; nil: what was watched is believed.
	Fresh watch.Lister
	// Gather bounds how long a netmaster that takes over waits for nodes that may know more than the API server; 0: a few seconds.
	Gather time.Duration
	// Advertise has a Service lead to the netmaster that serves; nil: nodes have a list.
	Advertise *watch.Advertiser
	History   history.Config // what is kept of earlier states
	Self      *process.Self  // what is told to support; may be nil
}

// Reporter tells users about their objects, as Kubernetes Events.
type Reporter interface {
	Tell(reason wellknown.EventReason, namespace, name, uid, message string)
}

// server: what is in the first block is set before anything runs, and safe to use from everywhere; the rest belongs to the
// owner, the goroutine that runs loop.
type server struct {
	cfg            Config
	log            *slog.Logger
	metrics        metrics
	watcher        *watch.Watcher
	store          *store.Store
	cache          *labelcache.Cache
	history        *history.History
	feed           *feed.Server
	calls          chan func()
	stopped        chan struct{}              // closed when the owner has stopped
	inStep         chan struct{}              // closed when the API server has told everything
	now            atomic.Pointer[leadership] // nil: another one leads
	begins         begins
	stoodDown      chan struct{}         // has an element when a term is over
	roll           atomic.Pointer[roll]  // nil: this one does not lead, or has not looked yet
	trusting       <-chan struct{}       // closed when the API server is believed what it asks; nil: it cannot ask
	reporter       *enforcement.Reporter // nil: nobody asks
	behind         int                   // how many times in a row the watches were not up to date when this one came to lead
	storedRevision uint64                // of the policy DB at the start
	failures       failures
	drifts         drifts
	pageProblem    atomic.Value  // string: why browsers get nothing
	labels         atomic.Uint64 // counts up, for as long as one leads, with everything that can change which endpoints a selector chooses

	engine         *resolve.Engine
	stored         *store.Contents                           // until the first complete batch has been compared with it
	wrong          map[string]string                         // policies with problems → what was reported
	announced      map[string]map[string]*store.Announcement // by node, by Announcement.Key
	nodes          map[string]bool                           // that the API server has
	podCIDRs       map[string][]netip.Prefix                 // of nodes, as last known
	foreign        map[string]time.Time                      // when it was told of a node that it announces what is not its own
	strangers      strangers
	apiProblem     string
	trafficProblem string
	dirty          map[policy.Key]struct{} // groups whose members the label cache has yet to be told
}

func newServer(cfg Config) *server {
	s := &server{cfg: cfg, log: cfg.Logger, history: history.New(cfg.History), metrics: newMetrics(cfg.Registerer), calls: make(chan func()), stopped: make(chan struct{}), inStep: make(chan struct{}), stoodDown: make(chan struct{}, 1), watcher: cfg.Watcher,
		failures: failures{told: map[string]map[string]*failure{}}, drifts: drifts{told: map[string]*untold{}}, wrong: map[string]string{}, announced: map[string]map[string]*store.Announcement{}, nodes: map[string]bool{}, foreign: map[string]time.Time{}, strangers: strangers{said: map[string][]resolve.Announcement{}, denied: map[string]map[netip.Addr]struct{}{}}, dirty: map[policy.Key]struct{}{}}
	if cfg.Election != nil {
		s.cfg.Report = quiet{cfg.Report, s}
	}
	return s
}

// Run serves until ctx ends.
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
	s.cache = labelcache.New(labelcache.Config{Servers: cfg.Memcached, Registerer: cfg.Registerer})
	s.feed = feed.NewServer(feed.Config{Logger: s.log, Registerer: cfg.Registerer, Version: cfg.Version, Events: s.event, Refused: s.refused, Leader: s.feedLeader()})
	return s.run(ctx)
}

// close writes what is waiting.
func (s *server) close() {
	if err := s.store.Close(); err != nil {
		s.log.Error("the policy DB is not whole; the next start waits for the API server", "error", err)
	}
}

// guardEvery is how often it is asked whether the API server has gone back in time.
const guardEvery = 10 * time.Second

func (s *server) guard(ctx context.Context, failed chan<- error) {
	if err := s.watcher.Guard(ctx, guardEvery); err != nil {
		failed <- err
	}
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
	g := grpc.NewServer(grpc.Creds(tls), grpc.MaxRecvMsgSize(apifeed.MaxNodeMessage), grpc.MaxSendMsgSize(apiinspect.MaxMessage),
		grpc.MaxConcurrentStreams(64), grpc.ConnectionTimeout(20*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
	apifeed.RegisterFeedServer(g, s.feed)
	answers := inspect.NewServer(inspect.Config{Owner: s, Nodes: s.feed, API: s.watcher, Services: s.watcher, History: s.history, Store: s.store, Cache: s.cache, Version: s.cfg.Version, Problems: s.problems, Answering: s.answering, Leader: s.leads, Unheard: s.unheard, Labels: s.counted, Self: s.cfg.Self})
	apiinspect.Register(g, answers)
	shown := s.showPage(answers)
	s.cfg.Health.SetReady("state", "waiting for the API server")
	reviews, err := s.reviews()
	if err != nil {
		return err
	}
	if err := s.restore(); err != nil {
		return err
	}
	until := ctx
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the Lease is given back when nobody is served any more
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	failed := make(chan error, 5)
	all.Go(func() { s.watcher.Run(ctx) })
	all.Go(func() { s.guard(ctx, failed) })
	all.Go(func() { s.cache.Run(ctx) })
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
		all.Go(func() { s.standBy(ctx) })
	}
	all.Go(func() { s.review(ctx, reviews) })
	all.Go(func() { shown(ctx) })
	all.Go(func() { failed <- g.Serve(listener) })
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
