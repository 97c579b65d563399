// Package labelcache keeps what was computed from the state of the cluster: which endpoints a selector chooses, and
// whole answers made of that. It looks in the process first, then in memcached, which several netmasters share.
//
// An entry is of one query and one Stamp, the state that it was computed from, and serves no other. Memcached is not
// trusted: values are sealed with a key of the netmasters' (seal.go), and what does not open is a miss. Enforcement
// never waits for this cache: a miss or an outage only costs time.
//
// Each query belongs to one of the memcached servers (rendezvous hashing). A server that fails is left alone until Run
// has reached it again, so an outage costs at most one timeout a second, and no look-up more than one.
package labelcache

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

// Stamp names one state of the cluster: a revision, counted in a term of a leader.
type Stamp struct {
	Epoch    uint64 `json:"epoch,omitempty"` // of the leader; 0: there is no election
	Term     uint64 `json:"term"`            // drawn at random by the netmaster that counts, when it begins to
	Revision uint64 `json:"revision"`
	// Standing changes with what nodes report of policies; 0: the value does not depend on that.
	Standing uint64 `json:"standing,omitempty"`
}

// Source is where a value came from.
type Source string

// Sources.
const (
	InProcess Source = "in-process"
	Memcached Source = "memcached"
	Computed  Source = "engine"
)

// Config is the configuration of a cache. Without Servers it is in process alone.
type Config struct {
	Servers    []string // host:port of memcached, or the path of its unix socket
	MaxBytes   int      // of the values in process; 0: 64 MiB
	Registerer prometheus.Registerer
	// Key returns the secret that the netmasters share. Where it is nil, or returns nothing, values are sealed with a
	// key of this process: then nothing is shared.
	Key func() []byte
}

// Cache is a cache of values by query and stamp. It is safe for concurrent use.
type Cache struct {
	cfg     Config
	own     []byte // the key where none is shared
	servers []*server
	queue   chan item
	queued  atomic.Int64 // bytes in queue
	local   *lru
	counts  counts
	// fetchTimeout bounds the time to read all parts of a value.
	fetchTimeout time.Duration
}

type item struct {
	query string
	at    Stamp
	value []byte
}

const (
	pingInterval  = time.Second
	maxQueue      = 1024
	maxQueueBytes = 64 << 20
	defaultBytes  = 64 << 20
	// defaultFetchTimeout bounds the time to read all parts of a value.
	defaultFetchTimeout = 500 * time.Millisecond
)

// New makes a cache; Run must run for memcached to be filled, and found again after an outage.
func New(cfg Config) *Cache {
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = defaultBytes
	}
	c := &Cache{
		cfg:          cfg,
		own:          make([]byte, 32),
		local:        newLRU(cfg.MaxBytes),
		queue:        make(chan item, maxQueue),
		fetchTimeout: defaultFetchTimeout,
	}
	_, _ = rand.Read(c.own) // it does not fail
	for _, addr := range cfg.Servers {
		c.servers = append(c.servers, newServer(addr))
	}
	c.counts.init()
	if cfg.Registerer != nil {
		c.register(cfg.Registerer)
	}
	return c
}

// Members returns the query for the endpoints of a group: the first limit of them, or all if limit is 0.
func Members(k policy.Key, limit int) string { return fmt.Sprintf("members/%s/%d", k, limit) }

// Run sends entries to memcached, and looks every second whether it answers, until ctx ends.
func (c *Cache) Run(ctx context.Context) {
	if len(c.servers) == 0 {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(pingInterval)
	defer tick.Stop()
	c.ping()
	for {
		select {
		case i := <-c.queue:
			c.queued.Add(-int64(len(i.value)))
			c.send(&i)
		case <-tick.C:
			c.ping()
		case <-ctx.Done():
			for _, s := range c.servers {
				s.close()
			}
			return
		}
	}
}

func (c *Cache) ping() {
	for _, s := range c.servers {
		c.count(s.ping())
	}
}

// count counts a request that failed.
func (c *Cache) count(err error) {
	if err != nil {
		c.counts.errors.Add(1)
	}
}

func (c *Cache) sealer() sealer {
	if c.cfg.Key != nil {
		if key := c.cfg.Key(); len(key) > 0 {
			return sealer(key)
		}
	}
	return sealer(c.own)
}

func (c *Cache) send(i *item) {
	s := c.owner(i.query)
	if !s.up() {
		return
	}
	seal := c.sealer()
	parts := seal.seal(i.query, i.at, i.value)
	for n := len(parts) - 1; n >= 0; n-- { // the first last: it stands for all
		if err := s.set(seal.name(i.query, n), parts[n]); err != nil {
			c.count(err)
			return
		}
	}
}

// owner returns the server of a query; the others' queries stay where they are when one is added or removed.
func (c *Cache) owner(query string) *server {
	return slices.MaxFunc(c.servers, func(a, b *server) int {
		x, y := a.weight(query), b.weight(query)
		if x < y {
			return -1
		}
		if x > y {
			return 1
		}
		return strings.Compare(a.addr, b.addr)
	})
}

// Put keeps a value, in this process alone if it may not be shared. It never waits: what memcached cannot take now is
// left out, and so is a value that has no room in process or in memcached. The value must not be changed afterwards.
func (c *Cache) Put(query string, at Stamp, value []byte, share bool) {
	i := item{query, at, value}
	if !c.local.put(&i) {
		return
	}
	share = share && len(c.servers) > 0
	isTooLarge := share && len(value) > maxValue
	if isTooLarge || !c.local.fits(&i) {
		c.counts.tooLarge.Add(1)
	}
	if !share || isTooLarge {
		return
	}
	if c.queued.Add(int64(len(value))) > maxQueueBytes {
		c.queued.Add(-int64(len(value)))
		c.counts.overflows.Add(1)
		return
	}
	select {
	case c.queue <- i:
	default:
		c.queued.Add(-int64(len(value)))
		c.counts.overflows.Add(1)
	}
}

// Get returns the value of a query at exactly this stamp, if it is cached. The value must not be changed.
func (c *Cache) Get(query string, at Stamp) (value []byte, from Source, ok bool) {
	return c.Lookups().Get(query, at)
}

// Lookups are look-ups for one answer. Together they wait for memcached as long as one look-up may: a server that takes
// its time for each of thousands delays the answer no longer than for one. One goroutine uses it.
type Lookups struct {
	c    *Cache
	left time.Duration // to wait for memcached
}

// Lookups returns look-ups for one answer.
func (c *Cache) Lookups() *Lookups { return &Lookups{c, c.fetchTimeout} }

// Get looks up a value as Cache.Get does.
func (l *Lookups) Get(query string, at Stamp) (value []byte, from Source, ok bool) {
	c, began := l.c, time.Now()
	if value, ok := c.local.get(query, at); ok {
		c.counts.took(InProcess, time.Since(began))
		return value, InProcess, true
	}
	if value, ok := l.fetch(query, at); ok {
		c.counts.took(Memcached, time.Since(began))
		c.local.put(&item{query, at, value})
		return value, Memcached, true
	}
	c.counts.misses.Add(1)
	return nil, "", false
}

// Computation returns a value, and the stamp that it is of: the zero Stamp, if the state changed meanwhile. Then the
// value is not kept.
type Computation func(context.Context) ([]byte, Stamp, error)

// Do returns the value of a query at this stamp. Where none is cached it is computed, at this stamp or a later one.
func (c *Cache) Do(ctx context.Context, query string, at Stamp, compute Computation) ([]byte, Stamp, Source, error) {
	if value, from, ok := c.Get(query, at); ok {
		return value, at, from, nil
	}
	began := time.Now()
	value, of, err := compute(ctx)
	if err != nil {
		return nil, Stamp{}, Computed, err
	}
	c.counts.took(Computed, time.Since(began))
	if of != (Stamp{}) {
		c.Put(query, of, value, true)
	}
	return value, of, Computed, nil
}

// fetch reads a value from memcached, in the time that is left.
func (l *Lookups) fetch(query string, at Stamp) ([]byte, bool) {
	c, began := l.c, time.Now()
	if len(c.servers) == 0 || l.left <= 0 {
		return nil, false
	}
	defer func() { l.left -= time.Since(began) }()
	s, seal := c.owner(query), c.sealer()
	if !s.up() {
		return nil, false
	}
	opened, deadline := opening{query: query, at: at}, began.Add(l.left)
	for n := 0; n == 0 || n < opened.parts; n++ {
		sealed, err := s.get(seal.name(query, n))
		if err != nil || sealed == nil || time.Now().After(deadline) {
			c.count(err)
			return nil, false
		}
		switch err := seal.open(&opened, sealed); {
		case errors.Is(err, errStale):
			return nil, false
		case err != nil:
			c.counts.refused.Add(1)
			return nil, false
		}
	}
	return opened.value, true
}
