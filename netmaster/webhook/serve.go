package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
)

// Listen is where and how reviews are taken.
type Listen struct {
	Address   string // empty: not at all
	Listener  net.Listener
	Cert, Key string // files; they may be replaced at any time
	// Own is the certificate where no files are named.
	Own mtls.Source
	// ClientCA, if set, is the file of the authority that must have signed the API server's certificate.
	ClientCA string
}

// Path is where reviews are posted to.
const Path = "/networkpolicies"

// Server is a handler that is about to serve.
type Server struct {
	http     *http.Server
	listener net.Listener
}

// NewServer opens the port. What is wrong with the files is told now.
func NewServer(l Listen, h http.Handler, log *slog.Logger) (*Server, error) {
	conf, err := l.tls()
	if err != nil {
		return nil, err
	}
	listener := l.Listener
	if listener == nil {
		if listener, err = net.Listen("tcp", l.Address); err != nil {
			return nil, fmt.Errorf("listen for admission reviews: %w (choose another address with --webhook-listen)", err)
		}
	}
	mux := http.NewServeMux()
	mux.Handle(Path, h)
	return &Server{listener: listener, http: &http.Server{Handler: mux, TLSConfig: conf, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 2 * longest,
		IdleTimeout: 90 * time.Second, MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}}, nil
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.http.Close() })
	defer stop()
	if err := s.http.ServeTLS(s.listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("take admission reviews: %w", err)
	}
	return nil
}

func (l *Listen) tls() (*tls.Config, error) {
	get, err := l.certificate()
	if err != nil {
		return nil, err
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: get}
	if l.ClientCA == "" {
		return conf, nil
	}
	text, err := os.ReadFile(l.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("the authority of the API server's certificate: %w", err)
	}
	conf.ClientCAs, conf.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !conf.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate", l.ClientCA)
	}
	return conf, nil
}

func (l *Listen) certificate() (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if l.Cert == "" && l.Own != nil {
		return mtls.Own(l.Own)
	}
	pair := &keyPair{cert: l.Cert, key: l.Key}
	_, err := pair.get(nil)
	return pair.get, err
}

// keyPair is read again when a file changes. It is safe for concurrent use.
type keyPair struct {
	cert, key string
	mu        sync.Mutex
	at        [2]time.Time
	have      *tls.Certificate
}

func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var at [2]time.Time
	for i, name := range []string{k.cert, k.key} {
		if info, err := os.Stat(name); err == nil {
			at[i] = info.ModTime()
		}
	}
	if k.have != nil && at == k.at {
		return k.have, nil
	}
	pair, err := tls.LoadX509KeyPair(k.cert, k.key)
	switch {
	case err != nil && k.have != nil: // half replaced
		return k.have, nil
	case err != nil:
		return nil, fmt.Errorf("the webhook's certificate: %w (--webhook-cert, --webhook-key)", err)
	}
	k.have, k.at = &pair, at
	return k.have, nil
}
