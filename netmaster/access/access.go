// Package access answers netctl behind the API server, as an aggregated API: requests come from the API server's front proxy, with
// the name of who asked, and are answered if a SubjectAccessReview says that they may. It reads no credentials of users, and without
// the API server it answers nobody (docs/decisions/007).
package access

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Questions are answered for those who may ask.
type Questions interface {
	Kinds() []string
	Lasts(kind string) bool // it is no work to wait for an answer of this kind
	Answer(ctx context.Context, q *inspect.Question) (*inspect.Answer, error)
	Watch(ctx context.Context, q *inspect.Question, send func(*inspect.Answer) error) error
}

// Config is what a server needs.
type Config struct {
	Questions  Questions
	Reviewer   Reviewer
	TLS        mtls.Source // netmaster's own certificate
	Version    string
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: nobody counts
}

const (
	// mostConnections and mostRequests bound what is served at a time; who merely waits is bounded apart.
	mostConnections = 256
	mostRequests    = 64
	mostWatches     = 1000
	// longestHeader bounds the headers of a request, in bytes: a user may have many groups.
	longestHeader = 128 << 10
	// headerTime and bodyTime are how long a peer may take to say them, writeTime how long it may take nothing off us in a watch,
	// and transferTime how long the largest answer may take to be sent.
	headerTime   = 5 * time.Second
	bodyTime     = 30 * time.Second
	writeTime    = 30 * time.Second
	transferTime = 5 * time.Minute
	idleTime     = 2 * time.Minute
)

// Server is the aggregated API. Safe for concurrent use.
type Server struct {
	cfg       Config
	judge     *judge
	front     atomic.Pointer[trust] // nil: nobody is trusted
	requests  chan struct{}         // a place each
	watches   chan struct{}
	trusting  chan struct{} // closed when there is somebody to trust
	once      sync.Once
	results   *prometheus.CounterVec
	heartbeat time.Duration // between empty lines of a watch
}

// New makes a server; it refuses everybody until SetTrust.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, judge: newJudge(cfg.Reviewer), requests: make(chan struct{}, mostRequests), watches: make(chan struct{}, mostWatches), trusting: make(chan struct{}), heartbeat: 15 * time.Second,
		results: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "flowkeep_netmaster_access_requests_total", Help: "Questions that came through the API server, by how they ended."}, []string{"result"})}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(s.results)
	}
	return s
}

// SetTrust takes the contents of the ConfigMap extension-apiserver-authentication; nil: there is none. What cannot be understood
// leaves in force what was before.
func (s *Server) SetTrust(data map[string]string) {
	if data == nil {
		s.front.Store(nil)
		s.cfg.Logger.Warn("the API server publishes nothing of its front proxy: netctl reaches netmaster by --server only")
		return
	}
	t, err := parseTrust(data)
	if err != nil {
		s.cfg.Logger.Error("what the API server publishes of its front proxy cannot be used", "configmap", "kube-system/extension-apiserver-authentication", "error", err)
		return
	}
	s.front.Store(t)
	s.once.Do(func() { close(s.trusting) })
}

// Trusting is closed when the front proxy is known for the first time.
func (s *Server) Trusting() <-chan struct{} { return s.trusting }

// Serve serves until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	own, err := mtls.Own(s.cfg.TLS)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: longestHeader,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: own, ClientAuth: tls.RequireAnyClientCert, VerifyConnection: s.verifyConnection,
			NextProtos: []string{"h2", "http/1.1"}, SessionTicketsDisabled: true},
		ErrorLog:    slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx }}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.ServeTLS(netutil.LimitListener(l, mostConnections), "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the API server: %w", err)
	}
	return nil
}

// verifyConnection refuses everybody but the front proxy before a byte of a request is read.
func (s *Server) verifyConnection(c tls.ConnectionState) error {
	return s.front.Load().verify(c.PeerCertificates)
}

// ServeHTTP answers one request of the front proxy's.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(mostWithin + transferTime))
	w.Header().Set(inspect.ServedBy, s.cfg.Version)
	w.Header().Set("Cache-Control", "no-store")
	user, err := s.authenticate(r)
	if err != nil {
		s.fail(w, status.Error(codes.Unauthenticated, err.Error()))
		return
	}
	if s.discovery(w, r) {
		return
	}
	req, err := requestOf(r, s.cfg.Questions.Kinds())
	switch {
	case errors.Is(err, errNoSuchKind):
		s.fail(w, status.Error(codes.Unimplemented, err.Error()))
		return
	case err != nil:
		s.fail(w, status.Errorf(codes.NotFound, "%s %s: %v", r.Method, r.URL.Path, err))
		return
	}
	req.User = user
	if err := s.authorise(r.Context(), &req); err != nil {
		s.fail(w, err)
		return
	}
	s.answer(w, r, &req)
}

// authenticate does so again for each request: a connection may outlive the trust in it.
func (s *Server) authenticate(r *http.Request) (User, error) {
	front := s.front.Load()
	if r.TLS == nil {
		return User{}, errors.New("not over TLS")
	}
	if err := front.verify(r.TLS.PeerCertificates); err != nil {
		return User{}, err
	}
	return front.userOf(r.Header)
}

func (s *Server) authorise(ctx context.Context, r *Request) error {
	allowed, reason, err := s.judge.review(ctx, r)
	switch {
	case err != nil:
		s.cfg.Logger.Warn("somebody who asks through the API server is refused, for their rights cannot be reviewed", "user", r.User.Name, "error", err)
		return status.Errorf(codes.Unavailable, "%v: ask again, or see that netmaster may create SubjectAccessReviews", err)
	case !allowed:
		where := "in the cluster"
		if r.Namespace != "" {
			where = "in namespace " + r.Namespace
		}
		if reason != "" {
			reason = " (" + reason + ")"
		}
		return status.Errorf(codes.PermissionDenied, "user %q may not %s %s.%s %s%s: an administrator can bind the ClusterRole %s", r.User.Name, r.Verb, r.Resource, inspect.Group, where, reason, inspect.RoleFor(r.Resource))
	}
	return nil
}
