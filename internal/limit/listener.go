package limit

import (
	"container/list"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Bounds are those of a listener's connections.
type Bounds struct {
	// Each bounds the unknown connections of an address: those that have not shown a certificate. It is at least 1.
	Each int
	// Unknown bounds all of them. It is at least 1.
	//
	// For a connection above Each, the oldest of its address is closed: a handshake takes milliseconds, and a silent
	// connection stays. Clients may share an address: a pod has its node's for hosts outside. For a connection above
	// Unknown, the oldest of an address with the most connections is closed: a client with one connection keeps it,
	// at any rate of new connections, while another address has more.
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
	unknown   *list.List                // of *Conn, the oldest first
	addresses map[netip.Addr]*list.List // unknown connections of each address, the oldest first
	peers     map[string]int
}

// Listen returns a Listener over l.
func Listen(l net.Listener, b Bounds) *Listener {
	if b.Closed == nil {
		b.Closed = func(string) {}
	}
	return &Listener{Listener: l, bounds: b, unknown: list.New(),
		addresses: map[netip.Addr]*list.List{}, peers: map[string]int{}}
}

// Conn is a connection that counts until it is closed.
type Conn struct {
	net.Conn
	of   *Listener
	from netip.Addr
	// The following are guarded by of.mu.
	at     *list.Element // in of.unknown; nil: it is known, or closed
	own    *list.List    // the connections of its address; nil: as at
	within *list.Element // in own; nil: as at
	peer   string        // empty: it is unknown, or closed
}

// Accept returns the next connection, and closes another one for it above a bound.
func (l *Listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &Conn{Conn: raw, of: l, from: AddressOf(raw.RemoteAddr())}
	if evicted, bound := l.add(c); evicted != nil {
		l.bounds.Closed(bound)
		_ = evicted.Conn.Close()
	}
	return c, nil
}

// add counts a new connection. It returns the connection that has to be closed for it, if any, and the name of the
// bound.
func (l *Listener) add(c *Conn) (evicted *Conn, bound string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if own := l.addresses[c.from]; own != nil && own.Len() >= l.bounds.Each {
		evicted, bound = connOf(own.Front()), BoundAddress
	} else if l.unknown.Len() >= l.bounds.Unknown {
		evicted, bound = l.oldestOfBusiest(), BoundUnknown
	}
	if evicted != nil {
		l.forget(evicted)
	}
	if l.addresses[c.from] == nil {
		l.addresses[c.from] = list.New()
	}
	c.own = l.addresses[c.from]
	c.at, c.within = l.unknown.PushBack(c), c.own.PushBack(c)
	return evicted, bound
}

// oldestOfBusiest returns the oldest unknown connection of the addresses with the most. There is one.
func (l *Listener) oldestOfBusiest() (found *Conn) {
	for e := l.unknown.Front(); e != nil; e = e.Next() {
		if c := connOf(e); found == nil || c.own.Len() > found.own.Len() {
			found = c
		}
	}
	return found
}

// connOf returns the connection at a place in a list.
func connOf(e *list.Element) *Conn {
	c, _ := e.Value.(*Conn)
	return c
}

// forget gives a connection's place to others. It is called with l.mu held.
func (l *Listener) forget(c *Conn) {
	switch {
	case c.at != nil:
		l.unknown.Remove(c.at)
		c.own.Remove(c.within)
		if c.own.Len() == 0 {
			delete(l.addresses, c.from)
		}
		c.at, c.own, c.within = nil, nil, nil
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

// maxHeld is how much a held connection may send.
const maxHeld = 1 << 20

// Hold waits for a time, until the connection is closed, or until it has sent too much. Call it before closing a
// connection above a bound: a client that connects again at once costs few handshakes then. Meanwhile the connection
// counts as before.
func Hold(raw net.Conn, d time.Duration) {
	if raw.SetReadDeadline(time.Now().Add(d)) == nil {
		_, _ = io.CopyN(io.Discard, raw, maxHeld) // until the deadline
	}
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
