package query

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/kube"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// staged is a place with a default-deny and a policy that allows in a dry run on shop/api, and one on shopping/bag.
func staged(t *testing.T) *place {
	p := twoNodes(t)
	p.owner.engine.Apply(resolve.Batch{Policies: []*policy.Policy{
		{Namespace: "shop", Name: "deny", DryRun: true, IsolatesIngress: true},
		{Namespace: "shop", Name: "api", DryRun: true, AppliedTo: is("app", "api"), IsolatesIngress: true, IsolatesEgress: true, Ingress: []policy.PolicyRule{
			{Peers: []policy.Peer{{Pods: ptr(is("app", "db"))}}, Ports: []policy.PolicyPort{{Protocol: policy.TCP, First: 8080, Last: 8080}}}}},
		{Namespace: "shopping", Name: "bag", DryRun: true, AppliedTo: is("app", "bag"), IsolatesIngress: true}}})
	return p
}

// would is what a node counted of shop/api in a dry run, as counter is of what it enforced.
func would(rule int, packets uint64, since, last time.Duration) inspect.NodeCounter {
	c := counter(rule, packets, since, last)
	c.Policy, c.DryRun = "shop/api", true
	return c
}

// says has a node answer both queries.
func (p *place) says(node string, counted inspect.NodeCounters, denied inspect.NodeDrops) {
	p.nodes.answers[node] = func(q inspect.NodeQuery) any {
		switch {
		case q.Kind == inspect.QueryCounters:
			return counted
		case q.Drops != nil && q.Drops.DryRun == denied.DryRun:
			return denied
		}
		return errors.New("it was asked for something else")
	}
}

func dryRun(p *place, id string) (inspect.DryRuns, error) {
	return asked[inspect.DryRuns](p, inspect.Question{Kind: inspect.AskDryRuns, ID: id, DryRun: &inspect.DryRunQuestion{Counts: true, Pairs: &inspect.DropsQuestion{}}})
}

func TestDryRun(t *testing.T) {
	p := staged(t)
	enforced, other := counter(0, 1000, day, time.Second), would(0, 500, day, time.Second)
	enforced.Policy, other.Policy = "shop/api", "shop/deny"
	p.says("node1", tally("node1", day, would(0, 5, day, time.Hour), enforced), inspect.NodeDrops{DryRun: true})
	p.says("node2", tally("node2", day, would(0, 4, time.Hour, time.Minute), would(-1, 3, time.Hour, time.Minute), other), inspect.NodeDrops{DryRun: true,
		Cursor: inspect.Cursor{Epoch: 7, Seq: 9}, DropCounts: inspect.DropCounts{Left: 2}, Records: []inspect.DropRecord{
			record(1*time.Second, "ingress", "10.0.0.4", "10.0.0.3", 8080), record(2*time.Second, "ingress", "10.0.0.2", "10.0.0.3", 8080),
			record(3*time.Second, "ingress", "10.0.0.3", "10.0.0.4", 80), record(4*time.Second, "egress", "10.0.0.3", "198.51.100.1", 443)}})
	d, err := dryRun(p, "shop/api")
	if err != nil || len(d.Policies) != 1 || len(d.Nodes) != 2 || d.Revision == 0 {
		t.Fatalf("%+v, %v", d, err)
	}
	x := d.Policies[0]
	if x.Pods != 1 || x.Nodes != 1 || !slices.Equal(x.Directions, []string{"ingress", "egress"}) || !x.Since.IsZero() {
		t.Errorf("%+v", x)
	}
	var places []string
	for _, c := range x.Counters {
		places = append(places, fmt.Sprintf("%s %d: %d", c.Direction, c.Rule, c.Count.Packets))
	}
	if want := []string{"ingress -1: 3", "ingress 0: 9", "egress -1: 0"}; !slices.Equal(places, want) {
		t.Errorf("counted %q, want %q", places, want)
	}
	var pairs []string
	for _, x := range d.Pairs {
		pairs = append(pairs, fmt.Sprintf("%v %s %s%v→%s%v:%d by %v, %s (%s)%s", x.DryRun, x.Reason, x.From.Pod, x.From.Address, x.To.Pod, x.To.Address, x.Port, x.Policies, x.Rule, x.Failed, x.Note))
	}
	if want := []string{
		"true ingress shopping/bag10.0.0.4→shop/api10.0.0.3:8080 by [shop/api shop/deny], shop/api ingress[0] (pod " +
			"shopping/bag is not in namespace shop, pod shopping/bag has app=bag, wanted: app=db)",
		"true egress shop/api10.0.0.3→198.51.100.1:443 by [shop/api], shop/api (it has no egress rules)",
	}; !slices.Equal(pairs, want) {
		t.Errorf("pairs\n%s\nwant\n%s", strings.Join(pairs, "\n"), strings.Join(want, "\n"))
	}
	if d.Pairs[0].Remedy == "" || d.Nodes[1].Cursor != (inspect.Cursor{Epoch: 7, Seq: 9}) || d.Nodes[1].Left != 2 || d.Nodes[1].Since.IsZero() {
		t.Errorf("%+v, %+v", d.Pairs[0], d.Nodes[1])
	}
	all, err := asked[inspect.DryRuns](p, inspect.Question{Kind: inspect.AskDryRuns, DryRun: &inspect.DryRunQuestion{Pairs: &inspect.DropsQuestion{After: map[string]inspect.Cursor{"node2": {Epoch: 7, Seq: 9}}}}})
	if err != nil || len(all.Policies) != 3 || len(all.Pairs) != 3 || all.Policies[1].Counters != nil {
		t.Errorf("all: %+v, %v", all, err)
	}
	if i := slices.IndexFunc(p.nodes.asked, func(q inspect.NodeQuery) bool { return q.Drops != nil && q.Drops.Seq == 9 }); i < 0 {
		t.Error("a node is not told what was read")
	}
}

// Whatever is enforced, or was, is not told as a dry run's; nor the other way.
func TestDryRunsAreCountedSeparately(t *testing.T) {
	p := staged(t)
	before := would(0, 70, day, time.Minute)
	before.Policy = "shop/db"
	p.counting(tally("node1", day, counter(0, 5, day, time.Minute), before, would(-1, 3, day, time.Minute)))
	c, err := asked[inspect.Counters](p, inspect.Question{Kind: inspect.AskCounters})
	if err != nil || slices.ContainsFunc(c.Counters, func(x inspect.Counter) bool { return x.Policy == "shop/api" || x.Count.Packets > 5 }) {
		t.Errorf("%+v, %v", c, err)
	}
	u, err := asked[inspect.Unused](p, inspect.Question{Kind: inspect.AskUnused, Since: time.Hour})
	if err != nil || len(u.Rules)+len(u.Unsure)+u.Used != 3 {
		t.Errorf("%+v, %v", u, err)
	}
	p.owner.engine.Apply(resolve.Batch{Policies: []*policy.Policy{{Namespace: "calm", Name: "only", DryRun: true, IsolatesIngress: true}}})
	if c, err := asked[inspect.Counters](p, inspect.Question{Kind: inspect.AskCounters, Namespace: "calm"}); err != nil || len(c.Counters) != 0 {
		t.Errorf("of a namespace with nothing but dry runs: %+v, %v", c, err)
	}
}

func TestDryRunOfEnforcedPolicyIsRejected(t *testing.T) {
	p := staged(t)
	p.owner.engine.Apply(resolve.Batch{Policies: []*policy.Policy{{Namespace: "shop", Name: "odd", IsolatesIngress: true, Problems: []string{"annotation " + kube.Enforcement + " cannot be \"dry\""}}}})
	for id, want := range map[string]string{
		"shop/none": "there is no policy shop/none",
		"shop/db": "policy shop/db is enforced, not in a dry run: kubectl annotate --overwrite networkpolicy " +
			"-n shop db flowkeep.io/enforcement=dry-run starts one",
		"shop/odd": `is enforced, not in a dry run (annotation flowkeep.io/enforcement cannot be "dry")`,
	} {
		code := codes.FailedPrecondition
		if id == "shop/none" {
			code = codes.NotFound
		}
		if _, err := dryRun(p, id); status.Code(err) != code || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", id, err, want)
		}
	}
	if _, err := asked[inspect.DryRuns](p, inspect.Question{Kind: inspect.AskDryRuns, Namespace: "nowhere"}); status.Code(err) != codes.NotFound {
		t.Errorf("a namespace that is not: %v", err)
	}
	d, err := asked[inspect.DryRuns](p, inspect.Question{Kind: inspect.AskDryRuns, Namespace: "shop"})
	if err != nil || len(d.Policies) != 2 || len(d.Nodes) != 0 || len(p.nodes.asked) != 0 {
		t.Errorf("which there are: %+v, %v; nodes were asked %v", d, err, p.nodes.asked)
	}
}

// A node that is older tells of what it denied: that is no dry run's. One that is away is named, and keeps nobody waiting twice.
func TestDryRuns_NodesWithoutReport(t *testing.T) {
	p := staged(t)
	p.nodes.answers["node1"] = func(q inspect.NodeQuery) any {
		if q.Kind == inspect.QueryCounters {
			return tally("node1", day)
		}
		return inspect.NodeDrops{Records: []inspect.DropRecord{record(0, "ingress", "10.0.0.4", "10.0.0.3", 8080)}}
	}
	p.nodes.list = append(p.nodes.list, feed.NodeStatus{Name: "node3", Connected: true})
	p.says("node3", tally("node3", day, would(-1, 3, day, day)), inspect.NodeDrops{DryRun: true, Problem: "denied packets are not reported"})
	d, err := dryRun(p, "shop/api")
	if err != nil || len(d.Pairs) != 0 || len(d.Nodes) != 3 {
		t.Fatalf("%+v, %v", d, err)
	}
	for i, want := range []string{"node node1: its netplugin is too old", "no proof today", "node node3: " +
		"denied packets are not reported"} {
		if !strings.Contains(d.Nodes[i].Problem, want) {
			t.Errorf("%+v does not say %q", d.Nodes[i], want)
		}
	}
	if d.Policies[0].Counters[0].Count.Packets != 3 {
		t.Errorf("what the others counted: %+v", d.Policies[0])
	}
}

// What policies in force deny at its other end, of which the node that told knows nothing, would not have been denied by a dry run alone
// (policy.DryRun): the answer has a note.
func TestDryRunPairs_AlreadyDenied(t *testing.T) {
	p := staged(t)
	there, open := record(0, "egress", "10.0.0.3", "10.0.0.4", 80), record(0, "egress", "10.0.0.3", "10.0.0.5", 80)
	p.says("node1", tally("node1", day), inspect.NodeDrops{DryRun: true})
	p.says("node2", tally("node2", day), inspect.NodeDrops{DryRun: true, Records: []inspect.DropRecord{there, open}})
	notes := func() (list []string) {
		t.Helper()
		d, err := dryRun(p, "shop/api")
		if err != nil || len(d.Pairs) != 2 {
			t.Fatalf("%+v, %v", d, err)
		}
		for _, x := range d.Pairs {
			if !slices.Equal(x.Policies, []string{"shop/api"}) || x.Failed == "" {
				t.Errorf("%+v", x)
			}
			list = append(list, x.Note)
		}
		return list
	}
	if got := notes(); !slices.Equal(got, []string{"", ""}) {
		t.Errorf("%q", got)
	}
	p.owner.engine.Apply(resolve.Batch{Policies: []*policy.Policy{{Namespace: "shopping", Name: "closed", AppliedTo: is("app", "bag"), IsolatesIngress: true}}})
	if got := notes(); !slices.Equal(got, []string{"it is denied already by shopping/closed (ingress)", ""}) {
		t.Errorf("%q", got)
	}
}

// What the policies of then would have denied, and those of now would not, is told of those of then.
func TestDryRunPairs_ChangedPolicies(t *testing.T) {
	p := staged(t)
	old := record(0, "ingress", "10.0.0.2", "10.0.0.3", 8080)
	old.Policies = []policy.Origin{{Policy: "shop/api", Rule: -1}}
	p.says("node1", tally("node1", day), inspect.NodeDrops{DryRun: true})
	p.says("node2", tally("node2", day), inspect.NodeDrops{DryRun: true, Records: []inspect.DropRecord{old}})
	d, err := dryRun(p, "shop/api")
	if err != nil || len(d.Pairs) != 1 || !strings.Contains(d.Pairs[0].Note, "would allow it") || !slices.Equal(d.Pairs[0].Policies, []string{"shop/api"}) {
		t.Errorf("%+v, %v", d, err)
	}
	gone := record(0, "egress", "10.0.0.8", "198.51.100.1", 443)
	gone.Pod, gone.Policies = "shop/job-1", []policy.Origin{{Policy: "shop/api", Rule: -1}}
	taken := gone
	taken.From = netip.MustParseAddr("10.0.0.4") // shopping/bag has it now
	twin := record(0, "ingress", "10.0.0.3", "10.0.0.5", 80)
	twin.Pod = "shopping/twin2"
	p.owner.engine.Apply(resolve.Batch{Policies: []*policy.Policy{{Namespace: "shopping", Name: "twins", DryRun: true, AppliedTo: is("app", "x"), IsolatesIngress: true}}})
	p.says("node2", tally("node2", day), inspect.NodeDrops{DryRun: true, Records: []inspect.DropRecord{gone, taken, twin}})
	d, err = dryRun(p, "shop/api")
	if err != nil || len(d.Pairs) != 2 {
		t.Fatalf("of a pod that is gone: %+v, %v", d, err)
	}
	for _, x := range d.Pairs {
		if x.From.Pod != "shop/job-1" || x.Note != "shop/job-1 no longer has this address" || x.Rule != "" {
			t.Errorf("of a pod that is gone: %+v", x)
		}
	}
	if d, err = dryRun(p, "shopping/twins"); err != nil || len(d.Pairs) != 1 || d.Pairs[0].Note != "" || d.Pairs[0].Rule == "" {
		t.Errorf("of an address that two pods claim: %+v, %v", d, err)
	}
	if d, err = dryRun(p, "shop/deny"); err != nil || len(d.Pairs) != 0 {
		t.Errorf("of another policy: %+v, %v", d, err)
	}
}

// TestDryRunPairsMatchOracle: a line names the policies that would have denied it, all of them, or says why there is nothing that they would.
func TestDryRunPairsMatchOracle(t *testing.T) {
	const pods = 12
	would, not := 0, 0
	for seed := range uint64(40) {
		g := policytest.New(7000 + seed)
		w := g.World(pods, 6)
		for _, p := range w.Policies {
			p.DryRun = g.IntN(3) > 0
		}
		inForce, enforced := explain.NewModel(w), explain.NewModel(explain.Enforced(w))
		for range 100 {
			p := g.Packet(pods)
			want := policy.DryRun(w, p)
			for reason, side := range map[string]policy.SideVerdict{inspect.DroppedByEgress: want.Egress, inspect.DroppedByIngress: want.Ingress} {
				d := inspect.Drop{DryRun: true, Reason: reason}
				explainDrop(enforced, &d, p)
				deniedAlready(inForce, &d, p)
				slices.Sort(d.Policies)
				switch {
				case side.Allowed:
					if not++; d.Note == "" {
						t.Errorf("seed %d, %+v at %s: %+v, would be allowed", seed, p, reason, d)
					}
				default:
					if would++; d.Note != "" || !slices.Equal(d.Policies, slices.Sorted(slices.Values(side.Isolated))) {
						t.Errorf("seed %d, %+v at %s: %+v, want %v", seed, p, reason, d, side.Isolated)
					}
				}
			}
		}
	}
	if would < not/50 {
		t.Errorf("%d would be denied, %d not: little is shown", would, not)
	}
}
