package limit

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A key has its burst, then one turn after the other; what is remembered of keys is bounded.
func TestRate(t *testing.T) {
	r, now := NewRate(time.Second, 2, 100), time.Now()
	for i := range 100_000 {
		r.Allow(fmt.Sprint(i), now)
	}
	if len(r.free) > 100 {
		t.Errorf("%d keys are remembered", len(r.free))
	}
	if r.Allow("new", now) || !r.Allow("5", now) || r.Allow("5", now) {
		t.Error("a key that was there before has no turn left, or one that was not has one")
	}
	if wait := r.Take("5", now); wait != time.Second {
		t.Errorf("the next turn is in %v", wait)
	}
	if !r.Allow("5", now.Add(time.Second)) || r.Allow("5", now.Add(time.Second)) {
		t.Error("a second gives another number of turns than one")
	}
	now = now.Add(time.Minute)
	if !r.Allow("new", now) || len(r.free) > 1 {
		t.Errorf("%d keys are remembered a minute later", len(r.free))
	}
	if r.Allow("new", now); r.Allow("new", now) {
		t.Error("a third turn")
	}
	if r.Reset(); !r.Allow("new", now) {
		t.Error("no turn after Reset")
	}
}

// scripted is a listener of connections from given addresses.
type scripted struct {
	net.Listener
	from []string
	all  []*scriptedConn
}

type scriptedConn struct {
	net.Conn
	from   string
	closed bool
}

type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

func (c *scriptedConn) RemoteAddr() net.Addr { return address(c.from) }
func (c *scriptedConn) Close() error         { c.closed = true; return nil }

func (s *scripted) Accept() (net.Conn, error) {
	if len(s.from) == 0 {
		return nil, net.ErrClosed
	}
	c := &scriptedConn{from: s.from[0]}
	s.from, s.all = s.from[1:], append(s.all, c)
	return c, nil
}

func (s *scripted) open() (out string) {
	for i, c := range s.all {
		if !c.closed {
			out += fmt.Sprint(i, " ")
		}
	}
	return out
}

// Unknown connections are bounded by address and in all; known ones by their certificate; each place is given on.
func TestListener(t *testing.T) {
	raw := &scripted{}
	closed := map[string]int{}
	l := Listen(raw, Bounds{Each: 2, Unknown: 3, Closed: func(bound string) { closed[bound]++ }})
	accept := func(from ...string) (out []net.Conn) {
		raw.from = from
		for {
			c, err := l.Accept()
			if err != nil {
				return out
			}
			out = append(out, c)
		}
	}
	a := accept("10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.2:1")
	// The oldest of the address, 0, was closed for 2.
	if got := raw.open(); len(a) != 4 || got != "1 2 3 " || closed[BoundAddress] != 1 {
		t.Fatalf("open %s, closed %v", got, closed)
	}
	if err := errors.Join(Known(a[1], "x", 1), Known(a[3], "y", 1)); err != nil {
		t.Fatal(err)
	}
	b := accept("10.0.0.1:4", "10.0.0.3:1", "10.0.0.4:1") // 2 is closed for the last
	if got := raw.open(); got != "1 3 4 5 6 " || closed[BoundUnknown] != 1 {
		t.Errorf("open %s, closed %v", got, closed)
	}
	for _, i := range []int{0, 2} {
		if Known(a[i], "z", 9) == nil {
			t.Errorf("connection %d became known after it was closed", i)
		}
	}
	if Known(b[0], "x", 1) == nil || closed[BoundPeer] != 1 {
		t.Error("more connections with a certificate than may be")
	}
	_ = a[1].Close()
	_ = a[1].Close()
	if err := Known(b[0], "x", 1); err != nil {
		t.Error(err)
	}
	for _, c := range append(a, b...) {
		_ = c.Close()
	}
	if l.unknown.Len()+len(l.addresses)+len(l.peers) > 0 {
		t.Errorf("%d, %v, %v are left", l.unknown.Len(), l.addresses, l.peers)
	}
	if err := Known(&scriptedConn{}, "x", 0); err != nil {
		t.Error(err)
	}
}

// A client with one connection keeps it while another address takes all places again and again.
func TestListener_BusiestAddress(t *testing.T) {
	raw := &scripted{from: []string{"10.0.0.9:1"}}
	for n := range 1000 {
		raw.from = append(raw.from, fmt.Sprintf("10.0.0.%d:%d", 1+n%3, 1+n))
	}
	l := Listen(raw, Bounds{Each: 8, Unknown: 16})
	first, err := l.Accept()
	for err == nil {
		_, err = l.Accept()
	}
	if err := Known(first, "x", 1); err != nil {
		t.Errorf("the connection of 10.0.0.9 was closed for others: %v", err)
	}
	if n := l.unknown.Len(); n != 16-1 {
		t.Errorf("%d unknown connections, want 15", n)
	}
}

// A held connection stays open for a time, unless it is closed or sends too much.
func TestHold(t *testing.T) {
	for name, c := range map[string]struct {
		client func(net.Conn)
		want   time.Duration
	}{
		"silent": {func(net.Conn) {}, time.Second},
		"closed": {func(c net.Conn) { c.Close() }, 0},
		"small":  {func(c net.Conn) { _, _ = c.Write(make([]byte, 1000)) }, time.Second},
		"large":  {func(c net.Conn) { _, _ = c.Write(make([]byte, maxHeld)) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, client := net.Pipe()
				defer client.Close()
				defer server.Close()
				go c.client(client)
				began := time.Now()
				if Hold(server, time.Second); time.Since(began) != c.want {
					t.Errorf("held for %s, want %s", time.Since(began), c.want)
				}
			})
		})
	}
}

func TestAddressOf(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1:5":            "10.0.0.1",
		"[::ffff:10.0.0.1]:5":   "10.0.0.1",
		"[2001:db8:1:2:3::4]:5": "2001:db8:1:2::",
		"[fe80::1%eth0]:5":      "fe80::",
		"@":                     "invalid IP",
	} {
		if got := AddressOf(address(text)).String(); got != want {
			t.Errorf("%s is of %s, want %s", text, got, want)
		}
	}
}
