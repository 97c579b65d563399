package server

import (
	"context"
	"path/filepath"

	"github.com/flowkeep/flowkeep/netmaster/webui"
)

// PageConfig configures the web UI; without an address it is disabled.
type PageConfig struct {
	Address   string
	TokenFile string
}

// startWebUI opens the web UI's listener, and returns a function that serves it until ctx ends. A failure is
// reported as a problem, and does not stop netmaster.
func (s *server) startWebUI(answers webui.Inspector) func(ctx context.Context) {
	if s.cfg.Page.Address == "" {
		return func(context.Context) {}
	}
	p, err := webui.Listen(webui.Config{
		Address:          s.cfg.Page.Address,
		TokenFile:        s.cfg.Page.TokenFile,
		DefaultTokenFile: filepath.Join(s.cfg.StateDir, "page.token"),
		TLS:              s.cfg.TLS,
		Inspector:        answers,
		Logger:           s.log,
	})
	if err != nil {
		s.webUIFailed(err)
		return func(context.Context) {}
	}
	s.log.Info("web UI is listening", "url", p.URL(), "token", p.TokenFile())
	return func(ctx context.Context) {
		if err := p.Run(ctx); err != nil {
			s.webUIFailed(err)
		}
	}
}

func (s *server) webUIFailed(err error) {
	s.log.Error("web UI failed; all else continues", "error", err)
	s.webUIProblem.Store("web UI failed: " + err.Error())
}
