package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"
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
	// LongestGapBegan is when the last answer before it came; zero: there was no answer.
	LongestGapBegan time.Time `json:"longestGapBegan,omitzero"`
	// LastAnswer is when it came; zero: there was none.
	LastAnswer time.Time `json:"lastAnswer,omitzero"`
	// FirstLoss is the number of the first question that was never answered; 0: none.
	FirstLoss uint64 `json:"firstLoss,omitempty"`
	// Broken says why the link ended before it was told to.
	Broken string `json:"broken,omitempty"`
}

// tally counts answers.
type tally struct {
	received uint64
	next     uint64 // the lowest number not answered yet, as long as answers come in order
	last     time.Time
	gap      time.Duration
	began    time.Time // of that gap
	broken   error
	loss     uint64
	heard    func(n uint64) // of each answer; may be nil
}

func (t *tally) got(n uint64, now time.Time) {
	t.received++
	if n != t.next && t.loss == 0 {
		t.loss = t.next
	}
	t.next = n + 1
	t.pause(now)
	t.last = now
	if t.heard != nil {
		t.heard(n)
	}
}

// pause ends now: the time since the last answer.
func (t *tally) pause(now time.Time) {
	if gap := now.Sub(t.last); gap > t.gap {
		t.gap, t.began = gap, t.last
	}
}

func (t *tally) fail(err error) {
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
	report.Broken = ""
	t := &tally{next: 1, last: time.Now()}
	c, err := newConversation(l, t)
	if err != nil {
		return nil, err
	}
	sent := c.ask(p.interval, stop)
	report.Sent += sent
	end := time.Now()
	c.rest(sent, end.Add(p.grace))
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
	if t.received > 0 {
		r.LastAnswer = t.last
	}
	t.pause(end)
	r.LongestGapMillis = float64(t.gap.Microseconds()) / 1000
	r.LongestGapBegan = t.began
	r.FirstLoss = t.loss
	if t.loss == 0 && t.next <= r.Sent {
		r.FirstLoss = t.next
	}
	if t.broken != nil {
		r.Broken = t.broken.Error()
	}
}

// conversation asks and hears by one thread, which waits in one system call: by the runtime's poller, its timers and a second goroutine a question
// costs many times that, and a dozen streams keep two processors busy.
type conversation struct {
	link  link
	tally *tally
	fd    int32  // -1: there is nothing more to hear
	asks  func() // before each question; may be nil
}

func newConversation(l link, t *tally) (*conversation, error) {
	conn, ok := l.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T has no file descriptor", l)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &conversation{link: l, tally: t}
	return c, raw.Control(func(fd uintptr) { c.fd = int32(fd) })
}

// ask asks every interval until stop. What it could not ask in time, for want of a processor, it does not make up for: on a machine that is too busy
// for all its streams they would keep it so. On a connection that is cut the buffers fill and a write waits: stop ends that too.
func (c *conversation) ask(interval time.Duration, stop <-chan os.Signal) (sent uint64) {
	stopped := make(chan struct{})
	go func() {
		<-stop
		close(stopped)
		_ = c.link.SetWriteDeadline(time.Now()) // fails only on a link that is closed
	}()
	for next := time.Now().Add(interval); ; {
		select {
		case <-stopped:
			return sent
		default:
		}
		c.await(next)
		now := time.Now()
		if now.Before(next) {
			continue
		}
		if next = next.Add(interval); next.Before(now) {
			next = now.Add(interval)
		}
		if c.asks != nil {
			c.asks()
		}
		err := c.link.ask(sent + 1)
		if !errors.Is(err, os.ErrDeadlineExceeded) { // else it was not sent
			sent++
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !passing(err) {
			c.tally.fail(err)
		}
		runtime.Gosched() // await kept the others waiting
	}
}

// rest hears the answers that there are yet to so many questions, until the time, and then those that had come by then: this process may have had no
// processor to take them in. That is bounded, for what others ask over ICMP comes to this socket too.
func (c *conversation) rest(sent uint64, until time.Time) {
	for c.tally.received < sent && time.Now().Before(until) {
		c.await(until)
	}
	for end := time.Now().Add(10 * time.Second); c.tally.received < sent && time.Now().Before(end) && readable(c.fd, 0); {
		c.await(time.Now().Add(20 * time.Millisecond))
	}
}

// await hears an answer, or returns at the time or somewhat before.
func (c *conversation) await(until time.Time) {
	if !readable(c.fd, time.Until(until)) {
		return
	}
	if err := c.link.SetReadDeadline(until); err != nil { // what can be read may be no answer
		c.tally.fail(err)
		return
	}
	n, err := c.link.answer()
	switch {
	case err == nil:
		c.tally.got(n, time.Now())
	case !errors.Is(err, os.ErrDeadlineExceeded) && !passing(err):
		c.tally.fail(err)
		c.fd = -1
	}
}

// readable waits with ppoll(2), without the runtime's knowing: that costs it as much again. A signal ends the wait.
func readable(fd int32, limit time.Duration) bool {
	const pollIn = 1
	wanted := struct {
		fd              int32
		events, revents int16
	}{fd: fd, events: pollIn}
	timeout := syscall.NsecToTimespec(int64(max(limit, 0)))
	n, _, errno := syscall.RawSyscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&wanted)), 1, uintptr(unsafe.Pointer(&timeout)), 0, 0, 0)
	return errno == 0 && n == 1
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
