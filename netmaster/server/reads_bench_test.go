package server

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/testkit/cputime"
	answers "github.com/flowkeep/flowkeep/netmaster/query"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// timedOwner is an owner that notes for how long a call held it at most, in CPU time of its thread.
type timedOwner struct {
	engine  *resolve.Engine
	longest time.Duration
	calls   int
}

func (o *timedOwner) Do(_ context.Context, f func(*resolve.Engine)) error {
	o.longest = max(o.longest, cputime.Of(func() { f(o.engine) }))
	o.calls++
	return nil
}

// leaderOf hands a standby's questions to the leader.
type leaderOf struct {
	*answers.Server
	at func() labelcache.Stamp
}

func (l *leaderOf) State(context.Context) (labelcache.Stamp, error) { return l.at(), nil }
func (l *leaderOf) Ask(ctx context.Context, q *inspect.Question) (*inspect.Answer, error) {
	return l.Answer(ctx, q)
}
func (l *leaderOf) Follow(ctx context.Context, q *inspect.Question, send func(*inspect.Answer) error) error {
	return l.Watch(ctx, q, send)
}

// largeReads is the questions of BenchmarkReads.
func largeReads() map[string]inspect.Question {
	some := &explain.Question{}
	for n := range 100 {
		some.Namespaces = append(some.Namespaces, fmt.Sprintf("ns-%d", n))
	}
	return map[string]inspect.Question{
		"policy ls":                {Kind: inspect.AskPolicies, Counts: true},
		"policy ls -o json":        {Kind: inspect.AskPolicies},
		"policy ls of a namespace": {Kind: inspect.AskPolicies, Namespace: "ns-1"},
		"policy show":              {Kind: inspect.AskPolicies, ID: "ns-1/policy-0"},
		"policy names":             {Kind: inspect.AskPolicies, Names: true},
		"policy show all":          {Kind: inspect.AskPolicies, Rules: true},
		"endpoint ls":              {Kind: inspect.AskEndpoints},
		"matrix of 100 namespaces": {Kind: inspect.AskMatrix, Matrix: some},
		"lint of a namespace":      {Kind: inspect.AskLint, Namespace: "ns-1"},
		"explain": {Kind: inspect.AskExplain, From: "ns-1/pod-1",
			To: &inspect.Target{Name: "ns-1/pod-0", Port: "80"}, Unproved: true},
		"look-up": {Kind: inspect.AskLookup, Namespace: "ns-1", Selector: &policy.Selector{}},
	}
}

// reads are a leader and standbys with 100,000 pods and 10,000 policies, of which 1,000 have all pods as peers. They
// share memcached servers.
type reads struct {
	owner    *timedOwner
	leader   *answers.Server
	servers  []string
	revision atomic.Uint64
	standby  answers.Config
}

func newReads(b *testing.B, servers ...string) *reads {
	b.Helper()
	s := bare(b, b.TempDir())
	b.Cleanup(func() { _ = s.store.Close() })
	if err := s.restore(); err != nil {
		b.Fatal(err)
	}
	batch := large()
	for n := range 1000 {
		p := batch.Policies[fmt.Sprintf("ns-%d/policy-0", n)]
		p.Ingress[0].Peers = []policy.Peer{{Namespaces: &policy.Selector{}}}
	}
	s.takeBatch(batch)
	r := &reads{owner: &timedOwner{engine: s.engine}, servers: servers}
	r.revision.Store(1)
	cfg := answers.Config{
		Owner:    r.owner,
		Nodes:    s.feed,
		Version:  "v1",
		Problems: func() []string { return nil },
		Labels:   r.at,
		Cache:    r.cache(),
	}
	r.leader = answers.NewServer(cfg)
	running, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() { defer close(done); cfg.Cache.Run(running) }()
	b.Cleanup(func() { cancel(); <-done })
	r.standby = cfg
	r.standby.Peer = &leaderOf{r.leader, r.at}
	r.standby.Answering = func() (context.Context, string) { return nil, "standby" }
	r.standby.Identity = "standby"
	return r
}

// at returns the state of the leader.
func (r *reads) at() labelcache.Stamp {
	return labelcache.Stamp{Epoch: 1, Term: 1, Revision: r.revision.Load()}
}

func (r *reads) cache() *labelcache.Cache {
	return labelcache.New(labelcache.Config{Servers: r.servers, Key: func() []byte { return []byte("secret") }})
}

// newStandby returns a standby with an empty cache.
func (r *reads) newStandby() *answers.Server {
	cfg := r.standby
	cfg.Cache = r.cache()
	return answers.NewServer(cfg)
}

// BenchmarkReads measures questions at 100,000 pods and 10,000 policies, with and without memcached: the time and the
// CPU time of the first answer, for how long the owner goroutine is held at most, in CPU time, and how long the same
// takes again: on the leader, on a standby that has it from memcached, or else from the leader, and there again.
func BenchmarkReads(b *testing.B) {
	b.Run("memcached", func(b *testing.B) {
		socket, _ := memcached(b)
		measureReads(b, socket)
	})
	b.Run("alone", func(b *testing.B) { measureReads(b) })
}

func measureReads(b *testing.B, servers ...string) {
	r := newReads(b, servers...)
	owner, leader := r.owner, r.leader
	for name, q := range largeReads() {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				owner.longest, owner.calls = 0, 0
				began, cpu := time.Now(), cputime.Process()
				a, err := leader.Answer(b.Context(), &q)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(milliseconds(time.Since(began)), "ms-first")
				b.ReportMetric(milliseconds(cputime.Process()-cpu), "ms-cpu")
				b.ReportMetric(milliseconds(owner.longest), "ms-held")
				b.ReportMetric(float64(owner.calls), "calls")
				b.ReportMetric(float64(len(a.Body))/(1<<20), "MiB")
				began = time.Now()
				if _, err := leader.Answer(b.Context(), &q); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(milliseconds(time.Since(began)), "ms-again")
				shared := len(servers) > 0 && len(a.Body) < maxShared
				first, again, found := onStandby(b, r.newStandby, &q, shared)
				b.ReportMetric(found, "memcached")
				b.ReportMetric(milliseconds(first), "ms-standby")
				b.ReportMetric(milliseconds(again), "ms-standby-again")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// maxShared is the size of an answer from which on it is not put into memcached, in bytes.
const maxShared = 15 << 20

// maxStandbys bounds the standbys that look for an answer in memcached. A busy one may never have stored it.
const maxStandbys = 1000

// onStandby returns how long a standby takes for its first answer, and then again. If the answer is shared it tries
// standbys until one has it from memcached, which is filled behind the leader's answer. Then found is 1, else 0.
func onStandby(b *testing.B, standby func() *answers.Server, q *inspect.Question, shared bool) (
	first, again time.Duration, found float64) {
	b.Helper()
	for n := 1; ; n++ {
		s := standby()
		began := time.Now()
		a, err := s.Answer(b.Context(), q)
		if err != nil {
			b.Fatal(err)
		}
		first = time.Since(began)
		if a.Cached.Source == string(labelcache.Memcached) {
			found = 1
		} else if shared && n < maxStandbys {
			runtime.Gosched()
			continue
		}
		began = time.Now()
		a, err = s.Answer(b.Context(), q)
		if err != nil || a.Cached.Standby == "" {
			b.Fatalf("%+v, %v", a.Cached, err)
		}
		return first, time.Since(began), found
	}
}
