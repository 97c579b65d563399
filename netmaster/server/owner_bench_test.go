package server

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/cputime"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/kube"
	"github.com/flowkeep/flowkeep/policydb/policy"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// meter measures a server without a loop.
type meter struct {
	*server
	b       *testing.B
	turn    time.Duration // longest turn of the owner goroutine
	convert time.Duration // of the costliest object, off the owner goroutine
}

func (m *meter) own(f func()) { m.turn = max(m.turn, cputime.Of(f)) }

// take adds or deletes policies, as the loop does.
func (m *meter) take(all map[string]*policy.Policy) {
	m.own(func() { m.prepare(&watch.Batch{Policies: all, Received: map[string]time.Time{}}) })
	for m.preparing != nil || m.intake.due() || m.intake.waits() > 0 || m.engine.Untidy() {
		m.own(m.slice)
		m.intake.acknowledge(func([]string) bool { return false }, underWay, time.Now())
	}
}

const evilPolicies = 300

// create adds policies of a tenant.
func (m *meter) create(n int, spec func(i int) networkingv1.NetworkPolicySpec) {
	all := map[string]*policy.Policy{}
	for i := range n {
		in := &networkingv1.NetworkPolicy{Spec: spec(i)}
		in.Namespace, in.Name, in.UID = "ns-7", fmt.Sprint("evil-", i), "u"
		encoded, err := in.Marshal()
		if err != nil {
			m.b.Fatal(err)
		}
		m.convert = max(m.convert, cputime.Of(func() {
			var np networkingv1.NetworkPolicy
			if err = np.Unmarshal(encoded); err != nil {
				m.b.Fatal(err)
			}
			p := kube.Policy(&np)
			m.cfg.Budgets.Trim(p)
			all[p.ID()] = p
		}))
	}
	m.take(all)
}

func (m *meter) remove() {
	all := map[string]*policy.Policy{}
	for i := range evilPolicies {
		all[fmt.Sprint("ns-7/evil-", i)] = nil
	}
	m.take(all)
	m.hello(0)
}

func without(key string, values ...string) *metav1.LabelSelector {
	r := metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpDoesNotExist, Values: values}
	if len(values) > 0 {
		r.Operator = metav1.LabelSelectorOpNotIn
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{r}}
}

// manyRules is a policy of 16,500 rules.
func manyRules(int) (spec networkingv1.NetworkPolicySpec) {
	for i := range 16_500 {
		port := intstr.FromInt32(int32(i + 1))
		rule := networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: &port}}}
		spec.Ingress = append(spec.Ingress, rule)
	}
	return spec
}

// ingressFrom is one of policies that select all pods of their namespace.
func ingressFrom(i int, peers ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicySpec {
	rule := networkingv1.NetworkPolicyIngressRule{From: peers}
	return networkingv1.NetworkPolicySpec{
		PodSelector: *without(fmt.Sprint("y", i)),
		Ingress:     []networkingv1.NetworkPolicyIngressRule{rule},
	}
}

// nearlyAll is a peer that selects pods of all but one team, and of these all but one application.
func nearlyAll(i int) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{
		NamespaceSelector: without("team", fmt.Sprint(i%50)),
		PodSelector:       without("app", fmt.Sprint(i/50)),
	}
}

func announced(name, uid string, i int) wire.Announcement {
	address := netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)})
	return wire.Announcement{Namespace: "ns-7", Name: name, UID: uid, Addresses: []netip.Addr{address}}
}

// hello announces pods that there are not.
func (m *meter) hello(pods int) {
	var all []wire.Announcement
	for i := range pods {
		all = append(all, announced(fmt.Sprint("none-", i), fmt.Sprint("uid-", i), i))
	}
	m.own(func() { m.connected("node-7", all) })
}

// announceAgain announces a pod with one address after another.
func (m *meter) announceAgain() {
	for i := range 256 {
		a := announced("pod-7", "uid-7-7", i)
		m.own(func() { m.announce("node-7", &a) })
	}
}

// BenchmarkOwner measures hostile objects and messages in a cluster of 100,000 pods and 10,000 policies: the CPU time
// for which they hold the owner goroutine at most, that of their conversion, and the growth of the live heap while they
// exist and after they are deleted. No node is connected: for that see BenchmarkFanOut of netmaster/feed.
func BenchmarkOwner(b *testing.B) {
	m := meter{server: bare(b, b.TempDir()), b: b}
	m.cfg.Report = noReports{}
	if err := m.restore(); err != nil {
		b.Fatal(err)
	}
	m.podCIDRs = map[string][]netip.Prefix{"node-7": {netip.MustParsePrefix("10.99.0.0/16")}}
	m.takeBatch(large())
	defer func() {
		if err := m.store.Close(); err != nil {
			b.Error(err)
		}
	}()
	heap := func() int64 {
		if err := m.store.Flush(m.b.Context()); err != nil {
			m.b.Fatal(err)
		}
		return liveHeap()
	}
	for _, c := range []struct {
		name string
		put  func()
	}{
		{"16,500 rules", func() { m.create(1, manyRules) }},
		{"a policy of two peers that select nearly every pod", func() {
			m.create(1, func(int) networkingv1.NetworkPolicySpec { return ingressFrom(0, nearlyAll(1), nearlyAll(2)) })
		}},
		{"300 policies with selectors of their own", func() {
			m.create(evilPolicies, func(i int) networkingv1.NetworkPolicySpec {
				own := networkingv1.NetworkPolicyPeer{NamespaceSelector: without(fmt.Sprint("z", i))}
				return ingressFrom(i, own)
			})
		}},
		{"300 policies that select nearly every pod", func() {
			m.create(evilPolicies, func(i int) networkingv1.NetworkPolicySpec { return ingressFrom(i, nearlyAll(i)) })
		}},
		{"a hello with unknown pods", func() { m.hello(wire.MaxAnnounced) }},
		{"changing addresses", m.announceAgain},
	} {
		b.Run(c.name, func(b *testing.B) {
			m.b = b
			for b.Loop() {
				m.turn, m.convert = 0, 0
				before := heap()
				c.put()
				during := heap()
				m.remove()
				after := heap()
				b.ReportMetric(m.turn.Seconds()*1000, "owner-ms")
				b.ReportMetric(m.convert.Seconds()*1000, "convert-ms")
				b.ReportMetric(float64(during-before)/(1<<20), "MiB")
				b.ReportMetric(float64(after-before)/(1<<20), "MiB-left")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
