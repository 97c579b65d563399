package process

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxQueuedLines and maxQueuedBytes bound what a Queue holds.
	maxQueuedLines = 4096
	maxQueuedBytes = 4 << 20
)

// Queue is a writer that never waits: a goroutine of its own writes to the next writer. What does not fit is dropped
// and counted. A log's pipe is full while its reader, the container runtime, hangs. Safe for concurrent use.
type Queue struct {
	to      io.Writer
	wake    chan struct{} // has an element after a line was added
	dropped atomic.Uint64

	mu    sync.Mutex
	lines [][]byte
	size  int
	idle  chan struct{} // closed when all lines are written; nil: they are
}

// NewQueue returns a queue to a writer. Its goroutine ends with the process.
func NewQueue(to io.Writer) *Queue {
	q := &Queue{to: to, wake: make(chan struct{}, 1)}
	go q.run()
	return q
}

// Write queues a copy of a line. It never fails.
func (q *Queue) Write(text []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.lines) >= maxQueuedLines || q.size+len(text) > maxQueuedBytes {
		q.dropped.Add(1)
		return len(text), nil
	}
	q.lines = append(q.lines, bytes.Clone(text))
	q.size += len(text)
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return len(text), nil
}

func (q *Queue) run() {
	reported := uint64(0)
	for range q.wake {
		for {
			line, last := q.next()
			if last {
				break
			}
			_, _ = q.to.Write(line)
			if n := q.dropped.Load(); n != reported {
				fmt.Fprintf(q.to, "log lines dropped while the log was not read: %d\n", n-reported)
				reported = n
			}
		}
	}
}

// next returns the oldest line; last reports that there is none any more.
func (q *Queue) next() (line []byte, last bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.lines) == 0 {
		if q.idle != nil {
			close(q.idle)
			q.idle = nil
		}
		return nil, true
	}
	line = q.lines[0]
	q.lines[0] = nil
	q.lines = q.lines[1:]
	q.size -= len(line)
	return line, false
}

// Flush waits until all lines are written, for that long at most.
func (q *Queue) Flush(atMost time.Duration) {
	q.mu.Lock()
	idle := q.idle
	q.mu.Unlock()
	if idle == nil {
		return
	}
	late := time.NewTimer(atMost)
	defer late.Stop()
	select {
	case <-idle:
	case <-late.C:
	}
}

// Collector returns a counter of dropped lines.
func (q *Queue) Collector() prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "flowkeep_log_lines_dropped_total",
		Help: "Log lines that were dropped because nothing read the log.",
	}, func() float64 { return float64(q.dropped.Load()) })
}
