// Package labelcache answers "which endpoints does this selector choose?": in the process first, then in memcached, which
// the replicas and netctl share, then from whoever knows. An entry carries the revision it was computed at and is never
// believed by one who needs a newer. Enforcement never waits for this cache: a miss or an outage only costs time.
package labelcache

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

// Entry is the endpoints (IDs) that a selector chose at a revision.
type Entry struct {
	Revision  uint64   `json:"revision"`
	Endpoints []string `json:"endpoints"`
}

// Source tells where an answer came from.
type Source string

// Sources.
const (
	InProcess Source = "in-process"
	Memcached Source = "memcached"
	Computed  Source = "engine"
)

// Config is what a cache needs. Without Servers it is in process alone.
type Config struct {
	Servers    []string // host:port of memcached
	MaxEntries int      // in process; 0: 10,000
	Registerer prometheus.Registerer
}

// Stats is the state of a cache.
type Stats struct {
	Entries   int      `json:"entries"`
	Hits      uint64   `json:"hits"`
	Misses    uint64   `json:"misses"`
	Errors    uint64   `json:"errors"`
	Servers   []string `json:"servers,omitempty"`
	Connected bool     `json:"connected"`
	Problem   string   `json:"problem,omitempty"`
}

// Cache is safe for concurrent use.
type Cache struct {
	cfg     Config
	client  *memcache.Client // nil: in process alone
	queue   chan item
	hits    atomic.Uint64
	misses  atomic.Uint64
	errs    atomic.Uint64
	problem atomic.Pointer[string]
	openAt  atomic.Int64 // Unix nanoseconds until which memcached is left alone

	mu      sync.Mutex
	entries map[string]Entry
}

type item struct {
	key   string
	entry Entry
}

const (
	timeout    = 100 * time.Millisecond
	pause      = time.Second // after a failure
	maxValue   = 1 << 20     // memcached's default item size, bytes
	expiration = 3600        // seconds
	queueSize  = 1024
)

// New makes a cache; Run sends to memcached.
func New(cfg Config) *Cache {
	if cfg.MaxEntries == 0 {
		cfg.MaxEntries = 10000
	}
	c := &Cache{cfg: cfg, entries: map[string]Entry{}, queue: make(chan item, queueSize)}
	if len(cfg.Servers) > 0 {
		c.client = memcache.New(cfg.Servers...)
		c.client.Timeout = timeout
	}
	if cfg.Registerer != nil {
		c.register(cfg.Registerer)
	}
	return c
}

func (c *Cache) register(r prometheus.Registerer) {
	counter := func(name, help string, v *atomic.Uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "flowkeep_netmaster_labelcache_" + name, Help: help}, func() float64 { return float64(v.Load()) })
	}
	r.MustRegister(counter("hits_total", "Look-ups answered from the cache.", &c.hits), counter("misses_total", "Look-ups that had to be computed.", &c.misses),
		counter("errors_total", "Requests to memcached that failed.", &c.errs),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "flowkeep_netmaster_memcached_up", Help: "1 while memcached answers; 0 without one, too."}, func() float64 {
			if c.client != nil && c.problem.Load() == nil {
				return 1
			}
			return 0
		}))
}

// Key is the cache's key of a group.
func Key(g *policy.GroupSpec) string { return "flowkeep/group/" + g.Key().String() }

// Run sends entries to memcached, and looks now and then whether it answers, until ctx ends.
func (c *Cache) Run(ctx context.Context) {
	if c.client == nil {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	c.ping()
	for {
		select {
		case i := <-c.queue:
			c.send(i)
		case <-tick.C:
			c.ping()
		case <-ctx.Done():
			c.client.Close()
			return
		}
	}
}

func (c *Cache) ping() { c.outcome(c.client.Ping()) }

// outcome opens or closes the circuit.
func (c *Cache) outcome(err error) {
	if err == nil || errors.Is(err, memcache.ErrCacheMiss) {
		c.problem.Store(nil)
		return
	}
	c.errs.Add(1)
	text := err.Error()
	c.problem.Store(&text)
	c.openAt.Store(time.Now().Add(pause).UnixNano())
}

func (c *Cache) usable() bool { return c.client != nil && time.Now().UnixNano() >= c.openAt.Load() }

func (c *Cache) send(i item) {
	if !c.usable() {
		return
	}
	value, err := json.Marshal(i.entry)
	if err != nil || len(value) > maxValue-1024 {
		return
	}
	c.outcome(c.client.Set(&memcache.Item{Key: i.key, Value: value, Expiration: expiration}))
}

// Put remembers an entry. It never waits: what memcached cannot take now is left out.
func (c *Cache) Put(key string, e Entry) {
	c.mu.Lock()
	if len(c.entries) >= c.cfg.MaxEntries {
		for k := range c.entries { // any
			delete(c.entries, k)
			break
		}
	}
	c.entries[key] = e
	c.mu.Unlock()
	if c.client == nil {
		return
	}
	select {
	case c.queue <- item{key, e}:
	default:
	}
}

// Get answers with an entry of at least the revision, computing one where none is cached.
func (c *Cache) Get(ctx context.Context, key string, revision uint64, compute func(context.Context) (Entry, error)) (Entry, Source, error) {
	c.mu.Lock()
	e, ok := c.entries[key]
	c.mu.Unlock()
	if ok && e.Revision >= revision {
		c.hits.Add(1)
		return e, InProcess, nil
	}
	if e, ok := c.fetch(key); ok && e.Revision >= revision {
		c.hits.Add(1)
		c.Put(key, e)
		return e, Memcached, nil
	}
	c.misses.Add(1)
	e, err := compute(ctx)
	if err != nil {
		return Entry{}, Computed, err
	}
	c.Put(key, e)
	return e, Computed, nil
}

func (c *Cache) fetch(key string) (Entry, bool) {
	if !c.usable() {
		return Entry{}, false
	}
	it, err := c.client.Get(key)
	c.outcome(err)
	if err != nil {
		return Entry{}, false
	}
	var e Entry
	if err := json.Unmarshal(it.Value, &e); err != nil {
		return Entry{}, false
	}
	return e, true
}

// Stats is the state now.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	n := len(c.entries)
	c.mu.Unlock()
	s := Stats{Entries: n, Hits: c.hits.Load(), Misses: c.misses.Load(), Errors: c.errs.Load(), Servers: c.cfg.Servers}
	if p := c.problem.Load(); p != nil {
		s.Problem = *p
	}
	s.Connected = c.client != nil && s.Problem == ""
	return s
}
