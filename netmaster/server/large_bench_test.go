package server

import (
	"fmt"
	"maps"
	"runtime"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// BenchmarkLarge measures the live heap of the owner, with engine, feed and policy DB, for 100,000 pods with and
// without 10,000 policies, and for how long the first batch and one edited policy hold the owner. No node is connected.
func BenchmarkLarge(b *testing.B) {
	for _, policies := range []int{0, 10_000} {
		b.Run(fmt.Sprintf("100000 pods, %d policies", policies), func(b *testing.B) {
			for b.Loop() {
				s := bare(b, b.TempDir())
				if err := s.restore(); err != nil {
					b.Fatal(err)
				}
				before := liveHeap()
				first := large()
				if policies == 0 {
					clear(first.Policies)
				}
				edits := maps.Clone(first.Policies)
				began := time.Now()
				s.takeBatch(first)
				b.ReportMetric(time.Since(began).Seconds(), "s-first")
				if err := s.store.Flush(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(liveHeap()-before)/(1<<20), "MiB")
				b.ReportMetric(editHold(s, edits).Seconds()*1000, "ms-edit")
				if err := s.store.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// editHold returns for how long an edit of a policy holds the owner, on the mean of some.
func editHold(s *server, policies map[string]*policy.Policy) time.Duration {
	n, sum := 0, time.Duration(0)
	for id, p := range policies {
		if n++; n > 200 {
			break
		}
		edited := *p
		edited.Ingress = []policy.PolicyRule{{AnyPeer: true, AnyPort: true}}
		began := time.Now()
		s.prepare(&watch.Batch{Policies: map[string]*policy.Policy{id: &edited}})
		sum += time.Since(began)
		for s.preparing != nil {
			s.slice()
		}
	}
	return sum / time.Duration(max(1, n-1))
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
