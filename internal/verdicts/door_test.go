package verdicts

import (
	"net"
	"sync"
	"testing"
)

// door is a port that stays taken while the servers behind it come and go: a port that is let go may be another's by the time
// that it is wanted again. With no server behind it, who knocks is turned away.
type door struct {
	net.Listener
	mu     sync.Mutex
	behind *behindDoor
}

// behindDoor is the listener of one server.
type behindDoor struct {
	*door
	knocks chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newDoor(t *testing.T) *door {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	d := &door{Listener: l}
	done := make(chan struct{})
	go func() { defer close(done); d.answer() }()
	t.Cleanup(func() { l.Close(); <-done })
	return d
}

func (d *door) answer() {
	for {
		conn, err := d.Accept()
		if err != nil {
			return
		}
		d.mu.Lock()
		b := d.behind
		d.mu.Unlock()
		if b == nil {
			conn.Close()
			continue
		}
		select {
		case b.knocks <- conn:
		case <-b.closed:
			conn.Close()
		}
	}
}

// open lets a new server stand behind the door.
func (d *door) open() net.Listener {
	b := &behindDoor{door: d, knocks: make(chan net.Conn), closed: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.behind = b
	return b
}

// Accept waits for whoever knocks.
func (b *behindDoor) Accept() (net.Conn, error) {
	select {
	case conn := <-b.knocks:
		return conn, nil
	case <-b.closed:
		return nil, net.ErrClosed
	}
}

// Close leaves the door itself as it is.
func (b *behindDoor) Close() error {
	b.once.Do(func() { close(b.closed) })
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.door.behind == b {
		b.door.behind = nil
	}
	return nil
}
