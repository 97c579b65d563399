package services

import (
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// large is a netmaster with 10,000 Services of ten endpoints each.
type large struct {
	*testing.B
	source keyed.Source
}

func (l *large) put(i, state int) {
	slice := &service.Slice{
		Namespace: fmt.Sprintf("namespace-%d", i%500),
		Name:      fmt.Sprintf("service-%d-x2v9k", i),
		Service:   fmt.Sprintf("service-%d", i),
		Ports:     []service.SlicePort{{Name: "http", Protocol: policy.TCP, Port: 8080}},
	}
	for j := range 10 {
		n := i*10 + j
		slice.Endpoints = append(slice.Endpoints, service.Endpoint{
			Address: netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}),
			Pod:     fmt.Sprintf("%s/%s-7d9c5b8f6d-%05x", slice.Namespace, slice.Service, n*7919%1_000_000),
			Node:    fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", n%5000>>8, n%5000&255),
			Ready:   n%7 != state%7,
			Serving: true,
		})
	}
	value, err := wire.SliceValue(slice)
	if err != nil {
		l.Fatal(err)
	}
	l.source.Put(wire.SliceKey(slice.ID()), value)
}

func (l *large) fill() {
	for i := range 10_000 {
		l.put(i, 0)
		value, err := wire.ServiceValue(&service.Service{
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, 20, byte(i >> 8), byte(i)})},
			Ports:      []service.Port{{Name: "http", Protocol: policy.TCP, Port: 80}},
		})
		if err != nil {
			l.Fatal(err)
		}
		l.source.Put(wire.ServiceKey(fmt.Sprintf("namespace-%d/service-%d", i%500, i)), value)
	}
}

func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// BenchmarkStore is a node of a cluster with 10,000 Services and 100,000 endpoints: all of it, a second of 100 changes,
// and a start from disk.
func BenchmarkStore(b *testing.B) {
	l := &large{B: b}
	l.fill()
	whole, cursor := l.source.Since(0)
	b.Run("whole", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			s := openStore(b, b.TempDir())
			b.StartTimer()
			if err := s.Apply(&whole); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			s.Close()
			b.StartTimer()
		}
	})
	dir := b.TempDir()
	s := openStore(b, dir)
	if err := s.Apply(&whole); err != nil {
		b.Fatal(err)
	}
	b.Run("changes", func(b *testing.B) {
		for n := 1; b.Loop(); n++ {
			b.StopTimer()
			for i := range 100 {
				l.put(i*100, n)
			}
			var d keyed.Delta
			d, cursor = l.source.Since(cursor)
			b.StartTimer()
			if err := s.Apply(&d); err != nil {
				b.Fatal(err)
			}
		}
	})
	s.Close()
	b.Run("start", func(b *testing.B) {
		before, after := heap(), 0.0
		for b.Loop() {
			s := openStore(b, dir)
			b.StopTimer()
			after = heap()
			s.Close()
			b.StartTimer()
		}
		b.ReportMetric(after-before, "MiB")
	})
}

func openStore(b *testing.B, dir string) *Store {
	b.Helper()
	s, err := Open(filepath.Join(dir, "services.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	return s
}
