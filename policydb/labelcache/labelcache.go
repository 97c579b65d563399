// Package labelcache answers "which endpoints does this selector choose?": in the process first, then in memcached, which
// the replicas and netctl share, then from whoever knows. An entry carries the epoch and the revision it was computed at: it is never
// believed by one who needs a newer, nor under another leader, whose revisions begin by a clock of its own. Enforcement never waits for this cache: a miss or an outage only costs time.
//
// Each key belongs to one of the memcached servers (rendezvous hashing). A server that fails is left alone until Run has
// reached it again, so an outage costs at most one timeout a second, and no look-up more than one.
package labelcache

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

// Entry is the endpoints (IDs) that a selector chose at a revision. Epoch is of the leader that says so; 0: there is no election.
type Entry struct {
	Epoch     uint64   `json:"epoch,omitempty"`
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
	Servers    []string // host:port of memcached, or the path of its unix socket
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
	servers []*server
	queue   chan item
	local   *lru

	localHits, remoteHits, misses, errs, dropped atomic.Uint64
}

type item struct {
	key   string
	entry Entry
}

const (
	probe     = time.Second // how often Run asks each server whether it lives
	maxValue  = 1<<20 - 1024
	queueSize = 1024
)

// New makes a cache; Run must run for memcached to be filled, and found again after an outage.
func New(cfg Config) *Cache {
	if cfg.MaxEntries <= 0 {
		cfg.MaxEntries = 10000
	}
	c := &Cache{cfg: cfg, local: newLRU(cfg.MaxEntries), queue: make(chan item, queueSize)}
	for _, addr := range cfg.Servers {
		c.servers = append(c.servers, newServer(addr))
	}
	if cfg.Registerer != nil {
		c.register(cfg.Registerer)
	}
	return c
}

func (c *Cache) register(r prometheus.Registerer) {
	counter := func(name, help string, labels prometheus.Labels, v *atomic.Uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "flowkeep_labelcache_" + name, Help: help, ConstLabels: labels},
			func() float64 { return float64(v.Load()) })
	}
	gauge := func(name, help string, v func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "flowkeep_labelcache_" + name, Help: help}, v)
	}
	const hits = "Look-ups answered from the cache."
	r.MustRegister(
		counter("hits_total", hits, prometheus.Labels{"source": string(InProcess)}, &c.localHits),
		counter("hits_total", hits, prometheus.Labels{"source": string(Memcached)}, &c.remoteHits),
		counter("misses_total", "Look-ups that had to be computed.", nil, &c.misses),
		counter("errors_total", "Requests to memcached that failed, and answers that were unreadable.", nil, &c.errs),
		counter("dropped_total", "Entries that were not sent to memcached: too large, or too many at once.", nil, &c.dropped),
		gauge("entries", "Entries in process.", func() float64 { return float64(c.local.len()) }),
		gauge("memcached_up", "1 while every memcached server answers; 0 without any, too.", func() float64 {
			if c.Stats().Connected {
				return 1
			}
			return 0
		}))
}

// Key is the cache's key of a group.
func Key(g *policy.GroupSpec) string { return GroupKey(g.Key()) }

// GroupKey is the cache's key of a group whose content has this key.
func GroupKey(k policy.Key) string { return "flowkeep/group/" + k.String() }

// Run sends entries to memcached, and looks every second whether it answers, until ctx ends.
func (c *Cache) Run(ctx context.Context) {
	if len(c.servers) == 0 {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(probe)
	defer tick.Stop()
	c.ping()
	for {
		select {
		case i := <-c.queue:
			c.send(i)
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

func (c *Cache) count(err error) {
	if err != nil {
		c.errs.Add(1)
	}
}

func (c *Cache) send(i item) {
	s := c.owner(i.key)
	if !s.up() {
		return
	}
	value, err := json.Marshal(i.entry)
	if err != nil || len(value) > maxValue {
		c.dropped.Add(1)
		return
	}
	c.count(s.set(i.key, value))
}

// owner is the server of a key; the others' keys stay where they are when one is added or removed.
func (c *Cache) owner(key string) *server {
	return slices.MaxFunc(c.servers, func(a, b *server) int {
		x, y := a.weight(key), b.weight(key)
		if x < y {
			return -1
		}
		if x > y {
			return 1
		}
		return strings.Compare(a.addr, b.addr)
	})
}

// Put remembers an entry, unless a newer one is known. It never waits: what memcached cannot take now is left out.
func (c *Cache) Put(key string, e Entry) {
	if !c.local.put(key, e) || len(c.servers) == 0 {
		return
	}
	select {
	case c.queue <- item{key, e}:
	default:
		c.dropped.Add(1)
	}
}

// serves tells whether it is of this leader, and new enough.
func (e *Entry) serves(epoch, revision uint64) bool {
	return e.Epoch == epoch && e.Revision >= revision
}

// Get answers with an entry of this epoch and at least the revision, computing one where none is cached. The endpoints are shared: they
// must not be changed.
func (c *Cache) Get(ctx context.Context, key string, epoch, revision uint64, compute func(context.Context) (Entry, error)) (Entry, Source, error) {
	if e, ok := c.local.get(key); ok && e.serves(epoch, revision) {
		c.localHits.Add(1)
		return e, InProcess, nil
	}
	if e, ok := c.fetch(key); ok && e.serves(epoch, revision) {
		c.remoteHits.Add(1)
		c.local.put(key, e)
		return e, Memcached, nil
	}
	c.misses.Add(1)
	e, err := compute(ctx)
	if err != nil {
		return Entry{}, Computed, fmt.Errorf("compute the endpoints of a selector: %w", err)
	}
	c.Put(key, e)
	return e, Computed, nil
}

func (c *Cache) fetch(key string) (Entry, bool) {
	if len(c.servers) == 0 {
		return Entry{}, false
	}
	s := c.owner(key)
	if !s.up() {
		return Entry{}, false
	}
	value, err := s.get(key)
	if err != nil || value == nil {
		c.count(err)
		return Entry{}, false
	}
	e, err := decode(value)
	if err != nil {
		c.errs.Add(1)
		return Entry{}, false
	}
	return e, true
}

// decode refuses what put cannot have written.
func decode(value []byte) (Entry, error) {
	var e Entry
	if err := json.Unmarshal(value, &e); err != nil {
		return Entry{}, err
	}
	if e.Revision == 0 {
		return Entry{}, fmt.Errorf("an entry without a revision")
	}
	return e, nil
}

// Stats is the state now.
func (c *Cache) Stats() Stats {
	s := Stats{Entries: c.local.len(), Hits: c.localHits.Load() + c.remoteHits.Load(), Misses: c.misses.Load(), Errors: c.errs.Load(), Servers: c.cfg.Servers}
	var problems []string
	for _, server := range c.servers {
		if p := server.problem(); p != "" {
			problems = append(problems, p)
		}
	}
	s.Problem = strings.Join(problems, "; ")
	s.Connected = len(c.servers) > 0 && s.Problem == ""
	return s
}
