package resolve

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

type endpoint struct {
	obj       *policy.Endpoint
	ns        *namespace
	announced *Announcement
	withdrawn bool     // the node took the address back; the status in the API is late
	orphan    bool     // deleted in the API, still wired on its node
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

// rank orders claims on one address: an announcement beats a status, a living pod a terminating one.
func (ep *endpoint) rank() int {
	switch {
	case ep.announced != nil:
		return 2
	case !ep.obj.Terminating:
		return 1
	}
	return 0
}

// member tells whether the endpoint can be in groups at all.
func (ep *endpoint) member() bool {
	return !ep.obj.HostNetwork && (!ep.obj.Finished || ep.announced != nil)
}

func (e *Engine) putEndpoint(obj *policy.Endpoint) {
	ep := e.endpoints[obj.ID()]
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
	e.change(ep, func() {
		if ep.obj.UID != obj.UID {
			ep.announced, ep.withdrawn = nil, false
		}
		ep.obj, ep.orphan = obj, false
	})
	e.settleWaiting(ep)
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

// deleteEndpoint forgets a pod, unless its node still has it wired: then it keeps its rules until the node withdraws it.
func (e *Engine) deleteEndpoint(id string) {
	ep := e.endpoints[id]
	if ep == nil {
		return
	}
	if ep.announced != nil {
		ep.orphan = true
		return
	}
	e.unclaim(ep)
	e.setGroups(ep, nil)
	e.unlink(ep)
	ep.ns.endpoints = without(ep.ns.endpoints, ep)
	delete(e.endpoints, id)
}

func (e *Engine) announce(a Announcement) {
	ep := e.endpoints[a.ID()]
	if ep == nil || ep.orphan || (a.UID != "" && ep.obj.UID != "" && ep.obj.UID != a.UID) {
		e.waiting[a.ID()] = a
		return
	}
	e.accept(ep, a)
}

func (e *Engine) accept(ep *endpoint, a Announcement) {
	if ep.announced == nil || ep.announced.Node != a.Node || !slices.Equal(ep.announced.Addresses, a.Addresses) {
		e.change(ep, func() { ep.announced, ep.withdrawn = &a, false })
	}
	e.batch.settled = append(e.batch.settled, policy.SettledEndpoint{Node: a.Node, ID: a.ID(), UID: a.UID})
}

// settleWaiting accepts the announcement that came before the pod did.
func (e *Engine) settleWaiting(ep *endpoint) {
	a, ok := e.waiting[ep.obj.ID()]
	if ok && (a.UID == "" || ep.obj.UID == "" || a.UID == ep.obj.UID) {
		delete(e.waiting, ep.obj.ID())
		e.accept(ep, a)
	}
}

func (e *Engine) withdraw(a *Announcement) {
	if w, ok := e.waiting[a.ID()]; ok && w.Node == a.Node && (a.UID == "" || w.UID == a.UID) {
		delete(e.waiting, a.ID())
	}
	ep := e.endpoints[a.ID()]
	if ep == nil || (ep.announced != nil && ep.announced.Node != a.Node) {
		return
	}
	uid := ep.obj.UID
	if ep.announced != nil {
		uid = ep.announced.UID
	}
	if a.UID != "" && uid != "" && a.UID != uid {
		return
	}
	e.change(ep, func() { ep.announced, ep.withdrawn = nil, true })
	if ep.orphan {
		e.deleteEndpoint(a.ID())
	}
}

func (e *Engine) nodeAnnounced(n *NodeAnnouncements) {
	listed := make(map[string]bool, len(n.All))
	for i := range n.All {
		listed[n.All[i].ID()] = true
	}
	for _, ep := range e.endpoints {
		if ep.announced != nil && ep.announced.Node == n.Node && !listed[ep.obj.ID()] {
			e.withdraw(&Announcement{Node: n.Node, Namespace: ep.obj.Namespace, Name: ep.obj.Name, UID: ep.announced.UID})
		}
	}
	for id, a := range e.waiting {
		if a.Node == n.Node && !listed[id] {
			delete(e.waiting, id)
		}
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
