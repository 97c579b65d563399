package server

import (
	"context"
	"path/filepath"

	"github.com/flowkeep/flowkeep/netmaster/page"
)

// PageConfig is where browsers find the page; without an address there is none.
type PageConfig struct {
	Address   string
	TokenFile string
}

// showPage takes the page's address, and returns what serves it until ctx ends. Without the page everything else goes on: that it
// is not served is a problem to tell, not one to stop for.
func (s *server) showPage(answers page.Inspector) func(ctx context.Context) {
	if s.cfg.Page.Address == "" {
		return func(context.Context) {}
	}
	p, err := page.Listen(page.Config{Address: s.cfg.Page.Address, TokenFile: s.cfg.Page.TokenFile, DefaultTokenFile: filepath.Join(s.cfg.StateDir, "page.token"),
		TLS: s.cfg.TLS, Inspector: answers, Logger: s.log})
	if err != nil {
		s.pageFailed(err)
		return func(context.Context) {}
	}
	s.log.Info("the page is served", "url", p.URL(), "token", p.TokenFile())
	return func(ctx context.Context) {
		if err := p.Run(ctx); err != nil {
			s.pageFailed(err)
		}
	}
}

func (s *server) pageFailed(err error) {
	s.log.Error("the page is not served; everything else is", "error", err)
	s.pageProblem.Store("the page is not served: " + err.Error())
}
