// Package server is netmaster: the owner of the engine, and what works around it.
package server

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	apifeed "github.com/flowkeep/flowkeep/api/feed"
	apiinspect "github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/store"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// Config is netmaster's configuration.
type Config struct {
	Listen     string
	TLS        mtls.Files
	StateDir   string
	Memcached  []string
	Version    string
	Watcher    *watch.Watcher
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Health     *process.Health
	Report     Reporter
}

// Reporter tells users about their objects, as Kubernetes Events.
type Reporter interface {
	Warn(kind, namespace, name, uid, reason, message string)
}

// server's engine, seen and published belong to the goroutine that runs loop.
type server struct {
	cfg     Config
	log     *slog.Logger
	metrics metrics
	engine  *resolve.Engine
	watcher *watch.Watcher
	store   *store.Store
	cache   *labelcache.Cache
	feed    *feed.Server
	calls   chan func()
	stored  *store.Contents // until the first complete batch has been compared with it
	synced  bool
	wrong   map[string]string // policies with problems → what was reported
}

// Run serves until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	s := &server{cfg: cfg, log: cfg.Logger, calls: make(chan func()), wrong: map[string]string{}}
	s.metrics = newMetrics(cfg.Registerer)
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	var err error
	if s.store, err = store.Open(filepath.Join(cfg.StateDir, "policy.db")); err != nil {
		return err
	}
	defer s.store.Close()
	if text := s.store.SetAside(); text != "" {
		s.metrics.storeCorrupt.Inc()
		s.log.Error("the policy DB was unreadable and is rebuilt from the API server", "detail", text)
	}
	s.watcher = cfg.Watcher
	s.cache = labelcache.New(labelcache.Config{Servers: cfg.Memcached, Registerer: cfg.Registerer})
	s.feed = feed.NewServer(feed.Config{Logger: s.log, Registerer: cfg.Registerer, Events: s.event})
	return s.run(ctx)
}

func (s *server) run(ctx context.Context) error {
	tls, err := s.cfg.TLS.ServerConfig()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen for nodes and netctl: %w (choose another address with --listen)", err)
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(tls)), grpc.MaxRecvMsgSize(apifeed.MaxMessage), grpc.MaxSendMsgSize(apiinspect.MaxMessage),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
	apifeed.Register(g, s.feed)
	apiinspect.Register(g, inspect.NewServer(inspect.Config{Owner: s, Nodes: s.feed, Store: s.store, Cache: s.cache, Version: s.cfg.Version, Problems: s.problems}))
	s.cfg.Health.SetReady("state", "waiting for the API server")
	if err := s.restore(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	failed := make(chan error, 1)
	all.Go(func() { s.watcher.Run(ctx) })
	all.Go(func() { s.cache.Run(ctx) })
	all.Go(func() { s.loop(ctx) })
	all.Go(func() { failed <- g.Serve(listener) })
	defer g.Stop()
	s.log.Info("serving", "address", listener.Addr().String(), "version", s.cfg.Version)
	select {
	case <-ctx.Done():
		s.log.Info("stopping; nodes go on with the rules they have")
		return nil
	case err := <-failed:
		return err
	}
}

// restore serves nodes from the policy DB at once, before the API server has been asked.
func (s *server) restore() error {
	stored, err := s.store.Load()
	if err != nil {
		return err
	}
	s.engine = resolve.New(stored.Revision)
	s.stored = stored
	if stored.Empty() {
		return nil
	}
	b := resolve.Batch{Policies: slices.Collect(maps.Values(stored.Policies)), Endpoints: slices.Collect(maps.Values(stored.Endpoints))}
	for _, ns := range stored.Namespaces {
		b.Namespaces = append(b.Namespaces, *ns)
	}
	changes, _ := s.engine.Apply(b)
	s.feed.Publish(&changes)
	s.feed.Ready()
	s.cfg.Health.SetReady("state", "")
	s.log.Info("serving from the policy DB until the API server has been asked", "policies", len(b.Policies), "endpoints", len(b.Endpoints), "revision", s.engine.Revision())
	return nil
}

// Do runs f on the engine's goroutine.
func (s *server) Do(ctx context.Context, f func(*resolve.Engine)) error {
	done := make(chan struct{})
	select {
	case s.calls <- func() { defer close(done); f(s.engine) }:
		<-done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *server) loop(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case f := <-s.calls:
			f()
		case <-s.watcher.Wake():
			s.takeBatch(s.watcher.Take())
		case <-tick.C:
			s.observe()
		case <-ctx.Done():
			return
		}
	}
}

// takeBatch resolves what the API server told. The first complete batch also takes away what the policy DB has and the API
// server has not.
func (s *server) takeBatch(b *watch.Batch) {
	if b.Empty() {
		return
	}
	if b.Complete {
		s.reconcile(b)
	}
	var in resolve.Batch
	for name, ns := range b.Namespaces {
		if ns == nil {
			in.DeletedNamespaces = append(in.DeletedNamespaces, name)
		} else {
			in.Namespaces = append(in.Namespaces, *ns)
		}
	}
	in.Endpoints, in.DeletedEndpoints = parted(b.Endpoints)
	in.Policies, in.DeletedPolicies = parted(b.Policies)
	s.reportProblems(b.Policies)
	if b.NodesChanged {
		s.feed.SetNodes(b.Nodes)
	}
	s.apply(in, store.Change{Namespaces: b.Namespaces, Endpoints: b.Endpoints, Policies: b.Policies})
	if b.Complete {
		s.synced, s.stored = true, nil
		s.feed.Ready()
		s.cfg.Health.SetReady("state", "")
		s.log.Info("in step with the API server", "policies", len(b.Policies), "endpoints", len(b.Endpoints), "revision", s.engine.Revision())
	}
}

func (s *server) reconcile(b *watch.Batch) {
	deleteAbsent(b.Namespaces, s.stored.Namespaces)
	deleteAbsent(b.Endpoints, s.stored.Endpoints)
	deleteAbsent(b.Policies, s.stored.Policies)
}

func deleteAbsent[T any](now, before map[string]*T) {
	for k := range before {
		if _, ok := now[k]; !ok {
			now[k] = nil
		}
	}
}

func parted[T any](m map[string]*T) (put []*T, deleted []string) {
	for k, v := range m {
		if v == nil {
			deleted = append(deleted, k)
		} else {
			put = append(put, v)
		}
	}
	return put, deleted
}

// apply is the one way into the engine, and out to nodes, store and label cache.
func (s *server) apply(in resolve.Batch, change store.Change) {
	began := time.Now()
	changes, conflicts := s.engine.Apply(in)
	s.feed.Publish(&changes)
	s.metrics.batchSeconds.Observe(time.Since(began).Seconds())
	change.Resolved = &changes
	s.store.Write(change)
	for _, c := range conflicts {
		s.conflict(c)
	}
}

func (s *server) conflict(c resolve.Conflict) {
	s.metrics.conflicts.Inc()
	text := fmt.Sprintf("address %s is claimed by %v: it counts as nobody's until one gives it up", c.Address, c.Endpoints)
	s.log.Warn("an address is contested", "address", c.Address, "endpoints", c.Endpoints)
	for _, id := range c.Endpoints {
		if v, ok := s.engine.Endpoint(id); ok {
			s.cfg.Report.Warn("Pod", v.Endpoint.Namespace, v.Endpoint.Name, v.Endpoint.UID, "AddressContested", text)
		}
	}
}

// reportProblems tells of what in a policy was not understood, once a change.
func (s *server) reportProblems(policies map[string]*policy.Policy) {
	for id, p := range policies {
		if p == nil || len(p.Problems) == 0 {
			delete(s.wrong, id)
			continue
		}
		text := fmt.Sprint(p.Problems)
		if s.wrong[id] == text {
			continue
		}
		s.wrong[id] = text
		s.metrics.invalid.Inc()
		for _, problem := range p.Problems {
			s.log.Warn("a part of a policy makes no sense and is left out", "policy", id, "problem", problem)
			s.cfg.Report.Warn("NetworkPolicy", p.Namespace, p.Name, p.UID, "Invalid", problem+"; this part allows nothing")
		}
	}
}

// event takes over what a node said.
func (s *server) event(ctx context.Context, ev feed.Event) error {
	switch {
	case ev.Connected != nil:
		all := resolve.NodeAnnouncements{Node: ev.Node}
		for _, a := range ev.Connected.Announced {
			all.All = append(all.All, announcement(ev.Node, &a))
		}
		return s.Do(ctx, func(*resolve.Engine) {
			s.apply(resolve.Batch{NodeAnnounced: []resolve.NodeAnnouncements{all}}, store.Change{})
		})
	case ev.Announce != nil:
		a := announcement(ev.Node, ev.Announce)
		return s.Do(ctx, func(*resolve.Engine) { s.apply(resolve.Batch{Announced: []resolve.Announcement{a}}, store.Change{}) })
	case ev.Withdraw != nil:
		a := announcement(ev.Node, ev.Withdraw)
		return s.Do(ctx, func(*resolve.Engine) { s.apply(resolve.Batch{Withdrawn: []resolve.Announcement{a}}, store.Change{}) })
	case ev.Ack != nil:
		s.store.Write(store.Change{Nodes: map[string]*store.NodeRecord{ev.Node: {Realised: ev.Ack.Revision, Errors: len(ev.Ack.Errors)}}})
	}
	return nil
}

func announcement(node string, a *apifeed.Announcement) resolve.Announcement {
	return resolve.Announcement{Node: node, Namespace: a.Namespace, Name: a.Name, UID: a.UID, Addresses: a.Addresses}
}

// problems are what is wrong with this process, for netctl status.
func (s *server) problems() []string {
	var out []string
	if p := s.watcher.Problem(); p != "" {
		out = append(out, "the API server cannot be watched; the rules of before go on: "+p)
	}
	if st := s.cache.Stats(); len(st.Servers) > 0 && !st.Connected {
		out = append(out, "memcached does not answer; label look-ups are computed instead: "+st.Problem)
	}
	if waiting, err := s.store.Problem(); err != nil {
		out = append(out, fmt.Sprintf("the policy DB cannot be written (%d changes wait): %v", waiting, err))
	}
	if text := s.store.SetAside(); text != "" {
		out = append(out, text)
	}
	return out
}

// observe keeps the gauges.
func (s *server) observe() {
	c := s.engine.Counts()
	for name, v := range map[string]int{"namespaces": c.Namespaces, "endpoints": c.Endpoints, "policies": c.Policies, "rules": c.Rules, "groups": c.Groups} {
		s.metrics.objects.WithLabelValues(name).Set(float64(v))
	}
	s.metrics.revision.Set(float64(s.engine.Revision()))
	s.metrics.events.Set(float64(s.watcher.Events()))
	up := 1.0
	if s.watcher.Problem() != "" {
		up = 0
	}
	s.metrics.apiUp.Set(up)
	if _, err := s.store.Problem(); err != nil {
		s.metrics.storeErrors.Inc()
	}
}
