package server

import (
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/store"
)

// large is 1,000 namespaces with 100 pods and 10 policies each, on 100 nodes.
func large() *watch.Batch {
	b := &watch.Batch{Complete: true, Namespaces: map[string]*policy.Namespace{}, Endpoints: map[string]*policy.Endpoint{}, Policies: map[string]*policy.Policy{}}
	for n := range 1000 {
		ns := fmt.Sprintf("ns-%d", n)
		b.Namespaces[ns] = &policy.Namespace{Name: ns, Labels: map[string]string{"team": fmt.Sprint(n % 50)}}
		for p := range 100 {
			e := &policy.Endpoint{Namespace: ns, Name: fmt.Sprintf("pod-%d", p), UID: fmt.Sprintf("uid-%d-%d", n, p), Node: fmt.Sprintf("node-%d", p),
				Labels: map[string]string{"app": fmt.Sprint(p % 10)}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(n >> 2), byte(n<<6 | p>>2), byte(p)})}}
			b.Endpoints[e.ID()] = e
		}
		for p := range 10 {
			app := func(n int) policy.Selector {
				return policy.Selector{Requirements: []policy.Requirement{{Key: "app", Operator: policy.In, Values: []string{fmt.Sprint(n % 10)}}}}
			}
			from := app(p + 1)
			pol := &policy.Policy{Namespace: ns, Name: fmt.Sprintf("policy-%d", p), AppliedTo: app(p), IsolatesIngress: true,
				Ingress: []policy.PolicyRule{{Peers: []policy.Peer{{Pods: &from}}, Ports: []policy.PolicyPort{{Protocol: policy.TCP, First: 80, Last: 80}}}}}
			b.Policies[pol.ID()] = pol
		}
	}
	return b
}

func bare(b testing.TB, dir string) *server {
	b.Helper()
	st, err := store.Open(filepath.Join(dir, "policy.db"))
	if err != nil {
		b.Fatal(err)
	}
	s := newServer(Config{Logger: slog.New(slog.DiscardHandler), Health: new(process.Health)})
	s.store = st
	s.feed = feed.NewServer(feed.Config{Logger: s.log})
	return s
}

// BenchmarkRestart is what a restart costs with 100,000 pods and 10,000 policies: to open and restore, after which nodes are
// served; then to compare with the API server; then until the policy DB is whole again.
func BenchmarkRestart(b *testing.B) {
	dir := b.TempDir()
	s := bare(b, dir)
	if err := s.restore(); err != nil {
		b.Fatal(err)
	}
	s.takeBatch(large())
	if err := s.store.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		began := time.Now()
		s = bare(b, dir)
		if err := s.restore(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "s/restore")
		batch := large()
		began = time.Now()
		s.takeBatch(batch)
		b.ReportMetric(time.Since(began).Seconds(), "s/sync")
		began = time.Now()
		if err := s.store.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "s/flush")
		if err := s.store.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
