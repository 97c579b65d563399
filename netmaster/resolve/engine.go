package resolve

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Announcement is a node's word that it wired a pod, with these addresses, before the API server knows of them.
type Announcement struct {
	Node, Namespace, Name, UID string
	Addresses                  []netip.Addr
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
}

// Conflict is an address that several endpoints of equal standing claim. It is in no peer group.
type Conflict struct {
	Address   netip.Addr
	Endpoints []string
}

// Engine holds the resolved state. Not for concurrent use.
type Engine struct {
	revision   uint64
	namespaces map[string]*namespace
	endpoints  map[string]*endpoint
	policies   map[string]*policyState
	groups     map[policy.Key]*group
	rules      map[policy.Key]*rule
	nodes      map[string]*node
	claims     map[netip.Addr][]*endpoint
	ghosts     map[incarnation]*endpoint   // wired, but no longer the API's pod of that name
	waiting    map[waitingKey]Announcement // of pods not known yet
	nsIndex    groupIndex                  // groups with a namespace selector, by a label of namespaces
	groupSeq   uint32
	batch      *batchState
}

// New makes an empty engine whose first change has the revision after this one.
func New(revision uint64) *Engine {
	return &Engine{
		revision: revision, namespaces: map[string]*namespace{}, endpoints: map[string]*endpoint{}, policies: map[string]*policyState{},
		groups: map[policy.Key]*group{}, rules: map[policy.Key]*rule{}, nodes: map[string]*node{}, claims: map[netip.Addr][]*endpoint{},
		ghosts: map[incarnation]*endpoint{}, waiting: map[waitingKey]Announcement{}, nsIndex: newGroupIndex(),
	}
}

// Revision is that of the last change.
func (e *Engine) Revision() uint64 { return e.revision }

// Apply takes a batch over. Changes that cancel out within it are not told; if nothing changed, Revision is the old one and
// only Settled can be non-empty.
func (e *Engine) Apply(b Batch) (policy.Changes, []Conflict) {
	e.batch = newBatchState()
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
		e.deleteEndpoint(id)
	}
	for _, obj := range b.Endpoints {
		e.putEndpoint(obj)
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
	for _, p := range b.Policies {
		e.putPolicy(p)
	}
	e.recompile()
	return e.finish()
}

// recompile writes anew the rules of policies whose named ports have got or lost a number.
func (e *Engine) recompile() {
	for len(e.batch.recompile) > 0 {
		dirty := e.batch.recompile
		e.batch.recompile = map[*policyState]struct{}{}
		for p := range dirty {
			if e.policies[p.obj.ID()] == p {
				e.compile(p)
			}
		}
	}
}

type namespace struct {
	name      string
	labels    map[string]string
	known     bool
	endpoints []*endpoint
	byLabel   map[label][]*endpoint
	index     groupIndex
	covering  []*group // groups with a namespace selector that chooses this namespace
}

type label struct{ key, value string }

func (e *Engine) namespace(name string) *namespace {
	ns := e.namespaces[name]
	if ns == nil {
		ns = &namespace{name: name, byLabel: map[label][]*endpoint{}, index: newGroupIndex()}
		e.namespaces[name] = ns
	}
	return ns
}

// putNamespace relabels a namespace, or forgets its labels where known is false.
func (e *Engine) putNamespace(name string, labels map[string]string, known bool) {
	ns := e.namespace(name)
	ns.labels, ns.known = labels, known
	var covering []*group
	if known {
		for g := range e.nsIndex.candidates(labels) {
			if g.spec.Namespaces.Matches(labels) {
				covering = append(covering, g)
			}
		}
		slices.SortFunc(covering, bySeq)
	}
	before := ns.covering
	if slices.Equal(before, covering) {
		return
	}
	for _, g := range before {
		ns.index.remove(g, g.spec.Pods)
	}
	for _, g := range covering {
		ns.index.add(g, g.spec.Pods)
	}
	ns.covering = covering
	for _, ep := range ns.endpoints {
		e.regroup(ep)
	}
}

// Covers tells whether the group chooses pods of the namespace at all.
func (g *group) covers(ns *namespace) bool {
	if g.spec.Namespace != "" {
		return g.spec.Namespace == ns.name
	}
	return ns.known && g.spec.Namespaces.Matches(ns.labels)
}

func without[T comparable](s []T, v T) []T {
	if i := slices.Index(s, v); i >= 0 {
		s[i] = s[len(s)-1]
		return s[:len(s)-1]
	}
	return s
}
