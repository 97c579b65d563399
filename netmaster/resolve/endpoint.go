package resolve

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

type endpointID uint32

type endpoint struct {
	obj       *policy.Endpoint // nil: deleted in this batch
	announced *Announcement
	class     classID
	next      endpointID // in the class's list
	previous  endpointID
	node      nodeID
	touched   uint32 // index in batch.endpoints, plus one
	withdrawn bool   // the node withdrew the address; the status in the API server is outdated
	addressed bool   // counted in its class as having an address
	orphan    bool   // orphan: deleted from the API server or replaced, but still attached to its node
	// readdressed: the status in the API server has another address than the node withdrew.
	readdressed bool
}

// addresses returns the addresses that the endpoint claims.
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

// foreign is the part of an endpoint's addresses that match no peer: they are outside the node's podCIDRs, or the
// pod is excluded as a peer.
type foreign []netip.Addr

func (f foreign) has(a netip.Addr) bool { return slices.Contains(f, a) }

// standing returns the effect of the endpoint's claim on an address that no other endpoint claims.
func (f foreign) standing(a netip.Addr) standing { return standing{peer: !f.has(a), applied: true} }

func (ep *endpoint) foreign() foreign {
	switch {
	case ep.obj != nil && ep.obj.NoPeer:
		return ep.addresses()
	case ep.announced == nil:
		return nil
	}
	return ep.announced.Foreign
}

// nodeName returns the node that needs the endpoint's rules.
func (ep *endpoint) nodeName() string {
	if ep.announced != nil {
		return ep.announced.Node
	}
	return ep.obj.Node
}

// rank orders claims on an address: announcements before statuses, then running pods before terminating ones.
func (ep *endpoint) rank() int8 {
	rank := int8(0)
	if ep.announced != nil {
		rank = 2
	}
	if !ep.obj.Terminating && !ep.obj.Finished && !ep.orphan {
		rank++
	}
	return rank
}

// member reports whether the endpoint can be in groups.
func (ep *endpoint) member() bool {
	return !ep.obj.HostNetwork && (!ep.obj.Finished || ep.announced != nil)
}

// endpointOf returns the endpoint of a pod in the API server; 0 if there is none.
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
		e.change(id, ep, func() { ep.put(obj); e.dropMisplaced(id, ep) })
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

// revive returns an orphan whose pod is in the API server again; 0 if there is none.
func (e *Engine) revive(obj *policy.Endpoint) endpointID {
	if len(e.orphans) == 0 {
		return 0
	}
	key := incarnation{obj.ID(), obj.UID}
	id := e.orphans[key]
	if id != 0 {
		delete(e.orphans, key)
		e.endpointByName.add(e.hash.pair(obj.Namespace, obj.Name), id)
	}
	return id
}

// change calls alter, and updates the endpoint's class, node and claims.
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

// settle moves an endpoint to its class and node.
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
	e.countAddress(ep, len(ep.addresses()) > 0)
	e.unannounced.set(id, ep.isUnannounced())
	if name := ep.nodeName(); ep.node == 0 || e.nodes.at(ep.node).name != name {
		e.leaveNode(ep.node)
		ep.node = e.node(name)
		e.nodes.at(ep.node).endpoints++
	}
}

// deleteEndpoint deletes a pod. If it is still attached to its node, it becomes an orphan that keeps its rules until
// the node withdraws it.
func (e *Engine) deleteEndpoint(id endpointID) {
	if id == 0 {
		return
	}
	ep := e.endpoints.at(id)
	e.endpointByName.remove(e.hash.pair(ep.obj.Namespace, ep.obj.Name), id)
	if ep.announced != nil {
		e.change(id, ep, func() { ep.orphan = true })
		e.orphans[incarnation{ep.obj.ID(), ep.obj.UID}] = id
		return
	}
	e.forget(id, ep)
}

// forget removes an endpoint. Its ID is reused only after the end of the batch.
func (e *Engine) forget(id endpointID, ep *endpoint) {
	e.touch(id)
	before := ep.addresses()
	e.detach(ep)
	e.leaveNode(ep.node)
	e.setAnnounced(id, ep, nil)
	e.unannounced.set(id, false)
	ep.obj = nil
	e.unclaim(id, before)
	e.batch.forgotten = append(e.batch.forgotten, id)
}
