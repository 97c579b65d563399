package resolve

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

type endpoint struct {
	obj       *policy.Endpoint
	ns        *namespace
	announced *Announcement
	withdrawn bool     // the node took the address back; the status in the API is late
	ghost     bool     // gone from the API or followed by a pod of the same name, still wired on its node
	groups    []*group // sorted; replaced, never changed
}

// addresses are what the endpoint claims.
func (ep *endpoint) addresses() []netip.Addr {
	switch {
	case ep.obj.HostNetwork:
		return nil
	case ep.announced != nil:
		return ep.announced.Addresses
	case ep.withdrawn || ep.obj.Finished:
		return nil
	}
	return ep.obj.Addresses
}

// node is where the endpoint's rules must be.
func (ep *endpoint) node() string {
	if ep.announced != nil {
		return ep.announced.Node
	}
	return ep.obj.Node
}

// rank orders claims on one address: an announcement beats a status, then a living pod one that is going.
func (ep *endpoint) rank() int {
	rank := 0
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

func (e *Engine) putEndpoint(obj *policy.Endpoint) {
	ep := e.endpoints[obj.ID()]
	if ep != nil && ep.obj.UID != obj.UID {
		e.deleteEndpoint(obj.ID())
		ep = nil
	}
	if ep == nil {
		ep = e.revive(incarnation{obj.ID(), obj.UID})
	}
	if ep == nil {
		ep = &endpoint{obj: obj, ns: e.namespace(obj.Namespace)}
		e.endpoints[obj.ID()] = ep
		ep.ns.endpoints = append(ep.ns.endpoints, ep)
		e.link(ep)
		e.claim(ep)
		e.regroup(ep)
		e.settleWaiting(ep)
		return
	}
	e.change(ep, func() { ep.obj, ep.ghost = obj, false })
	e.settleWaiting(ep)
}

// revive takes a ghost back whose pod the API tells of again.
func (e *Engine) revive(key incarnation) *endpoint {
	ep := e.ghosts[key]
	if ep != nil {
		delete(e.ghosts, key)
		e.endpoints[key.id] = ep
	}
	return ep
}

// change alters an endpoint and follows up: claims, labels, groups, named ports.
func (e *Engine) change(ep *endpoint, alter func()) {
	e.unclaim(ep)
	e.countPorts(ep, ep.groups, -1)
	e.unlink(ep)
	alter()
	e.link(ep)
	e.countPorts(ep, ep.groups, +1)
	e.claim(ep)
	e.regroup(ep)
}

// link files the endpoint under its labels in its namespace.
func (e *Engine) link(ep *endpoint) {
	for k, v := range ep.obj.Labels {
		l := label{k, v}
		ep.ns.byLabel[l] = append(ep.ns.byLabel[l], ep)
	}
}

func (e *Engine) unlink(ep *endpoint) {
	for k, v := range ep.obj.Labels {
		l := label{k, v}
		if left := without(ep.ns.byLabel[l], ep); len(left) > 0 {
			ep.ns.byLabel[l] = left
		} else {
			delete(ep.ns.byLabel, l)
		}
	}
}

// deleteEndpoint forgets a pod. If its node still has it wired, it keeps its rules until the node withdraws it.
func (e *Engine) deleteEndpoint(id string) {
	ep := e.endpoints[id]
	if ep == nil {
		return
	}
	delete(e.endpoints, id)
	if ep.announced != nil {
		e.change(ep, func() { ep.ghost = true })
		e.ghosts[incarnation{id, ep.obj.UID}] = ep
		return
	}
	e.forget(ep)
}

func (e *Engine) forget(ep *endpoint) {
	e.unclaim(ep)
	e.setGroups(ep, nil)
	e.unlink(ep)
	ep.ns.endpoints = without(ep.ns.endpoints, ep)
}

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
	if ep := e.wired(&a); ep != nil {
		e.accept(ep, a)
		return
	}
	e.waiting[waitingKey{a.incarnation(), a.Node}] = a
}

// wired is the endpoint that an announcement speaks of: a pod, or a ghost.
func (e *Engine) wired(a *Announcement) *endpoint {
	if ep := e.ghosts[a.incarnation()]; ep != nil && ep.announced.Node == a.Node {
		return ep
	}
	if ep := e.endpoints[a.ID()]; ep != nil && a.speaksOf(ep) {
		return ep
	}
	return nil
}

func (e *Engine) accept(ep *endpoint, a Announcement) {
	if ep.announced == nil || ep.announced.Node != a.Node || !slices.Equal(ep.announced.Addresses, a.Addresses) {
		e.change(ep, func() { ep.announced, ep.withdrawn = &a, false })
	}
	e.batch.settled = append(e.batch.settled, policy.SettledEndpoint{Node: a.Node, ID: a.ID(), UID: a.UID})
}

// waitingKey has the node, so that no node displaces another's word.
type waitingKey struct {
	incarnation
	node string
}

// settleWaiting accepts the announcement that came before the pod did. Where the pod's node is not known it takes the
// first by name.
func (e *Engine) settleWaiting(ep *endpoint) {
	if len(e.waiting) == 0 {
		return
	}
	if a, ok := e.waitingFor(ep); ok {
		delete(e.waiting, waitingKey{a.incarnation(), a.Node})
		e.accept(ep, a)
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
	ep := e.wired(a)
	switch {
	case ep == nil || ep.announced != nil && ep.announced.Node != a.Node:
	case ep.ghost:
		delete(e.ghosts, incarnation{ep.obj.ID(), ep.obj.UID})
		e.forget(ep)
	default:
		e.change(ep, func() { ep.announced, ep.withdrawn = nil, true })
	}
}

func (e *Engine) nodeAnnounced(n *NodeAnnouncements) {
	listed := make(map[incarnation]bool, len(n.All))
	for i := range n.All {
		listed[n.All[i].incarnation()] = true
	}
	var gone []Announcement
	for _, all := range []iter.Seq[*endpoint]{maps.Values(e.endpoints), maps.Values(e.ghosts)} {
		for ep := range all {
			if a := ep.announced; a != nil && a.Node == n.Node && !listed[a.incarnation()] {
				gone = append(gone, *a)
			}
		}
	}
	for _, a := range e.waiting {
		if a.Node == n.Node && !listed[a.incarnation()] {
			gone = append(gone, a)
		}
	}
	for i := range gone {
		e.withdraw(&gone[i])
	}
	for _, a := range n.All {
		a.Node = n.Node
		e.announce(a)
	}
}

func (e *Engine) claim(ep *endpoint) {
	for _, a := range ep.addresses() {
		e.touch(a)
		e.claims[a] = append(e.claims[a], ep)
	}
}

func (e *Engine) unclaim(ep *endpoint) {
	for _, a := range ep.addresses() {
		e.touch(a)
		if left := without(e.claims[a], ep); len(left) > 0 {
			e.claims[a] = left
		} else {
			delete(e.claims, a)
		}
	}
}

// holders are the endpoints of the highest rank among those that claim the address: one, or several that contest it.
func (e *Engine) holders(a netip.Addr) []*endpoint {
	claims := e.claims[a]
	if len(claims) < 2 {
		return claims
	}
	best := -1
	var top []*endpoint
	for _, ep := range claims {
		if r := ep.rank(); r > best {
			best, top = r, []*endpoint{ep}
		} else if r == best {
			top = append(top, ep)
		}
	}
	slices.SortFunc(top, func(a, b *endpoint) int { return compareStrings(a.obj.ID(), b.obj.ID()) })
	return top
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

// regroup finds the endpoint's groups anew.
func (e *Engine) regroup(ep *endpoint) {
	var groups []*group
	if ep.member() {
		for g := range ep.ns.index.candidates(ep.obj.Labels) {
			if g.chooses(ep) {
				groups = append(groups, g)
			}
		}
		slices.SortFunc(groups, bySeq)
	}
	e.setGroups(ep, groups)
}

func (e *Engine) setGroups(ep *endpoint, groups []*group) {
	if slices.Equal(ep.groups, groups) {
		return
	}
	for _, a := range ep.addresses() {
		e.touch(a)
	}
	before := ep.groups
	ep.groups = groups
	diffSorted(before, groups, func(g *group) {
		g.members = without(g.members, ep)
		e.countPort(ep, g, -1)
	}, func(g *group) {
		g.members = append(g.members, ep)
		e.countPort(ep, g, +1)
	})
}

// diffSorted walks two sorted lists and tells what is only in the first and only in the second.
func diffSorted(before, after []*group, gone, come func(*group)) {
	i, j := 0, 0
	for i < len(before) || j < len(after) {
		switch {
		case j == len(after) || i < len(before) && before[i].seq < after[j].seq:
			gone(before[i])
			i++
		case i == len(before) || after[j].seq < before[i].seq:
			come(after[j])
			j++
		default:
			i++
			j++
		}
	}
}
