package verdicts

import (
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netplugin/conntrack"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// TestCutsAreWhatTheOracleTakesAway: of random connections through random changes, exactly those are counted as cut that the oracle
// allowed before and does not after, each for a rule that the oracle names. Several changes may be looked at together: what any of them
// allowed counts.
func TestCutsAreWhatTheOracleTakesAway(t *testing.T) {
	total := 0
	for seed := range 2 * *fakeWorlds {
		g := policytest.New(uint64(5000 + seed))
		w := g.StagedWorld(pods, 5)
		onOneNode(w)
		engine, judge := resolve.New(0), conntrack.NewJudge()
		update := func(b resolve.Batch) []conntrack.Change {
			ch, _ := engine.Apply(b)
			u := deltaFor(ch, "node1")
			return []conntrack.Change{{Update: &u}}
		}
		changes := update(resolve.Batch{Namespaces: w.Namespaces, Endpoints: w.Endpoints, Policies: w.Policies})
		changes[0].Begin = true
		var packets []policy.Packet
		var live []conntrack.Tuple
		for range 200 {
			p := g.Packet(pods)
			packets = append(packets, p)
			live = append(live, conntrack.Tuple{Protocol: p.Protocol, Src: p.From, Dst: p.To, SrcPort: 999, DstPort: p.Port})
		}
		if cuts := judge.Cuts(changes, live); len(cuts) != 0 {
			t.Fatalf("seed %d: cut before anything changed: %+v", seed, cuts)
		}
		for range 6 {
			before := make([]policy.Verdict, len(packets))
			for i, p := range packets {
				before[i] = policy.Allowed(w, p)
				if v := judge.Verdict(live[i]); v.Allowed != before[i].Allowed {
					t.Fatalf("%sseed %d: %v: judged %v, the oracle says %+v", leak(v.Allowed), seed, live[i], v.Allowed, before[i])
				}
			}
			changes := update(somethingChanges(g, w))
			for range g.IntN(4) {
				for i, p := range packets {
					if v := policy.Allowed(w, p); v.Allowed {
						before[i] = v
					}
				}
				changes = append(changes, update(somethingChanges(g, w))...)
			}
			cuts := judge.Cuts(changes, live)
			want := 0
			for i, p := range packets {
				if now := policy.Allowed(w, p); before[i].Allowed && !now.Allowed {
					want++
				}
			}
			counted := 0
			for i := range cuts {
				counted += cuts[i].Count
				livedOnWhatTheOracleSays(t, &cuts[i], before, packets)
			}
			if total += counted; counted != want {
				t.Fatalf("%sseed %d: %d counted as cut, %d were", leak(counted < want), seed, counted, want)
			}
		}
	}
	if total == 0 {
		t.Error("nothing was ever cut: nothing is shown")
	}
}

// somethingChanges edits a policy, or the labels of a pod, in the world and as a batch.
func somethingChanges(g policytest.Gen, w *policy.World) resolve.Batch {
	if g.IntN(2) == 0 {
		changed := g.Staged(g.IntN(5))
		if at := slices.IndexFunc(w.Policies, func(p *policy.Policy) bool { return p.ID() == changed.ID() }); at >= 0 {
			w.Policies[at] = changed
			return resolve.Batch{Policies: []*policy.Policy{changed}}
		}
	}
	at := g.IntN(len(w.Endpoints))
	e := *w.Endpoints[at]
	e.Labels = w.Endpoints[g.IntN(len(w.Endpoints))].Labels
	w.Endpoints[at] = &e
	return resolve.Batch{Endpoints: []*policy.Endpoint{&e}}
}

// livedOnWhatTheOracleSays holds the example of a cut to the rules that allowed it.
func livedOnWhatTheOracleSays(t *testing.T, c *conntrack.Cut, before []policy.Verdict, packets []policy.Packet) {
	t.Helper()
	at := slices.IndexFunc(packets, func(p policy.Packet) bool {
		return p.From == c.Example.Src && p.To == c.Example.Dst && p.Port == c.Example.DstPort && p.Protocol == c.Example.Protocol
	})
	side := before[at].Ingress
	if c.Direction == policy.Egress {
		side = before[at].Egress
	}
	if c.LivedOn == nil {
		if len(side.Isolated) > 0 {
			t.Errorf("%v lived on no rule, the oracle says %v", c.Example, side.By)
		}
		return
	}
	if !slices.ContainsFunc(c.LivedOn.Origins, func(o policy.Origin) bool { return slices.Contains(side.By, o) }) {
		t.Errorf("%v lived on %v, the oracle says %v", c.Example, c.LivedOn.Origins, side.By)
	}
}
