package resolve

import (
	"math"
	"net/netip"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// batchState records what a batch touches, with the state before, and the changes that result. Small lists keep
// their memory for the next batch.
type batchState struct {
	endpoints      []touchedEndpoint
	fresh          []endpointID // added in this batch
	forgotten      []endpointID
	contended      map[netip.Addr]struct{} // claimed by several endpoints at some time in this batch
	rules          []touchedRule
	born           []ruleID
	merges         []merge // the latest few
	origins        []originStep
	groups         []groupID // used by different rules than before
	unheld         []groupID
	leftNamespaces []namespaceID // possibly empty now
	leftNodes      []nodeID
	planned        []policyID // added, changed or deleted
	recost         bool       // the cost of a group has changed
	deleted        []policyID
	recompile      []policyID
	settled        []policy.SettledEndpoint
	conflicts      []Conflict
	holdings       map[netip.Addr]holding // of contested addresses, at the end of the batch
	peerSteps      []peerStep
	places         []placeStep
	wholes         []whole
	nodes          []nodeDelta
	ruleSteps      []ruleStep
	groupSteps     []groupStep
	applied        []appliedStep
	leaves         bool // groupSteps has removals

	// Scratch space.
	labels    []label
	found     []groupID
	refs      []ruleRef
	peers     []groupID
	specs     []spec
	addresses []netip.Addr
	order     []uint64
}

// touchedEndpoint is the contribution of an endpoint before the batch.
type touchedEndpoint struct {
	id        endpointID
	node      nodeID
	rank      int8
	addresses []netip.Addr
	foreign   foreign
	groups    []groupID
}

// isFresh is the value of endpoint.touched for an endpoint added in this batch.
const isFresh = math.MaxUint32

// touchedRule holds the first change of a rule's origins. Further ones are linked, the latest first.
type touchedRule struct {
	id    ruleID
	first origin
	in    bool   // the first change adds an origin
	fate  fate   // set by settleRules
	steps uint32 // index of the latest further change, plus one
}

type originStep struct {
	origin origin
	in     bool
	next   uint32
}

// fate is the effect of a batch on a rule.
type fate uint8

const (
	nothing fate = iota
	born
	changed
	dead
)

// peerStep adds an address to a peer group, or removes it.
type peerStep struct {
	group groupID
	in    bool
	addr  netip.Addr
}

// placeStep adds an address of a node to an appliedTo group, or removes it.
type placeStep struct {
	group groupID
	node  nodeID
	in    bool
	addr  netip.Addr
}

// touch records an endpoint's contribution. Call it before anything changes that this depends on.
func (e *Engine) touch(id endpointID) {
	ep := e.endpoints.at(id)
	if ep.touched != 0 {
		return
	}
	e.batch.endpoints = append(e.batch.endpoints,
		touchedEndpoint{id, ep.node, ep.rank(), ep.addresses(), ep.foreign(), e.classes.at(ep.class).groups})
	ep.touched = uint32(len(e.batch.endpoints))
}

func (e *Engine) touchGroup(id groupID) {
	g := e.groups.at(id)
	if !g.touched {
		g.touched, g.wasPeer, g.wasApplied = true, g.peerOf > 0, g.appliedOf > 0
		e.batch.groups = append(e.batch.groups, id)
	}
}

func (e *Engine) markContended(a netip.Addr) {
	if e.batch.contended == nil {
		e.batch.contended = map[netip.Addr]struct{}{}
	}
	e.batch.contended[a] = struct{}{}
}

func (e *Engine) isContended(a netip.Addr) bool {
	if len(e.batch.contended)+len(e.contested) == 0 {
		return false
	}
	_, was := e.batch.contended[a]
	return was || e.isContested(a)
}

// reset ends the batch and frees what it deleted.
func (e *Engine) reset() {
	b := &e.batch
	for i := range b.endpoints {
		e.endpoints.at(b.endpoints[i].id).touched = 0
	}
	for _, id := range b.fresh {
		e.endpoints.at(id).touched = 0
	}
	for _, id := range b.forgotten {
		e.endpoints.give(id)
	}
	for i := range b.rules {
		r := e.rules.at(b.rules[i].id)
		if r.touched = 0; !r.alive() {
			e.dropRule(b.rules[i].id, r)
		}
	}
	for _, id := range b.groups {
		e.groups.at(id).touched = false
	}
	e.work = 0
	e.dropGroups()
	e.forgetPolicies()
	for i := range b.nodes {
		e.nodes.at(b.nodes[i].id).touched = 0
	}
	e.dropNamespaces()
	e.dropNodes()
	*b = batchState{
		endpoints:      emptied(b.endpoints),
		fresh:          emptied(b.fresh),
		forgotten:      emptied(b.forgotten),
		rules:          emptied(b.rules),
		born:           emptied(b.born),
		origins:        emptied(b.origins),
		groups:         emptied(b.groups),
		unheld:         b.unheld,
		leftNamespaces: emptied(b.leftNamespaces),
		leftNodes:      emptied(b.leftNodes),
		planned:        emptied(b.planned),
		deleted:        emptied(b.deleted),
		peerSteps:      emptied(b.peerSteps),
		places:         emptied(b.places),
		wholes:         emptied(b.wholes),
		nodes:          emptied(b.nodes),
		ruleSteps:      emptied(b.ruleSteps),
		groupSteps:     emptied(b.groupSteps),
		applied:        emptied(b.applied),
		labels:         emptied(b.labels),
		found:          emptied(b.found),
		refs:           emptied(b.refs),
		peers:          emptied(b.peers),
		specs:          emptied(b.specs),
		addresses:      emptied(b.addresses),
		order:          emptied(b.order),
	}
}

// emptied returns the list without elements. It keeps the memory of small lists.
func emptied[T any](list []T) []T {
	if cap(list) > 256 {
		return nil
	}
	clear(list)
	return list[:0]
}
