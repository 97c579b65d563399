package resolve

import (
	"math"
	"net/netip"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// batchState is what a batch has touched, with how that was before, and what it changes. The lists are kept for the next
// batch, unless they have grown large.
type batchState struct {
	endpoints      []touchedEndpoint
	fresh          []endpointID // that were not there before
	forgotten      []endpointID
	crowded        map[netip.Addr]struct{} // that several claimed, until one let go
	rules          []touchedRule
	born           []ruleID
	merges         []merge // the last few
	origins        []originStep
	groups         []groupID // whose rules change
	unheld         []groupID
	leftNamespaces []namespaceID // that may have nothing in them now
	leftNodes      []nodeID
	deleted        []policyID
	recompile      []policyID
	settled        []policy.SettledEndpoint
	conflicts      []Conflict
	holdings       map[netip.Addr]holding // of contested addresses, as they are at the end
	peerSteps      []peerStep
	places         []placeStep
	wholes         []whole
	nodes          []nodeDelta
	ruleSteps      []ruleStep
	groupSteps     []groupStep
	applied        []appliedStep
	leaves         bool // some of groupSteps goes out

	// Scratch space.
	labels    []label
	found     []groupID
	refs      []ruleRef
	peers     []groupID
	specs     []spec
	addresses []netip.Addr
	order     []uint64
}

// touchedEndpoint is what an endpoint contributed before the batch.
type touchedEndpoint struct {
	id        endpointID
	node      nodeID
	rank      int8
	addresses []netip.Addr
	foreign   foreign
	groups    []groupID
}

// isFresh stands in endpoint.touched of one that contributed nothing before.
const isFresh = math.MaxUint32

// touchedRule has its first step in it, and the further ones linked, the last first.
type touchedRule struct {
	id    ruleID
	first origin
	in    bool   // the first adds
	fate  fate   // once it is settled
	steps uint32 // the place of the last further one, plus one
}

type originStep struct {
	origin origin
	in     bool
	next   uint32
}

// fate is what a batch did to a rule.
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

// touch must come before anything changes that an endpoint's contributions depend on.
func (e *Engine) touch(id endpointID) {
	ep := e.endpoints.at(id)
	if ep.touched != 0 {
		return
	}
	e.batch.endpoints = append(e.batch.endpoints, touchedEndpoint{id, ep.node, ep.rank(), ep.addresses(), ep.foreign(), e.classes.at(ep.class).groups})
	ep.touched = uint32(len(e.batch.endpoints))
}

func (e *Engine) touchGroup(id groupID) {
	g := e.groups.at(id)
	if !g.touched {
		g.touched, g.wasPeer, g.wasApplied = true, g.peerOf > 0, g.appliedOf > 0
		e.batch.groups = append(e.batch.groups, id)
	}
}

func (e *Engine) crowd(a netip.Addr) {
	if e.batch.crowded == nil {
		e.batch.crowded = map[netip.Addr]struct{}{}
	}
	e.batch.crowded[a] = struct{}{}
}

func (e *Engine) isCrowded(a netip.Addr) bool {
	if len(e.batch.crowded)+len(e.contested) == 0 {
		return false
	}
	_, was := e.batch.crowded[a]
	return was || e.isContested(a)
}

// reset forgets the batch and frees what went in it.
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
	for _, id := range b.unheld {
		if g := e.groups.at(id); g.holds == 0 && g.key != (policy.Key{}) {
			e.drop(id)
		}
	}
	e.forgetPolicies()
	for i := range b.nodes {
		e.nodes.at(b.nodes[i].id).touched = 0
	}
	e.dropNamespaces()
	e.dropNodes()
	*b = batchState{
		endpoints: emptied(b.endpoints), fresh: emptied(b.fresh), forgotten: emptied(b.forgotten), rules: emptied(b.rules), born: emptied(b.born), origins: emptied(b.origins),
		groups: emptied(b.groups), unheld: emptied(b.unheld), leftNamespaces: emptied(b.leftNamespaces), leftNodes: emptied(b.leftNodes),
		deleted: emptied(b.deleted), peerSteps: emptied(b.peerSteps), places: emptied(b.places),
		wholes: emptied(b.wholes), nodes: emptied(b.nodes), ruleSteps: emptied(b.ruleSteps), groupSteps: emptied(b.groupSteps), applied: emptied(b.applied),
		labels: emptied(b.labels), found: emptied(b.found), refs: emptied(b.refs), peers: emptied(b.peers), specs: emptied(b.specs), addresses: emptied(b.addresses), order: emptied(b.order),
	}
}

// emptied keeps a list's space, if it is small.
func emptied[T any](list []T) []T {
	if cap(list) > 256 {
		return nil
	}
	clear(list)
	return list[:0]
}
