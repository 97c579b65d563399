package resolve_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/resolve/workload"
)

// reconnecting is a cluster whose nodes have announced all of their pods, and what the first of them says when it comes again.
func reconnecting(pods int) (*resolve.Engine, resolve.Batch) {
	w := workload.PerPod(pods)
	nodes := map[string]resolve.NodeAnnouncements{}
	for _, e := range w.Batch.Endpoints {
		n := nodes[e.Node]
		n.Node = e.Node
		n.All = append(n.All, resolve.Announcement{Node: e.Node, Namespace: e.Namespace, Name: e.Name, UID: e.UID, Addresses: e.Addresses})
		nodes[e.Node] = n
	}
	engine := resolve.New(0)
	engine.Apply(w.Batch)
	for _, n := range nodes {
		engine.Apply(resolve.Batch{NodeAnnounced: []resolve.NodeAnnouncements{n}})
	}
	one := nodes[w.Batch.Endpoints[0].Node]
	one.All = slices.Clone(one.All[:min(len(one.All), 5)])
	engine.Apply(resolve.Batch{NodeAnnounced: []resolve.NodeAnnouncements{one}})
	return engine, resolve.Batch{NodeAnnounced: []resolve.NodeAnnouncements{one}}
}

// BenchmarkReconnect is what a node's hello costs the engine that announces five pods, as it did before, in clusters of more and more. The
// ratio is to the smallest cluster: the cost is the node's, not the cluster's.
func BenchmarkReconnect(b *testing.B) {
	var smallest time.Duration
	for _, pods := range []int{5_000, 10_000, 40_000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			engine, again := reconnecting(pods)
			b.ReportAllocs()
			for b.Loop() {
				engine.Apply(again)
			}
			each := b.Elapsed() / time.Duration(b.N)
			if smallest == 0 {
				smallest = each
			}
			b.ReportMetric(float64(each)/float64(smallest), "ratio")
		})
	}
}
