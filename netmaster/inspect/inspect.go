// Package inspect answers netctl: what is enforced, where, and from which policy.
package inspect

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/process"
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

// API is the API server itself, which may know more than was watched.
type API interface {
	Version(ctx context.Context, namespace, name string) (watch.Version, bool, error)
	Manifest(ctx context.Context, namespace, name string) (yaml string, there bool, err error)
}

// Config is what a server needs.
type Config struct {
	Owner    Owner
	Nodes    Nodes
	API      API
	Services Services // nil: nothing is known of Services
	History  History  // nil: nothing is kept
	Store    *store.Store
	Cache    *labelcache.Cache
	Version  string
	Problems func() []string // of the process, sentences
	// Answering is for as long as this netmaster is the one to ask, or why another is to be asked. It may be nil.
	Answering func() (over context.Context, standby string)
	// Leader is this one's part in an election; nil, or nil told: there is none.
	Leader func() *inspect.Leader
	// Unheard is why the engine may not know the cluster as it is; empty if it does. It may be nil.
	Unheard func() string
	// Labels counts up with everything that can change which endpoints a selector chooses.
	// In another epoch it may count lower.
	Labels func() (epoch, count uint64)
	Self   *process.Self // what is told to support; may be nil
}

// Server implements the API: over gRPC for administrators' certificates, and, by Answer and Watch, for those who were authorised
// otherwise. Safe for concurrent use.
type Server struct {
	cfg     Config
	started time.Time
	waiters chan struct{} // a place each
	// dropping has a place for each question for drops that is under way.
	dropping chan struct{}
	tracing  chan struct{} // a place each
	answers  map[string]func(context.Context, *inspect.Question) (any, error)
	streams  map[string]Stream
	whatif   *whatif.Judge

	serviceList *serviceList
}

// Stream sends answers until there are no more, or ctx ends; send fails when who asked is gone.
type Stream func(ctx context.Context, q *inspect.Question, send func(any) error) error

// NewServer makes a server.
func NewServer(cfg Config) *Server {
	s := &Server{cfg: cfg, started: time.Now(), waiters: make(chan struct{}, mostWaiters), dropping: make(chan struct{}, dropsAtATime), tracing: make(chan struct{}, tracesAtATime), streams: map[string]Stream{}, whatif: whatif.New(cfg.Owner, cfg.Nodes), serviceList: newServiceList()}
	s.answers = map[string]func(context.Context, *inspect.Question) (any, error){
		inspect.AskStatus: s.status, inspect.AskPolicies: s.policies, inspect.AskEndpoints: s.endpoints, inspect.AskFlows: s.flows, inspect.AskCuts: s.cuts,
		inspect.AskDB: s.db, inspect.AskCache: s.cache, inspect.AskLookup: s.lookup, inspect.AskWait: s.wait, inspect.AskExplain: s.explain, inspect.AskMatrix: s.matrix, inspect.AskVerify: s.verify,
		inspect.AskCounters: s.counters, inspect.AskUnused: s.unused, inspect.AskLint: s.lint,
		inspect.AskDiff: s.diff, inspect.AskManifest: s.manifest,
		inspect.AskSupport: s.support, inspect.AskDrops: s.drops, inspect.AskAudit: s.audit, inspect.AskServices: s.services,
	}
	s.streams[inspect.AskCapture], s.streams[inspect.AskTrace] = s.capture, s.trace
	return s
}

// Kinds are the kinds of questions that are answered, sorted.
func (s *Server) Kinds() []string {
	kinds := slices.AppendSeq(slices.Collect(maps.Keys(s.answers)), maps.Keys(s.streams))
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// Lasts tells whether a kind's answers come when they come, and whoever waits for one costs nothing.
func (s *Server) Lasts(kind string) bool { return kind == inspect.AskWait || s.streams[kind] != nil }

// Ask answers one question of an administrator's.
func (s *Server) Ask(ctx context.Context, q *inspect.Question) (*inspect.Answer, error) {
	if err := authorise(ctx); err != nil {
		return nil, err
	}
	return s.Answer(ctx, q)
}

// Follow answers an administrator with a stream.
func (s *Server) Follow(ctx context.Context, q *inspect.Question, send func(*inspect.Answer) error) error {
	if err := authorise(ctx); err != nil {
		return err
	}
	return s.Watch(ctx, q, send)
}

// Answer answers one question of somebody who may ask it: that is the caller's to know. Errors are gRPC's.
func (s *Server) Answer(ctx context.Context, q *inspect.Question) (*inspect.Answer, error) {
	f := s.answers[q.Kind]
	if f == nil && s.streams[q.Kind] != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the answers to %q are a stream", q.Kind)
	}
	if f == nil {
		return nil, s.unknown(q)
	}
	ctx, done, err := s.answering(ctx)
	if err != nil {
		return nil, err
	}
	v, err := f(ctx, q)
	if err = done(err); err != nil {
		return nil, err
	}
	body, err := json.Marshal(v)
	return &inspect.Answer{Body: body}, err
}

// Watch answers with a stream, or with the one answer that there is, somebody who may ask: that is the caller's to know.
func (s *Server) Watch(ctx context.Context, q *inspect.Question, send func(*inspect.Answer) error) error {
	f := s.streams[q.Kind]
	if f == nil {
		a, err := s.Answer(ctx, q)
		if err != nil {
			return err
		}
		return send(a)
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

// errOver has who asks try another netmaster: what this one knows may be of the past.
var errOver = status.Error(codes.Unavailable, "this netmaster leads no longer: ask again")

// answering bounds a question to the time in which this netmaster is the one to ask. What came of it is given to done.
func (s *Server) answering(ctx context.Context) (_ context.Context, done func(error) error, _ error) {
	if s.cfg.Answering == nil {
		return ctx, told, nil
	}
	over, standby := s.cfg.Answering()
	if standby != "" {
		return nil, nil, status.Error(codes.Unavailable, "this netmaster answers nothing: "+standby)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(over, cancel)
	return ctx, func(err error) error {
		stop()
		cancel()
		if over.Err() != nil {
			return errOver
		}
		return told(err)
	}, nil
}

func (s *Server) unknown(q *inspect.Question) error {
	return status.Errorf(codes.Unimplemented, "this netmaster (%s) does not know the question %q: netctl is newer", s.cfg.Version, q.Kind)
}

// told gives an error that says no code the one that lets who asked try again.
func told(err error) error {
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
	if !ok || len(info.State.PeerCertificates) == 0 || !mtls.Admin(info.State.PeerCertificates[0]) {
		return status.Error(codes.PermissionDenied, "this certificate is not an administrator's: netmaster pki issue --admin makes one")
	}
	return nil
}
