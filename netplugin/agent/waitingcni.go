package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/flowkeep/flowkeep/netplugin/cni"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
)

// waitingCNI responds to CNI requests while netplugin starts and waits for Open vSwitch: with the reason, but for a
// DEL, which is recorded as flowkeep-cni records it while netplugin is away.
type waitingCNI struct {
	*runner
	reason atomic.Value // error
	stop   context.CancelFunc
	ended  chan struct{}
}

// serve sets the reason, and serves the CNI socket until end is called, or again if it ended by itself.
func (w *waitingCNI) serve(ctx context.Context, reason error) {
	w.reason.Store(fmt.Errorf("netplugin has started and waits for Open vSwitch: no pod gets a port: %w", reason))
	select {
	case <-w.ended:
	default:
		if w.ended != nil {
			return
		}
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	w.stop, w.ended = stop, ended
	go func() {
		defer close(ended)
		err := os.MkdirAll(filepath.Dir(w.cfg.CNISocket), 0o755)
		if err == nil {
			err = cni.Serve(ctx, cni.Config{
				Socket:  w.cfg.CNISocket,
				Timeout: w.cfg.AddTimeout,
				Manager: w,
				Logger:  w.log,
				Observe: w.metrics.observeCNI,
			})
		}
		if err != nil {
			w.log.Warn("CNI requests get no reason while netplugin waits for Open vSwitch", "error", err)
		}
	}()
}

// end ends serve, and waits for it.
func (w *waitingCNI) end() {
	if w.ended != nil {
		w.stop()
		<-w.ended
	}
}

// Ready returns the reason, as one for which also pods that run may have no network.
func (w *waitingCNI) Ready() error { return fmt.Errorf("%w: %w", endpoints.ErrSwitch, w.problem()) }

func (w *waitingCNI) problem() error {
	reason, _ := w.reason.Load().(error)
	return reason
}

// Add returns the reason.
func (w *waitingCNI) Add(context.Context, endpoints.Request) (*endpoints.Result, error) {
	return nil, w.problem()
}

// Check returns the reason.
func (w *waitingCNI) Check(context.Context, string, string) error { return w.problem() }

// GC returns the reason.
func (w *waitingCNI) GC(context.Context, []string) error { return w.problem() }

// Del records the attachment: it is deleted before a new one gets its number and address.
func (w *waitingCNI) Del(_ context.Context, container, ifName string) error {
	return cni.NoteDeleted(w.cfg.CNISocket, container, ifName)
}
