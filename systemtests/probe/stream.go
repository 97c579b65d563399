package main

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// grace is how long answers may still come in after the last question, where nothing else is said.
const grace = 500 * time.Millisecond

// pace is how often a stream asks, how long answers may still come in after the last question, and how long one attempt to connect may
// take.
type pace struct{ interval, grace, redial time.Duration }

// Report is what a stream saw.
type Report struct {
	Proto    string `json:"proto"`
	Address  string `json:"address"`
	Sent     uint64 `json:"sent"`
	Received uint64 `json:"received"`
	// LongestGapMillis is the longest time without an answer, between the first question and the last.
	LongestGapMillis float64 `json:"longestGapMillis"`
	// FirstLoss is the number of the first question that was never answered; 0: none.
	FirstLoss uint64 `json:"firstLoss,omitempty"`
	// Broken says why the link ended before it was told to.
	Broken string `json:"broken,omitempty"`
}

// tally counts answers; safe for concurrent use.
type tally struct {
	mu       sync.Mutex
	received uint64
	next     uint64 // the lowest number not answered yet, as long as answers come in order
	last     time.Time
	gap      time.Duration
	broken   error
	loss     uint64
	asked    uint64 // how many answers there can be; 0: not known yet
}

// got tells whether that was the last answer there can be.
func (t *tally) got(n uint64, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.received++
	if n != t.next && t.loss == 0 {
		t.loss = t.next
	}
	t.next = n + 1
	t.gap = max(t.gap, now.Sub(t.last))
	t.last = now
	return t.asked > 0 && t.received >= t.asked
}

// ended says how many questions there were, and tells whether all have been answered.
func (t *tally) ended(asked uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked = asked
	return t.received >= asked
}

func (t *tally) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.broken == nil {
		t.broken = err
	}
}

// redial is how long one attempt to connect may take where nothing else is said, so that a way that opens for an instant is found.
const redial = 200 * time.Millisecond

// stream asks every interval until stop. A connection that cannot be opened is tried again and again; each attempt
// counts as a question.
func stream(proto, address string, p pace, stop <-chan os.Signal) (*Report, error) {
	report := &Report{Proto: proto, Address: address}
	l, err := report.connect(p.redial, stop)
	if l == nil {
		return report, err
	}
	defer l.Close()
	t := &tally{next: 1, last: time.Now()}
	done := make(chan struct{})
	go func() { defer close(done); receive(l, t) }()
	report.Broken = ""
	sent := send(l, t, p.interval, stop)
	report.Sent += sent
	end := time.Now()
	until := end.Add(p.grace)
	if t.ended(sent) {
		until = end
	}
	if err := l.SetReadDeadline(until); err != nil {
		return nil, err
	}
	<-done
	t.fill(report, end)
	return report, nil
}

// connect returns no link when it was stopped before one opened.
func (r *Report) connect(within time.Duration, stop <-chan os.Signal) (link, error) {
	for {
		l, err := dial(r.Proto, r.Address, nil, within)
		if err == nil {
			return l, nil
		}
		if _, ok := errors.AsType[*net.OpError](err); !ok {
			return nil, err
		}
		r.Sent++
		r.Broken = err.Error()
		select {
		case <-stop:
			return nil, nil
		case <-time.After(within / 10):
		}
	}
}

func (t *tally) fill(r *Report, end time.Time) {
	r.Received = t.received
	r.LongestGapMillis = float64(max(t.gap, end.Sub(t.last)).Microseconds()) / 1000
	r.FirstLoss = t.loss
	if t.loss == 0 && t.next <= r.Sent {
		r.FirstLoss = t.next
	}
	if t.broken != nil {
		r.Broken = t.broken.Error()
	}
}

// burst is how many questions are sent at once to catch up: after a second without a processor a thousand at once would be a flood, which
// queues on the way may lose.
const burst = 20

// send keeps to the schedule: after a delay it catches up, so that the number of questions is in the end rate × time. On a
// connection that is cut the buffers fill and a write waits: stop ends that too.
func send(l link, t *tally, interval time.Duration, stop <-chan os.Signal) (sent uint64) {
	stopped := make(chan struct{})
	go func() {
		<-stop
		close(stopped)
		_ = l.SetWriteDeadline(time.Now()) // fails only on a link that is closed
	}()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	start := time.Now()
	for {
		select {
		case <-stopped:
			return sent
		case <-ticker.C:
		}
		for due := min(uint64(time.Since(start)/interval), sent+burst); sent < due; {
			err := l.ask(sent + 1)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break // it was not sent
			}
			sent++
			if err != nil && !passing(err) {
				t.fail(err)
			}
		}
	}
}

// passing errors are news of one datagram (refused, unreachable, prohibited), not the end of the link.
func passing(err error) bool {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EACCES, syscall.EPERM, syscall.ENOBUFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func receive(l link, t *tally) {
	for {
		n, err := l.answer()
		switch {
		case err == nil:
			if t.got(n, time.Now()) {
				return
			}
		case errors.Is(err, os.ErrDeadlineExceeded):
			return
		case !passing(err):
			t.fail(err)
			return
		}
	}
}
