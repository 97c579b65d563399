package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// grace is how long after the last question, and after each answer that follows it, a stream waits for the next answer.
const grace = 500 * time.Millisecond

// graces bounds a stream's wait for late answers after its last question, in multiples of grace.
const graces = 8

// pace is how often a stream asks, how long it waits for late answers (see grace), and how long an attempt to connect
// may take.
type pace struct{ interval, grace, redial time.Duration }

// streamTo is a stream's destination, its source port for UDP (0: the kernel chooses it), and what is called with the
// number of each answered question (nil: nothing).
type streamTo struct {
	proto, address string
	source         int
	heard          func(n uint64)
}

// answeredFD is the descriptor that the flag -answered closes.
const answeredFD = 3

const answeredUsage = "write a byte to descriptor 3 before the first question, close it at the first answer"

// begin writes a byte to a file, and returns a function that closes it at its first call, whatever the number. Call it
// when SIGTERM no longer ends the process.
func begin(f io.WriteCloser) (heard func(uint64), err error) {
	if _, err := f.Write([]byte{'\n'}); err != nil {
		return nil, fmt.Errorf("flag -answered: %w", err)
	}
	var once sync.Once
	return func(uint64) { once.Do(func() { f.Close() }) }, nil
}

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
	// WaitedUntil is when the stream stopped waiting for answers; zero: it never had a connection.
	WaitedUntil time.Time `json:"waitedUntil,omitzero"`
	// FirstLoss is the number of the first question that was never answered; 0: none.
	FirstLoss uint64 `json:"firstLoss,omitempty"`
	// Broken says why the link ended before it was told to.
	Broken string `json:"broken,omitempty"`
	// TCP is the state of the connection where answers are missing.
	TCP string `json:"tcp,omitempty"`
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
func stream(to streamTo, p pace, stop <-chan os.Signal) (*Report, error) {
	report := &Report{Proto: to.proto, Address: to.address}
	l, err := report.connect(to.source, p.redial, stop)
	if l == nil {
		return report, err
	}
	defer l.Close()
	report.Broken = ""
	t := &tally{next: 1, last: time.Now(), heard: to.heard}
	c, err := newConversation(l, t)
	if err != nil {
		return nil, err
	}
	sent := c.ask(p.interval, stop)
	report.Sent += sent
	end := time.Now()
	c.rest(sent, end, p.grace)
	t.fill(report, end)
	report.WaitedUntil = time.Now()
	if t.received < sent {
		report.TCP = lossText(l)
	}
	return report, nil
}

// connect returns no link when it was stopped before one opened.
func (r *Report) connect(source int, within time.Duration, stop <-chan os.Signal) (link, error) {
	for {
		l, err := dialFrom(r.Proto, r.Address, source, within)
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

// rest hears late answers to that many questions, the last of them asked at end. On a busy machine answers come late
// without being lost: rest ends when none has come for a grace, and at the latest after graces of them. It then takes
// what had reached the socket by that time, since this process may not have had a processor. That is bounded, because
// an ICMP socket also receives the answers of other streams.
func (c *conversation) rest(sent uint64, end time.Time, grace time.Duration) {
	until := func() time.Time { return restUntil(end, c.tally.last, grace) }
	for c.tally.received < sent && time.Now().Before(until()) {
		c.await(until())
	}
	for end := time.Now().Add(10 * time.Second); c.tally.received < sent && time.Now().Before(end) && readable(c.fd, 0); {
		c.await(time.Now().Add(20 * time.Millisecond))
	}
}

// restUntil returns when to stop waiting for the next answer: a grace after the last question, asked at end, or after
// the last answer if that came later.
func restUntil(end, lastAnswer time.Time, grace time.Duration) time.Time {
	from := end
	if lastAnswer.After(from) {
		from = lastAnswer
	}
	if limit := end.Add((graces - 1) * grace); from.After(limit) {
		from = limit
	}
	return from.Add(grace)
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
