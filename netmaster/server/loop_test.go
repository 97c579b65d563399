package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/services"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"k8s.io/client-go/kubernetes/fake"
)

// A namespace that waits for nodes goes on while the owner is called more often than it looks for acknowledgements.
func TestLoop_PacedNamespaceGoesOnUnderCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bare(t, t.TempDir())
		var err error
		if s.watcher, err = watch.New(fake.NewClientset(), nil, s.log); err != nil {
			t.Fatal(err)
		}
		s.services = services.New(s.watcher.Served, s.feed, s.cfg.Report, s.cfg.ServiceBudgets, s.log)
		if err := s.restore(); err != nil {
			t.Fatal(err)
		}
		s.intake.add(putPolicies("busy", 1))
		s.intake.spaces["busy"].members, s.intake.spaces["busy"].since = maxUnacknowledged, time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		go s.loop(ctx)
		inForce := false
		for range 100 {
			time.Sleep(ackInterval / 2) // of the bubble's clock
			if err := s.Do(ctx, func(e *resolve.Engine) { _, inForce = e.Policy("busy/p0") }); err != nil {
				t.Fatal(err)
			}
		}
		if !inForce {
			t.Error("the policy is not taken")
		}
		cancel()
		<-s.stopped
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
	})
}
