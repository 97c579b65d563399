package limit

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"sync"
)

// Bounds are those of a listener's connections.
type Bounds struct {
	// Each bounds the unknown connections of an address: those that have not shown a certificate. More are closed at
	// once.
	Each int
	// Unknown bounds all of them. For another one, the oldest is closed: a handshake takes milliseconds, and a silent
	// connection stays.
	Unknown int
	// Closed, if set, is called for each connection that is closed because of a bound.
	Closed func(bound string)
}

// Names of bounds, as Bounds.Closed receives them.
const (
	BoundAddress = "address" // too many of one address
	BoundUnknown = "unknown" // too many that have not shown a certificate
	BoundPeer    = "peer"    // too many with one certificate
)

// Listener is a net.Listener of which no client takes all connections. A connection is unknown until Known is called
// with it.
type Listener struct {
	net.Listener
	bounds Bounds

	mu        sync.Mutex
	unknown   *list.List // of *Conn, the oldest first
	addresses map[netip.Addr]int
	peers     map[string]int
}

// Listen returns a Listener over l.
func Listen(l net.Listener, b Bounds) *Listener {
	if b.Closed == nil {
		b.Closed = func(string) {}
	}
	return &Listener{Listener: l, bounds: b, unknown: list.New(),
		addresses: map[netip.Addr]int{}, peers: map[string]int{}}
}

// Conn is a connection that counts until it is closed.
type Conn struct {
	net.Conn
	of   *Listener
	from netip.Addr
	at   *list.Element // guarded by of.mu; nil: it is known, or closed
	peer string        // guarded by of.mu; empty: it is unknown, or closed
}

// Accept returns the next connection within the bounds.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if mine := l.take(c); mine != nil {
			return mine, nil
		}
		l.bounds.Closed(BoundAddress)
		_ = c.Close()
	}
}

// take returns a connection that counts, or nil if there is no place for it.
func (l *Listener) take(raw net.Conn) *Conn {
	c := &Conn{Conn: raw, of: l, from: AddressOf(raw.RemoteAddr())}
	l.mu.Lock()
	if l.addresses[c.from] >= l.bounds.Each {
		l.mu.Unlock()
		return nil
	}
	var oldest *Conn
	if l.unknown.Len() >= l.bounds.Unknown {
		oldest, _ = l.unknown.Front().Value.(*Conn)
		l.forget(oldest)
	}
	l.addresses[c.from]++
	c.at = l.unknown.PushBack(c)
	l.mu.Unlock()
	if oldest != nil {
		l.bounds.Closed(BoundUnknown)
		_ = oldest.Conn.Close()
	}
	return c
}

// forget gives a connection's place to others. It is called with l.mu held.
func (l *Listener) forget(c *Conn) {
	switch {
	case c.at != nil:
		l.unknown.Remove(c.at)
		c.at = nil
		if l.addresses[c.from]--; l.addresses[c.from] == 0 {
			delete(l.addresses, c.from)
		}
	case c.peer != "":
		if l.peers[c.peer]--; l.peers[c.peer] == 0 {
			delete(l.peers, c.peer)
		}
		c.peer = ""
	}
}

// errTooMany is the error of Known.
var errTooMany = errors.New("too many connections with this certificate")

// Known counts a connection as one of a peer that has shown its certificate, of which there may be most. It fails if
// there are as many. A connection that is of no Listener is left alone.
func Known(raw net.Conn, peer string, most int) error {
	c, ok := raw.(*Conn)
	if !ok {
		return nil
	}
	l := c.of
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.at == nil { // closed for another one
		return net.ErrClosed
	}
	if l.peers[peer] >= most {
		l.bounds.Closed(BoundPeer)
		return errTooMany
	}
	l.forget(c)
	c.peer = peer
	l.peers[peer]++
	return nil
}

// Close closes the connection and gives its place to another.
func (c *Conn) Close() error {
	c.of.mu.Lock()
	c.of.forget(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// AddressOf returns the address of a machine: with IPv6 that of its network, of which one machine may have all
// addresses.
func AddressOf(a net.Addr) netip.Addr {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is6() {
		prefix, _ := ip.Prefix(64)
		return prefix.Addr()
	}
	return ip
}
