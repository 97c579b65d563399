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

// foreign are those of an endpoint's addresses that are not its node's to give out.
type foreign []netip.Addr

func (f foreign) has(a netip.Addr) bool { return slices.Contains(f, a) }

// standing is the endpoint's on an address that nobody else claims.
func (f foreign) standing(a netip.Addr) standing { return standing{peer: !f.has(a), applied: true} }

func (ep *endpoint) foreign() foreign {
	if ep.announced == nil {
		return nil
	}
	return ep.announced.Foreign
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
		e.leaveNode(ep.node)
		ep.node = e.node(name)
		e.nodes.at(ep.node).endpoints++
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
	e.leaveNode(ep.node)
	e.setAnnounced(id, ep, nil)
	ep.obj = nil
	e.unclaim(id, before)
	e.batch.forgotten = append(e.batch.forgotten, id)
}
