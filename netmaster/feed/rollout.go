package feed

import (
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

// PolicyChange is a change of a policy itself, not of the pods that it speaks of.
type PolicyChange struct {
	ID string // namespace/name
	// Before and After are what nodes hold of it; empty where there is no such policy then.
	Before, After policy.Extent
	// Received is when netmaster was told; zero if the time until nodes have it is not to be measured.
	Received time.Time
}

// rollout is a change on its way to nodes.
type rollout struct {
	policy   string
	revision uint64
	received time.Time
	// waiting are the nodes that have not acknowledged it; true if the change is measured there: the node was connected all the time.
	waiting  map[string]bool
	measured int       // of waiting
	last     time.Time // when a measured node had it
	failed   bool      // on a node
}

// mostWaiting bounds what is remembered of nodes that stay away: changes times nodes. The oldest changes are forgotten first;
// of nodes that still need the policy nothing is lost by it.
const mostWaiting = 500_000

// rollouts are the changes that some node has not acknowledged.
type rollouts struct {
	all      []*rollout // by revision; those that are over are taken out with the first that is not
	byNode   map[string][]*rollout
	byPolicy map[string][]*rollout
	waiting  int
	most     int // of waiting
	seconds  prometheus.Observer
}

func newRollouts(seconds prometheus.Observer) rollouts {
	return rollouts{byNode: map[string][]*rollout{}, byPolicy: map[string][]*rollout{}, most: mostWaiting, seconds: seconds}
}

// Follow notes changes of policies that have just been published; like Publish it belongs to the engine's owner. It costs the
// nodes and rules of the policies that changed.
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
	r := &rollout{policy: c.ID, revision: s.mirror.revision, received: c.Received, waiting: make(map[string]bool, max(len(c.Before.Nodes), len(c.After.Nodes)))}
	for _, name := range c.Before.Nodes {
		s.expect(r, name, c, now)
	}
	for _, name := range c.After.Nodes {
		if _, twice := slices.BinarySearch(c.Before.Nodes, name); !twice && s.conns[name] != nil { // whoever is away gets all it needs anyway
			s.expect(r, name, c, now)
		}
	}
	s.rollouts.add(r)
}

// expect makes a change wait for a node, if that has to do something for it.
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

// supersede lets earlier changes of the policy wait no longer for nodes that are away: the first that they acknowledge when they
// are back is all of them.
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
	if i := slices.Index(list, r); i == 0 { // mostly
		l.keep(node, without(list, 1))
	} else {
		l.keep(node, slices.Delete(list, i, i+1))
	}
	l.over(r, node)
}

// without cuts the first n off, whatever the length of the list.
func without(list []*rollout, n int) []*rollout {
	clear(list[:n])
	return list[n:]
}

// measure observes a change that no connected node waits for any more; once.
func (l *rollouts) measure(r *rollout) {
	if !r.received.IsZero() && !r.last.IsZero() && !r.failed {
		l.seconds.Observe(r.last.Sub(r.received).Seconds())
	}
	r.received = time.Time{}
}

// landed: a node has all up to a revision in force, but for what it says is wrong.
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

// over: a change waits for a node no longer. The caller keeps byNode.
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

// left: changes wait for the node until it is back, and are not measured there.
func (l *rollouts) left(node string) {
	for _, r := range l.byNode[node] {
		l.unmeasured(r, node)
	}
}

// forget is for a node that will not come back.
func (l *rollouts) forget(node string) {
	for _, r := range l.byNode[node] {
		l.over(r, node)
	}
	delete(l.byNode, node)
}

// trim lets go of what is over, and of the oldest where there are too many.
func (l *rollouts) trim() {
	n := 0
	for ; n < len(l.all) && (len(l.all[n].waiting) == 0 || l.waiting > l.most); n++ {
		r := l.all[n]
		for node := range r.waiting {
			l.remove(r, node)
		}
	}
	l.all = without(l.all, n)
	if len(l.all) > 2*l.waiting+1000 { // what is over behind one that is not
		l.all = slices.DeleteFunc(l.all, func(r *rollout) bool { return len(r.waiting) == 0 })
	}
}

// nodesOf are the nodes that have not acknowledged all changes of a policy.
func (l *rollouts) nodesOf(id string) (out []string) {
	for _, r := range l.byPolicy[id] {
		for node := range r.waiting {
			out = append(out, node)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
