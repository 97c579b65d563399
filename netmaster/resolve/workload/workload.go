// Package workload generates clusters for benchmarks of the engine: pods with one label on 1,000 random nodes, and
// policies for both directions without ports.
package workload

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Workload is a generated cluster, and a source of single events for it.
type Workload struct {
	Name  string
	Batch resolve.Batch
	rng   *rand.Rand
	next  int
}

const nodes = 1000

// All returns the constructors of all workloads by name; perpod has three sizes to show how cost grows.
func All() map[string]func() *Workload {
	return map[string]func() *Workload{
		"small": Small, "large": Large, "one": One, "cluster": Cluster,
		"perpod 10k": func() *Workload { return PerPod(10000) },
		"perpod 20k": func() *Workload { return PerPod(20000) },
		"perpod 40k": func() *Workload { return PerPod(40000) },
	}
}

// Names are the keys of All, in the order of the table.
var Names = []string{"small", "large", "one", "perpod 10k", "perpod 20k", "perpod 40k", "cluster"}

func newWorkload(name string) *Workload {
	return &Workload{Name: name, rng: rand.New(rand.NewPCG(1, 2))}
}

func (w *Workload) namespace(name string) {
	w.Batch.Namespaces = append(w.Batch.Namespaces, policy.Namespace{Name: name, Labels: map[string]string{"ns": name}})
}

func (w *Workload) pod(namespace, value string) *policy.Endpoint {
	n := w.next
	w.next++
	e := &policy.Endpoint{
		Namespace: namespace,
		Name:      fmt.Sprintf("p%d", n),
		UID:       fmt.Sprint(n),
		Labels:    map[string]string{"app": value},
		Node:      fmt.Sprintf("node%d", w.rng.IntN(nodes)),
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})},
	}
	w.Batch.Endpoints = append(w.Batch.Endpoints, e)
	return e
}

func selector(value string) policy.Selector {
	if value == "" {
		return policy.Selector{}
	}
	return policy.Selector{
		Requirements: []policy.Requirement{{Key: "app", Operator: policy.In, Values: []string{value}}},
	}
}

// policy adds a policy that applies to the pods of value and allows both directions with each peer.
func (w *Workload) policy(namespace, name, value string, peers ...policy.Peer) {
	p := &policy.Policy{
		Namespace:       namespace,
		Name:            name,
		AppliedTo:       selector(value),
		IsolatesIngress: true,
		IsolatesEgress:  true,
	}
	if len(peers) > 0 {
		p.Ingress = []policy.PolicyRule{{Peers: peers, AnyPort: true}}
		p.Egress = []policy.PolicyRule{{Peers: peers, AnyPort: true}}
	}
	w.Batch.Policies = append(w.Batch.Policies, p)
}

func podPeer(value string) policy.Peer {
	s := selector(value)
	return policy.Peer{Pods: &s}
}

// Small returns 25,000 namespaces of 4 pods (2 labels) and 3 policies: a default deny and two pairs.
func Small() *Workload {
	w := newWorkload("small")
	for i := range 25000 {
		ns := fmt.Sprintf("ns%d", i)
		w.namespace(ns)
		for j := range 4 {
			w.pod(ns, []string{"a", "b"}[j%2])
		}
		w.policy(ns, "deny", "")
		w.policy(ns, "a", "a", podPeer("b"))
		w.policy(ns, "b", "b", podPeer("a"))
	}
	return w
}

// Large returns 100 namespaces, 100,000 pods and 10,100 policies.
func Large() *Workload {
	w := newWorkload("large")
	for i := range 100 {
		ns := fmt.Sprintf("ns%d", i)
		w.namespace(ns)
		for j := range 1000 {
			w.pod(ns, fmt.Sprint(j%100))
		}
		w.policy(ns, "deny", "")
		for j := range 100 {
			w.policy(ns, fmt.Sprintf("p%d", j), fmt.Sprint(j), podPeer(fmt.Sprint((j+1)%100)))
		}
	}
	return w
}

// One returns a namespace of 10,000 pods and 10,000 policies, each selecting all from all.
func One() *Workload {
	w := newWorkload("one")
	w.namespace("ns")
	for range 10000 {
		w.pod("ns", "all")
	}
	for i := range 10000 {
		w.policy("ns", fmt.Sprintf("p%d", i), "", podPeer(""))
	}
	return w
}

// PerPod returns a namespace of n pods and n policies of one target and one peer each.
func PerPod(n int) *Workload {
	w := newWorkload(fmt.Sprintf("perpod %dk", n/1000))
	w.namespace("ns")
	for i := range n {
		w.pod("ns", fmt.Sprint(i))
	}
	for i := range n {
		w.policy("ns", fmt.Sprintf("p%d", i), fmt.Sprint(i), podPeer(fmt.Sprint((i+1)%n)))
	}
	return w
}

// Cluster returns 1,000 namespaces, 100,000 pods, and 10,000 policies with peers of 100 pods in 10 namespaces.
func Cluster() *Workload {
	w := newWorkload("cluster")
	for i := range 1000 {
		ns := fmt.Sprintf("ns%d", i)
		w.Batch.Namespaces = append(w.Batch.Namespaces,
			policy.Namespace{Name: ns, Labels: map[string]string{"team": fmt.Sprint(i / 10)}})
		for j := range 100 {
			w.pod(ns, fmt.Sprint(j%10))
		}
		for j := range 10 {
			team := policy.Selector{
				Requirements: []policy.Requirement{
					{Key: "team", Operator: policy.In, Values: []string{fmt.Sprint((i + j) % 100)}},
				},
			}
			pods := selector(fmt.Sprint(j))
			w.policy(ns, fmt.Sprintf("p%d", j), fmt.Sprint(j), policy.Peer{Namespaces: &team, Pods: &pods})
		}
	}
	return w
}

// Kinds are the kinds of single events, in the order of Event's argument.
var Kinds = []string{"pod add", "relabel", "IP change", "policy add", "policy edit", "policy delete"}

// Event returns a batch with one event of a kind.
func (w *Workload) Event(kind int) resolve.Batch {
	old := w.Batch.Endpoints[w.rng.IntN(len(w.Batch.Endpoints))]
	pol := w.Batch.Policies[w.rng.IntN(len(w.Batch.Policies))]
	e := *old
	switch kind {
	case 0:
		added := w.pod(old.Namespace, old.Labels["app"])
		return resolve.Batch{Endpoints: []*policy.Endpoint{added}}
	case 1:
		e.Labels = map[string]string{"app": w.Batch.Endpoints[w.rng.IntN(len(w.Batch.Endpoints))].Labels["app"]}
		return resolve.Batch{Endpoints: []*policy.Endpoint{&e}}
	case 2:
		w.next++
		e.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{11, byte(w.next >> 16), byte(w.next >> 8), byte(w.next)})}
		return resolve.Batch{Endpoints: []*policy.Endpoint{&e}}
	case 3:
		p := *pol
		w.next++
		p.Name = fmt.Sprintf("added%d", w.next)
		return resolve.Batch{Policies: []*policy.Policy{&p}}
	case 4:
		p := *pol
		other := w.Batch.Policies[w.rng.IntN(len(w.Batch.Policies))]
		p.Ingress, p.Egress = other.Ingress, other.Egress
		return resolve.Batch{Policies: []*policy.Policy{&p}}
	}
	return resolve.Batch{DeletedPolicies: []string{pol.ID()}}
}
