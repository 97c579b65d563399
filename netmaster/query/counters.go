package query

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// site is a rule of a policy in one direction, or the policy's isolation in it. Nodes count per site.
type site struct {
	policy    string
	direction policy.Direction
	rule      int
}

// siteCounter is the sum of all nodes' counters for a site of an existing policy.
type siteCounter struct {
	site
	inspect.Counter
	since time.Time // start of the earliest count; zero if no node counts
	nodes []string  // nodes that the policy applies on
}

// counters returns the counters of a namespace's policies, summed over all nodes.
func (s *trafficQueries) counters(ctx context.Context, q *inspect.Question) (any, error) {
	nodes, told, err := s.count(ctx, scope{namespace: q.Namespace})
	if err != nil {
		return nil, err
	}
	out := inspect.Counters{Time: time.Now(), Nodes: nodes, Counters: make([]inspect.Counter, 0, len(told))}
	for i := range told {
		out.Counters = append(out.Counters, told[i].Counter)
	}
	return out, nil
}

// scope selects policies to count for: enforced ones, or those in a dry run. Nodes count for these separately.
type scope struct {
	namespace string // empty: all
	id        string // empty: all of the namespace
	dryRun    bool
}

// policies returns the IDs of the policies in the scope.
func (x *scope) policies(e *resolve.Engine) []string {
	list := []string{x.id}
	if x.id == "" {
		list = e.Policies()
	}
	return slices.DeleteFunc(list, func(id string) bool {
		p := e.PolicyObject(id)
		return p == nil || p.DryRun != x.dryRun || !isIn(id, x.namespace)
	})
}

// isIn reports whether an ID is in the namespace. An empty namespace contains all.
func isIn(id, namespace string) bool { return namespace == "" || strings.HasPrefix(id, namespace+"/") }

// check returns an error if neither policies nor pods are known in the namespace.
func (x *scope) check(e *resolve.Engine) error {
	there := func(id string) bool { return isIn(id, x.namespace) }
	if x.namespace == "" || slices.ContainsFunc(e.Policies(), there) ||
		len(e.Select(policy.GroupSpec{Namespace: x.namespace})) > 0 {
		return nil
	}
	return status.Errorf(codes.NotFound, "there are no policies in a namespace %s", x.namespace)
}

// count queries all nodes for their counters and sums them for the policies that exist.
func (s *trafficQueries) count(ctx context.Context, x scope) ([]inspect.CountingNode, []siteCounter, error) {
	ctx, cancel := inTime(ctx)
	defer cancel()
	sum := sums{dryRun: x.dryRun, at: map[site]*siteCounter{}}
	var list []siteCounter
	var unknown error
	err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		if list, sum.refs = sites(e, &x); len(list) == 0 {
			unknown = x.check(e)
		}
	})
	if err = cmp.Or(err, unknown); err != nil {
		return nil, nil, err
	}
	for i := range list {
		sum.at[list[i].site] = &list[i]
	}
	var nodes []inspect.CountingNode
	for _, n := range s.cfg.Nodes.Nodes() {
		nodes = append(nodes, inspect.CountingNode{Name: n.Name})
	}
	slices.SortFunc(nodes, func(a, b inspect.CountingNode) int { return cmp.Compare(a.Name, b.Name) })
	var all sync.WaitGroup
	for i := range nodes {
		n := &nodes[i]
		all.Go(func() {
			body, err := s.queryNode(ctx, n.Name,
				inspect.NodeQuery{Kind: inspect.QueryCounters, Namespace: x.namespace})
			if err == nil {
				err = sum.add(n, body)
			}
			if err != nil {
				n.Problem = err.Error()
			}
			n.Problem = named(n.Name, n.Problem)
		})
	}
	all.Wait()
	return nodes, list, nil
}

// named returns a node's problem with the node's name in it.
func named(node, problem string) string {
	if problem == "" || strings.Contains(problem, node) {
		return problem
	}
	return fmt.Sprintf("node %s: %s", node, problem)
}

// sums adds up the counters of nodes. Safe for concurrent use.
type sums struct {
	dryRun bool
	mu     sync.Mutex
	at     map[site]*siteCounter
	refs   map[site][]policy.Key // rules of each site
}

// add decodes and adds the counters of one node. The lock lets one response at a time be decoded, to bound memory.
func (s *sums) add(n *inspect.CountingNode, body []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var answer inspect.NodeCounters
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("its answer: %w", err)
	}
	setClock(&answer, time.Now())
	n.Since, n.Problem = answer.Since, answer.Problem
	answer.Counters = slices.DeleteFunc(answer.Counters,
		func(c inspect.NodeCounter) bool { return c.DryRun != s.dryRun })
	sumUp(s.at, s.refs, &answer)
	return nil
}

// clockSlack is the largest difference of clocks that is attributed to the response time of a node.
const clockSlack = 10 * time.Second

// setClock converts a node's times to the local clock.
func setClock(n *inspect.NodeCounters, now time.Time) {
	off := now.Sub(n.Now)
	if n.Now.IsZero() || off.Abs() < clockSlack {
		return
	}
	n.Since, n.Read = n.Since.Add(off), n.Read.Add(off)
	for i := range n.Counters {
		c := &n.Counters[i]
		c.Since = c.Since.Add(off)
		if c.Last != nil {
			last := c.Last.Add(off)
			c.Last = &last
		}
	}
}

// sites returns the sites of the policies in the scope, and the rules of each site.
func sites(e *resolve.Engine, x *scope) ([]siteCounter, map[site][]policy.Key) {
	var out []siteCounter
	refs := map[site][]policy.Key{}
	for _, id := range x.policies(e) {
		nodes := e.Extent(id).Nodes
		for _, p := range sitesOf(e.PolicyObject(id)) {
			out = append(out, siteCounter{site: p, nodes: nodes,
				Counter: inspect.Counter{Policy: id, Direction: p.direction.String(), Rule: p.rule, Nodes: len(nodes)}})
		}
		for _, r := range e.RuleRefs(id) {
			p := site{id, r.Direction, r.Index}
			refs[p] = append(refs[p], r.Key)
		}
	}
	return out, refs
}

// sitesOf returns a policy's isolation and rules in each direction that it isolates.
func sitesOf(p *policy.Policy) (out []site) {
	add := func(d policy.Direction, isolates bool, rules int) {
		for i := inspect.Isolation; isolates && i < rules; i++ {
			out = append(out, site{p.ID(), d, i})
		}
	}
	add(policy.Ingress, p.IsolatesIngress, len(p.Ingress))
	add(policy.Egress, p.IsolatesEgress, len(p.Egress))
	return out
}

var directionNames = map[string]policy.Direction{
	policy.Ingress.String(): policy.Ingress,
	policy.Egress.String():  policy.Egress,
}

// sumUp adds the counters of one node.
func sumUp(at map[site]*siteCounter, refs map[site][]policy.Key, n *inspect.NodeCounters) {
	own := map[site]*inspect.NodeCounter{}
	shared := map[policy.Key]*inspect.NodeCounter{}
	for i := range n.Counters {
		c := &n.Counters[i]
		if c.Key != nil && c.Policy == "" {
			shared[*c.Key] = c
		} else if p := (site{c.Policy, directionNames[c.Direction], c.Rule}); at[p] != nil {
			own[p] = c
		}
	}
	for p, keys := range refs { // the node reports no counter for the site: use that of its shared rule
		if len(shared) == 0 {
			break
		}
		if at[p] == nil {
			continue
		}
		for _, key := range keys {
			if c := shared[key]; c != nil {
				own[p] = larger(own[p], c)
			}
		}
	}
	for p, c := range own {
		at[p].add(c)
	}
}

// larger returns the larger of a site's own counter and the counter of its shared rule. A node that does not know
// the site counts only for the rule. The result covers the time of both.
func larger(own, shared *inspect.NodeCounter) *inspect.NodeCounter {
	if own == nil {
		return shared
	}
	out := *own
	if shared.Count.Packets > own.Count.Packets {
		out = *shared
	}
	out.Since = earlier(own.Since, shared.Since)
	for _, last := range []*time.Time{own.Last, shared.Last} {
		if last != nil && (out.Last == nil || out.Last.Before(*last)) {
			out.Last = last
		}
	}
	return &out
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (t *siteCounter) add(c *inspect.NodeCounter) {
	t.Count.Packets += c.Count.Packets
	t.Count.Bytes += c.Count.Bytes
	t.Count.Connections += c.Count.Connections
	t.Rate.Packets += c.Rate.Packets
	t.Rate.Bytes += c.Rate.Bytes
	t.Rate.Connections += c.Rate.Connections
	if t.since.IsZero() || c.Since.Before(t.since) {
		t.since = c.Since
	}
	if c.Last != nil && (t.Last == nil || t.Last.Before(*c.Last)) {
		t.Last = c.Last
	}
}

// unused returns the rules that have matched no packet for a duration. Rules with incomplete counters are listed
// separately.
func (s *trafficQueries) unused(ctx context.Context, q *inspect.Question) (any, error) {
	if q.Since <= 0 {
		return nil, status.Error(codes.InvalidArgument, "a duration without matches is required")
	}
	nodes, told, err := s.count(ctx, scope{namespace: q.Namespace})
	if err != nil {
		return nil, err
	}
	now := time.Now()
	out := inspect.Unused{
		Time:   now,
		Since:  now.Add(-q.Since),
		Nodes:  nodes,
		Rules:  []inspect.UnusedRule{},
		Unsure: []inspect.UnusedRule{},
	}
	doubts := nodeDoubts(nodes, out.Since)
	for i := range told {
		t := &told[i]
		if t.rule == inspect.Isolation {
			continue
		}
		if t.Last != nil && !t.Last.Before(out.Since) {
			out.Used++
			continue
		}
		r := inspect.UnusedRule{
			Policy:    t.Policy,
			Direction: t.Direction,
			Rule:      t.Rule,
			Counted:   t.since,
			Last:      t.Last,
			Unsure:    t.uncertainties(doubts, out.Since),
		}
		if len(r.Unsure) > 0 {
			out.Unsure = append(out.Unsure, r)
		} else {
			out.Rules = append(out.Rules, r)
		}
	}
	return out, s.explainUnused(ctx, q.Namespace, out.Rules)
}

// nodeDoubts returns by node name why its counters do not cover the time since then; empty if they do.
func nodeDoubts(nodes []inspect.CountingNode, since time.Time) map[string]string {
	out := make(map[string]string, len(nodes))
	for _, n := range nodes {
		switch {
		case n.Problem != "":
			out[n.Name] = n.Problem
		case n.Since.After(since):
			out[n.Name] = fmt.Sprintf("node %s counts only since %s", n.Name, n.Since.UTC().Format(time.RFC3339))
		default:
			out[n.Name] = ""
		}
	}
	return out
}

// uncertainties returns why it is unknown whether the site matched a packet since then.
func (t *siteCounter) uncertainties(doubts map[string]string, since time.Time) (why []string) {
	switch {
	case t.since.IsZero() && len(t.nodes) == 0:
		why = append(why, "it is in force on no node, as it applies to no pod")
	case t.since.IsZero():
		why = append(why, "no node has counted for it yet")
	case t.since.After(since):
		why = append(why, "its present rules are counted only since "+t.since.UTC().Format(time.RFC3339))
	}
	for _, n := range t.nodes {
		doubt, known := doubts[n]
		if !known {
			doubt = fmt.Sprintf("node %s is not connected", n)
		}
		if doubt != "" {
			why = append(why, doubt)
		}
	}
	return why
}
