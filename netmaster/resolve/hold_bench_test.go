package resolve_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/cputime"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/resolve/workload"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// everywhere is the n-th of the selectors that choose all pods of all namespaces, each in words of its own.
func everywhere(n int) policy.Peer {
	without := policy.Requirement{Key: fmt.Sprintf("x%d", n), Operator: policy.DoesNotExist}
	return policy.Peer{Namespaces: &policy.Selector{}, Pods: &policy.Selector{Requirements: []policy.Requirement{without}}}
}

func nobody(n int) policy.Peer {
	return policy.Peer{Namespaces: &policy.Selector{}, Pods: selects(fmt.Sprintf("x%d=1", n))}
}

// held are policies of one namespace whose pods are on a hundred nodes.
var held = []struct {
	name string
	make func() *policy.Policy
}{
	{"500 peers of all pods", func() *policy.Policy {
		r := policy.PolicyRule{AnyPort: true}
		for i := range 500 {
			r.Peers = append(r.Peers, everywhere(i))
		}
		return &policy.Policy{Ingress: []policy.PolicyRule{r}}
	}},
	{"the most members", func() *policy.Policy {
		r := policy.PolicyRule{AnyPort: true}
		for i := range 500 {
			if r.Peers = append(r.Peers, nobody(i)); i < 7 {
				r.Peers[i] = everywhere(i)
			}
		}
		return &policy.Policy{Ingress: []policy.PolicyRule{r}}
	}},
	{"the most rules", func() *policy.Policy {
		p := &policy.Policy{}
		for i := range 500 {
			r := policy.PolicyRule{Peers: []policy.Peer{nobody(i)}}
			for k := range 4 {
				port := uint16(1 + 4*i + k)
				r.Ports = append(r.Ports, policy.PolicyPort{Protocol: policy.TCP, First: port, Last: port})
			}
			p.Ingress = append(p.Ingress, r)
		}
		return p
	}},
	{"the most port names", func() *policy.Policy {
		r := policy.PolicyRule{Peers: []policy.Peer{everywhere(0)}}
		for i := range 2000 {
			r.Ports = append(r.Ports, named(policy.TCP, fmt.Sprintf("n%d", i)))
		}
		return &policy.Policy{Egress: []policy.PolicyRule{r}}
	}},
	{"500 peers that require a label that no pod has", func() *policy.Policy {
		r := policy.PolicyRule{AnyPort: true}
		for i := range 500 {
			has := policy.Requirement{Key: fmt.Sprintf("x%d", i), Operator: policy.Exists}
			pods := &policy.Selector{Requirements: []policy.Requirement{has}}
			r.Peers = append(r.Peers, policy.Peer{Namespaces: &policy.Selector{}, Pods: pods})
		}
		return &policy.Policy{Ingress: []policy.PolicyRule{r}}
	}},
	{"a peer of 1,999 requirements", func() *policy.Policy {
		pods := &policy.Selector{}
		for i := range 1999 {
			pods.Requirements = append(pods.Requirements, everywhere(i).Pods.Requirements...)
		}
		peer := policy.Peer{Namespaces: &policy.Selector{}, Pods: pods}
		return &policy.Policy{Ingress: []policy.PolicyRule{{AnyPort: true, Peers: []policy.Peer{peer}}}}
	}},
	{"a peer of 1,999 values", func() *policy.Policy {
		in := policy.Requirement{Key: "x", Operator: policy.In}
		for i := range 1999 {
			in.Values = append(in.Values, fmt.Sprint(i))
		}
		pods := &policy.Selector{Requirements: []policy.Requirement{in}}
		peer := policy.Peer{Namespaces: &policy.Selector{}, Pods: pods}
		return &policy.Policy{Ingress: []policy.PolicyRule{{AnyPort: true, Peers: []policy.Peer{peer}}}}
	}},
	{"2,000 peers and 2,000 port names", func() *policy.Policy {
		r := policy.PolicyRule{}
		for i := range 2000 {
			r.Peers, r.Ports = append(r.Peers, everywhere(i)), append(r.Ports, named(policy.TCP, fmt.Sprintf("n%d", i)))
		}
		return &policy.Policy{Egress: []policy.PolicyRule{r}}
	}},
}

// crowded is an engine of 100,000 pods, some of which have 2,000 port names with 64 numbers each in all.
func crowded() *resolve.Engine {
	e, w := resolve.New(0), workload.Cluster()
	for i := range 512 {
		p := w.Batch.Endpoints[100*i]
		p.Ports = nil
		for k := range 256 {
			p.Ports = append(p.Ports, policy.NamedPort{Name: fmt.Sprintf("n%d", (i%8)*250+k), Protocol: policy.TCP, Number: uint16(1 + i/8)})
		}
	}
	e.Apply(w.Batch)
	return e
}

// longestSlice calls a function until there is no more to do. It returns the longest time, and the number of calls.
func longestSlice(b *testing.B, slice func() bool) (longest time.Duration, n int) {
	b.Helper()
	for more := true; more; n++ {
		longest = max(longest, cputime.Of(func() { more = slice() }))
	}
	return longest, n
}

// BenchmarkHold measures for how long the owner is held at most for a policy, in CPU time: by a slice of its
// preparation, by an Apply, or by a slice of what is done after it. It also measures how much is left on the heap, in the
// engine and in the change that the feed keeps: of the largest policies within the budgets, and of larger ones.
func BenchmarkHold(b *testing.B) {
	var e *resolve.Engine
	for _, c := range held {
		b.Run(c.name, func(b *testing.B) {
			if e == nil {
				e = crowded()
			}
			var put, again, gone time.Duration
			var grown int64
			var shown string
			for b.Loop() {
				p := c.make()
				p.Namespace, p.Name, p.IsolatesIngress, p.IsolatesEgress = "ns7", "held", len(p.Ingress) > 0, len(p.Egress) > 0
				policy.DefaultBudgets.Trim(p)
				before := inUse()
				var ch policy.Changes
				prepared := e.Prepare(each(p))
				longest, slices := longestSlice(b, prepared.Slice)
				whole := cputime.Of(func() { ch, _ = e.Apply(resolve.Batch{Policies: []*policy.Policy{p}}) })
				put += max(longest, whole)
				prepared.End()
				grown += inUse() - before
				shown = fmt.Sprintf("%d rules, %d groups, %d nodes", len(ch.Rules), len(ch.Groups), len(ch.Nodes))
				copied := *p
				again += cputime.Of(func() { e.Apply(resolve.Batch{Policies: []*policy.Policy{&copied}}) })
				first := cputime.Of(func() { e.Apply(resolve.Batch{DeletedPolicies: []string{p.ID()}}) })
				longest, tidied := longestSlice(b, e.Tidy)
				gone += max(first, longest)
				shown += fmt.Sprintf("; %d slices before, %d after", slices, tidied)
				runtime.KeepAlive(ch)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(put.Microseconds())/1000/float64(b.N), "put-ms")
			b.ReportMetric(float64(again.Microseconds())/1000/float64(b.N), "again-ms")
			b.ReportMetric(float64(gone.Microseconds())/1000/float64(b.N), "delete-ms")
			b.ReportMetric(float64(grown)/float64(b.N)/(1<<20), "MiB")
			b.Log(shown)
		})
	}
}

// BenchmarkHoldPod is the same for a pod with as many labels as the budget has, and as the API server stores in one
// object.
func BenchmarkHoldPod(b *testing.B) {
	e := crowded()
	for _, n := range []int{policy.DefaultBudgets.Labels, 150_000} {
		b.Run(fmt.Sprintf("%d labels", n), func(b *testing.B) {
			var put, gone time.Duration
			most := int64(0)
			for b.Loop() {
				before := inUse()
				p := pod("ns7/labelled", "", "10.250.0.1")
				for i := range n {
					p.Labels[fmt.Sprintf("%x", i)] = ""
				}
				policy.DefaultBudgets.TrimEndpoint(p)
				put += cputime.Of(func() { e.Apply(resolve.Batch{Endpoints: []*policy.Endpoint{p}}) })
				most = max(most, inUse()-before)
				gone += cputime.Of(func() { e.Apply(resolve.Batch{DeletedEndpoints: []string{p.ID()}}) })
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(put.Microseconds())/1000/float64(b.N), "put-ms")
			b.ReportMetric(float64(gone.Microseconds())/1000/float64(b.N), "delete-ms")
			b.ReportMetric(float64(most)/(1<<20), "MiB")
		})
	}
}

// BenchmarkHoldPods measures the same for the pods that the owner takes at a time (netmaster/server, maxPartPods): with as many
// labels as the budget has, no two of them the same, and with few labels.
func BenchmarkHoldPods(b *testing.B) {
	e := crowded()
	for _, c := range []struct{ pods, labels int }{{62, policy.DefaultBudgets.Labels}, {2048, 4}} {
		b.Run(fmt.Sprintf("%d pods of %d labels", c.pods, c.labels), func(b *testing.B) {
			var put, changed, gone time.Duration
			for b.Loop() {
				batch := func(round int) (out resolve.Batch) {
					for i := range c.pods {
						p := pod(fmt.Sprint("ns7/labelled", i), "", fmt.Sprintf("10.250.%d.%d", i>>8, i&255))
						for l := range c.labels {
							p.Labels[fmt.Sprintf("%x-%x-%x", round, i, l)] = ""
						}
						out.Endpoints = append(out.Endpoints, p)
					}
					return out
				}
				one, other := batch(1), batch(2)
				put += cputime.Of(func() { e.Apply(one) })
				changed += cputime.Of(func() { e.Apply(other) })
				var deleted resolve.Batch
				for _, p := range one.Endpoints {
					deleted.DeletedEndpoints = append(deleted.DeletedEndpoints, p.ID())
				}
				gone += cputime.Of(func() { e.Apply(deleted) })
			}
			b.ReportMetric(0, "ns/op")
			for name, d := range map[string]time.Duration{"put-ms": put, "change-ms": changed, "delete-ms": gone} {
				b.ReportMetric(float64(d.Microseconds())/1000/float64(b.N), name)
			}
		})
	}
}

func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
