// Package webui serves the read-only web UI: who can reach whom, why, what is in force where, and what a policy
// would change. Its data are responses of netmaster/query. The browser's files in static/ are plain HTML, CSS and
// JavaScript modules; they are embedded and load nothing from elsewhere.
//
// Access: on a loopback address, everyone on the machine; on other addresses, or with a token file, clients with the
// token, over TLS (docs/decisions/008).
package webui

import (
	"context"
	"crypto/tls"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/mtls"
)

//go:embed static
var static embed.FS

// Inspector responds to queries. Its errors are gRPC statuses.
type Inspector interface {
	Answer(ctx context.Context, q *inspect.Question) (*inspect.Answer, error)
}

// Config configures the web UI.
type Config struct {
	// Address is the HOST:PORT to listen on.
	Address string
	// TokenFile contains the access token, and is created if missing. If empty, no token is required on a loopback
	// address, and DefaultTokenFile is used on others.
	TokenFile        string
	DefaultTokenFile string
	// TLS is netmaster's certificate, for addresses other than loopback.
	TLS       mtls.Source
	Inspector Inspector
	Logger    *slog.Logger
}

// Server serves the web UI.
type Server struct {
	cfg      Config
	listener net.Listener
	guard    guard
	ask      *asker
}

// Listen opens the listener, and creates the token if one is required and missing.
func Listen(cfg Config) (*Server, error) {
	listener, err := net.Listen("tcp", cfg.Address)
	if err != nil {
		return nil, fmt.Errorf(
			"listen for browsers: %w (choose another address with --page-address, or none with --page-address=)", err)
	}
	s, err := serverOn(listener, cfg)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return s, nil
}

func serverOn(listener net.Listener, cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, listener: listener, ask: newAsker(cfg.Inspector)}
	tcp, ok := listener.Addr().(*net.TCPAddr)
	s.guard.loopback = ok && tcp.IP.IsLoopback()
	s.guard.tokenFile, s.guard.log = cfg.TokenFile, cfg.Logger
	if s.guard.tokenFile == "" && !s.guard.loopback {
		s.guard.tokenFile = cfg.DefaultTokenFile
	}
	if s.guard.tokenFile == "" {
		return s, nil
	}
	return s, ensureToken(s.guard.tokenFile)
}

// URL returns the address of the web UI.
func (s *Server) URL() string {
	scheme := "https"
	if s.guard.loopback {
		scheme = "http"
	}
	return scheme + "://" + s.listener.Addr().String() + "/"
}

// TokenFile returns the path of the token; empty if none is required.
func (s *Server) TokenFile() string { return s.guard.tokenFile }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	server := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      2 * queryTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	var err error
	if s.guard.loopback {
		err = server.Serve(s.listener)
	} else {
		var own func(*tls.ClientHelloInfo) (*tls.Certificate, error)
		if own, err = mtls.Own(s.cfg.TLS); err != nil {
			return errors.Join(err, s.listener.Close())
		}
		server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: own}
		err = server.ServeTLS(s.listener, "", "")
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve the page: %w", err)
}

// Handler returns the handler of the web UI.
func (s *Server) Handler() http.Handler {
	files, err := fs.Sub(static, "static")
	if err != nil {
		panic(err) // the name is embedded above
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", assets(files))
	mux.HandleFunc("GET "+docsRoot, serveManual)
	mux.Handle("GET /api/overview", s.api(s.overview))
	mux.Handle("GET /api/matrix", s.api(s.matrix))
	mux.Handle("GET /api/explain", s.api(s.explain))
	mux.Handle("GET /api/policies", s.api(s.policies))
	mux.Handle("GET /api/policy", s.api(s.policy))
	mux.Handle("GET /api/drops", s.api(s.drops))
	mux.Handle("POST /api/whatif", s.api(s.whatif))
	return s.guard.wrap(mux)
}
