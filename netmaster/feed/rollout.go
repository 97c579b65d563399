package feed

import (
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

// PolicyChange is a change of a policy itself, not of the pods that it selects.
type PolicyChange struct {
	ID string // namespace/name
	// Before and After are what nodes hold of the policy; empty if it does not exist then.
	Before, After policy.Extent
	// Received is the time of the watch event; zero if the rollout is not measured.
	Received time.Time
}

// rollout is a change that nodes have not all acknowledged.
type rollout struct {
	policy   string
	revision uint64
	received time.Time
	// waiting are the nodes that have not acknowledged. The value is true if the rollout is measured there: the node
	// has stayed connected.
	waiting  map[string]bool
	measured int       // number of true values in waiting
	last     time.Time // latest acknowledgement of a measured node
	failed   bool      // a node could not install it
}

// maxWaiting limits the tracked pairs of change and node. The oldest changes are dropped first, which affects only
// nodes that no longer need the policy.
const maxWaiting = 500_000

// rollouts are the changes that some node has not acknowledged.
type rollouts struct {
	all      []*rollout // by revision; completed ones are removed once they are the oldest
	byNode   map[string][]*rollout
	byPolicy map[string][]*rollout
	waiting  int
	limit    int // of waiting
	seconds  prometheus.Observer
}

func newRollouts(seconds prometheus.Observer) rollouts {
	return rollouts{
		byNode:   map[string][]*rollout{},
		byPolicy: map[string][]*rollout{},
		limit:    maxWaiting,
		seconds:  seconds,
	}
}

// Follow starts tracking changes of policies that have just been published. Call it on the owner goroutine. The cost
// is proportional to the nodes and rules of the changed policies.
func (s *Server) Follow(changes []PolicyChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for i := range changes {
		s.follow(&changes[i], now)
		s.watches.edited(changes[i].ID)
	}
	s.rollouts.trim()
}

func (s *Server) follow(c *PolicyChange, now time.Time) {
	r := &rollout{
		policy:   c.ID,
		revision: s.mirror.revision,
		received: c.Received,
		waiting:  make(map[string]bool, max(len(c.Before.Nodes), len(c.After.Nodes))),
	}
	for _, name := range c.Before.Nodes {
		s.expect(r, name, c, now)
	}
	for _, name := range c.After.Nodes {
		if _, twice := slices.BinarySearch(c.Before.Nodes, name); !twice &&
			s.conns[name] != nil { // disconnected nodes receive everything on reconnect
			s.expect(r, name, c, now)
		}
	}
	s.rollouts.add(r)
}

// expect adds a node to a rollout if the change affects it.
func (s *Server) expect(r *rollout, name string, c *PolicyChange, now time.Time) {
	switch p := s.mirror.view(name).pending; {
	case p == nil:
		r.waiting[name] = false
	case p.behind(&c.Before), p.behind(&c.After):
		r.waiting[name] = true
		r.measured++
	default:
		r.last = now
	}
}

func (l *rollouts) add(r *rollout) {
	if r.measured == 0 {
		l.measure(r)
	}
	if len(r.waiting) == 0 {
		return
	}
	l.supersede(r)
	l.all = append(l.all, r)
	l.byPolicy[r.policy] = append(l.byPolicy[r.policy], r)
	for node := range r.waiting {
		l.byNode[node] = append(l.byNode[node], r)
	}
	l.waiting += len(r.waiting)
}

// supersede removes disconnected nodes from earlier rollouts of the policy: their first acknowledgement after a
// reconnect covers all of them.
func (l *rollouts) supersede(r *rollout) {
	for _, old := range slices.Clone(l.byPolicy[r.policy]) {
		for node := range r.waiting {
			if measured, waits := old.waiting[node]; waits && !measured {
				l.remove(old, node)
			}
		}
	}
}

func (l *rollouts) remove(r *rollout, node string) {
	list := l.byNode[node]
	if i := slices.Index(list, r); i == 0 { // the usual case
		l.keep(node, without(list, 1))
	} else {
		l.keep(node, slices.Delete(list, i, i+1))
	}
	l.over(r, node)
}

// without removes the first n elements in constant time.
func without(list []*rollout, n int) []*rollout {
	clear(list[:n])
	return list[n:]
}

// measure observes the duration of a rollout when no connected node is left. It does so once.
func (l *rollouts) measure(r *rollout) {
	if !r.received.IsZero() && !r.last.IsZero() && !r.failed {
		l.seconds.Observe(r.last.Sub(r.received).Seconds())
	}
	r.received = time.Time{}
}

// landed completes the changes that a node has acknowledged.
func (l *rollouts) landed(node string, a *wire.Ack, now time.Time) {
	due := l.byNode[node]
	n := 0
	for ; n < len(due) && due[n].revision <= a.Revision; n++ {
		r := due[n]
		r.failed = r.failed || concernsPolicy(a.Errors, r.policy)
		if r.waiting[node] {
			r.last = now
		}
		l.over(r, node)
	}
	l.keep(node, without(due, n))
}

func concernsPolicy(errs []wire.RuleError, id string) bool {
	return slices.ContainsFunc(errs, func(e wire.RuleError) bool {
		return slices.ContainsFunc(e.Origins, func(o policy.Origin) bool { return o.Policy == id })
	})
}

// over removes a node from a rollout. The caller updates byNode.
func (l *rollouts) over(r *rollout, node string) {
	l.unmeasured(r, node)
	delete(r.waiting, node)
	if l.waiting--; len(r.waiting) > 0 {
		return
	}
	rest := slices.DeleteFunc(l.byPolicy[r.policy], func(o *rollout) bool { return o == r })
	if l.byPolicy[r.policy] = rest; len(rest) == 0 {
		delete(l.byPolicy, r.policy)
	}
}

func (l *rollouts) unmeasured(r *rollout, node string) {
	if !r.waiting[node] {
		return
	}
	r.waiting[node] = false
	if r.measured--; r.measured == 0 {
		l.measure(r)
	}
}

func (l *rollouts) keep(node string, rest []*rollout) {
	if len(rest) == 0 {
		delete(l.byNode, node)
	} else {
		l.byNode[node] = rest
	}
}

// left marks a disconnected node's rollouts as not measured there.
func (l *rollouts) left(node string) {
	for _, r := range l.byNode[node] {
		l.unmeasured(r, node)
	}
}

// forget removes a deleted node.
func (l *rollouts) forget(node string) {
	for _, r := range l.byNode[node] {
		l.over(r, node)
	}
	delete(l.byNode, node)
}

// trim removes completed rollouts, and the oldest if there are too many.
func (l *rollouts) trim() {
	n := 0
	for ; n < len(l.all) && (len(l.all[n].waiting) == 0 || l.waiting > l.limit); n++ {
		r := l.all[n]
		for node := range r.waiting {
			l.remove(r, node)
		}
	}
	l.all = without(l.all, n)
	if len(l.all) > 2*l.waiting+1000 { // completed rollouts behind an incomplete one
		l.all = slices.DeleteFunc(l.all, func(r *rollout) bool { return len(r.waiting) == 0 })
	}
}

// Awaits reports whether a connected node has not acknowledged a change of one of the policies.
func (s *Server) Awaits(policies []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(policies, func(id string) bool {
		return slices.ContainsFunc(s.rollouts.byPolicy[id], func(r *rollout) bool { return r.measured > 0 })
	})
}

// nodesOf returns the nodes that have not acknowledged all changes of a policy.
func (l *rollouts) nodesOf(id string) (out []string) {
	for _, r := range l.byPolicy[id] {
		for node := range r.waiting {
			out = append(out, node)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
