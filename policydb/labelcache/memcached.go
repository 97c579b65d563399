package labelcache

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

const (
	timeout    = 100 * time.Millisecond
	expiration = 3600 // seconds
)

// server is one memcached server. After a failure it gets no queries until a ping has succeeded. A single timeout is
// reported only if the next ping times out too.
type server struct {
	addr    string
	client  *memcache.Client
	trouble atomic.Pointer[trouble] // nil: it is up, as far as is known
}

type trouble struct {
	text string
	sure bool
}

// late reports whether an error is a timeout.
func late(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

func newServer(addr string) *server {
	s := &server{addr: addr, client: memcache.New(addr)}
	s.client.Timeout, s.client.DialContext = timeout, dialBounded
	return s
}

func (s *server) weight(key string) uint64 {
	sum := sha256.Sum256([]byte(s.addr + "\x00" + key))
	return binary.BigEndian.Uint64(sum[:])
}

func (s *server) up() bool { return s.trouble.Load() == nil }

// problem returns a sentence about the failure while the server is known to be down, else "".
func (s *server) problem() string {
	if t := s.trouble.Load(); t != nil && t.sure {
		return t.text
	}
	return ""
}

// note opens or closes the circuit.
func (s *server) note(err error) error {
	if err == nil {
		s.trouble.Store(nil)
		return nil
	}
	text := err.Error()
	if !strings.Contains(text, s.addr) {
		text = s.addr + ": " + text
	}
	s.trouble.Store(&trouble{text: text, sure: !late(err) || s.trouble.Load() != nil})
	return err
}

func (s *server) ping() error { return s.note(s.client.Ping()) }

// set stores a value. A server that has no room for it is not down.
func (s *server) set(key string, value []byte) error {
	err := s.client.Set(&memcache.Item{Key: key, Value: value, Expiration: expiration})
	if err != nil && strings.Contains(err.Error(), "SERVER_ERROR") {
		_ = s.note(nil)
		return err
	}
	return s.note(err)
}

// get gives nil where the server has nothing.
func (s *server) get(key string) ([]byte, error) {
	it, err := s.client.Get(key)
	if errors.Is(err, memcache.ErrCacheMiss) {
		return nil, s.note(nil)
	}
	if err != nil {
		return nil, s.note(err)
	}
	return it.Value, s.note(nil)
}

func (s *server) close() { _ = s.client.Close() }
