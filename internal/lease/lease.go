// Package lease has one of several instances of a program do the work.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// How long the Lease of an instance that died is respected, and how often one that lives renews it.
const (
	lasts  = 30 * time.Second
	giveUp = 20 * time.Second
	renew  = 5 * time.Second
)

// Lease is what instances compete for.
type Lease struct {
	Client          coordinationclient.LeasesGetter
	Namespace, Name string
	// Identity is this instance's.
	Identity string
	// Work is what the one that holds the Lease does, for log lines: "handles all nodes".
	Work string
	Log  *slog.Logger
}

// Identity returns the given identity, or one of this machine's name and the process id.
func Identity(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find this machine's name: %w (give --identity)", err)
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid()), nil
}

// Standby says why an instance that waits for the Lease does nothing.
func (l *Lease) Standby() string {
	return "standby: another instance holds the Lease " + l.Namespace + "/" + l.Name
}

// Lead calls work while this instance holds the Lease, and returns after work has. It ends with ctx, or with an error
// when the Lease is lost: work may have been interrupted at any point then, so restart the process.
func (l *Lease) Lead(ctx context.Context, work func(context.Context)) error {
	var once worker
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name},
			Client:     l.Client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: l.Identity},
		},
		LeaseDuration: lasts, RenewDeadline: giveUp, RetryPeriod: renew,
		ReleaseOnCancel: true, Name: l.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				l.Log.Info(l.Work, "identity", l.Identity)
				once.run(ctx, work)
			},
			OnStoppedLeading: func() {},
			OnNewLeader:      func(who string) { l.Log.Info("instance that "+l.Work, "identity", who) },
		},
	})
	if err != nil {
		return fmt.Errorf("take part in the election: %w", err)
	}
	elector.Run(ctx)
	once.end()
	if ctx.Err() == nil {
		return errors.New("the Lease was lost: the API server could not be reached in time")
	}
	return nil
}

// worker runs something at most once, and not after its end; which waits for it. The election starts work in a
// goroutine of its own and does not say when that is over.
type worker struct {
	mu    sync.Mutex
	ended bool
	busy  sync.WaitGroup
}

func (w *worker) run(ctx context.Context, work func(context.Context)) {
	w.mu.Lock()
	if w.ended {
		w.mu.Unlock()
		return
	}
	w.busy.Add(1)
	w.mu.Unlock()
	defer w.busy.Done()
	work(ctx)
}

func (w *worker) end() {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	w.busy.Wait()
}
