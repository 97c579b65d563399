package server

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Limits of one part, which blocks the owner goroutine for some 20 ms.
const (
	maxPartPods     = 32_768 // in units of podWork
	maxPartPolicies = 2_000  // in units of policyWork, of added, changed and deleted policies
)

// entriesPerWork is the number of rules of nodes and addresses of peers that are one unit of policyWork.
const entriesPerWork = 32

// A namespace's further policies wait while more than maxUnacknowledged peer addresses that are new to its nodes are
// not yet acknowledged and on disk, for ackTimeout at most. Policies of other namespaces do not wait for these.
const (
	maxUnacknowledged = 4_096
	ackTimeout        = 5 * time.Second
	ackInterval       = 10 * time.Millisecond // between checks for acknowledgements
)

// intake queues what the watches delivered until the engine takes it in parts. Namespaces take turns, so that many
// policies of one do not delay the others. The zero intake is empty.
type intake struct {
	stages []*stage            // everything except added and changed policies, in order
	spaces map[string]*backlog // added and changed policies, by namespace
	turns  []string            // namespaces, the next first
	// deletion returns when a policy was created, and the work of deleting it, in units of policyWork; nil: 1 each.
	deletion func(id string) (created int64, work int)
}

// stage is a batch, and the number of the list that is confirmed after it; 0: none.
type stage struct {
	*watch.Batch
	list    uint64
	deleted []deletion // in the order in which they are taken; added later: not yet among them
}

// deletion is a policy that is to be deleted.
type deletion struct {
	id   string
	work int
}

// backlog is the queue of a namespace's policies.
type backlog struct {
	policies map[string]*policy.Policy // waiting, by ID
	received map[string]time.Time
	order    []string // IDs in order of arrival; may contain some that no longer wait
	flight   []string // IDs of policies that nodes have not acknowledged yet
	members  int      // addresses of peers that are new to these nodes
	revision uint64   // of the engine with the newest of them; underWay: not yet known
	since    time.Time
}

func newPart() *watch.Batch {
	return &watch.Batch{
		Namespaces: map[string]*policy.Namespace{},
		Endpoints:  map[string]*policy.Endpoint{},
		Policies:   map[string]*policy.Policy{},
		Received:   map[string]time.Time{},
	}
}

// add queues a batch that is within the budgets.
func (q *intake) add(b *watch.Batch) {
	if b.Empty() {
		return
	}
	last := q.last()
	maps.Copy(last.Namespaces, b.Namespaces)
	maps.Copy(last.Endpoints, b.Endpoints)
	if b.NodesChanged {
		last.Nodes, last.NodesChanged = b.Nodes, true
	}
	for id, p := range b.Policies {
		namespace, name, _ := strings.Cut(id, "/")
		if p == nil || name == policy.OverBudgetPolicy {
			q.drop(namespace, id)
			last.Policies[id], last.Received[id] = p, b.Received[id]
			continue
		}
		for _, s := range q.stages {
			delete(s.Policies, id)
		}
		q.put(namespace, id, p, b.Received[id])
	}
}

// last returns the stage that collects new objects.
func (q *intake) last() *stage {
	if n := len(q.stages); n > 0 && q.stages[n-1].list == 0 {
		return q.stages[n-1]
	}
	s := &stage{Batch: newPart()}
	q.stages = append(q.stages, s)
	return s
}

func (q *intake) put(namespace, id string, p *policy.Policy, received time.Time) {
	l := q.spaces[namespace]
	if l == nil {
		l = &backlog{policies: map[string]*policy.Policy{}, received: map[string]time.Time{}}
		if q.spaces == nil {
			q.spaces = map[string]*backlog{}
		}
		q.spaces[namespace] = l
		q.turns = append(q.turns, namespace)
	}
	if l.policies[id] == nil {
		if len(l.order) > 2*len(l.policies)+16 {
			l.order = slices.DeleteFunc(l.order, func(id string) bool { return l.policies[id] == nil })
		}
		l.order = append(l.order, id)
		l.received[id] = received
	}
	l.policies[id] = p
}

// first returns the oldest policy.
func (l *backlog) first() *policy.Policy {
	for ; len(l.order) > 0; l.order = l.order[1:] {
		if p := l.policies[l.order[0]]; p != nil {
			return p
		}
	}
	return nil
}

// isPaced reports whether the namespace waits for its nodes.
func (l *backlog) isPaced() bool { return l.members >= maxUnacknowledged }

// drop removes a deleted policy.
func (q *intake) drop(namespace, id string) {
	if l := q.spaces[namespace]; l != nil {
		delete(l.policies, id)
		delete(l.received, id)
	}
}

// seal confirms a list after everything that is queued now, except policies.
func (q *intake) seal(list uint64) { q.last().list = list }

// podWork estimates the work of a pod.
func podWork(e *policy.Endpoint) int {
	if e == nil {
		return 8
	}
	return 8 + len(e.Labels) + 4*len(e.Ports) + 4*len(e.Addresses)
}

// gives reports whether a pod has no address, so that its former one may belong to another pod.
func gives(e *policy.Endpoint) bool { return e == nil || len(e.Addresses) == 0 }

// part returns the next part: everything of a stage except added and changed policies. Pods that may release an
// address come first. Deleted policies come after all pods, since the labels of formerly isolated pods may have
// changed. The list is confirmed after the part; 0: none. The function labels returns the work of a pod in the engine,
// in units of podWork.
func (q *intake) part(labels func(id string) int) (part *watch.Batch, list uint64, last bool) {
	if len(q.stages) == 0 {
		return newPart(), 0, true
	}
	s := q.stages[0]
	part = newPart()
	part.Namespaces, s.Namespaces = s.Namespaces, part.Namespaces
	part.Nodes, part.NodesChanged, s.NodesChanged = s.Nodes, s.NodesChanged, false
	work := 0
	for _, giving := range []bool{true, false} {
		for id, e := range s.Endpoints {
			if work >= maxPartPods {
				break
			}
			if gives(e) == giving {
				work += podWork(e) + labels(id)
				part.Endpoints[id] = e
				delete(s.Endpoints, id)
			}
		}
	}
	for id, p := range s.Policies {
		if p != nil {
			s.move(id, part)
		}
	}
	if last = len(s.Endpoints) == 0; last {
		q.takeDeletions(s, part)
		last = len(s.Policies) == 0
	}
	if last {
		q.stages[0] = nil
		q.stages = q.stages[1:]
		list = s.list
	}
	return part, list, last
}

// move moves a policy to a part.
func (s *stage) move(id string, part *watch.Batch) {
	part.Policies[id], part.Received[id] = s.Policies[id], s.Received[id]
	delete(s.Policies, id)
	delete(s.Received, id)
}

// takeDeletions moves deleted policies to a part, at least one, until they are maxPartPolicies of work.
func (q *intake) takeDeletions(s *stage, part *watch.Batch) {
	for work := 0; len(s.Policies) > 0 && work < maxPartPolicies; {
		if len(s.deleted) == 0 {
			s.deleted = q.deletions(s)
		}
		if d := s.deleted[0]; s.isDeleted(d.id) {
			s.move(d.id, part)
			work += d.work
		}
		s.deleted = s.deleted[1:]
	}
}

// isDeleted reports whether the deletion of a policy is queued. It is not if the policy was added again.
func (s *stage) isDeleted(id string) bool {
	p, queued := s.Policies[id]
	return queued && p == nil
}

// deletions returns the policies that a stage deletes, the newest first. The oldest policies of a namespace have its
// budgets, so no policy comes into force because an older one is deleted, and then is deleted itself.
func (q *intake) deletions(s *stage) []deletion {
	created := make(map[string]int64, len(s.Policies))
	out := make([]deletion, 0, len(s.Policies))
	for id := range s.Policies {
		d := deletion{id, 1}
		if q.deletion != nil {
			created[id], d.work = q.deletion(id)
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b deletion) int {
		return cmp.Or(cmp.Compare(created[b.id], created[a.id]), cmp.Compare(b.id, a.id))
	})
	return out
}

// policyWork estimates the work of a policy, without its groups.
func policyWork(p *policy.Policy) int {
	c := policy.Cost(p)
	return 16 + c.Rules + c.Peers + c.Blocks + c.Ports + c.PortNames
}

// next moves a policy of the next eligible namespace to a part; nil if there is none.
func (q *intake) next(part *watch.Batch, room int) *policy.Policy {
	for range q.turns {
		namespace := q.turns[0]
		l := q.spaces[namespace]
		p := l.first()
		if p != nil && !l.isPaced() && policyWork(p) > room && room < maxPartPolicies {
			return nil
		}
		q.turns = append(q.turns[1:], namespace)
		if p == nil || l.isPaced() {
			continue
		}
		id := p.ID()
		part.Policies[id], part.Received[id] = p, l.received[id]
		delete(l.policies, id)
		delete(l.received, id)
		return p
	}
	return nil
}

// underWay is a revision above all others.
const underWay = math.MaxUint64

// charge records a policy that is being taken, with the number of peer addresses that are new to its nodes.
func (q *intake) charge(p *policy.Policy, members int, now time.Time) {
	if l := q.spaces[p.Namespace]; l != nil && members > 0 {
		l.flight, l.members = append(l.flight, p.ID()), l.members+members
		l.revision, l.since = underWay, now
	}
}

// taken sets the revision of the part that has just been applied.
func (q *intake) taken(revision uint64) {
	for _, l := range q.spaces {
		if l.revision == underWay {
			l.revision = revision
		}
	}
}

// due reports whether a part can be taken now.
func (q *intake) due() bool {
	return len(q.stages) > 0 || slices.ContainsFunc(q.turns, func(namespace string) bool {
		l := q.spaces[namespace]
		return len(l.policies) > 0 && !l.isPaced()
	})
}

// waits returns the number of waiting policies, including those of paced namespaces.
func (q *intake) waits() (n int) {
	for _, l := range q.spaces {
		n += len(l.policies)
	}
	return n
}

// acknowledge releases namespaces whose policies are acknowledged and on disk, or have reached ackTimeout.
func (q *intake) acknowledge(awaited func(policies []string) bool, onDisk uint64, now time.Time) {
	for _, l := range q.spaces {
		if l.isPaced() && (now.Sub(l.since) >= ackTimeout || onDisk >= l.revision && !awaited(l.flight)) {
			l.flight, l.members = nil, 0
		}
	}
}

// tidy removes namespaces that have nothing queued and no acknowledgement to wait for.
func (q *intake) tidy(now time.Time) {
	q.turns = slices.DeleteFunc(q.turns, func(namespace string) bool {
		l := q.spaces[namespace]
		over := len(l.policies) == 0 && now.Sub(l.since) >= ackTimeout
		if over {
			delete(q.spaces, namespace)
		}
		return over
	})
}

// lags returns the namespaces with waiting policies.
func (q *intake) lags() map[string]bool {
	out := map[string]bool{}
	for namespace, l := range q.spaces {
		if len(l.policies) > 0 {
			out[namespace] = true
		}
	}
	return out
}

// all removes and returns everything, with the newest list to confirm after it.
func (q *intake) all() (b *watch.Batch, list uint64) {
	b = newPart()
	for _, s := range q.stages {
		maps.Copy(b.Namespaces, s.Namespaces)
		maps.Copy(b.Endpoints, s.Endpoints)
		maps.Copy(b.Policies, s.Policies)
		maps.Copy(b.Received, s.Received)
		if s.NodesChanged {
			b.Nodes, b.NodesChanged = s.Nodes, true
		}
		list = max(list, s.list)
	}
	for _, l := range q.spaces {
		maps.Copy(b.Policies, l.policies)
		maps.Copy(b.Received, l.received)
	}
	*q = intake{deletion: q.deletion}
	return b, list
}
