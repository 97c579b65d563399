package resolve

import (
	"cmp"
	"maps"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// incarnation identifies a pod among successive pods of one name.
type incarnation struct{ id, uid string }

func (a *Announcement) incarnation() incarnation { return incarnation{a.ID(), a.UID} }

// refersTo reports whether an announcement is of this pod, from the node that the API server has bound it to. An
// announcement of an unbound pod waits until the API server names the node.
func (a *Announcement) refersTo(ep *endpoint) bool {
	return a.UID == ep.obj.UID && ep.obj.Node != "" && a.Node == ep.obj.Node
}

func (e *Engine) announce(a Announcement) {
	if id := e.endpointFor(&a); id != 0 {
		e.accept(id, a)
		return
	}
	e.waiting[waitingKey{a.incarnation(), a.Node}] = a
}

// endpointFor returns the endpoint that an announcement refers to: a pod or an orphan; 0 if there is none.
func (e *Engine) endpointFor(a *Announcement) endpointID {
	if len(e.orphans) > 0 {
		if id := e.orphans[a.incarnation()]; id != 0 && e.endpoints.at(id).announced.Node == a.Node {
			return id
		}
	}
	if id := e.endpointOf(a.Namespace, a.Name); id != 0 && a.refersTo(e.endpoints.at(id)) {
		return id
	}
	return 0
}

// accept applies an announcement and queues its response. Responses are in order, at most one for each announcement
// (see docs/feed.md). An announcement with a foreign address gets none, so the pod does not start with it.
func (e *Engine) accept(id endpointID, a Announcement) {
	if e.updateAnnounced(id, a); len(a.Foreign) > 0 {
		return
	}
	e.batch.settled = append(e.batch.settled, policy.SettledEndpoint{Node: a.Node, ID: a.ID(), UID: a.UID})
}

func (e *Engine) updateAnnounced(id endpointID, a Announcement) {
	ep := e.endpoints.at(id)
	if ep.announced == nil || ep.announced.Node != a.Node || !slices.Equal(ep.announced.Addresses, a.Addresses) ||
		!slices.Equal(ep.announced.Foreign, a.Foreign) {
		e.change(id, ep, func() { e.setAnnounced(id, ep, &a); ep.withdrawn = false })
	}
}

// reassess updates which addresses of an announcement are foreign.
func (e *Engine) reassess(a Announcement) {
	key := waitingKey{a.incarnation(), a.Node}
	if _, waits := e.waiting[key]; waits {
		e.waiting[key] = a
	} else if id := e.endpointFor(&a); id != 0 && a.repeats(e.endpoints.at(id).announced) {
		e.updateAnnounced(id, a)
	}
}

// repeats reports whether an announcement equals another, except for the foreign addresses.
func (a *Announcement) repeats(b *Announcement) bool {
	return b != nil && a.Node == b.Node && a.UID == b.UID && slices.Equal(a.Addresses, b.Addresses)
}

// setAnnounced sets the announcement of an endpoint. All changes of it go through here.
func (e *Engine) setAnnounced(id endpointID, ep *endpoint, a *Announcement) {
	if ep.announced != nil {
		node := ep.announced.Node
		ids := e.announcedOn[node]
		last := len(ids) - 1
		ids[slices.Index(ids, id)] = ids[last]
		if e.announcedOn[node] = ids[:last]; last == 0 {
			delete(e.announcedOn, node)
		}
	}
	if ep.announced = a; a != nil {
		e.announcedOn[a.Node] = append(e.announcedOn[a.Node], id)
	}
}

// Waits reports whether an announcement waits for the API server to bind the pod to this node.
func (e *Engine) Waits(a Announcement) bool {
	_, waits := e.waiting[waitingKey{a.incarnation(), a.Node}]
	return waits
}

// waitingKey includes the node, so that a node's announcement cannot replace another node's.
type waitingKey struct {
	incarnation
	node string
}

// settleWaiting accepts an announcement that arrived before the pod was bound to its node.
func (e *Engine) settleWaiting(id endpointID) {
	ep := e.endpoints.at(id)
	if len(e.waiting) == 0 || ep.obj.Node == "" {
		return
	}
	key := waitingKey{incarnation{ep.obj.ID(), ep.obj.UID}, ep.obj.Node}
	if a, ok := e.waiting[key]; ok {
		delete(e.waiting, key)
		e.accept(id, a)
	}
}

// dropMisplaced removes an announcement from a node other than the one that the API server names.
func (e *Engine) dropMisplaced(id endpointID, ep *endpoint) {
	if ep.announced != nil && ep.announced.Node != ep.obj.Node {
		e.setAnnounced(id, ep, nil)
	}
}

// withdraw removes an announcement. A pod that the API server still has on that node then has no address.
func (e *Engine) withdraw(a *Announcement) {
	delete(e.waiting, waitingKey{a.incarnation(), a.Node})
	id := e.endpointFor(a)
	if id == 0 {
		return
	}
	ep := e.endpoints.at(id)
	switch {
	case ep.announced != nil && ep.announced.Node != a.Node:
	case ep.orphan:
		delete(e.orphans, incarnation{ep.obj.ID(), ep.obj.UID})
		e.forget(id, ep)
	default:
		e.change(id, ep, func() {
			ep.readdressed, ep.withdrawn = ep.isReaddressed(), true
			e.setAnnounced(id, ep, nil)
		})
	}
}

// forgetAnnouncements removes all announcements and withdrawals. The cost is proportional to all endpoints.
func (e *Engine) forgetAnnouncements() {
	clear(e.waiting)
	for _, id := range slices.Sorted(maps.Values(e.orphans)) {
		e.forget(id, e.endpoints.at(id))
	}
	clear(e.orphans)
	for _, s := range e.endpointByName.slots {
		if s.id == 0 {
			continue
		}
		if ep := e.endpoints.at(s.id); ep.announced != nil || ep.withdrawn {
			e.change(s.id, ep, func() { e.setAnnounced(s.id, ep, nil); ep.withdrawn = false })
		}
	}
}

func (e *Engine) nodeAnnounced(n *NodeAnnouncements) {
	listed := make(map[incarnation]bool, len(n.All))
	for i := range n.All {
		listed[n.All[i].incarnation()] = true
	}
	for _, a := range e.Announcements(n.Node) {
		if !listed[a.incarnation()] {
			e.withdraw(&a)
		}
	}
	for _, a := range n.All {
		a.Node = n.Node
		e.announce(a)
	}
}

// Announcements returns all announcements of a node, waiting or not, sorted.
func (e *Engine) Announcements(node string) (out []Announcement) {
	for _, id := range e.announcedOn[node] {
		out = append(out, *e.endpoints.at(id).announced)
	}
	for a := range maps.Values(e.waiting) {
		if a.Node == node {
			out = append(out, a)
		}
	}
	slices.SortFunc(out,
		func(a, b Announcement) int { return cmp.Or(cmp.Compare(a.ID(), b.ID()), cmp.Compare(a.UID, b.UID)) })
	return out
}
