package verdicts

import (
	"maps"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// dryRuns makes half of the policies dry runs.
func dryRuns(g policytest.Gen, w *policy.World) {
	for _, p := range w.Policies {
		p.DryRun = g.IntN(2) == 0
	}
}

// dryRunTables are the tables of a side that evaluate a packet, and those that sample it.
var dryRunTables = map[policy.Direction][2]uint8{
	policy.Egress:  {pipeline.TableEgressDryRunRules, pipeline.TableEgressDryRunDenied},
	policy.Ingress: {pipeline.TableIngressDryRunRules, pipeline.TableIngressDryRunDenied},
}

// wouldDeny are the policies that a packet met as isolating in a dry run, nil where it met none, and how often it was told of; with
// anew behind the commit of its connection alone, else before it.
func (b *bridge) wouldDeny(r *fake.Result, d policy.Direction, anew bool) (policies []string, told int) {
	for _, s := range r.Steps {
		if s.Flow == nil {
			continue
		}
		if s.Table == dryRunTables[d][1] && (s.Flow.Match.Reg[7].Value == 1) == anew {
			told++
		}
		kind, id, _ := pipeline.ParseCookie(s.Flow.Cookie)
		if s.Table != dryRunTables[d][0] || kind != pipeline.KindDefaultDrop || (s.Flow.Match.Reg[7].Value == 1) != anew {
			continue
		}
		for _, o := range b.compiler.Isolating(id) {
			policies = append(policies, o.Policy)
		}
	}
	slices.Sort(policies)
	return slices.Compact(policies), told
}

// expectDryRun compares the tables that a packet passed with the oracle's dry runs, at each end on this node.
func (b *bridge) expectDryRun(p *fake.Packet, r *fake.Result, want policy.Verdict, anew bool) {
	b.t.Helper()
	for d, v := range map[policy.Direction]policy.SideVerdict{policy.Egress: want.Egress, policy.Ingress: want.Ingress} {
		var isolated []string
		times := 0
		if !v.Allowed {
			isolated, times = slices.Sorted(slices.Values(v.Isolated)), 1
		}
		if got, told := b.wouldDeny(r, d, anew); !slices.Equal(got, isolated) || told != times {
			b.t.Errorf("%s: %v by %v in a dry run, told of %d times, want %v\n%s", p, d, got, told, isolated, r)
		}
	}
}

// TestDryRunsSayWhatTheOracleSays: whole connections through random worlds in which some policies are dry runs: no verdict is another for
// them, and of each connection that is committed, and of each of its packets, it is told and counted what the oracle says of it.
func TestDryRunsSayWhatTheOracleSays(t *testing.T) {
	dryRun, passed := 0, 0
	for seed := range *fakeWorlds {
		g := policytest.New(uint64(9000 + seed))
		w := g.World(pods, 6)
		onOneNode(w)
		dryRuns(g, w)
		if seed%2 == 1 {
			manyBlocks(g, w)
		}
		b := newBridge(t, w)
		for range 100 {
			p := g.Packet(pods)
			if !b.traceable(p) {
				continue
			}
			want, dry := policy.Allowed(w, p), policy.DryRun(w, p)
			request := packetOf(p)
			request.SrcPort = uint16(1024 + g.IntN(60000))
			ok, r := b.send(request)
			if ok != want.Allowed {
				t.Errorf("%s%s: passes %v, want %+v\n%s", leak(!want.Allowed), &request, ok, want, r)
			}
			b.expectDryRun(&request, r, dry, true)
			told := 1
			if want.Allowed {
				told = map[bool]int{false: 1}[dry.Egress.Allowed] + map[bool]int{false: 1}[dry.Ingress.Allowed]
			}
			if r.Told != told {
				t.Errorf("%s: told of %d times in all, want %d (%+v, %+v)\n%s", &request, r.Told, told, want, dry, r)
			}
			if !want.Allowed {
				continue
			}
			if passed++; !dry.Allowed {
				dryRun++
			}
			for _, packet := range []fake.Packet{request.Reply(), request} {
				ok, r := b.send(packet)
				if !ok {
					t.Errorf("%s: is denied\n%s", &packet, r)
				}
				b.expectDryRun(&packet, r, dry, false)
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if dryRun < passed/20 || dryRun > passed*19/20 {
		t.Errorf("of %d connections dry runs would deny %d: little is shown", passed, dryRun)
	}
}

// TestDryRunsComeAndGo: policies become dry runs and are put in force again while connections live. Each packet is judged by what is in
// force then, and the flows at the end are those of a node that knows nothing else.
func TestDryRunsComeAndGo(t *testing.T) {
	for seed := range *fakeWorlds / 2 {
		g := policytest.New(uint64(9500 + seed))
		w := g.World(pods, 5)
		onOneNode(w)
		b := newBridge(t, w)
		var live []policy.Packet
		for range 60 {
			if p := g.Packet(pods); b.traceable(p) && policy.Allowed(w, p).Allowed {
				request := packetOf(p)
				b.expect(request, true, "opens")
				b.expect(request.Reply(), true, "is answered")
				live = append(live, p)
			}
		}
		for range 8 {
			at := g.IntN(len(w.Policies))
			changed := *w.Policies[at]
			changed.DryRun = !changed.DryRun
			w.Policies[at] = &changed
			b.apply(resolve.Batch{Policies: []*policy.Policy{&changed}})
			for _, p := range live {
				want := policy.Allowed(w, p)
				request := packetOf(p)
				request.MidStream = true
				ok, r := b.send(request)
				if ok != want.Allowed {
					t.Errorf("%s%s: passes %v, want %+v\n%s", leak(!want.Allowed), &request, ok, want, r)
				}
				if want.Allowed {
					b.expectDryRun(&request, r, policy.DryRun(w, p), false)
				}
			}
		}
		fresh := newBridge(t, w)
		if got, want := unnumbered(b), unnumbered(fresh); !maps.Equal(got, want) {
			t.Errorf("%d kinds of flows, on a fresh node %d", len(got), len(want))
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// unnumbered counts a node's flows by table, priority and kind: ids follow from the history.
func unnumbered(b *bridge) map[[3]int]int {
	out := map[[3]int]int{}
	for _, f := range b.compiler.Flows() {
		kind, _, _ := pipeline.ParseCookie(f.Cookie)
		out[[3]int{int(f.Table), int(f.Priority), int(kind)}]++
	}
	return out
}
