package authority

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// limiter lets each of many through so often, with some at once.
type limiter struct {
	every time.Duration
	burst int
	most  int // keys that are remembered

	mu   sync.Mutex
	free map[string]time.Time // when all of a key's burst is free again
}

func newLimiter(every time.Duration, burst, most int) *limiter {
	return &limiter{every: every, burst: burst, most: most, free: map[string]time.Time{}}
}

// allow takes a turn of key. Where too many are remembered, those that were not before wait.
func (l *limiter) allow(key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, known := l.free[key]
	if !known && len(l.free) >= l.most {
		for k, t := range l.free {
			if !now.Before(t) {
				delete(l.free, k)
			}
		}
		if len(l.free) >= l.most {
			return false
		}
	}
	if at.Before(now) {
		at = now
	}
	if at = at.Add(l.every); at.Sub(now) > l.every*time.Duration(l.burst) {
		return false
	}
	l.free[key] = at
	return true
}

// shared is a listener of which nobody takes all: some connections at a time for each address.
type shared struct {
	net.Listener
	each, all int

	mu    sync.Mutex
	open  map[netip.Addr]int
	total int
}

func share(l net.Listener, each, all int) *shared {
	return &shared{Listener: l, each: each, all: all, open: map[netip.Addr]int{}}
}

// Accept closes what is too much.
func (s *shared) Accept() (net.Conn, error) {
	for {
		c, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := addressOf(c.RemoteAddr())
		if s.take(from) {
			return &place{Conn: c, of: s, from: from}, nil
		}
		_ = c.Close()
	}
}

func (s *shared) take(from netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total >= s.all || s.open[from] >= s.each {
		return false
	}
	s.total++
	s.open[from]++
	return true
}

func (s *shared) give(from netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.open[from]--; s.open[from] == 0 {
		delete(s.open, from)
	}
}

// place is a connection that counts until it is closed.
type place struct {
	net.Conn
	of   *shared
	from netip.Addr
	once sync.Once
}

// Close gives the place to another.
func (p *place) Close() error {
	p.once.Do(func() { p.of.give(p.from) })
	return p.Conn.Close()
}

// addressOf is that of a machine: with IPv6 that of its network, of which one machine may have all addresses.
func addressOf(a net.Addr) netip.Addr {
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
