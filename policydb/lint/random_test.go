package lint

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// TestImpliesIsExact: against all labels that could make a difference.
func TestImpliesIsExact(t *testing.T) {
	g := policytest.New(11)
	selector := func() policy.Selector {
		a, b := g.Selector(), g.Selector()
		return policy.Selector{Requirements: append(a.Requirements, b.Requirements...)}
	}
	yes := 0
	for range 20_000 {
		a, b := selector(), selector()
		want := true
		for _, labels := range allLabels(&a, &b) {
			want = want && (!a.Matches(labels) || b.Matches(labels))
		}
		if got := implies(&a, &b); got != want {
			t.Fatalf("%s implies %s: %v, want %v", a.String(), b.String(), got, want)
		}
		if want {
			yes++
		}
	}
	if yes < 1000 {
		t.Errorf("only %d of them imply", yes)
	}
}

// allLabels are those with every value that the selectors name, with another, and without.
func allLabels(selectors ...*policy.Selector) []map[string]string {
	values := map[string][]string{}
	for _, s := range selectors {
		for _, r := range s.Requirements {
			values[r.Key] = append(values[r.Key], r.Values...)
		}
	}
	all := []map[string]string{{}}
	for key, list := range values {
		slices.Sort(list)
		for _, labels := range slices.Clone(all) {
			for _, v := range append(slices.Compact(list), "another") {
				with := maps.Clone(labels)
				with[key] = v
				all = append(all, with)
			}
		}
	}
	return all
}

// nameNamespaces gives the namespaces the label that the API server gives them.
func nameNamespaces(w *policy.World) {
	for i := range w.Namespaces {
		w.Namespaces[i].Labels[nameLabel] = w.Namespaces[i].Name
	}
}

// crowd brings all pods and policies into one namespace, with rules that let something through.
func crowd(w *policy.World) {
	for _, e := range w.Endpoints {
		e.Namespace = "ns0"
	}
	for _, pol := range w.Policies {
		pol.Namespace = "ns0"
		for _, rules := range [][]policy.PolicyRule{pol.Ingress, pol.Egress} {
			for i := range rules {
				rules[i].AnyPeer = rules[i].AnyPeer || len(rules[i].Peers) == 0
				rules[i].AnyPort = rules[i].AnyPort || len(rules[i].Ports) == 0
			}
		}
	}
}

// without is the world without the rules and policies that are found.
func without(w *policy.World, findings []Finding) *policy.World {
	out := &policy.World{Namespaces: w.Namespaces, Endpoints: w.Endpoints}
	for _, pol := range w.Policies {
		p, keep := *pol, true
		p.Ingress, p.Egress = slices.Clone(pol.Ingress), slices.Clone(pol.Egress)
		for _, f := range findings {
			if f.Policy != pol.ID() {
				continue
			}
			none := policy.PolicyRule{}
			switch {
			case f.Code == PolicyNoEffect:
				keep = false
			case f.Direction == "ingress":
				p.Ingress[f.Rule] = none // nothing passes, and the others keep their numbers
			case f.Direction == "egress":
				p.Egress[f.Rule] = none
			}
		}
		if keep {
			out.Policies = append(out.Policies, &p)
		}
	}
	return out
}

func only(findings []Finding, codes ...string) []Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f Finding) bool { return !slices.Contains(codes, f.Code) })
}

// tries are packets between all pods and addresses that could tell worlds apart, by ports at the edges of what rules name.
func tries(w *policy.World) (out []policy.Packet) {
	ports := map[uint16]bool{0: true, 65535: true}
	edge := func(first, last uint16) {
		for _, p := range []uint16{first, last, first - 1, last + 1} {
			ports[p] = true
		}
	}
	for _, pol := range w.Policies {
		for _, r := range slices.Concat(pol.Ingress, pol.Egress) {
			for _, p := range r.Ports {
				edge(p.First, p.Last)
			}
		}
	}
	addresses := explain.NewModel(w).Outside()
	for _, e := range w.Endpoints {
		addresses = append(addresses, e.Addresses...)
		for _, p := range e.Ports {
			edge(p.Number, p.Number)
		}
	}
	each := func(from, to netip.Addr) {
		for _, protocol := range []policy.Protocol{policy.TCP, policy.UDP, policy.SCTP} {
			for port := range ports {
				out = append(out, policy.Packet{From: from, To: to, Protocol: protocol, Port: port})
			}
		}
		out = append(out, policy.Packet{From: from, To: to, Protocol: 1})
	}
	for _, from := range addresses {
		for _, to := range addresses {
			if from.Is4() == to.Is4() {
				each(from, to)
			}
		}
	}
	return out
}

// differs returns a packet with different verdicts in the two worlds, "" if there is none.
func differs(judge func(*policy.World) func(policy.Packet) policy.Verdict, a, b *policy.World, packets []policy.Packet) string {
	one, two := judge(a), judge(b)
	for _, p := range packets {
		if x, y := one(p), two(p); x.Ingress.Allowed != y.Ingress.Allowed || x.Egress.Allowed != y.Egress.Allowed {
			return fmt.Sprintf("%+v: %+v, without %+v", p, x, y)
		}
	}
	return ""
}

func oracle(w *policy.World) func(policy.Packet) policy.Verdict {
	return func(p policy.Packet) policy.Verdict { return policy.Allowed(w, p) }
}

func model(w *policy.World) func(policy.Packet) policy.Verdict { return explain.NewModel(w).Judge }

// TestWhatIsNeedlessCanGo: all of it together, and no verdict changes; what always is covered, whatever pods there are.
func TestWhatIsNeedlessCanGo(t *testing.T) {
	found := map[string]int{}
	for seed := range uint64(100) {
		g := policytest.New(seed)
		w := g.World(4+g.IntN(6), 2+g.IntN(5))
		stage(g, w, seed%3 == 0)
		nameNamespaces(w)
		if seed%2 == 0 {
			crowd(w)
		}
		findings := Check(&Cluster{World: w})
		for _, f := range findings {
			found[f.Code]++
		}
		leavesDryRunsOut(t, w, only(findings, CoveredAlways, CoveredNow, PolicyNoEffect))
		needless := only(findings, CoveredAlways, CoveredNow, PolicyNoEffect)
		packets := tries(w)
		g.Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
		if d := differs(model, w, without(w, needless), packets); d != "" {
			t.Fatalf("seed %d: %s\nfindings %+v", seed, d, needless)
		}
		if d := differs(oracle, w, without(w, needless), packets[:min(300, len(packets))]); d != "" {
			t.Fatalf("seed %d, by the oracle: %s\nfindings %+v", seed, d, needless)
		}
		always := slices.DeleteFunc(only(findings, CoveredAlways, PolicyNoEffect), func(f Finding) bool { return f.Severity == Info })
		if len(always) == 0 {
			continue
		}
		other := g.World(8, 0)
		nameNamespaces(other)
		other.Policies = w.Policies
		if seed%2 == 0 {
			crowd(other)
		}
		if d := differs(model, other, without(other, always), tries(other)); d != "" {
			t.Fatalf("seed %d, with other pods: %s\nfindings %+v", seed, d, always)
		}
	}
	t.Log(found)
	for _, code := range []string{CoveredAlways, CoveredNow, PolicyNoEffect} {
		if found[code] < 5 {
			t.Errorf("%s was found %d times only", code, found[code])
		}
	}
}

// TestWhatIsLeftIsNeeded: each rule that is not found changes some verdict, when all that is found is gone.
func TestWhatIsLeftIsNeeded(t *testing.T) {
	looked := 0
	for seed := range uint64(40) {
		g := policytest.New(1000 + seed)
		w := g.World(4+g.IntN(3), 2+g.IntN(3))
		stage(g, w, seed%3 == 0)
		nameNamespaces(w)
		if seed%2 == 0 {
			crowd(w)
		}
		findings := only(Check(&Cluster{World: w}), CoveredAlways, CoveredNow, PolicyNoEffect)
		rest, packets := without(w, findings), tries(w)
		for _, f := range everyRule(rest) {
			if !passesAnything(rest, f, packets) {
				continue // it lets nothing through now, which other findings tell
			}
			looked++
			if differs(model, rest, without(rest, []Finding{f}), packets) == "" {
				t.Fatalf("seed %d: %s %s[%d] can go, and is not found among %+v", seed, f.Policy, f.Direction, f.Rule, findings)
			}
		}
	}
	if looked < 40 {
		t.Errorf("only %d rules were looked at", looked)
	}
}

// stage makes dry runs of some policies.
func stage(g policytest.Gen, w *policy.World, some bool) {
	for _, p := range w.Policies {
		p.DryRun = some && g.IntN(3) == 0
	}
}

// leavesDryRunsOut: they are not needless because they have no part in verdicts, nor is anything needless because of them.
func leavesDryRunsOut(t *testing.T, w *policy.World, findings []Finding) {
	t.Helper()
	for _, p := range w.Policies {
		for _, f := range findings {
			if p.DryRun && (f.Policy == p.ID() || slices.ContainsFunc(f.By, func(by string) bool { return strings.HasPrefix(by, p.ID()+" ") })) {
				t.Errorf("%s is a dry run: %+v", p.ID(), f)
			}
		}
	}
}

func everyRule(w *policy.World) (out []Finding) {
	for _, pol := range w.Policies {
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			for i := range explain.RulesOf(pol, d) {
				out = append(out, Finding{Code: CoveredNow, Policy: pol.ID(), Direction: d.String(), Rule: i})
			}
		}
	}
	return out
}

// passesAnything tells whether the rule is among those that allow some packet.
func passesAnything(w *policy.World, f Finding, packets []policy.Packet) bool {
	judge := model(w)
	o := policy.Origin{Policy: f.Policy, Rule: f.Rule}
	return slices.ContainsFunc(packets, func(p policy.Packet) bool {
		v := judge(p)
		side := v.Ingress
		if f.Direction == "egress" {
			side = v.Egress
		}
		return slices.Contains(side.By, o)
	})
}
