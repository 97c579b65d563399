package server

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/netmaster/access"
	"github.com/flowkeep/flowkeep/netmaster/query"
)

// API is the part of the API server's API that netmaster needs as an aggregated API server.
type API interface {
	access.Reviewer
	FollowFrontProxy(ctx context.Context, tell func(data map[string]string)) error
	Announce(ctx context.Context)
}

// AccessConfig configures the aggregated API; a nil API disables it.
type AccessConfig struct {
	API      API
	Listen   string
	Listener net.Listener // replaces Listen if set
}

const (
	// announceTimeout bounds the announcement to the API server.
	announceTimeout = 10 * time.Second
	// frontProxyTimeout is the time after which a missing front proxy CA is logged.
	frontProxyTimeout = 30 * time.Second
)

// serveAccess serves the aggregated API until ctx ends. It sends failures to failed.
func (s *server) serveAccess(ctx context.Context, answers *query.Server, all *sync.WaitGroup,
	failed chan<- error) error {
	cfg := &s.cfg.Access
	if cfg.API == nil {
		return nil
	}
	l := cfg.Listener
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", cfg.Listen); err != nil {
			return fmt.Errorf("listen for the API server: %w (choose another address with --access-listen, or none)",
				err)
		}
	}
	if !mtls.Covers(s.cfg.TLS, mtls.ServiceName) {
		s.log.Warn(
			"netmaster's certificate is not of the name by which the API server reaches it: netctl needs --server "+
				"until another is issued",
			"name",
			mtls.ServiceName,
		)
	}
	var a *access.Server
	a = access.New(access.Config{
		Questions:  answers,
		Reviewer:   cfg.API,
		Reviews:    s.reviews(func(ctx context.Context, u *access.User) (bool, error) { return a.MayDiff(ctx, u) }),
		TLS:        s.cfg.TLS,
		Version:    s.cfg.Version,
		Logger:     s.log,
		Registerer: s.cfg.Registerer,
		Closed:     s.closedAt(portAccess),
	})
	all.Go(func() {
		if err := a.Serve(ctx, l); err != nil {
			failed <- err
		}
	})
	all.Go(func() {
		if err := cfg.API.FollowFrontProxy(ctx, a.SetTrust); err != nil {
			failed <- err
		}
	})
	s.trusting = a.Trusting()
	all.Go(func() { s.awaitFrontProxy(ctx) })
	return nil
}

// awaitFrontProxy logs once if the front proxy's CA is not known in time: until then, netmaster rejects the API server.
func (s *server) awaitFrontProxy(ctx context.Context) {
	late := time.NewTimer(frontProxyTimeout)
	defer late.Stop()
	select {
	case <-s.trusting:
	case <-late.C:
		s.log.Warn("the API server publishes nothing of its front proxy, or netmaster may not read it: netctl needs --server",
			"configmap", "kube-system/extension-apiserver-authentication")
	case <-ctx.Done():
	}
}

// announceAccess announces to the API server that this netmaster serves.
func (s *server) announceAccess(ctx context.Context) {
	select {
	case <-s.trusting: // never closed without an aggregated API
	case <-ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	s.cfg.Access.API.Announce(ctx)
}
