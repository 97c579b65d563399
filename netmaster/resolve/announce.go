package resolve

import (
	"cmp"
	"maps"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// incarnation is one life of a pod's name.
type incarnation struct{ id, uid string }

func (a *Announcement) incarnation() incarnation { return incarnation{a.ID(), a.UID} }

// sameUID lets those pass that do not know it.
func sameUID(a, b string) bool { return a == b || a == "" || b == "" }

// speaksOf tells whether an announcement is of this life of the pod, and from the node that it runs on.
func (a *Announcement) speaksOf(ep *endpoint) bool {
	return sameUID(a.UID, ep.obj.UID) && (ep.obj.Node == "" || ep.obj.Node == a.Node)
}

func (e *Engine) announce(a Announcement) {
	if id := e.wired(&a); id != 0 {
		e.accept(id, a)
		return
	}
	e.waiting[waitingKey{a.incarnation(), a.Node}] = a
}

// wired is the endpoint that an announcement speaks of: a pod, or a ghost.
func (e *Engine) wired(a *Announcement) endpointID {
	if len(e.ghosts) > 0 {
		if id := e.ghosts[a.incarnation()]; id != 0 && e.endpoints.at(id).announced.Node == a.Node {
			return id
		}
	}
	if id := e.endpointOf(a.Namespace, a.Name); id != 0 && a.speaksOf(e.endpoints.at(id)) {
		return id
	}
	return 0
}

// accept answers an announcement. Nodes count on what docs/feed.md says of answers: in order, and one each at most. One with a foreign address has none: the
// pod would have an address that nobody believes.
func (e *Engine) accept(id endpointID, a Announcement) {
	if e.hear(id, a); len(a.Foreign) > 0 {
		return
	}
	e.batch.settled = append(e.batch.settled, policy.SettledEndpoint{Node: a.Node, ID: a.ID(), UID: a.UID})
}

func (e *Engine) hear(id endpointID, a Announcement) {
	ep := e.endpoints.at(id)
	if ep.announced == nil || ep.announced.Node != a.Node || !slices.Equal(ep.announced.Addresses, a.Addresses) || !slices.Equal(ep.announced.Foreign, a.Foreign) {
		e.change(id, ep, func() { e.setAnnounced(id, ep, &a); ep.withdrawn = false })
	}
}

// reassess takes over which addresses of an announcement are foreign.
func (e *Engine) reassess(a Announcement) {
	key := waitingKey{a.incarnation(), a.Node}
	if _, waits := e.waiting[key]; waits {
		e.waiting[key] = a
	} else if id := e.wired(&a); id != 0 && a.repeats(e.endpoints.at(id).announced) {
		e.hear(id, a)
	}
}

// repeats tells whether an announcement is another one, but for what of it is foreign.
func (a *Announcement) repeats(b *Announcement) bool {
	return b != nil && a.Node == b.Node && a.UID == b.UID && slices.Equal(a.Addresses, b.Addresses)
}

// setAnnounced is the one that alters what is announced of an endpoint.
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

// Waits tells whether an announcement is of a pod that the API has not, or not on that node.
func (e *Engine) Waits(a Announcement) bool {
	_, waits := e.waiting[waitingKey{a.incarnation(), a.Node}]
	return waits
}

// waitingKey has the node, so that no node displaces another's word.
type waitingKey struct {
	incarnation
	node string
}

// settleWaiting accepts the announcement that came before the pod did. Where the pod's node is not known it takes the
// first by name.
func (e *Engine) settleWaiting(id endpointID) {
	if len(e.waiting) == 0 {
		return
	}
	if a, ok := e.waitingFor(e.endpoints.at(id)); ok {
		delete(e.waiting, waitingKey{a.incarnation(), a.Node})
		e.accept(id, a)
	}
}

func (e *Engine) waitingFor(ep *endpoint) (found Announcement, ok bool) {
	for _, uid := range []string{ep.obj.UID, ""} {
		if a, ok := e.waiting[waitingKey{incarnation{ep.obj.ID(), uid}, ep.obj.Node}]; ok {
			return a, true
		}
	}
	if ep.obj.Node != "" && ep.obj.UID != "" {
		return found, false
	}
	for _, a := range e.waiting { // what the API says is not whole: rare, and never of the real API server
		if a.ID() == ep.obj.ID() && a.speaksOf(ep) && (!ok || a.Node < found.Node) {
			found, ok = a, true
		}
	}
	return found, ok
}

// withdraw takes a node's word back. A pod that the API still has on that node has no address from then on.
func (e *Engine) withdraw(a *Announcement) {
	delete(e.waiting, waitingKey{a.incarnation(), a.Node})
	id := e.wired(a)
	if id == 0 {
		return
	}
	ep := e.endpoints.at(id)
	switch {
	case ep.announced != nil && ep.announced.Node != a.Node:
	case ep.ghost:
		delete(e.ghosts, incarnation{ep.obj.ID(), ep.obj.UID})
		e.forget(id, ep)
	default:
		e.change(id, ep, func() { e.setAnnounced(id, ep, nil); ep.withdrawn = true })
	}
}

// unhear forgets what all nodes have said, also that they took addresses back. It costs all endpoints.
func (e *Engine) unhear() {
	clear(e.waiting)
	for _, id := range slices.Sorted(maps.Values(e.ghosts)) {
		e.forget(id, e.endpoints.at(id))
	}
	clear(e.ghosts)
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
	for _, a := range e.Wired(n.Node) {
		if !listed[a.incarnation()] {
			e.withdraw(&a)
		}
	}
	for _, a := range n.All {
		a.Node = n.Node
		e.announce(a)
	}
}

// Wired is all that a node has announced, waiting or not, in an order that is always the same.
func (e *Engine) Wired(node string) (out []Announcement) {
	for _, id := range e.announcedOn[node] {
		out = append(out, *e.endpoints.at(id).announced)
	}
	for a := range maps.Values(e.waiting) {
		if a.Node == node {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b Announcement) int { return cmp.Or(cmp.Compare(a.ID(), b.ID()), cmp.Compare(a.UID, b.UID)) })
	return out
}
