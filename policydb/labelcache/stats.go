package labelcache

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Stats is the state of a cache.
type Stats struct {
	Entries   int           `json:"entries"`
	Bytes     int           `json:"bytes"` // of the entries, in process
	Hits      uint64        `json:"hits"`
	Misses    uint64        `json:"misses"`
	Errors    uint64        `json:"errors"`
	Refused   uint64        `json:"refused"`  // values from memcached that did not open
	TooLarge  uint64        `json:"tooLarge"` // values with no room in process or in memcached
	Dropped   uint64        `json:"dropped"`  // too many at once for memcached
	Sources   []SourceStats `json:"sources"`
	Servers   []string      `json:"servers,omitempty"`
	Connected bool          `json:"connected"`
	Problem   string        `json:"problem,omitempty"`
}

// SourceStats is how often a source had a value, and how long that took.
type SourceStats struct {
	Source Source        `json:"source"`
	Count  uint64        `json:"count"`
	Mean   time.Duration `json:"mean"`
}

// counts are the counters of a cache.
type counts struct {
	misses, errors, refused, tooLarge, overflows atomic.Uint64
	sources                                      map[Source]*sourceCount // not changed after init
	seconds                                      *prometheus.HistogramVec
}

type sourceCount struct{ n, nanoseconds atomic.Uint64 }

var sources = []Source{InProcess, Memcached, Computed}

func (c *counts) init() {
	c.sources = map[Source]*sourceCount{}
	c.seconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "flowkeep_labelcache_seconds",
		Help:    "How long look-ups took that a source answered; the engine is the source of what was not cached.",
		Buckets: []float64{.00001, .0001, .0005, .001, .005, .02, .1, .5, 2, 10},
	}, []string{"source"})
	for _, s := range sources {
		c.sources[s] = new(sourceCount)
		c.seconds.WithLabelValues(string(s))
	}
}

func (c *counts) took(from Source, took time.Duration) {
	s := c.sources[from]
	s.n.Add(1)
	s.nanoseconds.Add(uint64(took))
	c.seconds.WithLabelValues(string(from)).Observe(took.Seconds())
}

func (c *Cache) register(r prometheus.Registerer) {
	counter := func(name, help string, labels prometheus.Labels, v *atomic.Uint64) prometheus.Collector {
		opts := prometheus.CounterOpts{Name: "flowkeep_labelcache_" + name, Help: help, ConstLabels: labels}
		return prometheus.NewCounterFunc(opts, func() float64 { return float64(v.Load()) })
	}
	gauge := func(name, help string, v func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "flowkeep_labelcache_" + name, Help: help}, v)
	}
	const hits = "Look-ups answered from the cache."
	const dropped = "Values that were left out: with reason size of memcached (more than 16 MiB) or of the process " +
		"(more than 64 MiB), with reason queue of memcached."
	const refused = "Values from memcached that did not open: no netmaster sealed them for that query."
	of := func(s Source) prometheus.Labels { return prometheus.Labels{"source": string(s)} }
	because := func(reason string) prometheus.Labels { return prometheus.Labels{"reason": reason} }
	n := &c.counts
	r.MustRegister(
		counter("hits_total", hits, of(InProcess), &n.sources[InProcess].n),
		counter("hits_total", hits, of(Memcached), &n.sources[Memcached].n),
		counter("misses_total", "Look-ups that the cache could not answer.", nil, &n.misses),
		counter("errors_total", "Requests to memcached that failed.", nil, &n.errors),
		counter("refused_total", refused, nil, &n.refused),
		counter("dropped_total", dropped, because("size"), &n.tooLarge),
		counter("dropped_total", dropped, because("queue"), &n.overflows),
		gauge("entries", "Entries in process.", func() float64 {
			entries, _ := c.local.size()
			return float64(entries)
		}),
		gauge("bytes", "Memory of the entries in process.", func() float64 {
			_, bytes := c.local.size()
			return float64(bytes)
		}),
		gauge("memcached_up", "1 while every memcached server answers; 0 without any, too.", func() float64 {
			if c.Stats().Connected {
				return 1
			}
			return 0
		}),
		n.seconds)
}

// Stats returns the state now.
func (c *Cache) Stats() Stats {
	n := &c.counts
	s := Stats{
		Misses:   n.misses.Load(),
		Errors:   n.errors.Load(),
		Refused:  n.refused.Load(),
		TooLarge: n.tooLarge.Load(),
		Dropped:  n.overflows.Load(),
		Servers:  c.cfg.Servers,
	}
	s.Entries, s.Bytes = c.local.size()
	for _, from := range sources {
		count := n.sources[from].n.Load()
		one := SourceStats{Source: from, Count: count}
		if count > 0 {
			one.Mean = time.Duration(n.sources[from].nanoseconds.Load() / count)
		}
		if s.Sources = append(s.Sources, one); from != Computed {
			s.Hits += count
		}
	}
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
