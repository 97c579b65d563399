// Package query responds to netctl: which policies are enforced, where, and why.
package query

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/netmaster/whatif"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/store"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Owner runs a function on the engine's own goroutine.
type Owner interface {
	Do(ctx context.Context, f func(*resolve.Engine)) error
}

// Nodes is the feed's view of the nodes.
type Nodes interface {
	Nodes() []feed.NodeStatus
	Node(name string) feed.NodeStatus
	Infos() []policy.NodeInfo
	Query(ctx context.Context, node string, body []byte) ([]byte, error)
	QueryStream(ctx context.Context, node string, body []byte, each func([]byte) error) error
	Standing(policy string, e *policy.Extent) []feed.Standing
	Watch(policy string) *feed.Watch
}

// API queries the API server directly, which may be ahead of the watches.
type API interface {
	Version(ctx context.Context, namespace, name string) (watch.Version, bool, error)
	Manifest(ctx context.Context, namespace, name string) (yaml string, there bool, err error)
}

// Config configures a Server.
type Config struct {
	Owner    Owner
	Nodes    Nodes
	API      API
	Services Services // nil: Services are not read
	// Frontends returns Services as nodes receive them; nil: nodes receive none.
	Frontends Frontends
	History   History // nil: no past state is kept
	Store     *store.Store
	Cache     *labelcache.Cache
	Version   string
	Budgets   policy.Budgets  // of netmaster; zero: policy.DefaultBudgets
	Problems  func() []string // sentences about this process
	// Unattached returns the running pods that no node has announced; nil: there are none.
	Unattached func() *attachment.Set
	// Answering returns a context that lasts as long as this netmaster leads, or why it is a standby. May be nil.
	Answering func() (over context.Context, standby string)
	// Leader returns this netmaster's part in the election; nil, or a nil result: there is no election.
	Leader func() *inspect.Leader
	// Unsynced returns why the engine may be behind the API server; empty if it is synced. May be nil.
	Unsynced func() string
	// Labels returns the state of the engine. It changes with everything that may change the members of a selector.
	Labels func() labelcache.Stamp
	Self   *process.Self // included in support bundles; may be nil
	// Peer is the leader while this netmaster is a standby; nil: a standby refuses queries.
	Peer     Leader
	Identity string // of this netmaster in the election
}

// Server responds to queries: over gRPC to holders of an administrator's certificate, and through Answer and Watch
// to clients that the caller has authorised. Safe for concurrent use.
type Server struct {
	*sources
	policies *policyQueries
	packets  *packetQueries
	answers  map[string]func(context.Context, *inspect.Question) (any, error)
	streams  map[string]Stream
}

// Stream sends responses until there are no more or ctx ends. It stops when send fails: the client is gone.
type Stream func(ctx context.Context, q *inspect.Question, send func(any) error) error

// NewServer returns a server.
func NewServer(cfg Config) *Server {
	if cfg.Unattached == nil {
		cfg.Unattached = func() *attachment.Set { return new(attachment.Set) }
	}
	if cfg.Cache == nil {
		cfg.Cache = labelcache.New(labelcache.Config{})
	}
	if cfg.Budgets == (policy.Budgets{}) {
		cfg.Budgets = policy.DefaultBudgets
	}
	from := &sources{
		cfg:         cfg,
		started:     time.Now(),
		serviceList: newServiceList(),
		whatif:      whatif.New(cfg.Owner, cfg.Nodes, cfg.Budgets),
	}
	policies := &policyQueries{sources: from, waiters: make(chan struct{}, maxWaiters)}
	nodes := &nodeQueries{from}
	traffic := &trafficQueries{sources: from, dropping: make(chan struct{}, maxDropQueries)}
	packets := &packetQueries{sources: from, tracing: make(chan struct{}, maxTraces)}
	answers := map[string]func(context.Context, *inspect.Question) (any, error){
		inspect.AskStatus:    nodes.status,
		inspect.AskPolicies:  policies.policies,
		inspect.AskEndpoints: policies.endpoints,
		inspect.AskFlows:     nodes.flows,
		inspect.AskCuts:      traffic.cuts,
		inspect.AskDB:        policies.db,
		inspect.AskCache:     policies.cache,
		inspect.AskLookup:    policies.lookup,
		inspect.AskWait:      policies.wait,
		inspect.AskExplain:   packets.explain,
		inspect.AskMatrix:    policies.matrix,
		inspect.AskVerify:    nodes.verify,
		inspect.AskCounters:  traffic.counters,
		inspect.AskUnused:    traffic.unused,
		inspect.AskLint:      policies.lint,
		inspect.AskDiff:      policies.diff,
		inspect.AskManifest:  policies.manifest,
		inspect.AskSupport:   nodes.support,
		inspect.AskDrops:     traffic.drops,
		inspect.AskDryRuns:   traffic.dryRun,
		inspect.AskServices:  nodes.services,
		inspect.AskFrontends: nodes.frontends,
	}
	streams := map[string]Stream{inspect.AskCapture: packets.capture, inspect.AskTrace: packets.trace}
	return &Server{sources: from, policies: policies, packets: packets, answers: answers, streams: streams}
}

// Kinds returns the kinds of queries that are supported, sorted.
func (s *Server) Kinds() []string {
	kinds := slices.AppendSeq(slices.Collect(maps.Keys(s.answers)), maps.Keys(s.streams))
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// Lasts reports whether responses of a kind may take arbitrarily long while a waiting client costs next to nothing.
func (s *Server) Lasts(kind string) bool { return kind == inspect.AskWait || s.streams[kind] != nil }

// Ask responds to a query of an administrator or of a standby netmaster.
func (s *Server) Ask(ctx context.Context, q *inspect.Question) (*inspect.Answer, error) {
	if err := authorise(ctx); err != nil {
		return nil, err
	}
	if q.Kind == inspect.AskState {
		return s.state(ctx)
	}
	return s.Answer(ctx, q)
}

// Follow responds to an administrator with a stream.
func (s *Server) Follow(ctx context.Context, q *inspect.Question, send func(*inspect.Answer) error) error {
	if err := authorise(ctx); err != nil {
		return err
	}
	return s.Watch(ctx, q, send)
}

// Answer responds to a query. The caller has authorised the client. Errors are gRPC statuses.
func (s *Server) Answer(ctx context.Context, q *inspect.Question) (*inspect.Answer, error) {
	f := s.answers[q.Kind]
	if f == nil && s.streams[q.Kind] != nil {
		return nil, status.Errorf(codes.InvalidArgument, "responses to %q are a stream", q.Kind)
	}
	if f == nil {
		return nil, s.unknown(q)
	}
	if why := s.standby(); why != "" {
		a, err := s.standbyAnswer(ctx, q, why)
		return a, asUnavailable(err)
	}
	ctx, done, err := s.answering(ctx)
	if err != nil {
		return nil, err
	}
	a, err := s.compute(ctx, q)
	if err = done(err); err != nil {
		return nil, err
	}
	return a, nil
}

// standby returns why this netmaster refuses queries; empty if it leads.
func (s *Server) standby() (why string) {
	if s.cfg.Answering != nil {
		_, why = s.cfg.Answering()
	}
	return why
}

// Watch sends a stream of responses, or the only response. The caller has authorised the client.
func (s *Server) Watch(ctx context.Context, q *inspect.Question, send func(*inspect.Answer) error) error {
	f := s.streams[q.Kind]
	if f == nil {
		a, err := s.Answer(ctx, q)
		if err != nil {
			return err
		}
		return send(a)
	}
	if why := s.standby(); why != "" {
		if s.cfg.Peer == nil || q.Forwarded {
			return errStandby(why)
		}
		forwarded := *q
		forwarded.Forwarded = true
		return asUnavailable(s.cfg.Peer.Follow(ctx, &forwarded, send))
	}
	ctx, done, err := s.answering(ctx)
	if err != nil {
		return err
	}
	return done(f(ctx, q, func(v any) error {
		body, err := json.Marshal(v)
		if err != nil {
			return err
		}
		return send(&inspect.Answer{Body: body})
	}))
}

// errNotLeading makes the client retry at another netmaster, because this one may be outdated.
var errNotLeading = status.Error(codes.Unavailable, "this netmaster lost leadership: retry")

// answering returns a context that ends when this netmaster stops leading. Call done with the result of the query.
func (s *Server) answering(ctx context.Context) (_ context.Context, done func(error) error, _ error) {
	if s.cfg.Answering == nil {
		return ctx, asUnavailable, nil
	}
	over, standby := s.cfg.Answering()
	if standby != "" {
		return nil, nil, errStandby(standby)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(over, cancel)
	return ctx, func(err error) error {
		stop()
		cancel()
		if over.Err() != nil {
			return errNotLeading
		}
		return asUnavailable(err)
	}, nil
}

func (s *Server) unknown(q *inspect.Question) error {
	return status.Errorf(codes.Unimplemented, "this netmaster (%s) does not support the query %q: netctl is newer",
		s.cfg.Version, q.Kind)
}

// asUnavailable gives an error without a gRPC code the code Unavailable, on which clients retry.
func asUnavailable(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unavailable, err.Error())
}

func authorise(ctx context.Context) error {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return status.Error(codes.Unauthenticated, "no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 || !mayQuery(info.State.PeerCertificates[0]) {
		return status.Error(codes.PermissionDenied,
			"not an administrator's certificate: issue one with netmaster pki issue --admin")
	}
	return nil
}

// mayQuery reports whether a certificate is an administrator's, or of a netmaster, which has authorised its client.
func mayQuery(cert *x509.Certificate) bool { return mtls.Admin(cert) || mtls.Netmaster(cert) }
