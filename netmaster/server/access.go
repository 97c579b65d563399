package server

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/netmaster/access"
	"github.com/flowkeep/flowkeep/netmaster/inspect"
)

// API is what the API server knows of those who ask through it.
type API interface {
	access.Reviewer
	FollowFrontProxy(ctx context.Context, tell func(data map[string]string)) error
	Announce(ctx context.Context)
}

// AccessConfig is where and how netmaster is asked through the API server; a nil API: it is not.
type AccessConfig struct {
	API      API
	Listen   string
	Listener net.Listener // if set, in place of Listen
}

const (
	// announceTime is how long the API server may take to hear that netmaster is there.
	announceTime = 10 * time.Second
	// lateTrust is when it is told that the front proxy is not known.
	lateTrust = 30 * time.Second
)

// serveAccess answers the API server until ctx ends; failures are told by failed.
func (s *server) serveAccess(ctx context.Context, answers *inspect.Server, all *sync.WaitGroup, failed chan<- error) error {
	cfg := &s.cfg.Access
	if cfg.API == nil {
		return nil
	}
	l := cfg.Listener
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", cfg.Listen); err != nil {
			return fmt.Errorf("listen for the API server: %w (choose another address with --access-listen, or none)", err)
		}
	}
	if !mtls.Covers(s.cfg.TLS, mtls.ServiceName) {
		s.log.Warn("netmaster's certificate is not of the name by which the API server reaches it: netctl needs --server until another is issued", "name", mtls.ServiceName)
	}
	a := access.New(access.Config{Questions: answers, Reviewer: cfg.API, TLS: s.cfg.TLS, Version: s.cfg.Version, Logger: s.log, Registerer: s.cfg.Registerer})
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
	all.Go(func() {
		late := time.NewTimer(lateTrust)
		defer late.Stop()
		for trusted := false; !trusted; { // before, netmaster refuses the API server
			select {
			case <-a.Trusting():
				trusted = true
			case <-late.C:
				s.log.Warn("the API server publishes nothing of its front proxy, or netmaster may not read it: netctl needs --server", "configmap", "kube-system/extension-apiserver-authentication")
			case <-ctx.Done():
				return
			}
		}
	})
	s.trusting = a.Trusting()
	return nil
}

// announceAccess tells the API server that this netmaster answers now.
func (s *server) announceAccess(ctx context.Context) {
	select {
	case <-s.trusting: // never, if there is nobody
	case <-ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeout(ctx, announceTime)
	defer cancel()
	s.cfg.Access.API.Announce(ctx)
}
