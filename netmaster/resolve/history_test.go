package resolve_test

import (
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
	"github.com/google/go-cmp/cmp"
)

var histories = flag.Int("histories", 10000, "how many random histories to run")

const podCount, policyCount = 12, 5

// model is the state of the world that the events so far have made, kept as plainly as can be. An announcement stands
// from a node's word to its withdrawal. While it stands for a pod that was seen, the pod as last seen counts, whether or
// not the API still has it: it is wired.
type model struct {
	namespaces map[string]policy.Namespace
	endpoints  map[string]*policy.Endpoint
	policies   map[string]*policy.Policy
	standing   map[string]resolve.Announcement // by pod's ID and UID and the node that says it
	wired      map[string]*policy.Endpoint     // the pods of standing announcements, as last seen
	withdrawn  map[string]bool                 // by ID and UID: the API's status is late
	lives      [podCount]int                   // how many pods of this name there were before
}

func newModel() *model {
	return &model{namespaces: map[string]policy.Namespace{}, endpoints: map[string]*policy.Endpoint{}, policies: map[string]*policy.Policy{},
		standing: map[string]resolve.Announcement{}, wired: map[string]*policy.Endpoint{}, withdrawn: map[string]bool{}}
}

func incarnation(id, uid string) string { return id + "|" + uid }

func word(incarnation, node string) string { return incarnation + "|" + node }

// put takes what the API says of a pod.
func (m *model) put(e *policy.Endpoint) {
	if old := m.endpoints[e.ID()]; old != nil && old.UID != e.UID {
		delete(m.withdrawn, incarnation(old.ID(), old.UID))
	}
	m.endpoints[e.ID()] = e
	key := incarnation(e.ID(), e.UID)
	if _, ok := m.standing[word(key, e.Node)]; ok {
		m.wired[key] = e
	}
}

func (m *model) remove(id string) {
	if old := m.endpoints[id]; old != nil {
		delete(m.withdrawn, incarnation(id, old.UID))
		delete(m.endpoints, id)
	}
}

func (m *model) announce(a resolve.Announcement) {
	key := incarnation(a.ID(), a.UID)
	m.standing[word(key, a.Node)] = a
	if e := m.endpoints[a.ID()]; e != nil && e.UID == a.UID && e.Node == a.Node {
		m.wired[key] = e
		delete(m.withdrawn, key)
	}
}

func (m *model) withdraw(a resolve.Announcement) {
	key := incarnation(a.ID(), a.UID)
	delete(m.standing, word(key, a.Node))
	if e := m.wired[key]; e != nil && e.Node == a.Node {
		delete(m.wired, key)
	}
	if e := m.endpoints[a.ID()]; e != nil && e.UID == a.UID && e.Node == a.Node {
		m.withdrawn[key] = true
	}
}

func (m *model) hello(n resolve.NodeAnnouncements) {
	for key, s := range m.standing {
		if s.Node == n.Node && !slices.ContainsFunc(n.All, func(a resolve.Announcement) bool { return word(incarnation(a.ID(), a.UID), n.Node) == key }) {
			m.withdraw(s)
		}
	}
	for _, a := range n.All {
		m.announce(a)
	}
}

// effective are the pods as they count: with the addresses in force, and with the address nobody or one pod holds. Foreign are the addresses that count
// for pods on their nodes only, and for whom.
func (m *model) effective() (w *policy.World, contested map[netip.Addr]bool, foreign map[netip.Addr][]*policy.Endpoint) {
	type claim struct {
		e    *policy.Endpoint
		rank int
	}
	claims := map[netip.Addr][]claim{}
	w = &policy.World{Namespaces: slices.Collect(maps.Values(m.namespaces)), Policies: slices.Collect(maps.Values(m.policies))}
	foreign = map[netip.Addr][]*policy.Endpoint{}
	add := func(e *policy.Endpoint, said resolve.Announcement, rank int) {
		if e.HostNetwork {
			return
		}
		c := *e
		c.Addresses, c.Finished = nil, false
		w.Endpoints = append(w.Endpoints, &c)
		for _, a := range said.Addresses {
			if slices.Contains(said.Foreign, a) {
				foreign[a] = append(foreign[a], &c)
			} else {
				claims[a] = append(claims[a], claim{&c, rank})
			}
		}
	}
	for id, e := range m.endpoints {
		key := incarnation(id, e.UID)
		switch alive := 0; {
		case m.wired[key] != nil:
			if !e.Terminating && !e.Finished {
				alive = 1
			}
			add(e, m.standing[word(key, e.Node)], 2+alive)
		case !e.Finished && !m.withdrawn[key]:
			if !e.Terminating {
				alive = 1
			}
			add(e, resolve.Announcement{Addresses: e.Addresses}, alive)
		}
	}
	for key, e := range m.wired {
		if now := m.endpoints[e.ID()]; now == nil || now.UID != e.UID {
			add(e, m.standing[word(key, e.Node)], 2)
		}
	}
	contested = map[netip.Addr]bool{}
	for a, list := range claims {
		slices.SortFunc(list, func(x, y claim) int { return y.rank - x.rank })
		if len(list) > 1 && list[1].rank == list[0].rank {
			contested[a] = true
			continue
		}
		list[0].e.Addresses = append(list[0].e.Addresses, a)
	}
	return w, contested, foreign
}

// whole is the final state for an engine that saw nothing of how it came about, in as few batches as can say it.
func (m *model) whole() []resolve.Batch {
	var wired, now resolve.Batch
	for _, ns := range m.namespaces {
		now.Namespaces = append(now.Namespaces, ns)
	}
	for key, e := range m.wired {
		wired.Endpoints = append(wired.Endpoints, e)
		wired.Announced = append(wired.Announced, m.standing[word(key, e.Node)])
		if m.endpoints[e.ID()] == nil {
			now.DeletedEndpoints = append(now.DeletedEndpoints, e.ID())
		}
	}
	for id, e := range m.endpoints {
		now.Endpoints = append(now.Endpoints, e)
		if m.withdrawn[incarnation(id, e.UID)] {
			now.Withdrawn = append(now.Withdrawn, resolve.Announcement{Node: e.Node, Namespace: e.Namespace, Name: e.Name, UID: e.UID})
		}
	}
	now.Policies = slices.Collect(maps.Values(m.policies))
	return append(oneByOne(wired), now)
}

// oneByOne gives each wired pod a batch: several of one name may be wired.
func oneByOne(b resolve.Batch) (out []resolve.Batch) {
	for i := range b.Endpoints {
		out = append(out, resolve.Batch{Endpoints: b.Endpoints[i : i+1], Announced: b.Announced[i : i+1]})
	}
	return out
}

// pod draws a state of the n-th pod's current life. Its node stays; its address is at times another's.
func (m *model) pod(g policytest.Gen, n int) *policy.Endpoint {
	e := g.Endpoint(n)
	e.UID = fmt.Sprintf("uid%d-%d", n, m.lives[n])
	e.Node = policytest.Nodes[(n/2+m.lives[n])%len(policytest.Nodes)]
	if g.IntN(10) == 0 {
		e.Addresses = addresses(g)
	}
	return e
}

func addresses(g policytest.Gen) []netip.Addr {
	n := g.IntN(podCount)
	return []netip.Addr{policytest.Address(n, false), policytest.Address(n, true)}[:1+g.IntN(2)]
}

// strange draws which of the addresses are foreign: mostly none.
func strange(g policytest.Gen, addresses []netip.Addr) (out []netip.Addr) {
	for _, a := range addresses {
		if g.IntN(5) == 0 {
			out = append(out, a)
		}
	}
	return out
}

func (m *model) announcement(g policytest.Gen) resolve.Announcement {
	n := g.IntN(podCount)
	e := m.pod(g, n)
	a := resolve.Announcement{Node: e.Node, Namespace: e.Namespace, Name: e.Name, UID: e.UID, Addresses: addresses(g)}
	a.Foreign = strange(g, a.Addresses)
	if m.lives[n] > 0 && g.IntN(8) == 0 { // late: of the pod before
		a.UID = fmt.Sprintf("uid%d-%d", n, m.lives[n]-1)
		a.Node = policytest.Nodes[(n/2+m.lives[n]-1)%len(policytest.Nodes)]
	}
	if g.IntN(20) == 0 { // of a node that it does not run on
		a.Node = policytest.Nodes[g.IntN(2)]
	}
	return a
}

// kinds are the fields of a batch; one batch has events of several kinds, but of each object one only, as the owner gives.
var kinds = []func(*model, policytest.Gen, *resolve.Batch){
	func(m *model, g policytest.Gen, b *resolve.Batch) {
		if ns := g.Namespace(g.NamespaceName()); g.IntN(4) == 0 {
			b.DeletedNamespaces = append(b.DeletedNamespaces, ns.Name)
			delete(m.namespaces, ns.Name)
		} else {
			b.Namespaces = append(b.Namespaces, ns)
			m.namespaces[ns.Name] = ns
		}
	},
	func(m *model, g policytest.Gen, b *resolve.Batch) {
		for _, n := range g.Perm(podCount)[:1+g.IntN(3)] {
			if g.IntN(6) == 0 {
				m.lives[n]++
			}
			if e := m.pod(g, n); g.IntN(5) == 0 {
				b.DeletedEndpoints = append(b.DeletedEndpoints, e.ID())
				m.remove(e.ID())
			} else {
				b.Endpoints = append(b.Endpoints, e)
				m.put(e)
			}
		}
	},
	func(m *model, g policytest.Gen, b *resolve.Batch) {
		for _, n := range g.Perm(policyCount)[:1+g.IntN(2)] {
			p := g.Staged(n)
			if old := m.policies[p.ID()]; old != nil && g.IntN(3) == 0 { // only its annotation changes
				again := *old
				again.DryRun = !old.DryRun
				p = &again
			}
			if g.IntN(4) == 0 {
				b.DeletedPolicies = append(b.DeletedPolicies, p.ID())
				delete(m.policies, p.ID())
			} else {
				b.Policies = append(b.Policies, p)
				m.policies[p.ID()] = p
			}
		}
	},
	func(m *model, g policytest.Gen, b *resolve.Batch) {
		a := m.announcement(g)
		b.Announced = append(b.Announced, a)
		m.announce(a)
	},
	func(m *model, g policytest.Gen, b *resolve.Batch) {
		a := m.announcement(g)
		if len(m.standing) > 0 && g.IntN(3) > 0 {
			all := slices.Sorted(maps.Keys(m.standing))
			a = m.standing[all[g.IntN(len(all))]]
		}
		b.Withdrawn = append(b.Withdrawn, a)
		m.withdraw(a)
	},
	func(m *model, g policytest.Gen, b *resolve.Batch) {
		n := resolve.NodeAnnouncements{Node: policytest.Nodes[g.IntN(2)]}
		for _, key := range slices.Sorted(maps.Keys(m.standing)) {
			if a := m.standing[key]; a.Node == n.Node && g.IntN(4) > 0 {
				n.All = append(n.All, a)
			}
		}
		b.NodeAnnounced = append(b.NodeAnnounced, n)
		m.hello(n)
	},
	func(m *model, g policytest.Gen, b *resolve.Batch) {
		for _, key := range slices.Sorted(maps.Keys(m.standing)) {
			if a := m.standing[key]; g.IntN(2) == 0 {
				a.Foreign = strange(g, a.Addresses)
				b.Reassessed = append(b.Reassessed, a)
				m.standing[key] = a
			}
		}
	},
}

// often is how often each kind is drawn.
var often = []int{0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6}

// step draws a batch and does it to the model; what nodes say comes in a batch of its own, as the owner has it.
func (m *model) step(g policytest.Gen) resolve.Batch {
	var b resolve.Batch
	first := often[g.IntN(len(often))]
	kinds[first](m, g, &b)
	if second := often[g.IntN(len(often))]; first < 3 && second < 3 && second != first && g.IntN(3) == 0 {
		kinds[second](m, g, &b)
	}
	return b
}

// TestRandomHistories drives the engine with random events, and compares what nodes hold in between and at the end with
// the oracle's verdicts, and at the end with a fresh engine that is given the final state alone.
func TestRandomHistories(t *testing.T) {
	n := *histories
	if testing.Short() {
		n = min(n, 500)
	}
	for seed := range n {
		e := resolve.New(0)
		if seed%5 == 0 {
			e = resolve.Collide()
		}
		if runHistory(t, uint64(seed), e); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func runHistory(t *testing.T, seed uint64, e *resolve.Engine) {
	g := policytest.New(seed)
	m, c := newModel(), newCluster(t)
	for range 4 + g.IntN(14) {
		before := e.Revision()
		b := m.step(g)
		ch, _ := e.Apply(b)
		checkChanges(t, before, &ch)
		c.apply(ch)
		c.check()
		if g.IntN(8) == 0 {
			compareWithOracle(t, g, m, c, 6)
		}
		if again, _ := e.Apply(b); g.IntN(4) == 0 && len(again.Rules)+len(again.Groups)+len(again.Nodes) > 0 {
			t.Errorf("the same batch again changes something: %+v", again)
		}
		if t.Failed() {
			t.Logf("batch: %+v", b)
			return
		}
	}
	compareWithFresh(t, m, c, e, resolve.New(0))
	compareWithOracle(t, g, m, c, 20)
	compareWorlds(t, g, m, e, 3)
	if seed%8 == 0 {
		inStep(t, e)
		clearAway(t, m, c, e)
	}
}

func inStep(t *testing.T, e *resolve.Engine) {
	t.Helper()
	if wrong := e.Check(); len(wrong) > 0 {
		t.Errorf("the engine is not in step with itself:\n%s", strings.Join(wrong, "\n"))
	}
}

// clearAway deletes everything and shows that nothing stays, neither with nodes nor in the engine.
func clearAway(t *testing.T, m *model, c *cluster, e *resolve.Engine) {
	t.Helper()
	var b resolve.Batch
	for _, a := range m.standing {
		b.Withdrawn = append(b.Withdrawn, a)
	}
	all := resolve.Batch{DeletedPolicies: e.Policies(), DeletedEndpoints: e.Endpoints()}
	for _, step := range []resolve.Batch{b, all} {
		ch, _ := e.Apply(step)
		c.apply(ch)
	}
	c.forgetIdle()
	if len(c.rules)+len(c.groups)+len(c.nodes) > 0 {
		t.Errorf("after everything is deleted there are rules %v, groups %v, nodes %v", c.rules, c.groups, c.nodes)
	}
	inStep(t, e)
	if n := e.Counts(); n.Endpoints+n.Policies+n.Rules+n.Groups > 0 {
		t.Errorf("the engine counts %+v", n)
	}
}

// checkChanges holds what every batch's output promises.
func checkChanges(t *testing.T, before uint64, ch *policy.Changes) {
	t.Helper()
	n := len(ch.Rules) + len(ch.Groups) + len(ch.Nodes)
	if want := before + uint64(min(n, 1)); ch.Revision != want {
		t.Errorf("revision %d after %d with %d changes", ch.Revision, before, n)
	}
	for _, g := range ch.Groups {
		unique(t, g.Added, g.Removed)
	}
	for _, nc := range ch.Nodes {
		unique(t, nc.AddRules, nc.RemoveRules)
		unique(t, nc.AddGroups, nc.RemoveGroups)
		for _, a := range nc.AppliedTo {
			unique(t, a.Added, a.Removed)
			if !a.Gone && len(a.Added)+len(a.Removed) == 0 {
				t.Errorf("an appliedTo change of %s without content", a.Key)
			}
		}
	}
}

func unique[T comparable](t *testing.T, added, removed []T) {
	if len(added)+len(removed) < 2 {
		return
	}
	t.Helper()
	seen := map[T]bool{}
	for _, a := range slices.Concat(added, removed) {
		if seen[a] {
			t.Errorf("%v twice in one change", a)
		}
		seen[a] = true
	}
}

func compareWithFresh(t *testing.T, m *model, c *cluster, e, fresh *resolve.Engine) {
	t.Helper()
	whole := newCluster(t)
	for _, b := range m.whole() {
		ch, _ := fresh.Apply(b)
		whole.apply(ch)
	}
	whole.forgetIdle()
	c.forgetIdle()
	if !reflect.DeepEqual(whole.nodes, c.nodes) || !reflect.DeepEqual(whole.rules, c.rules) || !reflect.DeepEqual(whole.groups, c.groups) {
		diff := cmp.Diff(whole.nodes, c.nodes, plain...) + cmp.Diff(whole.rules, c.rules, plain...) + cmp.Diff(whole.groups, c.groups, plain...)
		t.Errorf("fresh engine (-), this history (+):\n%s", diff)
	}
	for _, id := range fresh.Endpoints() {
		a, _ := fresh.Endpoint(id)
		b, _ := e.Endpoint(id)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("endpoint %s: fresh %+v, history %+v", id, a, b)
		}
	}
	for _, id := range fresh.Policies() {
		a, _ := fresh.Policy(id)
		b, _ := e.Policy(id)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("policy %s: fresh (-), history (+):\n%s", id, cmp.Diff(a, b, plain...))
		}
	}
}

// compareWithOracle judges packets between addresses that are not contested; the oracle knows no such thing. Nor does it of foreign ones: who has
// one is a pod with it for what its policies say, and nobody for what others' do. Who shares one with a pod of its own node is judged together with that.
func compareWithOracle(t *testing.T, g policytest.Gen, m *model, c *cluster, packets int) {
	t.Helper()
	w, contested, foreign := m.effective()
	for range packets {
		p := g.Packet(podCount)
		if contested[p.From] || contested[p.To] {
			continue
		}
		if len(foreign[p.From])+len(foreign[p.To]) > 0 {
			compareForeign(t, w, foreign, c, p)
			continue
		}
		want := policy.Allowed(w, p)
		if got := c.passes(p); got != want.Allowed {
			t.Errorf("%+v: oracle %+v, nodes %v", p, want, got)
		}
		if want.Allowed {
			compareDryRuns(t, w, c, p)
		}
	}
}

func compareForeign(t *testing.T, w *policy.World, foreign map[netip.Addr][]*policy.Endpoint, c *cluster, p policy.Packet) {
	t.Helper()
	if p.From == p.To || shared(w, foreign, p.From) || shared(w, foreign, p.To) {
		return
	}
	now := policy.Allowed(w, p)
	egress, ingress := now.Egress.Allowed, now.Ingress.Allowed
	for _, e := range foreign[p.From] {
		egress = egress && policy.Allowed(having(w, e, p.From), p).Egress.Allowed
	}
	for _, e := range foreign[p.To] {
		ingress = ingress && policy.Allowed(having(w, e, p.To), p).Ingress.Allowed
	}
	if got := c.side(policy.Egress, p); got != egress {
		t.Errorf("%+v, foreign %v: egress %v, want %v", p, foreign, got, egress)
	}
	if got := c.side(policy.Ingress, p); got != ingress {
		t.Errorf("%+v, foreign %v: ingress %v, want %v", p, foreign, got, ingress)
	}
}

func shared(w *policy.World, foreign map[netip.Addr][]*policy.Endpoint, a netip.Addr) bool {
	all := slices.Clone(foreign[a])
	for _, e := range w.Endpoints {
		if slices.Contains(e.Addresses, a) {
			all = append(all, e)
		}
	}
	nodes := map[string]bool{}
	for _, e := range all {
		nodes[e.Node] = true
	}
	return len(nodes) < len(all)
}

// having is the world in which a pod has an address, and nobody else.
func having(w *policy.World, who *policy.Endpoint, a netip.Addr) *policy.World {
	now := *w
	now.Endpoints = slices.Clone(w.Endpoints)
	for i, e := range now.Endpoints {
		c := *e
		c.Addresses = slices.DeleteFunc(slices.Clone(e.Addresses), func(b netip.Addr) bool { return b == a })
		if e == who {
			c.Addresses = append(c.Addresses, a)
		}
		now.Endpoints[i] = &c
	}
	return &now
}

func compareDryRuns(t *testing.T, w *policy.World, c *cluster, p policy.Packet) {
	t.Helper()
	v := policy.DryRun(w, p)
	for d, want := range map[policy.Direction]policy.SideVerdict{policy.Egress: v.Egress, policy.Ingress: v.Ingress} {
		slices.Sort(want.Isolated)
		if got := c.dryRun(d, p); got.Allowed != want.Allowed || !slices.Equal(got.Isolated, want.Isolated) {
			t.Errorf("%+v: the oracle's dry run of %s: %+v, the nodes' %+v", p, d, want, got)
		}
	}
}

// compareWorlds holds what the engine says is in force to what the events made.
func compareWorlds(t *testing.T, g policytest.Gen, m *model, e *resolve.Engine, packets int) {
	t.Helper()
	w, contested, _ := m.effective()
	for range packets {
		p := g.Packet(podCount)
		if contested[p.From] || contested[p.To] {
			continue
		}
		want := policy.Allowed(w, p).Allowed
		for name, have := range map[string]*policy.World{"whole": e.World(), "part": e.WorldOf(p.From, p.To)} {
			if got := policy.Allowed(have, p); got.Allowed != want {
				t.Errorf("%+v in the %s world: %+v, not %v", p, name, got, want)
			}
		}
	}
}

// forgetIdle takes out nodes that have nothing left: they are as ones that never had.
func (c *cluster) forgetIdle() {
	maps.DeleteFunc(c.nodes, func(_ string, n *nodeState) bool { return len(n.Rules)+len(n.Groups)+len(n.Applied) == 0 })
}

// TestSameEventsSameChanges shows that nothing depends on the order of maps.
func TestSameEventsSameChanges(t *testing.T) {
	for seed := range uint64(50) {
		var texts [2]strings.Builder
		for i := range texts {
			g := policytest.New(seed)
			m, e := newModel(), resolve.New(0)
			for range 12 {
				ch, conflicts := e.Apply(m.step(g))
				for _, r := range ch.Rules {
					fmt.Fprintf(&texts[i], "%s %+v\n", r.Key, r.Rule)
				}
				fmt.Fprintf(&texts[i], "%+v %+v %+v %+v\n", ch.Groups, ch.Nodes, ch.Settled, conflicts)
			}
		}
		if a, b := texts[0].String(), texts[1].String(); a != b {
			t.Fatalf("seed %d: two runs differ:\n%s", seed, cmp.Diff(a, b))
		}
	}
}
