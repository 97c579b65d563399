package labelcache

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

const (
	timeout    = 100 * time.Millisecond
	expiration = 3600 // seconds
)

// server is one memcached. After a failure it counts as down until a ping has reached it.
type server struct {
	addr    string
	client  *memcache.Client
	trouble atomic.Pointer[string] // nil: it is up, as far as is known
}

func newServer(addr string) *server {
	s := &server{addr: addr, client: memcache.New(addr)}
	s.client.Timeout = timeout
	return s
}

func (s *server) weight(key string) uint64 {
	sum := sha256.Sum256([]byte(s.addr + "\x00" + key))
	return binary.BigEndian.Uint64(sum[:])
}

func (s *server) up() bool { return s.trouble.Load() == nil }

// problem is empty while the server is up, else a sentence.
func (s *server) problem() string {
	if p := s.trouble.Load(); p != nil {
		return *p
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
	s.trouble.Store(&text)
	return err
}

func (s *server) ping() error { return s.note(s.client.Ping()) }

func (s *server) set(key string, value []byte) error {
	return s.note(s.client.Set(&memcache.Item{Key: key, Value: value, Expiration: expiration}))
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
