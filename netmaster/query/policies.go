package query

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/whatif"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits of what is listed of a policy, and of what one call on the owner goroutine reads: some milliseconds of work.
const (
	policiesAtATime = 50
	membersAtATime  = 5000
	maxPods         = 1000   // pods of a policy in a list
	maxPodsOfOne    = 10_000 // pods of a single policy
	maxMembers      = 1000   // members of each peer of a single policy
	maxBundled      = 20     // members of each peer in a list
)

func (s *policyQueries) policies(ctx context.Context, q *inspect.Question) (any, error) {
	ids := []string{q.ID}
	if q.ID == "" {
		err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) { ids = e.PolicyIDs(q.Namespace) })
		if err != nil {
			return nil, err
		}
		slices.Sort(ids)
	}
	switch {
	case q.Names:
		return namesOf(
			ids,
			func(namespace, name string) inspect.Policy { return inspect.Policy{Namespace: namespace, Name: name} },
		), nil
	case q.ID == "" && !q.Rules:
		return s.summaries(ctx, ids, q.Counts)
	}
	out := make([]inspect.Policy, 0, len(ids))
	lookups := s.cfg.Cache.Lookups()
	for piece := range slices.Chunk(ids, policiesAtATime) {
		views, err := s.policyViews(ctx, q, lookups, piece)
		if err != nil {
			return nil, err
		}
		for i := range views {
			out = append(out, s.policyOf(&views[i]))
		}
	}
	if q.ID != "" && len(out) == 0 {
		return nil, status.Errorf(codes.NotFound, "there is no policy %s", q.ID)
	}
	return out, nil
}

// policyViews returns the policies that still exist, with a bounded number of members from the label cache.
func (s *policyQueries) policyViews(
	ctx context.Context, q *inspect.Question, lookups *labelcache.Lookups, ids []string,
) (views []resolve.PolicyView, err error) {
	var at labelcache.Stamp
	err = s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		at = s.resolved()
		for _, id := range ids {
			v, ok := e.PolicyUpTo(id, 0, 0)
			if ok && (q.Namespace == "" || v.Policy.Namespace == q.Namespace) {
				views = append(views, v)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	pods, members := maxPods, maxBundled
	if q.ID != "" {
		pods, members = maxPodsOfOne, maxMembers
	}
	fill := filling{s: s.sources, lookups: lookups, at: at, missing: map[listing][]*resolve.GroupView{}}
	for i := range views {
		v := &views[i]
		for j := range v.Rules {
			r := &v.Rules[j]
			if r.Index < 0 {
				fill.want(&r.Target, pods)
			}
			for k := range r.Peers {
				fill.want(&r.Peers[k], members)
			}
		}
	}
	if err := fill.compute(ctx); err != nil {
		return nil, err
	}
	for i := range views {
		v := &views[i]
		for j := range v.Rules {
			if v.Rules[j].Index < 0 {
				v.AppliedTo, v.MorePods = v.Rules[j].Target.Members, v.Rules[j].Target.More
			}
		}
	}
	return views, nil
}

// listing is the first limit members of a group.
type listing struct {
	key   policy.Key
	limit int
}

// filling sets the members of groups from the label cache, and those it lacks from the engine.
type filling struct {
	s       *sources
	lookups *labelcache.Lookups
	at      labelcache.Stamp
	missing map[listing][]*resolve.GroupView
	order   []listing
}

// request sets a group's members from the cache, or queues them for compute.
func (f *filling) want(g *resolve.GroupView, limit int) {
	l := listing{g.Key, limit}
	if body, _, ok := f.lookups.Get(labelcache.Members(l.key, l.limit), f.at); ok {
		var ids []string
		if json.Unmarshal(body, &ids) == nil {
			fillIn(g, ids)
			return
		}
	}
	if f.missing[l] == nil {
		f.order = append(f.order, l)
	}
	f.missing[l] = append(f.missing[l], g)
}

// fillIn replaces the members of a group, and keeps their total.
func fillIn(g *resolve.GroupView, ids []string) {
	g.More = max(0, g.More+len(g.Members)-len(ids))
	g.Members = ids
}

// compute reads the queued members from the engine in pieces.
func (f *filling) compute(ctx context.Context) error {
	for len(f.order) > 0 {
		var lists [][]string
		var at labelcache.Stamp
		err := f.s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
			at = f.s.resolved()
			for n := 0; n < membersAtATime && len(lists) < len(f.order); {
				l := f.order[len(lists)]
				ids := e.Members(l.key, l.limit)
				lists = append(lists, ids)
				n += 1 + len(ids)
			}
		})
		if err != nil {
			return err
		}
		for i, ids := range lists {
			l := f.order[i]
			for _, g := range f.missing[l] {
				fillIn(g, ids)
			}
			if body, err := json.Marshal(ids); err == nil {
				f.s.cfg.Cache.Put(labelcache.Members(l.key, l.limit), at, body, true)
			}
		}
		f.order = f.order[len(lists):]
	}
	return nil
}

// summaryBudget is how many pods and rules one call on the owner goroutine counts: some milliseconds of work.
const summaryBudget = 4_000

// summaries returns the policies without members and rules, and with counts in place of nodes if these are requested.
func (s *policyQueries) summaries(ctx context.Context, ids []string, counts bool) ([]inspect.Policy, error) {
	out := make([]inspect.Policy, 0, len(ids))
	for len(ids) > 0 {
		var list []resolve.Summary
		var looked int
		err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) { list, looked = e.Summaries(ids, summaryBudget) })
		if err != nil {
			return nil, err
		}
		ids = ids[looked:]
		for i := range list {
			p := s.summaryOf(&list[i])
			if counts {
				n := inspect.CountNodes(p.Nodes)
				p.InForce, p.Nodes = &n, nil
			}
			out = append(out, p)
		}
	}
	return out, nil
}

func (s *policyQueries) summaryOf(v *resolve.Summary) inspect.Policy {
	p := v.Policy
	return inspect.Policy{
		Namespace:  p.Namespace,
		Name:       p.Name,
		Generation: p.Generation,
		Mode:       p.Mode(),
		Selector:   p.AppliedTo.String(),
		Pods:       v.Pods,
		Problems:   p.Problems,
		Directions: directionsOf(p),
		Nodes:      s.policyNodes(p, &v.Extent),
	}
}

// namesOf returns objects that have only the names in the IDs.
func namesOf[T any](ids []string, of func(namespace, name string) T) []T {
	out := make([]T, len(ids))
	for i, id := range ids {
		namespace, name, _ := strings.Cut(id, "/")
		out[i] = of(namespace, name)
	}
	return out
}

// world returns a copy of the cluster state and its revision.
func (s *sources) world(ctx context.Context) (revision uint64, w *policy.World, err error) {
	w, err = whatif.World(ctx, s.cfg.Owner, func(e *resolve.Engine) { revision = e.Revision() })
	return revision, w, err
}

func (s *policyQueries) policyOf(v *resolve.PolicyView) inspect.Policy {
	p := inspect.Policy{
		Namespace:  v.Policy.Namespace,
		Name:       v.Policy.Name,
		Generation: v.Policy.Generation,
		Mode:       v.Policy.Mode(),
		Selector:   v.Policy.AppliedTo.String(),
		Pods:       len(v.AppliedTo) + v.MorePods,
		AppliedTo:  append([]string{}, v.AppliedTo...),
		MorePods:   v.MorePods,
		Problems:   v.Policy.Problems,
		Directions: directionsOf(v.Policy),
	}
	extent := extentOf(v)
	p.Nodes = s.policyNodes(v.Policy, &extent)
	for i := range v.Rules {
		p.Rules = append(p.Rules, ruleOf(&v.Rules[i]))
	}
	return p
}

// policyNodes returns the state of a policy on each node.
func (s *policyQueries) policyNodes(p *policy.Policy, extent *policy.Extent) []inspect.PolicyNode {
	return PolicyNodes(s.cfg.Nodes.Standing(p.ID(), extent), p, extent.Rules, neverAcknowledged, s.cfg.Unattached())
}

// directionsOf returns the directions in which a policy isolates.
func directionsOf(p *policy.Policy) []string {
	out := []string{}
	if p.IsolatesIngress {
		out = append(out, "ingress")
	}
	if p.IsolatesEgress {
		out = append(out, "egress")
	}
	return out
}

// extentOf returns the nodes, rules and groups of a policy's view.
func extentOf(v *resolve.PolicyView) policy.Extent {
	out := policy.Extent{Nodes: v.Nodes}
	for i := range v.Rules {
		r := &v.Rules[i].Rule
		out.Rules = append(out.Rules, r.Key)
		out.Applied = append(out.Applied, r.AppliedTo)
		out.Peers = append(out.Peers, r.Peers...)
	}
	return out
}

func ruleOf(v *resolve.RuleView) inspect.Rule {
	r := inspect.Rule{
		Key:       v.Rule.Key,
		Direction: v.Rule.Direction.String(),
		Index:     v.Index,
		AppliedTo: v.Target.Text,
		Ports:     portsText(&v.Rule),
	}
	if v.Rule.AnyPeer {
		r.Peers = append(r.Peers, inspect.Peer{Text: "everyone"})
	}
	for _, g := range v.Peers {
		r.Peers = append(r.Peers, inspect.Peer{Text: g.Text, Endpoints: g.Members, More: g.More})
	}
	for _, b := range v.Rule.Blocks {
		text := b.CIDR.String()
		if len(b.Except) > 0 {
			text += fmt.Sprintf(" except %s", join(b.Except))
		}
		r.Peers = append(r.Peers, inspect.Peer{Text: text})
	}
	return r
}

func join(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}

func portsText(r *policy.Rule) string {
	if r.AnyPort {
		return "all"
	}
	var texts []string
	for _, p := range r.Ports {
		switch {
		case p.First == p.Last:
			texts = append(texts, fmt.Sprintf("%s/%d", p.Protocol, p.First))
		case p.First == 0 && p.Last == 65535:
			texts = append(texts, p.Protocol.String())
		default:
			texts = append(texts, fmt.Sprintf("%s/%d-%d", p.Protocol, p.First, p.Last))
		}
	}
	return strings.Join(texts, ",")
}
