package agent

import (
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maxWrite is how long an operation on the state directory may take before the disk counts as hanging.
const maxWrite = 5 * time.Second

// writes are the operations on the state directory that are under way. Methods are safe for concurrent use.
type writes struct {
	changed chan struct{} // has an element after one has become late or has ended

	mu   sync.Mutex
	last uint64
	open map[uint64]write
}

type write struct {
	of    string
	began time.Time
}

func newWrites() *writes {
	return &writes{changed: make(chan struct{}, 1), open: map[uint64]write{}}
}

// begin notes that an operation begins; the caller calls end after it.
func (w *writes) begin(of string) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	number := w.last
	w.open[number] = write{of, time.Now()}
	late := time.AfterFunc(maxWrite, w.notify)
	return func() {
		late.Stop()
		w.mu.Lock()
		delete(w.open, number)
		w.mu.Unlock()
		w.notify()
	}
}

func (w *writes) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// oldest returns what has been under way for the longest time, and for how long; 0: nothing is.
func (w *writes) oldest() (of string, age time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var first time.Time
	for _, o := range w.open {
		if first.IsZero() || o.began.Before(first) {
			of, first = o.of, o.began
		}
	}
	if first.IsZero() {
		return "", 0
	}
	return of, time.Since(first)
}

// problem returns an error while an operation is late.
func (w *writes) problem() error {
	if of, age := w.oldest(); age >= maxWrite {
		return lateError(of)
	}
	return nil
}

// collector returns a gauge of the oldest operation's age.
func (w *writes) collector() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "flowkeep_netplugin_state_write_seconds",
		Help: "Seconds that the longest operation on the state directory has been under way; 0: none is.",
	}, func() float64 {
		_, age := w.oldest()
		return age.Seconds()
	})
}

func lateError(of string) error {
	return fmt.Errorf("write %s to disk: it has taken more than %s; look for what holds up the node's disk", of, maxWrite)
}
