package explain_test

import (
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

const pods = 14

// worlds are random ones, each with its model. In some, a pod claims addresses that are another's already; in some, policies are dry runs.
func worlds(t *testing.T, n int, each func(g policytest.Gen, w *policy.World, m *explain.Model)) {
	t.Helper()
	for seed := range uint64(n) {
		g := policytest.New(seed)
		w := g.World(pods, 8)
		if seed%2 == 1 {
			w = g.StagedWorld(pods, 8)
		}
		if g.IntN(4) == 0 {
			w.Endpoints[5].Addresses = w.Endpoints[2].Addresses
		}
		each(g, w, explain.NewModel(w))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func TestJudgeIsTheOracle(t *testing.T) {
	worlds(t, 400, func(g policytest.Gen, w *policy.World, m *explain.Model) {
		for range 60 {
			p := g.Packet(pods)
			if want, got := policy.Allowed(w, p), m.Judge(p); !reflect.DeepEqual(want, got) {
				t.Errorf("%+v: %+v, the oracle says %+v", p, got, want)
			}
		}
	})
}

// Verdicts, connections and the matrix are the oracle's where labels of pods are over budget, and no remedy is offered.
func TestLabelsOverBudgetAreTheOracles(t *testing.T) {
	worlds(t, 150, func(g policytest.Gen, w *policy.World, _ *explain.Model) {
		g.LeaveOutLabels(w)
		m, tries := explain.NewModel(w), probes(w)
		x := m.Matrix(explain.Question{Family: 4})
		for range 20 {
			p := g.Packet(pods)
			if want, got := policy.Allowed(w, p), m.Judge(p); !reflect.DeepEqual(want, got) {
				t.Errorf("%+v: %+v, the oracle says %+v", p, got, want)
			}
			checkProbes(t, w, m.Connections(p.From, p.To), p, tries)
			a, b := w.Endpoints[g.IntN(pods)], w.Endpoints[g.IntN(pods)]
			from, to := addressOf(w, a, false), addressOf(w, b, false)
			if got, ok := x.Between(a.ID(), b.ID()); ok && from.IsValid() && to.IsValid() {
				checkProbes(t, w, got, policy.Packet{From: from, To: to}, tries)
			}
			out := m.Explain(p).Egress.Remedies
			if a.LabelsLeftOut > 0 && slices.Contains(a.Addresses, p.From) && len(out) > 0 {
				t.Errorf("%+v: remedies %v", p, out)
			}
		}
	})
}

// probes are the ports at the edges of all that random policies and pods name.
func probes(w *policy.World) (list []policy.Packet) {
	ports := map[policy.NamedPort]bool{{Protocol: 1}: true, {Protocol: 58}: true}
	add := func(p policy.Protocol, first, last uint16) {
		for _, port := range []uint16{first - 1, first, last, last + 1} {
			ports[policy.NamedPort{Protocol: p, Number: port}] = true
		}
	}
	for _, e := range w.Endpoints {
		for _, p := range e.Ports {
			add(p.Protocol, p.Number, p.Number)
		}
	}
	for _, pol := range w.Policies {
		for _, rules := range [][]policy.PolicyRule{pol.Ingress, pol.Egress} {
			for _, r := range rules {
				for _, p := range r.Ports {
					add(p.Protocol, p.First, p.Last)
				}
			}
		}
	}
	for p := range ports {
		list = append(list, policy.Packet{Protocol: p.Protocol, Port: p.Number})
	}
	return list
}

func TestConnectionsAreTheOracles(t *testing.T) {
	worlds(t, 150, func(g policytest.Gen, w *policy.World, m *explain.Model) {
		tries := probes(w)
		for range 20 {
			p := g.Packet(pods)
			checkProbes(t, w, m.Connections(p.From, p.To), p, tries)
		}
	})
}

func checkProbes(t *testing.T, w *policy.World, got explain.Connections, p policy.Packet, tries []policy.Packet) {
	t.Helper()
	for _, try := range tries {
		p.Protocol, p.Port = try.Protocol, try.Port
		if want := policy.Allowed(w, p).Allowed; got.Contains(p.Protocol, p.Port) != want {
			t.Errorf("%+v: %s, the oracle says %v", p, got, want)
			return
		}
	}
}

// addressOf is the pod's own address of a family, if it has one.
func addressOf(w *policy.World, e *policy.Endpoint, six bool) netip.Addr {
	for _, a := range e.Addresses {
		owner := slices.IndexFunc(w.Endpoints, func(o *policy.Endpoint) bool {
			return !o.HostNetwork && !o.Finished && slices.Contains(o.Addresses, a)
		})
		if a.Is6() == six && owner >= 0 && w.Endpoints[owner] == e {
			return a
		}
	}
	return netip.Addr{}
}

func TestMatrixIsTheOracles(t *testing.T) {
	worlds(t, 120, func(g policytest.Gen, w *policy.World, m *explain.Model) {
		tries := probes(w)
		for _, family := range []int{4, 6} {
			x := m.Matrix(explain.Question{Family: family})
			for range 25 {
				a, b := w.Endpoints[g.IntN(pods)], w.Endpoints[g.IntN(pods)]
				from, to := addressOf(w, a, family == 6), addressOf(w, b, family == 6)
				got, ok := x.Between(a.ID(), b.ID())
				if from.IsValid() && to.IsValid() {
					checkProbes(t, w, got, policy.Packet{From: from, To: to}, tries)
				} else if ok && a != b && !got.IsNone() {
					t.Errorf("%s to %s without addresses: %s", a.ID(), b.ID(), got)
				}
			}
		}
	})
}

func TestExplainCountsTheRulesTheOracleCounts(t *testing.T) {
	worlds(t, 400, func(g policytest.Gen, w *policy.World, m *explain.Model) {
		for range 20 {
			p := g.Packet(pods)
			want, x := policy.Allowed(w, p), m.Explain(p)
			if x.Allowed != want.Allowed {
				t.Errorf("%+v: %+v, the oracle says %+v", p, x, want)
			}
			checkSide(t, p, x.Egress, want.Egress)
			checkSide(t, p, x.Ingress, want.Ingress)
		}
	})
}

func checkSide(t *testing.T, p policy.Packet, got explain.Side, want policy.SideVerdict) {
	t.Helper()
	if got.Allowed != want.Allowed || !reflect.DeepEqual(got.Allowing(), want.By) || len(got.Isolating()) != len(want.Isolated) {
		t.Errorf("%+v: %+v, the oracle says %+v", p, got, want)
	}
	if (len(got.Remedies) > 0) == got.Allowed {
		t.Errorf("%+v: allowed %v with %d remedies", p, got.Allowed, len(got.Remedies))
	}
	for _, pol := range got.Policies {
		for _, r := range pol.Rules {
			checkRule(t, p, r)
		}
	}
}

// checkRule: a rule allows exactly if some peer and some port match; what doesn't match says why.
func checkRule(t *testing.T, p policy.Packet, r explain.RuleReport) {
	t.Helper()
	peer, port := r.AnyPeer, r.AnyPort
	for _, x := range r.Peers {
		peer = peer || x.Matches
		if x.Matches == (len(x.Failures) > 0) {
			t.Errorf("%+v: peer %s: %+v", p, x, x)
		}
	}
	for _, x := range r.Ports {
		port = port || x.Matches
		if x.Matches == (x.Failure != nil) {
			t.Errorf("%+v: port %s: %+v", p, x, x)
		}
	}
	if r.Allows != (peer && port) {
		t.Errorf("%+v: %+v", p, r)
	}
}

// TestModelIsSharedSafely is for the race detector.
func TestModelIsSharedSafely(t *testing.T) {
	g := policytest.New(7)
	w := g.World(pods, 8)
	m, p := explain.NewModel(w), g.Packet(pods)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			m.Judge(p)
			m.Explain(p)
			m.Connections(p.From, p.To)
			m.Matrix(explain.Question{Outside: true})
			explain.Diff(m, m)
		})
	}
	all.Wait()
}
