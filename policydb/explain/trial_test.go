package explain_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// attempts are random ones on a world.
func attempts(g policytest.Gen, w *policy.World) (list []explain.Attempt) {
	for range 1 + g.IntN(4) {
		p := g.Staged(200 + g.IntN(3))
		if g.IntN(3) > 0 {
			old := w.Policies[g.IntN(len(w.Policies))]
			p.Namespace, p.Name = old.Namespace, old.Name
		}
		list = append(list, explain.Attempt{Policy: p, Remove: g.IntN(3) == 0})
	}
	return list
}

// tried is the world after, made in the plainest way.
func tried(w *policy.World, list []explain.Attempt) *policy.World {
	after := clone(w)
	for _, a := range list {
		after.Policies = slices.DeleteFunc(after.Policies, func(p *policy.Policy) bool { return p.ID() == a.Policy.ID() })
		if !a.Remove {
			after.Policies = append(after.Policies, a.Policy)
		}
	}
	return after
}

// decoded returns a Delta as it is after it was encoded, restored with the pods of a world.
func decoded(t *testing.T, d *explain.Delta, w *policy.World) (out explain.Delta) {
	t.Helper()
	text, err := json.Marshal(d)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	out.Restore(d.Areas(), explain.NewModel(w))
	return out
}

// What is tried changes what the oracle says it does, for the reasons that it gives, and a connection that is lost is found.
func TestTryIsWhereTheOracleDiffers(t *testing.T) {
	differ := 0
	worlds(t, 40, func(g policytest.Gen, w *policy.World, m *explain.Model) {
		list := attempts(g, w)
		after, _ := explain.Try(w, list)
		v := tried(w, list)
		d := explain.Diff(m, explain.NewModel(after))
		restored := decoded(t, &d, w)
		ends, cidrs, tries := places(w, v), cidrsOf(w, v), slices.Concat(probes(w), probes(v))
		for range 40 {
			from, to := ends[g.IntN(len(ends))], ends[g.IntN(len(ends))]
			if from.was.Is6() != to.was.Is6() || from.pod == to.pod {
				continue
			}
			said := claimed(t, &d, from, to, cidrs)
			for _, p := range tries {
				p.From, p.To = from.was, to.was
				was, is := policy.Allowed(w, p), policy.Allowed(v, p)
				lost, gained := was.Allowed && !is.Allowed, is.Allowed && !was.Allowed
				if said.Lost.Contains(p.Protocol, p.Port) != lost || said.Gained.Contains(p.Protocol, p.Port) != gained {
					t.Errorf("%v to %v %s/%d: was %v, is %v; gained %s, lost %s", from, to, p.Protocol, p.Port, was, is, said.Gained, said.Lost)
					return
				}
				if want, got := causes(was, is), saidCauses(&said, p); !slices.Equal(want, got) {
					t.Errorf("%v to %v %s/%d because of\n%q, want\n%q", from, to, p.Protocol, p.Port, got, want)
					return
				}
				if i, found := d.Loses(p); found != lost || lost && !d.Differences[i].Lost.Contains(p.Protocol, p.Port) {
					t.Errorf("%+v: lost %v, found %v in %d", p, lost, found, i)
					return
				}
				i, found := d.Loses(p)
				if j, again := restored.Loses(p); j != i || again != found {
					t.Errorf("%+v: lost by %d (%v), after decoding by %d (%v)", p, i, found, j, again)
					return
				}
				if lost || gained {
					differ++
				}
			}
		}
	})
	if differ < 300 {
		t.Errorf("only %d probes differed", differ)
	}
}

func TestTry_ReportsEachPolicy(t *testing.T) {
	named := func(name string, p policy.Policy) *policy.Policy { p.Namespace, p.Name = "shop", name; return &p }
	w := &policy.World{Namespaces: []policy.Namespace{{Name: "shop"}}, Policies: []*policy.Policy{
		named("same", policy.Policy{UID: "u", Generation: 3, IsolatesIngress: true}), named("other", policy.Policy{IsolatesIngress: true}), named("gone", policy.Policy{})}}
	egress := policy.Policy{IsolatesIngress: true, IsolatesEgress: true, Egress: []policy.PolicyRule{{AnyPeer: true, AnyPort: true}}}
	after, list := explain.Try(w, []explain.Attempt{
		{Policy: named("same", policy.Policy{IsolatesIngress: true, Ingress: []policy.PolicyRule{}})}, {Policy: named("other", policy.Policy{IsolatesEgress: true})},
		{Policy: named("new", policy.Policy{Problems: []string{"spec.ingress[0].ports[0]: 0 to 0 is no range of ports"}})}, {Policy: named("gone", policy.Policy{}), Remove: true}, {Policy: named("never", policy.Policy{}), Remove: true},
		{Policy: named("twice", policy.Policy{})}, {Policy: named("twice", policy.Policy{}), Remove: true}, {Policy: &policy.Policy{Namespace: "nowhere", Name: "p"}},
	})
	var got []string
	for _, x := range list {
		got = append(got, x.Policy+" "+string(x.Action)+" "+strings.Join(x.Notes, "|"))
	}
	want := []string{"shop/same unchanged ", "shop/other changed ", "shop/new created spec.ingress[0].ports[0]: 0 to 0 is no range of ports; this part allows nothing", "shop/gone removed ", "shop/never missing ", "shop/twice missing ",
		"nowhere/p created there is no namespace nowhere"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want\n%q", got, want)
	}
	if len(after.Policies) != 4 || after.Policies[0] != w.Policies[0] || len(w.Policies) != 3 {
		t.Errorf("%v of %v", after.Policies, w.Policies)
	}
	// Egress rules that are added to an object of which the API server has set policyTypes isolate nothing: kubectl apply keeps those.
	for _, omitted := range []bool{true, false} {
		after, list = explain.Try(w, []explain.Attempt{{Policy: named("same", egress), TypesOmitted: omitted}})
		if after.Policies[0].IsolatesEgress == omitted || omitted != strings.Contains(strings.Join(list[0].Notes, ""), "Ingress only") {
			t.Errorf("policyTypes omitted: %v, then %+v, %+v", omitted, after.Policies[0], list)
		}
	}
}

func TestRowsOfADiff(t *testing.T) {
	is := func(value string) policy.Selector {
		return policy.Selector{Requirements: []policy.Requirement{{Key: "app", Operator: policy.In, Values: []string{value}}}}
	}
	web := is("web")
	tcp := func(port uint16) []policy.PolicyPort {
		return []policy.PolicyPort{{Protocol: policy.TCP, First: port, Last: port}}
	}
	w := &policy.World{Namespaces: []policy.Namespace{{Name: "shop"}}}
	for i, app := range []string{"db", "web", "web", "api"} {
		w.Endpoints = append(w.Endpoints, &policy.Endpoint{Namespace: "shop", Name: app + string(rune('0'+i)), Labels: map[string]string{"app": app}, Addresses: []netip.Addr{policytest.Address(i, false)}})
	}
	db := &policy.Policy{Namespace: "shop", Name: "db", AppliedTo: is("db"), IsolatesIngress: true, Ingress: []policy.PolicyRule{
		{Peers: []policy.Peer{{Pods: &web}}, Ports: tcp(80)}, {AnyPeer: true, Ports: tcp(443)}}}
	after, _ := explain.Try(w, []explain.Attempt{{Policy: db}})
	before, there := explain.NewModel(w), explain.NewModel(after)
	texts := func(a, b *explain.Model) (list []string) {
		d := explain.Diff(a, b)
		for _, r := range d.Rows() {
			list = append(list, strings.Join([]string{strings.Join(r.From, "+"), strings.Join(r.To, "+"), r.What.String(), map[bool]string{true: "denied", false: "allowed"}[r.Denied], strings.Join(r.Because, "; ")}, " | "))
		}
		return list
	}
	isolates := "isolated for ingress by shop/db"
	if got, want := texts(before, there), []string{"shop app=web (2 pods) | shop/db0 | all but TCP 80,443 | denied | " + isolates, "shop/api3+world | shop/db0 | all but TCP 443 | denied | " + isolates}; !slices.Equal(got, want) {
		t.Errorf("put: %q, want\n%q", got, want)
	}
	edited := *db
	edited.Ingress = []policy.PolicyRule{{AnyPeer: true, Ports: tcp(444)}}
	after, _ = explain.Try(after, []explain.Attempt{{Policy: &edited}})
	if got, want := texts(there, explain.NewModel(after)), []string{
		"shop app=web (2 pods) | shop/db0 | TCP 80,443 | denied | no longer allowed by shop/db ingress[0] (TCP 80); no longer allowed by shop/db ingress[1] (TCP 443)",
		"shop/api3+world | shop/db0 | TCP 443 | denied | no longer allowed by shop/db ingress[1]",
		"shop app=web (2 pods) | shop/db0 | TCP 444 | allowed | allowed by shop/db ingress[0]", "shop/api3+world | shop/db0 | TCP 444 | allowed | allowed by shop/db ingress[0]",
	}; !slices.Equal(got, want) {
		t.Errorf("edited: %q, want\n%q", got, want)
	}
	if got := texts(there, before); len(got) != 2 || !strings.HasSuffix(got[0], "allowed | no longer isolated for ingress by shop/db") {
		t.Errorf("removed: %q", got)
	}
}

func TestDiffWithinEndsAtItsBounds(t *testing.T) {
	w := big(1000, 200, true)
	m := explain.NewModel(w)
	other := explain.NewModel(clone(w)) // all pods may be others, and there are addresses outside too
	for _, b := range []explain.Bounds{{Steps: 1_000_000}, {Bytes: 4 << 20}} {
		if _, err := explain.DiffWithin(t.Context(), m, other, b); !errors.Is(err, explain.ErrTooMany) {
			t.Errorf("%+v: %v", b, err)
		}
	}
	over, end := context.WithCancel(t.Context())
	end()
	if _, err := explain.DiffWithin(over, m, other, explain.Bounds{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := m.MatrixWithin(over, explain.Question{}, explain.Bounds{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := m.MatrixWithin(t.Context(), explain.Question{}, explain.Bounds{Steps: 100_000}); !errors.Is(err, explain.ErrTooMany) {
		t.Error(err)
	}
	edited := *w.Policies[3]
	edited.Ingress = nil
	after, _ := explain.Try(w, []explain.Attempt{{Policy: &edited}})
	one := explain.Bounds{Steps: 600_000, Bytes: 4 << 20}
	if d, err := explain.DiffWithin(t.Context(), m, m.With(after.Policies), one); err != nil || d.Same() {
		t.Errorf("one policy: %v", err)
	}
}
