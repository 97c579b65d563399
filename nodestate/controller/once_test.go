package controller

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes/fake"
)

// TestOnceTakesPartInTheElection: while a daemon holds the Lease a pass over all nodes does nothing; without one it holds
// the Lease itself and releases it.
func TestOnceTakesPartInTheElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset().CoordinationV1()
		options := func(identity string) *Options {
			return &Options{Identity: identity, LeaseNamespace: "kube-system", Log: slog.New(slog.DiscardHandler)}
		}
		passes := 0
		pass := func(context.Context) error { passes++; return nil }
		ctx, stop := context.WithCancel(t.Context())
		held, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			_ = options("daemon").lease(client).Lead(ctx, func(ctx context.Context) { close(held); <-ctx.Done() })
		}()
		<-held
		if err := whileLeading(t.Context(), options("once").lease(client), pass); !errors.Is(err, ErrStandsBack) || passes != 0 {
			t.Errorf("beside a daemon: %v, %d passes", err, passes)
		}
		stop()
		<-ended
		began := time.Now()
		for n := range 2 {
			if err := whileLeading(t.Context(), options("once").lease(client), pass); err != nil || passes != n+1 {
				t.Errorf("alone: %v, %d passes", err, passes)
			}
		}
		if waited := time.Since(began); waited > 30*time.Second {
			t.Errorf("the Lease was not released: two passes took %v", waited)
		}
		failure := errors.New("no")
		fails := func(context.Context) error { return failure }
		if err := whileLeading(t.Context(), options("once").lease(client), fails); !errors.Is(err, failure) {
			t.Errorf("a pass that fails: %v", err)
		}
	})
}
