package server

import (
	"context"
	"net/http"

	"github.com/flowkeep/flowkeep/netmaster/access"
	"github.com/flowkeep/flowkeep/netmaster/webhook"
	"github.com/flowkeep/flowkeep/netmaster/whatif"
	authenticationv1 "k8s.io/api/authentication/v1"
)

// reviews returns the handler of admission reviews. The function may reports whether a user may see all namespaces.
func (s *server) reviews(may func(context.Context, *access.User) (bool, error)) http.Handler {
	return webhook.New(webhook.Config{
		Judge:  whatif.New(s, s.feed, s.cfg.Budgets),
		Logger: s.log,
		Ready:  s.unsynced,
		May: func(ctx context.Context, u *authenticationv1.UserInfo) (bool, error) {
			user := access.User{Name: u.Username, UID: u.UID, Groups: u.Groups, Extra: map[string][]string{}}
			for key, values := range u.Extra {
				user.Extra[key] = values
			}
			return may(ctx, &user)
		},
		Registerer: s.cfg.Registerer,
	})
}

// unsynced returns why the engine may be behind the API server; empty if it is synced.
func (s *server) unsynced() string {
	if why := s.standby(); why != "" {
		return why
	}
	select {
	case <-s.synced:
		if p := s.watcher.Problem(); p != "" {
			return "the API server cannot be watched: " + p
		}
		return ""
	default:
		return "netmaster has not synced with the API server yet"
	}
}
