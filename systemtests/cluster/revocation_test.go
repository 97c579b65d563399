package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A connection leads over loopback to a server that echoes questions. A gate in front of the server drops questions
// while it is closed, and sends droppedText instead: no test waits for an answer that does not come.
type connection struct {
	net.Conn
	open   atomic.Bool  // the gate
	served atomic.Int64 // questions that passed it
	report Report
}

// A question and its answer have one size, because TCP keeps no bounds of messages.
const (
	askedText   = "question"
	droppedText = "-dropped"
)

// dialServer returns a connection of a protocol, "tcp" or "udp". Its server runs outside of any bubble of synctest:
// the clock of a bubble stands still while one of its goroutines waits for a packet.
func dialServer(t *testing.T, proto string) *connection {
	t.Helper()
	c := &connection{}
	c.open.Store(true)
	var at net.Addr
	if proto == "udp" {
		at = c.serveUDP(t)
	} else {
		at = c.serveTCP(t)
	}
	var err error
	if c.Conn, err = net.Dial(proto, at.String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func (c *connection) serveUDP(t *testing.T) net.Addr {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, len(askedText))
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(c.answer(buf[:n]), from)
		}
	}()
	return conn.LocalAddr()
}

func (c *connection) serveTCP(t *testing.T) net.Addr {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for buf := make([]byte, len(askedText)); ; {
			if _, err := io.ReadFull(conn, buf); err != nil {
				return
			}
			_, _ = conn.Write(c.answer(buf))
		}
	}()
	return listener.Addr()
}

func (c *connection) answer(question []byte) []byte {
	if !c.open.Load() {
		return []byte(droppedText)
	}
	c.served.Add(1)
	return question
}

// ask sends a question, and records its answer.
func (c *connection) ask() error {
	c.report.Sent++
	if _, err := io.WriteString(c, askedText); err != nil {
		return err
	}
	buf := make([]byte, len(askedText))
	if _, err := io.ReadFull(c, buf); err != nil {
		return err
	}
	if string(buf) == askedText {
		c.report.Received, c.report.LastAnswer = c.report.Received+1, time.Now()
	}
	return nil
}

// stream asks a hundred times a second until stop is closed.
func (c *connection) stream(stop <-chan struct{}) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return nil
		case <-tick.C:
			if err := c.ask(); err != nil {
				return err
			}
		}
	}
}

// observe returns a line if a question comes to the server within the time.
func (c *connection) observe(window time.Duration) (alive []string) {
	before := c.served.Load()
	Undisturbed(context.Background(), window)
	if n := c.served.Load() - before; n > 0 {
		alive = append(alive, fmt.Sprintf("%d packets came to the server", n))
	}
	return alive
}

// A revokedCase is a connection that lives for a time after the change that revokes it, and the kinds of the failures.
type revokedCase struct {
	slowness string
	lives    time.Duration
	observe  bool          // at the server too
	stalled  time.Duration // how long the machine stands still before the limit is over
	late     time.Duration // by how much timers are late after that
	want     string
}

// run returns the kinds of the failures.
func (r revokedCase) run(t *testing.T, c *connection) string {
	t.Helper()
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- c.stream(stop) }()
	time.Sleep(time.Second)
	revocation := Revocation{Made: time.Now(), Limit: time.Second, Late: func(time.Time) time.Duration { return r.late }}
	time.AfterFunc(r.lives, func() { c.open.Store(false) })
	revocation.expire(t.Context(), func(ctx context.Context, d time.Duration) { Undisturbed(ctx, d+r.stalled) })
	failures := revocation.Silence(700*time.Millisecond, func(window time.Duration) []string {
		if alive := c.observe(window); r.observe {
			return alive
		}
		return nil
	})
	stopped := time.Now()
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := revocation.Judge(Expectation{Open: true}, c.report, stopped); err != nil {
		failures = append(failures, err.Error())
	}
	for i, line := range failures {
		failures[i], _, _ = strings.Cut(line, " ")
	}
	return strings.Join(failures, " ")
}

// TestRevocation_KindsOfFailures sends packets over loopback on the clock of a bubble, which costs no time.
func TestRevocation_KindsOfFailures(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]revokedCase{
		"ends at once":                        {"1", 0, true, 0, 0, ""},
		"ends within the limit":               {"1", 900 * ms, true, 0, 0, ""},
		"ends soon after the limit":           {"1", 1200 * ms, true, 0, 0, "LATE LATE"},
		"lives for 3 s":                       {"1", 3000 * ms, true, 0, 0, "LATE LATE"},
		"lives for almost 10 s":               {"1", 9900 * ms, true, 0, 0, "LATE LATE"},
		"lives for 12 s":                      {"1", 12000 * ms, true, 0, 0, "LATE LEAK LEAK"},
		"does not end":                        {"1", time.Hour, true, 0, 0, "LATE LEAK LEAK"},
		"slowness 3, within the limit":        {"3", 2900 * ms, true, 0, 0, ""},
		"slowness 3, after the limit":         {"3", 3300 * ms, true, 0, 0, "LATE LATE"},
		"slowness 3, almost 10 s":             {"3", 9900 * ms, true, 0, 0, "LATE LATE"},
		"slowness 3, 12 s":                    {"3", 12000 * ms, true, 0, 0, "LATE LEAK LEAK"},
		"slowness 12, below 10 s":             {"12", 9900 * ms, true, 0, 0, ""},
		"slowness 12, within the limit":       {"12", 11000 * ms, true, 0, 0, "LEAK"},
		"slowness 12, after the limit":        {"12", 12200 * ms, true, 0, 0, "LEAK LEAK"},
		"the machine stood still":             {"1", 2500 * ms, true, 2000 * ms, 0, ""},
		"the machine stood still, not enough": {"1", 2500 * ms, true, 1000 * ms, 0, "LATE LATE"},
		"stood still, and lives for 12 s":     {"1", 12000 * ms, true, 2000 * ms, 0, "LATE LEAK LEAK"},
		"stood still for longer than 10 s":    {"1", 10500 * ms, true, 11000 * ms, 0, "LEAK"},
		"client alone, within the limit":      {"1", 900 * ms, false, 0, 0, ""},
		"client alone, after the limit":       {"1", 1200 * ms, false, 0, 0, "LATE"},
		"client alone, until the end":         {"1", time.Hour, false, 0, 0, "LEAK"},
		"client alone, slowness 3":            {"3", 3100 * ms, false, 0, 0, "LATE"},
		"client alone, slowness 3, the end":   {"3", time.Hour, false, 0, 0, "LEAK"},
		"client alone, timers were late":      {"1", 1200 * ms, false, 0, 400 * ms, "LATE"},
		"timers were late, until the end":     {"1", time.Hour, false, 0, 400 * ms, "LEAK"},
	} {
		for _, proto := range []string{"tcp", "udp"} {
			t.Run(name+", "+proto, func(t *testing.T) {
				t.Setenv("FLOWKEEP_SLOW", c.slowness)
				t.Setenv("FLOWKEEP_IN_VM", "")
				conn := dialServer(t, proto)
				synctest.Test(t, func(t *testing.T) {
					if got := c.run(t, conn); got != c.want {
						t.Errorf("failures %q, want %q; %+v", got, c.want, conn.report)
					}
				})
			})
		}
	}
}

func TestRevocation_Timing(t *testing.T) {
	t.Setenv("FLOWKEEP_SLOW", "3")
	made := time.Now()
	r := Revocation{Made: made, Limit: time.Second, expired: made.Add(3500 * time.Millisecond)}
	got := r.Timing([]Report{{LastAnswer: made.Add(time.Second)}, {LastAnswer: made.Add(2 * time.Second)}, {}})
	if got.Took != 2*time.Second || got.Limit != time.Second || got.Late != 500*time.Millisecond {
		t.Errorf("%+v", got)
	}
}

func TestRevocation_NeverAnswered(t *testing.T) {
	r := Revocation{Made: time.Now(), Limit: time.Second}
	err := r.Judge(Expectation{Open: true}, Report{Sent: 9}, time.Now())
	if err == nil || !strings.HasPrefix(err.Error(), Lost+" ") {
		t.Errorf("%v, want %s", err, Lost)
	}
}
