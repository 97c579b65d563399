package query

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/lint"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const day = 24 * time.Hour

func ago(d time.Duration) time.Time { return time.Now().Add(-d) }

// tally is what a node tells that has counted for a time.
func tally(node string, since time.Duration, counters ...inspect.NodeCounter) inspect.NodeCounters {
	return inspect.NodeCounters{Node: node, Since: ago(since), Read: time.Now(), Counters: counters}
}

// counter is of a rule of shop/db, that has been there for a time and counted last a time ago; 0: never.
func counter(rule int, packets uint64, since, last time.Duration) inspect.NodeCounter {
	c := inspect.NodeCounter{Policy: "shop/db", Direction: "ingress", Rule: rule, Count: inspect.Count{Packets: packets, Bytes: 10 * packets, Connections: 1}, Rate: inspect.Rate{Packets: 2}, Since: ago(since), InForce: true}
	if last != 0 {
		at := ago(last)
		c.Last = &at
	}
	return c
}

func (p *place) counting(answers ...inspect.NodeCounters) {
	p.nodes.list = nil
	for _, a := range answers {
		p.nodes.list = append(p.nodes.list, feed.NodeStatus{Name: a.Node, Connected: true})
		p.nodes.answers[a.Node] = a
	}
}

// TestCountsAreSummedOverNodes, of policies that there are, and no others.
func TestCountsAreSummedOverNodes(t *testing.T) {
	p := newPlace(t)
	gone, forged := counter(0, 7, day, day), counter(9, 9, day, day)
	gone.Policy = "shop/gone"
	p.counting(tally("node1", day, counter(0, 5, day, time.Hour), counter(-1, 3, day, day), gone, forged), tally("node2", day, counter(0, 4, day, time.Minute)))
	p.nodes.list = append(p.nodes.list, feed.NodeStatus{Name: "node3"})
	p.nodes.answers["node3"] = errors.New("node node3 is not connected")
	c, err := asked[inspect.Counters](p, inspect.Question{Kind: inspect.AskCounters})
	if err != nil || len(c.Nodes) != 3 || c.Nodes[2].Problem == "" || c.Nodes[0].Problem != "" {
		t.Fatalf("%+v, %v", c, err)
	}
	var places []string
	for _, x := range c.Counters {
		places = append(places, fmt.Sprintf("%s %s %d: %d", x.Policy, x.Direction, x.Rule, x.Count.Packets))
	}
	want := []string{"shop/db ingress -1: 3", "shop/db ingress 0: 9", "shop/db ingress 1: 0", "shop/db ingress 2: 0", "shop/db egress -1: 0", "shopping/none ingress -1: 0"}
	if !slices.Equal(places, want) {
		t.Errorf("counted\n%s\nwant\n%s", strings.Join(places, "\n"), strings.Join(want, "\n"))
	}
	if x := c.Counters[1]; x.Count.Bytes != 90 || x.Count.Connections != 2 || x.Rate.Packets != 4 || time.Since(*x.Last) > 2*time.Minute || x.Nodes != 1 {
		t.Errorf("of two nodes: %+v", x)
	}
	if _, err := asked[inspect.Counters](p, inspect.Question{Kind: inspect.AskCounters, Namespace: "nowhere"}); status.Code(err) != codes.NotFound {
		t.Errorf("of a namespace that is not: %v", err)
	}
	if c, err = asked[inspect.Counters](p, inspect.Question{Kind: inspect.AskCounters, Namespace: "shopping"}); err != nil || len(c.Counters) != 1 {
		t.Errorf("of one namespace: %+v, %v", c, err)
	}
}

// TestCounters_SiteUnknownToNode have what all that have the rule have together.
func TestCounters_SiteUnknownToNode(t *testing.T) {
	p := newPlace(t)
	var key policy.Key
	for _, r := range p.owner.engine.RuleRefs("shop/db") {
		if r.Direction == policy.Ingress && r.Index == 1 {
			key = r.Key
		}
	}
	shared := counter(0, 50, day, day)
	shared.Policy, shared.Key = "", &key
	p.counting(tally("node1", day, counter(0, 5, day, day), counter(1, 2, day, day), shared))
	c, err := asked[inspect.Counters](p, inspect.Question{Kind: inspect.AskCounters})
	if err != nil || c.Counters[1].Count.Packets != 5 || c.Counters[2].Count.Packets != 50 {
		t.Errorf("%+v, %v", c.Counters, err)
	}
	shared.Count.Packets, shared.Last = 1, ptr(ago(time.Minute)) // the node knew the place longer, and no longer does
	p.counting(tally("node1", day, counter(0, 5, day, day), counter(1, 2, day, day), shared))
	c, err = asked[inspect.Counters](p, inspect.Question{Kind: inspect.AskCounters})
	if err != nil || c.Counters[2].Count.Packets != 2 || time.Since(*c.Counters[2].Last) > time.Hour {
		t.Errorf("%+v, %v", c.Counters, err)
	}
}

// TestUnused_UncertainRulesAreNotReported: what a node that matters does not know is not known.
func TestUnused_UncertainRulesAreNotReported(t *testing.T) {
	all := func(since, last time.Duration) []inspect.NodeCounter {
		return []inspect.NodeCounter{counter(0, 1, since, last), counter(1, 0, since, 0), counter(2, 0, since, 0)}
	}
	stale := tally("node1", 30*day, all(30*day, 10*day)...)
	stale.Problem = "Open vSwitch is away"
	late := tally("node1", 50*day, all(50*day, 9*day)...)
	late.Now = ago(2 * day)
	late.Counters[0].Last = ptr(ago(8 * day)) // six days ago
	for _, c := range []struct {
		what         string
		nodes        []inspect.NodeCounters
		unused, used int
		unsure       string
	}{
		{"all known", []inspect.NodeCounters{tally("node1", 30*day, all(30*day, 10*day)...)}, 3, 0, ""},
		{"one used", []inspect.NodeCounters{tally("node1", 30*day, all(30*day, day)...)}, 2, 1, ""},
		{"one used elsewhere", []inspect.NodeCounters{tally("node1", 30*day, all(30*day, 10*day)...), tally("node2", day, counter(0, 1, day, time.Minute))}, 2, 1, ""},
		{"a node that counts for a day", []inspect.NodeCounters{tally("node1", day, all(day, 0)...)}, 0, 0, "node node1 counts only since"},
		{"a rule that was edited", []inspect.NodeCounters{tally("node1", 30*day, all(day, 10*day)...)}, 0, 0, "its present rules are counted only since"},
		{"a node without such pods that counts for a day", []inspect.NodeCounters{tally("node1", 30*day, all(30*day, 10*day)...), tally("node2", day)}, 3, 0, ""},
		{"a switch that is away", []inspect.NodeCounters{stale}, 0, 0, "Open vSwitch is away"},
		{"a clock that is late", []inspect.NodeCounters{late}, 2, 1, ""},
		{"a node that has not counted yet", []inspect.NodeCounters{tally("node1", 30*day)}, 0, 0, "no node has counted for it yet"},
		{"the node is not known", []inspect.NodeCounters{tally("node2", 30*day, all(30*day, 10*day)...)}, 0, 0, "node node1 is not connected"},
	} {
		p := newPlace(t)
		p.counting(c.nodes...)
		u, err := asked[inspect.Unused](p, inspect.Question{Kind: inspect.AskUnused, Since: 7 * day})
		if err != nil || len(u.Rules) != c.unused || u.Used != c.used || len(u.Rules)+len(u.Unsure)+u.Used != 3 {
			t.Errorf("%s: %+v, %v", c.what, u, err)
		}
		if c.unsure != "" && (len(u.Unsure) == 0 || !strings.Contains(strings.Join(u.Unsure[0].Unsure, "; "), c.unsure)) {
			t.Errorf("%s: %+v does not say %q", c.what, u.Unsure, c.unsure)
		}
	}
	p := newPlace(t)
	p.nodes.list = []feed.NodeStatus{{Name: "node1", Connected: true}}
	p.nodes.answers["node1"] = errors.New(`this netplugin knows no query "counters"`)
	u, err := asked[inspect.Unused](p, inspect.Question{Kind: inspect.AskUnused, Since: day})
	if err != nil || len(u.Unsure) != 3 || len(u.Rules) != 0 || u.Nodes[0].Problem == "" {
		t.Errorf("a netplugin of an older version: %+v, %v", u, err)
	}
	if _, err := asked[inspect.Unused](p, inspect.Question{Kind: inspect.AskUnused}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("since never: %v", err)
	}
}

// TestUnused_Reasons checks that an unused rule has a reason only where the policies contain one.
func TestUnused_Reasons(t *testing.T) {
	p := newPlace(t)
	api := is("app", "api")
	p.owner.engine.Apply(resolve.Batch{Policies: []*policy.Policy{{Namespace: "shop", Name: "db", AppliedTo: is("app", "db"), IsolatesIngress: true, Ingress: []policy.PolicyRule{
		{Peers: []policy.Peer{{Pods: &api}}, AnyPort: true}, {Peers: []policy.Peer{{Pods: &api}}, Ports: []policy.PolicyPort{{Protocol: policy.TCP, First: 80, Last: 80}}}}}}})
	p.counting(tally("node1", 30*day, counter(0, 1, 30*day, 10*day), counter(1, 0, 30*day, 0)))
	u, err := asked[inspect.Unused](p, inspect.Question{Kind: inspect.AskUnused, Since: 7 * day, Namespace: "shop"})
	if err != nil || len(u.Rules) != 2 || len(u.Rules[0].Why) != 0 || len(u.Rules[1].Why) != 1 || !strings.HasPrefix(u.Rules[1].Why[0], lint.CoveredAlways+" shop/db ingress[0] allows all that it allows") {
		t.Errorf("%+v, %v", u, err)
	}
}

func TestLintOfTheCluster(t *testing.T) {
	p := newPlace(t)
	p.nodes.infos = []policy.NodeInfo{{Name: "node1", PodCIDRs: nil}}
	l, err := asked[inspect.Lint](p, inspect.Question{Kind: inspect.AskLint})
	if err != nil || l.Revision == 0 || l.Policies != 2 {
		t.Fatalf("%+v, %v", l, err)
	}
	found := map[string]string{}
	for _, f := range l.Findings {
		found[f.Code] = f.Policy
	}
	if found[lint.NobodyIsolated] != "shopping/none" || found[lint.NotUnderstood] != "shop/db" {
		t.Errorf("found %v", found)
	}
	if l, err = asked[inspect.Lint](p, inspect.Question{Kind: inspect.AskLint, Namespace: "shopping"}); err != nil || len(l.Findings) != 1 || l.Policies != 1 {
		t.Errorf("in one namespace: %+v, %v", l, err)
	}
	if _, err = asked[inspect.Lint](p, inspect.Question{Kind: inspect.AskLint, Namespace: "nowhere"}); status.Code(err) != codes.NotFound {
		t.Errorf("in a namespace that is not: %v", err)
	}
}
