package resolve_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// tight are budgets that random policies exceed: two groups a policy, three a namespace.
func tight() policy.Budgets {
	b := policy.DefaultBudgets
	b.Policy.Members, b.Namespace.Members = 2*policy.GroupCost(0), 3*policy.GroupCost(0)
	return b
}

// peerID identifies the group of a peer, however its selectors are written.
func peerID(ns string, p *policy.Peer) policy.Key {
	pods := p.Pods
	if pods == nil {
		pods = &policy.Selector{}
	}
	s := policy.GroupSpec{Namespaces: p.Namespaces, Pods: pods}
	if p.Namespaces == nil {
		s.Namespace = ns
	}
	return s.Key()
}

// chosen counts the pods of a peer, as plainly as can be.
func chosen(w *policy.World, ns string, p *policy.Peer) (n int) {
	for _, e := range w.Endpoints {
		if e.HostNetwork || p.Pods != nil && !p.Pods.Matches(e.Labels) {
			continue
		}
		if p.Namespaces == nil && e.Namespace == ns {
			n++
		}
		for _, other := range w.Namespaces {
			if p.Namespaces != nil && other.Name == e.Namespace && p.Namespaces.Matches(other.Labels) {
				n++
			}
		}
	}
	return n
}

// within is what the budgets leave of a world's policies, written down rule by rule.
func within(w *policy.World, b policy.Budgets) (out []*policy.Policy) {
	all := slices.Clone(w.Policies)
	slices.SortFunc(all, func(a, b *policy.Policy) int {
		byAge := cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.Name, b.Name))
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), byAge)
	})
	for i := 0; i < len(all); {
		ns, used, full := all[i].Namespace, map[policy.Key]int{}, false
		for ; i < len(all) && all[i].Namespace == ns; i++ {
			p := *all[i]
			own, short := map[policy.Key]int{}, false
			for _, rules := range []*[]policy.PolicyRule{&p.Ingress, &p.Egress} {
				*rules = slices.Clone(*rules)
				for k := range *rules {
					(*rules)[k].Peers = slices.DeleteFunc(slices.Clone((*rules)[k].Peers), func(peer policy.Peer) bool {
						if peer.Block != nil {
							return false
						}
						if short = short || full; short {
							return true
						}
						key, cost := peerID(ns, &peer), policy.GroupCost(chosen(w, ns, &peer))
						overOwn := own[key] == 0 && len(own) > 0 && sum(own)+cost > b.Policy.Members
						overAll := used[key] == 0 && len(used) > 0 && sum(used)+cost > b.Namespace.Members
						if overOwn || overAll {
							short, full = true, len(own) == 0 || !overOwn
							return true
						}
						own[key], used[key] = cost, cost
						return false
					})
				}
			}
			out = append(out, &p)
		}
	}
	return out
}

func sum(m map[policy.Key]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}

// plainly leaves out what two equal policies may differ in.
func plainly(p *policy.Policy) string {
	c := *p
	c.Problems = nil
	for _, rules := range []*[]policy.PolicyRule{&c.Ingress, &c.Egress} {
		*rules = slices.Clone(*rules)
		for i := range *rules {
			if len((*rules)[i].Peers) == 0 {
				(*rules)[i].Peers = nil
			}
		}
	}
	return fmt.Sprintf("%+v", deepText(c))
}

func deepText(c policy.Policy) string {
	text := fmt.Sprintf("%s isolates %v %v:", c.ID(), c.IsolatesIngress, c.IsolatesEgress)
	for _, rules := range [][]policy.PolicyRule{c.Ingress, c.Egress} {
		for _, r := range rules {
			text += fmt.Sprintf(" [%v %v %v", r.AnyPeer, r.AnyPort, r.Ports)
			for _, p := range r.Peers {
				text += fmt.Sprintf(" (%s %s %v)", p.Namespaces.String(), p.Pods.String(), p.Block)
			}
			text += "]"
		}
	}
	return text
}

// TestBudgetHistories drives an engine with tight budgets with random events. It leaves out what a plain reading of the
// budgets leaves out, nodes enforce what the oracle decides of the rest, and a fresh engine leaves out the same.
func TestBudgetHistories(t *testing.T) {
	n := min(*histories, 1500)
	if testing.Short() {
		n = 200
	}
	shortened := 0
	for seed := range uint64(n) {
		g := policytest.New(seed)
		m, c, e := newModel(), newCluster(t), resolve.New(0)
		e.SetBudgets(tight())
		for range 10 {
			ch, _ := e.Apply(m.step(g))
			c.apply(ch)
			c.check()
		}
		inStep(t, e)
		w, _, _ := m.effective()
		w.Policies = within(w, tight())
		for _, want := range w.Policies {
			got := e.PolicyObject(want.ID())
			if plainly(got) != plainly(want) {
				t.Errorf("in force:\n%s\nwant\n%s", plainly(got), plainly(want))
			}
			if short := plainly(want) != plainly(m.policies[want.ID()]); short != (len(got.Problems) > 0) {
				t.Errorf("%s: shortened %v, problems %q", want.ID(), short, got.Problems)
			} else if short {
				shortened++
			}
		}
		fresh := resolve.New(0)
		fresh.SetBudgets(tight())
		compareWithFresh(t, m, c, e, fresh)
		m.policies = map[string]*policy.Policy{}
		for _, p := range w.Policies {
			m.policies[p.ID()] = p
		}
		compareWithOracle(t, g, m, c, 20)
		compareWorlds(t, g, m, e, 3)
		clearAway(t, m, c, e)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if shortened < n/10 {
		t.Errorf("only %d of %d histories exceed a budget", shortened, n)
	}
}

// crowd is n pods of namespace a, each with labels of its own.
func crowd(n int) (out []*policy.Endpoint) {
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		out = append(out, pod(fmt.Sprintf("a/p%d", i), fmt.Sprintf("n=%d", i), a.String()))
	}
	return out
}

func absent(key string) policy.Peer {
	without := policy.Requirement{Key: key, Operator: policy.DoesNotExist}
	return policy.Peer{Pods: &policy.Selector{Requirements: []policy.Requirement{without}}}
}

// A peer that grows out of the budget is left out, and is back when the pods are gone; the policy isolates all the while.
func TestBudget_PodsComeAndGo(t *testing.T) {
	s := newScene(t)
	s.engine.SetBudgets(tight())
	full := policy.GroupCost(0)
	s.do(world(crowd(full), ingress("p", "n=0", peers(absent("x"), absent("y")))))
	s.want(true, "10.1.0.1 10.1.0.0 tcp/80")
	more := crowd(full + 1)[full:]
	s.do(podEvents(more...))
	over := s.engine.OverBudget()
	if len(over) != 1 || len(over[0].Ingress[0].Peers) != 1 || !policy.IsOverBudget(over[0].Problems[0]) {
		t.Fatalf("over budget: %+v", over)
	}
	if v, _ := s.engine.Policy("a/p"); len(v.Rules) != 2 || len(v.Rules[1].Peers) != 1 {
		t.Fatalf("in force: %+v", v.Rules)
	}
	s.do(resolve.Batch{DeletedEndpoints: []string{more[0].ID()}})
	if v, _ := s.engine.Policy("a/p"); len(s.engine.OverBudget()) != 0 || len(v.Rules[1].Peers) != 2 {
		t.Fatalf("in force after the pod is gone: %+v", v.Rules)
	}
	inStep(t, s.engine)
}

// kept returns how many of a namespace's policies, the oldest first, have their peers. It fails if a younger one has
// them and an older one does not.
func kept(s *scene, n int) (out int) {
	s.t.Helper()
	for i := range n {
		has := len(s.engine.PolicyObject(fmt.Sprintf("a/p%02d", i)).Ingress[0].Peers) > 0
		if has && out < i {
			s.t.Fatalf("policy %d has peers, policy %d does not", i, out)
		} else if has {
			out++
		}
	}
	return out
}

// Pods that come and go at a budget's edge change nothing as long as no group crosses a power of two. Where one does,
// the youngest policies that permit something are left out, or the oldest of the others permit something again: no
// policy takes the place of an older one.
func TestBudget_EdgeIsStable(t *testing.T) {
	s, b, g := newScene(t), policy.DefaultBudgets, policytest.New(1)
	least := policy.GroupCost(0)
	b.Namespace.Members = 8 * least
	s.engine.SetBudgets(b)
	const policies = 12
	var objects []*policy.Policy
	for i := range policies {
		objects = append(objects, ingress(fmt.Sprintf("p%02d", i), "n=0", peers(absent(fmt.Sprintf("x%d", i)))))
	}
	all := crowd(2*least + 20)
	s.do(world(all[:least+50], objects...))
	size, changes := least+50, 0
	for range 300 {
		before, was := kept(s, policies), size
		if size += g.IntN(41) - 20; g.IntN(3) == 0 {
			size += least - was // to the edge
		}
		size = min(max(size, 1), len(all))
		s.do(resolve.Batch{DeletedEndpoints: ids(all[min(size, was):was]), Endpoints: all[min(was, size):size]})
		now, rules := kept(s, policies), len(s.last.Rules)
		if want := b.Namespace.Members / policy.GroupCost(size); now != min(want, policies) {
			t.Fatalf("%d pods: %d policies have peers, want %d", size, now, want)
		}
		if now != before {
			changes++
		} else if rules > 0 {
			t.Fatalf("from %d to %d pods %d rules change", was, size, rules)
		}
	}
	if changes < 10 {
		t.Errorf("the edge was crossed %d times", changes)
	}
	inStep(t, s.engine)
}

func ids(pods []*policy.Endpoint) (out []string) {
	for _, p := range pods {
		out = append(out, p.ID())
	}
	return out
}

// Port names that no pod has cost an entry each, not one for each peer.
func TestPortNames_NoPod(t *testing.T) {
	s := newScene(t)
	r := policy.PolicyRule{}
	for i := range 300 {
		r.Peers = append(r.Peers, podsOf(fmt.Sprintf("k=%d", i)))
		r.Ports = append(r.Ports, named(policy.TCP, fmt.Sprintf("n%d", i)))
	}
	p := &policy.Policy{Namespace: "a", Name: "p", IsolatesEgress: true, Egress: []policy.PolicyRule{r}}
	s.do(world([]*policy.Endpoint{pod("a/client", "k=none", "10.0.0.1")}, p))
	if names, pairs := s.engine.Watches("a/p"); names != 300 || pairs != 0 {
		t.Errorf("%d names and %d pairs are followed", names, pairs)
	}
	s.do(podEvents(pod("a/server", "k=7", "10.0.0.2", gives("n5", policy.TCP, 5000))))
	if names, pairs := s.engine.Watches("a/p"); names != 300 || pairs != 300 {
		t.Errorf("%d names and %d pairs are followed with one that exists", names, pairs)
	}
	s.want(true, "10.0.0.1 10.0.0.2 tcp/5000")
	s.want(false, "10.0.0.1 10.0.0.2 tcp/5001")
	s.do(resolve.Batch{DeletedEndpoints: []string{"a/server"}})
	if _, pairs := s.engine.Watches("a/p"); pairs != 0 {
		t.Errorf("%d pairs are followed after the pod is gone", pairs)
	}
	inStep(t, s.engine)
}

// A pod without an address makes no rules, whatever names its ports have; with one it does.
func TestPortNames_PodWithoutAddress(t *testing.T) {
	s := newScene(t)
	metrics := []policy.PolicyPort{named(policy.TCP, "metrics")}
	p := egress("p", "app=client", policy.PolicyRule{Peers: []policy.Peer{nsOf("")}, Ports: metrics})
	server := pod("b/server", "app=server", "10.0.0.2", gives("metrics", policy.TCP, 9090))
	s.do(world([]*policy.Endpoint{pod("a/client", "app=client", "10.0.0.1"), server}, p))
	before := s.engine.Counts()
	never := pod("b/never", "app=never", "")
	for i := range 2000 {
		gives("metrics", policy.TCP, uint16(1000+i))(never)
	}
	if ch := s.do(podEvents(never)); len(ch.Rules)+len(ch.Groups)+len(ch.Nodes) > 0 || s.engine.Counts().Rules != before.Rules {
		t.Errorf("%d rules before, %d after a pod without an address: %+v", before.Rules, s.engine.Counts().Rules, ch)
	}
	now := *never
	now.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.3")}
	s.do(podEvents(&now))
	if over := s.engine.OverBudget(); len(over) != 1 || !policy.IsOverBudget(over[0].Problems[0]) {
		t.Errorf("over budget: %+v", over)
	}
	if n := s.engine.Counts().Rules - before.Rules; n != policy.DefaultBudgets.PortNumbers-1 {
		t.Errorf("%d more rules of a pod of 2,000 numbers, want as many as the budget has", n)
	}
	s.want(true, "10.0.0.1 10.0.0.3 tcp/1000")
	s.do(podEvents(never))
	deleted := *p
	s.do(podEvents(&now))
	s.do(resolve.Batch{DeletedPolicies: []string{deleted.ID()}})
	if len(s.engine.OverBudget()) > 0 {
		t.Error("a policy that is deleted is over budget")
	}
	s.do(resolve.Batch{Policies: []*policy.Policy{&deleted}})
	s.do(podEvents(never))
	if s.engine.Counts().Rules != before.Rules {
		t.Errorf("%d rules before, %d after the address is gone", before.Rules, s.engine.Counts().Rules)
	}
	if over := s.engine.OverBudget(); len(over) > 0 {
		t.Errorf("over budget after the address is gone: %+v", over)
	}
	inStep(t, s.engine)
}

// Of more numbers than the budget has, those stay that most kinds of pods give to the name, whatever others there are.
func TestPortNames_MostGivenStay(t *testing.T) {
	s := newScene(t)
	rule := policy.PolicyRule{Peers: []policy.Peer{nsOf("")}, Ports: []policy.PolicyPort{named(policy.TCP, "metrics")}}
	pods := []*policy.Endpoint{pod("a/client", "app=client", "10.0.0.1")}
	for i, app := range []string{"api", "web"} {
		pods = append(pods, pod("b/"+app, "app="+app, fmt.Sprintf("10.0.0.%d", 2+i), gives("metrics", policy.TCP, 9090)))
	}
	for i, p := range crowd(policy.DefaultBudgets.PortNumbers + 5) {
		gives("metrics", policy.TCP, uint16(1+i))(p)
		pods = append(pods, p)
	}
	s.do(world(pods, egress("p", "app=client", rule)))
	s.want(true, "10.0.0.1 10.0.0.2 tcp/9090", "10.0.0.1 10.1.0.0 tcp/1")
	last := netip.AddrFrom4([4]byte{10, 1, 0, byte(policy.DefaultBudgets.PortNumbers)})
	s.want(false, fmt.Sprintf("10.0.0.1 %s tcp/%d", last, policy.DefaultBudgets.PortNumbers+1))
	inStep(t, s.engine)
}

// Groups of equal pods share one list in the changes.
func TestEqualSelections_OneList(t *testing.T) {
	s := newScene(t)
	var all []policy.Peer
	for i := range 50 {
		all = append(all, absent(fmt.Sprintf("x%d", i)))
	}
	s.do(world(crowd(100), ingress("p", "n=0", peers(append(all, podsOf("n=1"))...))))
	lists := map[*netip.Addr]bool{}
	for _, g := range s.last.Groups {
		if len(g.Added) == 100 {
			lists[&g.Added[0]] = true
		}
	}
	if len(s.last.Groups) != 51 || len(lists) != 1 {
		t.Errorf("%d groups in %d lists", len(s.last.Groups), len(lists))
	}
	if !reflect.DeepEqual(s.engine.Check(), []string(nil)) {
		t.Error(s.engine.Check())
	}
}
