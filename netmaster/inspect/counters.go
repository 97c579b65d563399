package inspect

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

// site is what is counted for.
type site struct {
	policy    string
	direction policy.Direction
	rule      int
}

// counted is a site of a policy that there is, with what all nodes told of it.
type counted struct {
	site
	inspect.Counter
	since time.Time // the earliest; zero: no node knows of it
	nodes []string  // where the policy applies
}

// counters sums up over all nodes.
func (s *Server) counters(ctx context.Context, q *inspect.Question) (any, error) {
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

// scope is which policies are counted for: those in force or, with audit, those in a dry run. A node counts for the two apart.
type scope struct {
	namespace string // empty: all
	id        string // empty: all of the namespace
	audit     bool
}

// policies are the IDs of those in the scope.
func (x *scope) policies(e *resolve.Engine) []string {
	list := []string{x.id}
	if x.id == "" {
		list = e.Policies()
	}
	return slices.DeleteFunc(list, func(id string) bool {
		p := e.PolicyObject(id)
		return p == nil || p.Audit != x.audit || !isIn(id, x.namespace)
	})
}

// isIn tells whether an ID is of the namespace; of an empty one all are.
func isIn(id, namespace string) bool { return namespace == "" || strings.HasPrefix(id, namespace+"/") }

// check fails where there is no such namespace, as far as policies and pods tell.
func (x *scope) check(e *resolve.Engine) error {
	there := func(id string) bool { return isIn(id, x.namespace) }
	if x.namespace == "" || slices.ContainsFunc(e.Policies(), there) || len(e.Select(policy.GroupSpec{Namespace: x.namespace})) > 0 {
		return nil
	}
	return status.Errorf(codes.NotFound, "there are no policies in a namespace %s", x.namespace)
}

// count asks all nodes, and puts together what they tell of the policies that there are.
func (s *Server) count(ctx context.Context, x scope) ([]inspect.CountingNode, []counted, error) {
	ctx, cancel := inTime(ctx)
	defer cancel()
	sum := sums{audit: x.audit, at: map[site]*counted{}}
	var list []counted
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
			body, err := s.queryNode(ctx, n.Name, inspect.NodeQuery{Kind: inspect.QueryCounters, Namespace: x.namespace})
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

// named is a node's problem that says which node's.
func named(node, problem string) string {
	if problem == "" || strings.Contains(problem, node) {
		return problem
	}
	return fmt.Sprintf("node %s: %s", node, problem)
}

// sums is what nodes have told so far.
type sums struct {
	audit bool
	mu    sync.Mutex
	at    map[site]*counted
	refs  map[site][]policy.Key // the rules of each
}

// add takes over what one node tells. Of a thousand nodes' answers one at a time is decoded.
func (s *sums) add(n *inspect.CountingNode, body []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var answer inspect.NodeCounters
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("its answer: %w", err)
	}
	setClock(&answer, time.Now())
	n.Since, n.Problem = answer.Since, answer.Problem
	answer.Counters = slices.DeleteFunc(answer.Counters, func(c inspect.NodeCounter) bool { return c.Audit != s.audit })
	sumUp(s.at, s.refs, &answer)
	return nil
}

// clockSlack is how far a node's clock may seem to be off because its answer takes a while.
const clockSlack = 10 * time.Second

// setClock puts a node's times right by how far its clock is off.
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

// sites are all that is counted for, and the rules that are in each.
func sites(e *resolve.Engine, x *scope) ([]counted, map[site][]policy.Key) {
	var out []counted
	refs := map[site][]policy.Key{}
	for _, id := range x.policies(e) {
		nodes := e.Extent(id).Nodes
		for _, p := range sitesOf(e.PolicyObject(id)) {
			out = append(out, counted{site: p, nodes: nodes,
				Counter: inspect.Counter{Policy: id, Direction: p.direction.String(), Rule: p.rule, Nodes: len(nodes)}})
		}
		for _, r := range e.RuleRefs(id) {
			p := site{id, r.Direction, r.Index}
			refs[p] = append(refs[p], r.Key)
		}
	}
	return out, refs
}

// sitesOf are the rules of a policy in the directions that it isolates in, each direction's isolation first.
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

var directionNames = map[string]policy.Direction{policy.Ingress.String(): policy.Ingress, policy.Egress.String(): policy.Egress}

// sumUp adds what one node told.
func sumUp(at map[site]*counted, refs map[site][]policy.Key, n *inspect.NodeCounters) {
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
	for p, keys := range refs { // a site that the node does not know of, or no longer: what all that have its rule have together
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

// larger is what a node told of a place or, where that is more, of its rule: the one stands still while the node does not know the
// place. Both were counted since the earlier and until the later.
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

func (t *counted) add(c *inspect.NodeCounter) {
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

// unused finds the rules that matched nothing for as long as was asked for. Of what cannot be known nothing is said.
func (s *Server) unused(ctx context.Context, q *inspect.Question) (any, error) {
	if q.Since <= 0 {
		return nil, status.Error(codes.InvalidArgument, "say for how long rules have matched nothing")
	}
	nodes, told, err := s.count(ctx, scope{namespace: q.Namespace})
	if err != nil {
		return nil, err
	}
	now := time.Now()
	out := inspect.Unused{Time: now, Since: now.Add(-q.Since), Nodes: nodes, Rules: []inspect.UnusedRule{}, Unsure: []inspect.UnusedRule{}}
	doubts := doubtful(nodes, out.Since)
	for i := range told {
		t := &told[i]
		if t.rule == inspect.Isolation {
			continue
		}
		if t.Last != nil && !t.Last.Before(out.Since) {
			out.Used++
			continue
		}
		r := inspect.UnusedRule{Policy: t.Policy, Direction: t.Direction, Rule: t.Rule, Counted: t.since, Last: t.Last, Unsure: t.unsure(doubts, out.Since)}
		if len(r.Unsure) > 0 {
			out.Unsure = append(out.Unsure, r)
		} else {
			out.Rules = append(out.Rules, r)
		}
	}
	return out, s.explainUnused(ctx, q.Namespace, out.Rules)
}

// doubtful tells of each node, by its name, why its word is not enough; empty where it is.
func doubtful(nodes []inspect.CountingNode, since time.Time) map[string]string {
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

// unsure is why it cannot be told that the site matched nothing since then.
func (t *counted) unsure(doubts map[string]string, since time.Time) (why []string) {
	switch {
	case t.since.IsZero() && len(t.nodes) == 0:
		why = append(why, "it is in force on no node, for it applies to no pod")
	case t.since.IsZero():
		why = append(why, "no node has counted for it yet")
	case t.since.After(since):
		why = append(why, "as it is now it is counted only since "+t.since.UTC().Format(time.RFC3339))
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
