package query

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// computed counts the values that the label cache had the engine compute.
func (p *place) computed() (n uint64) {
	for _, c := range p.cfg.Cache.Stats().Sources {
		if c.Source == labelcache.Computed {
			n += c.Count
		}
	}
	return n
}

// again returns the answers to a question before and after a step, and how many values were computed for the second.
func (p *place) again(t *testing.T, q inspect.Question, step func()) (first, second string, computed uint64) {
	t.Helper()
	answer := func() string {
		a, err := p.Ask(p.admin, &q)
		if err != nil {
			t.Fatalf("%+v: %v", q, err)
		}
		return string(a.Body)
	}
	first = answer()
	step()
	before := p.computed()
	second = answer()
	return first, second, p.computed() - before
}

// TestVerdictsAreCached: the verdicts of an explanation and the difference of a trial are computed once for a state,
// and again for another; what is not of the state is of now.
func TestVerdictsAreCached(t *testing.T) {
	explain := func(to inspect.Target) inspect.Question {
		return inspect.Question{Kind: inspect.AskExplain, From: "shop/api", To: &to}
	}
	questions := map[string]inspect.Question{
		"a pod":     explain(inspect.Target{Name: "shop/db", Port: "5432"}),
		"a Service": explain(inspect.Target{Name: "svc/shop/all", Port: "3306"}),
		"a trial": trial(false, policyJSON("api", `{"podSelector": {"matchLabels": {"app": "api"}},
			"policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": 80}]}]}`)),
	}
	for name, q := range questions {
		t.Run(name, func(t *testing.T) {
			p, services := withServices(t)
			live := 1
			p.nodes.answers["node2"] = func(asked inspect.NodeQuery) any {
				if asked.Kind != inspect.QueryConnections {
					return inspect.NodeTraces{Node: "node2"}
				}
				from, to := netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("10.0.0.3")
				count := inspect.ConnectionCount{Protocol: policy.TCP, From: from, To: to, Port: 81, Connections: live}
				return inspect.NodeConnections{Node: "node2", Counts: []inspect.ConnectionCount{count}}
			}
			first, second, computed := p.again(t, q, func() {})
			if computed != 0 || first != second {
				t.Errorf("of the same state %d values were computed:\n%s\n%s", computed, first, second)
			}
			first, second, computed = p.again(t, q, func() {
				live = 7
				p.nodes.answers["node1"] = inspect.NodeTraces{Node: "node1"}
				p.cfg.Problems = func() []string { return []string{"a new problem of the process"} }
			})
			if computed != 0 || first == second {
				t.Errorf("what is of now: %d computed:\n%s\n%s", computed, first, second)
			}
			_, second, computed = p.again(t, q, func() {
				p.owner.engine.Apply(resolve.Batch{Policies: []*policy.Policy{
					{Namespace: "shop", Name: "shut", AppliedTo: is("app", "api"), IsolatesIngress: true, IsolatesEgress: true},
					{Namespace: "shop", Name: "db", AppliedTo: is("app", "db"), IsolatesIngress: true},
				}})
			})
			if computed == 0 || first == second {
				t.Errorf("of another state %d values were computed:\n%s", computed, second)
			}
			_, _, computed = p.again(t, q, func() { services.behind["shop/all"] = services.behind["shop/all"][:1] })
			if (computed > 0) != (name == "a Service") {
				t.Errorf("of the same state, with other endpoints of the Service, %d values were computed", computed)
			}
		})
	}
}

// TestVerdicts_OfOtherNodes: verdicts depend on the nodes' addresses, of which the engine's state does not count
// changes.
func TestVerdicts_OfOtherNodes(t *testing.T) {
	p := twoNodes(t)
	q := inspect.Question{Kind: inspect.AskExplain, From: "10.0.0.1", To: &inspect.Target{Name: "shop/db", Port: "1"}}
	first, second, computed := p.again(t, q, func() { p.nodes.infos = p.nodes.infos[1:] })
	var own, foreign inspect.Explained
	if err := json.Unmarshal([]byte(first), &own); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(second), &foreign); err != nil {
		t.Fatal(err)
	}
	if computed == 0 || !own.Ways[0].Allowed || !own.Ways[0].OfTheNode || foreign.Ways[0].OfTheNode {
		t.Errorf("%d computed; its node's gateway: %+v, not its node's: %+v", computed, own.Ways[0], foreign.Ways[0])
	}
}

// moving is an owner of an engine of which the state is another after each call.
type moving struct {
	Owner
	revision uint64
}

func (m *moving) Do(ctx context.Context, f func(*resolve.Engine)) error {
	m.revision++
	return m.Owner.Do(ctx, f)
}

// TestVerdicts_ChangedMeanwhile: verdicts are not kept if the state changes while they are computed.
func TestVerdicts_ChangedMeanwhile(t *testing.T) {
	p := twoNodes(t)
	m := &moving{Owner: p.cfg.Owner}
	p.cfg.Owner = m
	p.cfg.Labels = func() labelcache.Stamp { return labelcache.Stamp{Term: 1, Revision: m.revision} }
	q := inspect.Question{Kind: inspect.AskExplain, From: "shop/api", To: &inspect.Target{Name: "shop/db", Port: "1"}}
	if _, _, computed := p.again(t, q, func() { m.revision = 0 }); computed == 0 {
		t.Error("verdicts of a state that had changed were used")
	}
}

// TestExplanations_OfTheState: a standby may have from the cache what the model alone says between ends that are no
// Services. All else is of now.
func TestExplanations_OfTheState(t *testing.T) {
	for name, c := range map[string]struct {
		to       inspect.Target
		proved   bool
		isCached bool
	}{
		"a pod":                   {to: inspect.Target{Name: "shop/db", Port: "5432"}, isCached: true},
		"the world":               {to: inspect.Target{Name: inspect.World, Port: "80"}, isCached: true},
		"a node":                  {to: inspect.Target{Name: "node1", Protocol: "ICMP"}, isCached: true},
		"with proof":              {to: inspect.Target{Name: "shop/db", Port: "5432"}, proved: true},
		"a Service":               {to: inspect.Target{Name: "svc/shop/all", Port: "3306"}},
		"an address":              {to: inspect.Target{Name: "10.96.0.2", Port: "3306"}},
		"a port of a node":        {to: inspect.Target{Name: "node1", Port: "30006"}},
		"a pod in a node's netns": {to: inspect.Target{Name: "shop/host", Port: "30006"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := withServices(t)
			q := inspect.Question{Kind: inspect.AskExplain, From: "shop/api", To: &c.to, Unproved: !c.proved}
			p.cfg.Problems = func() []string { return []string{"a problem of the process"} }
			a, err := p.Ask(p.admin, &q)
			if err != nil || (a.Cached != nil) != c.isCached {
				t.Fatalf("%+v, %v", a, err)
			}
			if c.isCached && strings.Contains(string(a.Body), "a problem of the process") {
				t.Errorf("what is of now is kept: %s", a.Body)
			}
			again, err := p.Ask(p.admin, &q)
			if err != nil || c.isCached && again.Cached.Source != string(labelcache.InProcess) {
				t.Errorf("%+v, %v", again.Cached, err)
			}
		})
	}
}

// TestThroughCache_Unheard: a value is not kept if netmaster comes to know that it may not know the cluster.
func TestThroughCache_Unheard(t *testing.T) {
	p := twoNodes(t)
	why := ""
	p.cfg.Unsynced = func() string { return why }
	matrix := p.answers[inspect.AskMatrix]
	p.answers[inspect.AskMatrix] = func(ctx context.Context, q *inspect.Question) (any, error) {
		why = "the API server cannot be watched"
		return matrix(ctx, q)
	}
	a, err := p.Ask(p.admin, &inspect.Question{Kind: inspect.AskMatrix})
	if err != nil || a.Cached != nil || p.cfg.Cache.Stats().Entries != 0 {
		t.Errorf("%+v, %v, %+v", a, err, p.cfg.Cache.Stats())
	}
}
