package process

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// gated is a writer that waits until its gate is closed.
type gated struct {
	gate  chan struct{}
	lines []string
}

func (g *gated) Write(text []byte) (int, error) {
	<-g.gate
	g.lines = append(g.lines, string(text))
	return len(text), nil
}

// TestQueue_NeverWaits writes more than it holds to a log that nothing reads. What was dropped is counted, and reported
// in the log when it is read again.
func TestQueue_NeverWaits(t *testing.T) {
	g := &gated{gate: make(chan struct{})}
	q := NewQueue(g)
	const lines = maxQueuedLines + 100
	for i := range lines {
		fmt.Fprintf(q, "line %d\n", i)
	}
	dropped := q.dropped.Load()
	if dropped != 100 && dropped != 99 { // one may be at the writer
		t.Errorf("%d lines were dropped", dropped)
	}
	close(g.gate)
	q.Flush(time.Minute)
	want := fmt.Sprintf("log lines dropped while the log was not read: %d\n", dropped)
	if all := strings.Join(g.lines, ""); !strings.Contains(all, want) || !strings.HasPrefix(all, "line 0\n") ||
		len(g.lines) != lines-int(dropped)+1 {
		t.Errorf("%d lines were written, %d dropped", len(g.lines), dropped)
	}
	if q.Write(make([]byte, maxQueuedBytes+1)); q.dropped.Load() != dropped+1 {
		t.Error("a line of more than the queue holds is kept")
	}
}

// TestQueue_FlushGivesUp: the end of the process does not wait for a log that nothing reads.
func TestQueue_FlushGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gated{gate: make(chan struct{})}
		q := NewQueue(g)
		q.Flush(time.Hour)
		fmt.Fprintln(q, "line")
		began := time.Now()
		if q.Flush(time.Second); time.Since(began) != time.Second {
			t.Errorf("it waited %v", time.Since(began))
		}
		close(g.gate)
		q.Flush(time.Hour)
		close(q.wake) // ends the goroutine
	})
}

// TestLogger_WithAFullPipe logs to a real pipe without a reader, as while the container runtime hangs.
func TestLogger_WithAFullPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	q := NewQueue(w)
	log := slog.New(slog.NewTextHandler(q, nil))
	for i := range 3000 { // a pipe holds 64 KiB (pipe(7))
		log.Info(strings.Repeat("x", 100), "line", i)
	}
	go func() { q.Flush(time.Minute); w.Close() }()
	if text, err := io.ReadAll(r); err != nil || strings.Count(string(text), "line=") != 3000 {
		t.Errorf("%d bytes were read: %v", len(text), err)
	}
}
