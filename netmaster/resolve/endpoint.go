package resolve

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

type endpointID uint32

type endpoint struct {
	obj       *policy.Endpoint // nil: forgotten in this batch
	announced *Announcement
	class     classID
	next      endpointID // of the class
	previous  endpointID
	node      nodeID
	touched   uint32 // its place in batch.endpoints plus one
	withdrawn bool   // the node took the address back; the status in the API is late
	ghost     bool   // gone from the API or followed by a pod of the same name, still wired on its node
}

// addresses are what the endpoint claims.
func (ep *endpoint) addresses() []netip.Addr {
	switch {
	case ep.obj == nil || ep.obj.HostNetwork:
		return nil
	case ep.announced != nil:
		return ep.announced.Addresses
	case ep.withdrawn || ep.obj.Finished:
		return nil
	}
	return ep.obj.Addresses
}

// nodeName is where the endpoint's rules must be.
func (ep *endpoint) nodeName() string {
	if ep.announced != nil {
		return ep.announced.Node
	}
	return ep.obj.Node
}

// rank orders claims on one address: an announcement beats a status, then a living pod one that is going.
func (ep *endpoint) rank() int8 {
	rank := int8(0)
	if ep.announced != nil {
		rank = 2
	}
	if !ep.obj.Terminating && !ep.obj.Finished && !ep.ghost {
		rank++
	}
	return rank
}

// member tells whether the endpoint can be in groups at all.
func (ep *endpoint) member() bool {
	return !ep.obj.HostNetwork && (!ep.obj.Finished || ep.announced != nil)
}

// endpointOf finds a pod that the API has.
func (e *Engine) endpointOf(namespace, name string) endpointID {
	for id := range e.endpointByName.each(e.hash.pair(namespace, name)) {
		if ep := e.endpoints.at(id); ep.obj.Name == name && ep.obj.Namespace == namespace {
			return id
		}
	}
	return 0
}

func (e *Engine) putEndpoint(obj *policy.Endpoint) {
	id := e.endpointOf(obj.Namespace, obj.Name)
	if id != 0 && e.endpoints.at(id).obj.UID != obj.UID {
		e.deleteEndpoint(id)
		id = 0
	}
	if id == 0 {
		id = e.revive(obj)
	}
	if id != 0 {
		ep := e.endpoints.at(id)
		e.change(id, ep, func() { ep.obj, ep.ghost = obj, false })
	} else {
		id = e.addEndpoint(obj)
	}
	e.settleWaiting(id)
}

func (e *Engine) addEndpoint(obj *policy.Endpoint) endpointID {
	id, ep := e.endpoints.take()
	ep.obj = obj
	e.endpointByName.add(e.hash.pair(obj.Namespace, obj.Name), id)
	e.batch.fresh = append(e.batch.fresh, id)
	ep.touched = isFresh
	e.settle(id, ep)
	e.claim(id, ep.addresses())
	return id
}

// revive takes a ghost back whose pod the API tells of again.
func (e *Engine) revive(obj *policy.Endpoint) endpointID {
	if len(e.ghosts) == 0 {
		return 0
	}
	key := incarnation{obj.ID(), obj.UID}
	id := e.ghosts[key]
	if id != 0 {
		delete(e.ghosts, key)
		e.endpointByName.add(e.hash.pair(obj.Namespace, obj.Name), id)
	}
	return id
}

// change alters an endpoint and follows up: class, node, claims.
func (e *Engine) change(id endpointID, ep *endpoint, alter func()) {
	e.touch(id)
	before := ep.addresses()
	alter()
	e.settle(id, ep)
	if after := ep.addresses(); !slices.Equal(before, after) {
		e.unclaim(id, before)
		e.claim(id, after)
	}
}

// settle brings an endpoint to the class and the node that it belongs to.
func (e *Engine) settle(id endpointID, ep *endpoint) {
	ns, _ := e.namespace(ep.obj.Namespace)
	switch c := e.class(ns, ep); {
	case c != ep.class && ep.class != 0:
		e.detach(ep)
		e.attach(id, ep, c)
	case c != ep.class:
		e.attach(id, ep, c)
	default:
		e.classes.at(c).renew(id, ep)
	}
	if name := ep.nodeName(); ep.node == 0 || e.nodes.at(ep.node).name != name {
		ep.node = e.node(name)
	}
}

// deleteEndpoint forgets a pod. If its node still has it wired, it keeps its rules until the node withdraws it.
func (e *Engine) deleteEndpoint(id endpointID) {
	if id == 0 {
		return
	}
	ep := e.endpoints.at(id)
	e.endpointByName.remove(e.hash.pair(ep.obj.Namespace, ep.obj.Name), id)
	if ep.announced != nil {
		e.change(id, ep, func() { ep.ghost = true })
		e.ghosts[incarnation{ep.obj.ID(), ep.obj.UID}] = id
		return
	}
	e.forget(id, ep)
}

// forget takes an endpoint out of everything. Its ID is free from the end of the batch on.
func (e *Engine) forget(id endpointID, ep *endpoint) {
	e.touch(id)
	before := ep.addresses()
	e.detach(ep)
	ep.obj, ep.announced = nil, nil
	e.unclaim(id, before)
	e.batch.forgotten = append(e.batch.forgotten, id)
}

// claim and unclaim keep who claims an address, and which addresses several do.
func (e *Engine) claim(id endpointID, addresses []netip.Addr) {
	for i, a := range addresses {
		if slices.Contains(addresses[:i], a) {
			continue
		}
		hash := e.hash.address(a)
		if e.claimed(hash, a, id) {
			e.contested[a] = struct{}{}
		}
		e.claims.add(hash, id)
	}
}

func (e *Engine) unclaim(id endpointID, addresses []netip.Addr) {
	for i, a := range addresses {
		if slices.Contains(addresses[:i], a) {
			continue
		}
		e.claims.remove(e.hash.address(a), id)
		if _, ok := e.contested[a]; ok {
			e.crowd(a)
			if others := e.claimants(a); len(others) < 2 || len(others) == 2 && slices.Contains(others, id) {
				delete(e.contested, a)
			}
		}
	}
}

// claimed tells whether another endpoint claims an address.
func (e *Engine) claimed(hash uint32, a netip.Addr, but endpointID) bool {
	for id := range e.claims.each(hash) {
		if id != but && slices.Contains(e.endpoints.at(id).addresses(), a) {
			return true
		}
	}
	return false
}

// claimants are the endpoints that claim an address, in no order.
func (e *Engine) claimants(a netip.Addr) (out []endpointID) {
	for id := range e.claims.each(e.hash.address(a)) {
		if slices.Contains(e.endpoints.at(id).addresses(), a) && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// holders are the endpoints of the highest rank among those that claim the address, by their names: one, or several that
// contest it.
func (e *Engine) holders(a netip.Addr) []endpointID {
	claims := e.claimants(a)
	best := int8(-1)
	for _, id := range claims {
		best = max(best, e.endpoints.at(id).rank())
	}
	claims = slices.DeleteFunc(claims, func(id endpointID) bool { return e.endpoints.at(id).rank() < best })
	slices.SortFunc(claims, func(a, b endpointID) int { return e.compareEndpoints(a, b) })
	return claims
}

func (e *Engine) compareEndpoints(a, b endpointID) int {
	x, y := e.endpoints.at(a).obj, e.endpoints.at(b).obj
	return compareStrings(x.ID(), y.ID())
}

func compareStrings(a, b string) int {
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}

// standing is what an endpoint has of an address that it claims: the address as a peer's, and on its node.
type standing struct{ peer, applied bool }

func (e *Engine) standingOf(id endpointID, a netip.Addr) standing {
	if len(e.contested) == 0 {
		return standing{true, true}
	}
	if _, ok := e.contested[a]; !ok {
		return standing{true, true}
	}
	holders := e.holders(a)
	holds := slices.Contains(holders, id)
	return standing{holds && len(holders) == 1, holds}
}
