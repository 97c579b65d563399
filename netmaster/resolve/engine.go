package resolve

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Announcement reports that a node has attached a pod with these addresses, possibly before the API server knows
// them.
type Announcement struct {
	Node, Namespace, Name, UID string
	Addresses                  []netip.Addr
	// Foreign is the part of Addresses outside the node's podCIDRs. The pod's policies apply to them on its node,
	// but they match no peer and do not affect other claims on them.
	Foreign []netip.Addr
}

// ID returns "namespace/name".
func (a *Announcement) ID() string { return a.Namespace + "/" + a.Name }

// NodeAnnouncements is everything attached to a node. Earlier announcements that are not in All are withdrawn.
type NodeAnnouncements struct {
	Node string
	All  []Announcement
}

// Batch is a set of events that take effect together. The engine keeps the objects: do not modify them.
type Batch struct {
	Namespaces        []policy.Namespace
	DeletedNamespaces []string
	Endpoints         []*policy.Endpoint
	DeletedEndpoints  []string // IDs
	Policies          []*policy.Policy
	DeletedPolicies   []string // IDs
	Announced         []Announcement
	Withdrawn         []Announcement
	NodeAnnounced     []NodeAnnouncements
	// Reassessed are existing announcements whose Foreign has changed. They get no response.
	Reassessed []Announcement
	// ForgetAnnouncements discards all earlier announcements, so that pods have the addresses of their status.
	ForgetAnnouncements bool
}

// Conflict is an address that several endpoints of equal rank claim. It is in no peer group.
type Conflict struct {
	Address   netip.Addr
	Endpoints []string
}

// Engine holds the resolved state. Not safe for concurrent use.
type Engine struct {
	revision uint64
	hash     hashing
	budgets  policy.Budgets

	namespaces pool[namespaceID, namespace]
	endpoints  pool[endpointID, endpoint]
	classes    pool[classID, class]
	groups     pool[groupID, group]
	rules      pool[ruleID, rule]
	policies   pool[policyID, policyState]
	nodes      pool[nodeID, node]

	namespaceByName map[string]namespaceID
	nodeByName      map[string]nodeID
	endpointByName  table[endpointID]
	policyByName    table[policyID]
	classByContent  table[classID]
	groupBySpec     table[groupID] // by the spec of the first user; equal groups may be spelled differently
	groupByKey      table[groupID]
	ruleByContent   table[ruleID]
	portUses        map[portName]*portUse

	pods           index[classID]     // by labels of pods, in a namespace or in any (0)
	namespaceIndex index[namespaceID] // by labels of namespaces
	unanchored     []groupID          // with namespace selectors that require no label value

	claims    table[endpointID]          // by address
	contested map[netip.Addr]struct{}    // claimed by several endpoints
	orphans   map[incarnation]endpointID // orphaned endpoints
	waiting   map[waitingKey]Announcement
	// announcedOn holds the announced endpoints of each node, unordered.
	announcedOn map[string][]endpointID
	unannounced endpointSet // running pods that their nodes have not announced
	batch       batchState
	moved       []endpointID // by the last batch
	snapshot    snapshot
	overBudget  map[policyID]struct{}
	work        int // done in this slice, in units of sliceWork
}

// New returns an empty engine. Its first change gets the next revision.
func New(revision uint64) *Engine {
	return &Engine{
		revision:        revision,
		hash:            newHashing(),
		budgets:         policy.DefaultBudgets,
		portUses:        map[portName]*portUse{},
		overBudget:      map[policyID]struct{}{},
		namespaceByName: map[string]namespaceID{},
		nodeByName:      map[string]nodeID{},
		contested:       map[netip.Addr]struct{}{},
		orphans:         map[incarnation]endpointID{},
		waiting:         map[waitingKey]Announcement{},
		announcedOn:     map[string][]endpointID{},
	}
}

// SetBudgets replaces the default budgets of an empty engine. The engine applies only those that depend on pods:
// Members and PortNumbers.
func (e *Engine) SetBudgets(b policy.Budgets) { e.budgets = b }

// Revision returns the revision of the last change.
func (e *Engine) Revision() uint64 { return e.revision }

// Advance makes the next change get a revision above this one.
func (e *Engine) Advance(revision uint64) { e.revision = max(e.revision, revision) }

// Apply applies a batch and returns the changes and new conflicts. If nothing changed, Revision stays the same and
// only Settled can be non-empty.
func (e *Engine) Apply(b Batch) (policy.Changes, []Conflict) {
	e.moved = emptied(e.moved)
	e.expect(&b)
	for _, name := range b.DeletedNamespaces {
		e.putNamespace(name, nil, false)
	}
	for i := range b.Namespaces {
		e.putNamespace(b.Namespaces[i].Name, b.Namespaces[i].Labels, true)
	}
	for _, id := range b.DeletedPolicies {
		e.deletePolicy(id)
	}
	for _, id := range b.DeletedEndpoints {
		e.deleteEndpoint(e.endpointOf(splitID(id)))
	}
	for _, obj := range b.Endpoints {
		e.putEndpoint(obj)
	}
	if b.ForgetAnnouncements {
		e.forgetAnnouncements()
	}
	for i := range b.Withdrawn {
		e.withdraw(&b.Withdrawn[i])
	}
	for i := range b.NodeAnnounced {
		e.nodeAnnounced(&b.NodeAnnounced[i])
	}
	for i := range b.Announced {
		e.announce(b.Announced[i])
	}
	for i := range b.Reassessed {
		e.reassess(b.Reassessed[i])
	}
	for _, p := range b.Policies {
		e.putPolicy(p)
	}
	e.recompile()
	return e.finish()
}

// expect allocates memory for an initial load.
func (e *Engine) expect(b *Batch) {
	if e.endpointByName.n == 0 {
		e.endpointByName.reserve(len(b.Endpoints))
		e.claims.reserve(len(b.Endpoints))
		e.batch.fresh = slices.Grow(e.batch.fresh, len(b.Endpoints))
	}
	if e.policyByName.n == 0 {
		e.policyByName.reserve(len(b.Policies))
		e.batch.rules = slices.Grow(e.batch.rules, 4*len(b.Policies))
	}
}

// recompile compiles policies that were added or changed, or whose port numbers or budget share changed.
func (e *Engine) recompile() {
	e.planNamespaces()
	for len(e.batch.recompile) > 0 {
		dirty := e.batch.recompile
		e.batch.recompile = nil
		slices.Sort(dirty)
		for _, id := range dirty {
			p := e.policies.at(id)
			p.dirty = false
			if !p.deleted {
				e.compile(id, p)
			}
		}
	}
}

// splitID splits "namespace/name".
func splitID(id string) (namespace, name string) {
	namespace, name, _ = strings.Cut(id, "/")
	return namespace, name
}
