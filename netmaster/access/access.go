// Package access serves netctl behind the API server as an aggregated API. Requests come from the API server's front
// proxy with the user's name, and are served if a SubjectAccessReview allows it. It reads no credentials of users,
// and works only through the API server (docs/decisions/007).
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
	"github.com/flowkeep/flowkeep/internal/limit"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Questions responds to queries of authorised users.
type Questions interface {
	Kinds() []string
	Lasts(kind string) bool // waiting for a response of this kind costs next to nothing
	Answer(ctx context.Context, q *inspect.Question) (*inspect.Answer, error)
	Watch(ctx context.Context, q *inspect.Question, send func(*inspect.Answer) error) error
}

// Config configures a Server.
type Config struct {
	Questions  Questions
	Reviewer   Reviewer
	Reviews    http.Handler // handler of admission reviews; nil: disabled
	TLS        mtls.Source  // netmaster's own certificate
	Version    string
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
	// Closed, if set, is called for each connection that is closed because of a limit.
	Closed func(bound string)
}

const (
	// maxConnections limits the front proxy's connections, maxUnknown those without its certificate, and
	// maxOfAddress those of one address.
	maxConnections = 256
	maxUnknown     = 512
	maxOfAddress   = 64
	// maxHeader limits the headers of a request, in bytes: a user may have many groups.
	maxHeader = 128 << 10
	// headerTimeout and bodyTimeout bound the time to receive them, writeTimeout the time of a watch without
	// progress, and transferTimeout the time to send the largest response.
	headerTimeout   = 5 * time.Second
	bodyTimeout     = 30 * time.Second
	writeTimeout    = 30 * time.Second
	transferTimeout = 5 * time.Minute
	idleTimeout     = 2 * time.Minute
)

// Server is the aggregated API. Safe for concurrent use.
type Server struct {
	cfg       Config
	judge     *judge
	front     atomic.Pointer[trust] // nil: no front proxy is trusted
	requests  *places               // queries
	watches   *places               // waiting queries
	trusting  chan struct{}         // closed once a front proxy is trusted
	once      sync.Once
	results   *prometheus.CounterVec
	heartbeat time.Duration // interval of empty lines in a watch
}

// New returns a server. It rejects all requests until SetTrust is called.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, judge: newJudge(cfg.Reviewer),
		requests: newPlaces(maxRequests, maxOfUser, keptRequests),
		watches:  newPlaces(maxWatches, maxWatchesOfUser, keptWatches),
		trusting: make(chan struct{}), heartbeat: 15 * time.Second,
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flowkeep_netmaster_access_requests_total",
			Help: "Questions that came through the API server, by how they ended.",
		}, []string{"result"})}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(s.results)
	}
	return s
}

// SetTrust sets the contents of the ConfigMap extension-apiserver-authentication; nil: it does not exist. Invalid
// contents are ignored.
func (s *Server) SetTrust(data map[string]string) {
	if data == nil {
		s.front.Store(nil)
		s.cfg.Logger.Warn(
			"the API server publishes no front proxy configuration: netctl works only with --server")
		return
	}
	t, err := parseTrust(data)
	if err != nil {
		s.cfg.Logger.Error("the front proxy configuration of the API server is invalid",
			"configmap", "kube-system/extension-apiserver-authentication", "error", err)
		return
	}
	s.front.Store(t)
	s.once.Do(func() { close(s.trusting) })
}

// Trusting returns a channel that is closed once a front proxy is trusted.
func (s *Server) Trusting() <-chan struct{} { return s.trusting }

// Serve serves until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	own, err := mtls.Own(s.cfg.TLS)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		TLSConfig:         s.tlsConfig(own),
		ErrorLog:          slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	bounded := limit.Listen(l, limit.Bounds{Each: maxOfAddress, Unknown: maxUnknown, Closed: s.cfg.Closed})
	if err := server.ServeTLS(bounded, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the API server: %w", err)
	}
	return nil
}

// tlsConfig rejects other clients than the front proxy during the handshake. Until then a connection counts as
// unknown.
func (s *Server) tlsConfig(own func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	base := &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: own, ClientAuth: tls.RequireAnyClientCert,
		NextProtos: []string{"h2", "http/1.1"}, SessionTicketsDisabled: true}
	base.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		conf := base.Clone()
		conf.GetConfigForClient = nil
		conf.VerifyConnection = func(c tls.ConnectionState) error {
			if err := s.front.Load().verify(c.PeerCertificates); err != nil {
				return err
			}
			return limit.Known(hello.Conn, "front proxy", maxConnections)
		}
		return conf, nil
	}
	return base
}

// ServeHTTP serves a request of the front proxy.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxWithin + transferTimeout))
	w.Header().Set(inspect.ServedBy, s.cfg.Version)
	w.Header().Set("Cache-Control", "no-store")
	user, err := s.authenticate(r)
	if err != nil {
		s.fail(w, status.Error(codes.Unauthenticated, err.Error()))
		return
	}
	if s.admission(w, r, &user) || s.discovery(w, r) {
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

// authenticate verifies the front proxy for each request, as trust may change during a connection.
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
		s.cfg.Logger.Warn("rejected a user of the aggregated API: could not review their access",
			"user", r.User.Name, "error", err)
		return status.Errorf(codes.Unavailable, "%v: ask again, or see that netmaster may create SubjectAccessReviews",
			err)
	case !allowed:
		where := "in the cluster"
		if r.Namespace != "" {
			where = "in namespace " + r.Namespace
		}
		if reason != "" {
			reason = " (" + reason + ")"
		}
		return status.Errorf(codes.PermissionDenied,
			"user %q may not %s %s.%s %s%s: an administrator can bind the ClusterRole %s", r.User.Name, r.Verb,
			r.Resource, inspect.Group, where, reason, inspect.RoleFor(r.Resource))
	}
	return nil
}
