package resolve

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Announcement is a node's word that it wired a pod, with these addresses, before the API server knows of them.
type Announcement struct {
	Node, Namespace, Name, UID string
	Addresses                  []netip.Addr
	// Foreign are those of Addresses that are not the node's to give out. There the pod's policies hold for them; they are peers nowhere, and take nothing
	// from who else has them.
	Foreign []netip.Addr
}

// ID is "namespace/name".
func (a *Announcement) ID() string { return a.Namespace + "/" + a.Name }

// NodeAnnouncements is everything a node has wired: what it announced earlier and is not in All is withdrawn.
type NodeAnnouncements struct {
	Node string
	All  []Announcement
}

// Batch is a set of events that take effect together. Objects are shared with the engine and must not be changed after.
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
	// Reassessed are announcements that the engine has (Wired), of which other addresses are foreign now. Nobody is answered.
	Reassessed []Announcement
	// Unheard: what nodes said before is forgotten, as if they never had. What the API server has of pods counts again.
	Unheard bool
}

// Conflict is an address that several endpoints of equal standing claim. It is in no peer group.
type Conflict struct {
	Address   netip.Addr
	Endpoints []string
}

// Engine holds the resolved state. Not for concurrent use.
type Engine struct {
	revision uint64
	hash     hashing

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
	groupBySpec     table[groupID] // as it was written first
	groupByKey      table[groupID]
	ruleByContent   table[ruleID]

	pods     index[classID]     // by labels of pods, a namespace each
	teams    index[namespaceID] // by labels of namespaces
	anywhere []groupID          // with a selector of namespaces that names no label's value

	claims    table[endpointID]          // by address
	contested map[netip.Addr]struct{}    // claimed by several
	ghosts    map[incarnation]endpointID // wired, but no longer the API's pod of that name
	waiting   map[waitingKey]Announcement
	// announcedOn are the endpoints that a node has announced, in no order.
	announcedOn map[string][]endpointID
	batch       batchState
	moved       []endpointID // by the last batch, in force
}

// New makes an empty engine whose first change has the revision after this one.
func New(revision uint64) *Engine {
	return &Engine{
		revision: revision, hash: newHashing(), namespaceByName: map[string]namespaceID{}, nodeByName: map[string]nodeID{},
		contested: map[netip.Addr]struct{}{}, ghosts: map[incarnation]endpointID{}, waiting: map[waitingKey]Announcement{}, announcedOn: map[string][]endpointID{},
	}
}

// Revision is that of the last change.
func (e *Engine) Revision() uint64 { return e.revision }

// Advance has the next change have the revision after this one, if that is higher.
func (e *Engine) Advance(revision uint64) { e.revision = max(e.revision, revision) }

// Apply takes a batch over. Changes that cancel out within it are not told; if nothing changed, Revision is the old one and
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
	if b.Unheard {
		e.unhear()
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

// expect makes room for a first load.
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

// recompile writes anew the rules of policies whose named ports have got or lost a number.
func (e *Engine) recompile() {
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

// splitID takes "namespace/name" apart.
func splitID(id string) (namespace, name string) {
	namespace, name, _ = strings.Cut(id, "/")
	return namespace, name
}
