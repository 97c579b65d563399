// Package page is the page that netmaster serves to browsers: who reaches whom, why, what is in force where, and what a policy
// would change. It reads only. What it shows comes from netmaster's own answers (netmaster/inspect); the files of the browser's
// side are in static/, plain HTML, CSS and JavaScript modules, compiled in, and fetch nothing from anywhere else.
//
// Who may look: on a loopback address whoever is on the machine; on any other address, or where a token file is given, who has
// the token, over TLS (docs/decisions/008).
package page

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

// Inspector answers questions; its errors are gRPC's.
type Inspector interface {
	Answer(ctx context.Context, q *inspect.Question) (*inspect.Answer, error)
}

// Config is what the page needs.
type Config struct {
	// Address is HOST:PORT to listen at.
	Address string
	// TokenFile holds the token of those who may look. Where it is empty, none is needed on a loopback address; on another,
	// it is DefaultTokenFile. One that is not there is made.
	TokenFile        string
	DefaultTokenFile string
	// TLS is netmaster's own certificate, for addresses that are not loopback.
	TLS       mtls.Source
	Inspector Inspector
	Logger    *slog.Logger
}

// Server serves the page.
type Server struct {
	cfg      Config
	listener net.Listener
	guard    guard
	ask      *asker
}

// Listen takes the address, and makes the token if one is needed and not there.
func Listen(cfg Config) (*Server, error) {
	listener, err := net.Listen("tcp", cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("listen for browsers: %w (choose another address with --page-address, or none with --page-address=)", err)
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

// URL is where the page is.
func (s *Server) URL() string {
	scheme := "https"
	if s.guard.loopback {
		scheme = "http"
	}
	return scheme + "://" + s.listener.Addr().String() + "/"
}

// TokenFile is where the token is; empty where none is needed.
func (s *Server) TokenFile() string { return s.guard.tokenFile }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	server := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 2 * patience, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug), BaseContext: func(net.Listener) context.Context { return ctx }}
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

// Handler is the page without its listener.
func (s *Server) Handler() http.Handler {
	files, err := fs.Sub(static, "static")
	if err != nil {
		panic(err) // the name is embedded above
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", assets(files))
	mux.Handle("GET /api/overview", s.api(s.overview))
	mux.Handle("GET /api/matrix", s.api(s.matrix))
	mux.Handle("GET /api/explain", s.api(s.explain))
	mux.Handle("GET /api/policies", s.api(s.policies))
	mux.Handle("GET /api/policy", s.api(s.policy))
	mux.Handle("GET /api/drops", s.api(s.drops))
	mux.Handle("POST /api/whatif", s.api(s.whatif))
	return s.guard.wrap(mux)
}
