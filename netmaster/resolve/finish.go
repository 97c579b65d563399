package resolve

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// finish compares everything touched with its state before, and returns the differences. The order matters: first
// dead rules leave the nodes of their old groups, then addresses move, then new rules enter the nodes of their new
// groups. So no node is sent a removal and an addition of the same key.
func (e *Engine) finish() (policy.Changes, []Conflict) {
	b := &e.batch
	e.settleRules()
	e.noteMoved()
	e.finishEndpoints()
	e.snapshot.mark(e.moved, e.endpoints.last)
	out := policy.Changes{Settled: b.settled, Groups: e.finishPeers()}
	e.finishPlaces()
	e.finishApplied()
	e.finishBorn()
	out.Rules = e.ruleChanges()
	e.netGroups()
	out.Nodes = e.nodeChanges()
	if len(out.Rules)+len(out.Groups)+len(out.Nodes) > 0 {
		e.revision++
	}
	out.Revision = e.revision
	conflicts := b.conflicts
	slices.SortFunc(conflicts, func(a, b Conflict) int { return a.Address.Compare(b.Address) })
	e.reset()
	return out, conflicts
}

// settleRules determines which rules are new, changed and dead, and unlinks the dead.
func (e *Engine) settleRules() {
	e.batch.born = slices.Grow(e.batch.born, len(e.batch.rules))
	for i := range e.batch.rules {
		t := &e.batch.rules[i]
		r := e.rules.at(t.id)
		was := r.alive()
		switch moved := e.settleOrigins(t); {
		case !was && r.alive():
			t.fate = born
			e.batch.born = append(e.batch.born, t.id)
			e.countRule(r, +1)
		case was && !r.alive():
			t.fate = dead
			e.leaveAll(t.id, r)
			e.unlink(r)
			e.countRule(r, -1)
		case moved:
			t.fate = changed
		}
	}
}

func (e *Engine) countRule(r *rule, by int) {
	e.touchGroup(r.applied)
	e.groups.at(r.applied).appliedOf += uint32(by)
	var buf [1]groupID
	for _, g := range r.peers(&buf) {
		e.touchGroup(g)
		e.groups.at(g).peerOf += uint32(by)
	}
}

// finishEndpoints converts the differences of endpoints to steps of groups.
func (e *Engine) finishEndpoints() {
	var crowded map[netip.Addr][]uint32
	after := touchedEndpoint{}
	for i := range e.batch.endpoints {
		before := &e.batch.endpoints[i]
		e.contribution(before.id, &after)
		e.finishEndpoint(before, &after)
		crowded = e.noteContended(crowded, before.addresses, uint32(i+1))
		crowded = e.noteContended(crowded, after.addresses, 0)
	}
	none := touchedEndpoint{}
	for _, id := range e.batch.fresh {
		e.contribution(id, &after)
		e.finishEndpoint(&none, &after)
		crowded = e.noteContended(crowded, after.addresses, 0)
	}
	e.finishContended(crowded)
}

// contribution stores the present contribution of an endpoint in out.
func (e *Engine) contribution(id endpointID, out *touchedEndpoint) {
	ep := e.endpoints.at(id)
	*out = touchedEndpoint{id: id}
	if ep.obj != nil {
		*out = touchedEndpoint{id, ep.node, ep.rank(), ep.addresses(), ep.foreign(), e.classes.at(ep.class).groups}
	}
}

func (e *Engine) finishEndpoint(before, after *touchedEndpoint) {
	for i, a := range before.addresses {
		if slices.Contains(before.addresses[:i], a) || e.isContended(a) {
			continue
		}
		if slices.Contains(after.addresses, a) {
			e.finishAddress(a, before, after)
		} else {
			e.contribute(a, before, false)
		}
	}
	for i, a := range after.addresses {
		if !slices.Contains(after.addresses[:i], a) && !slices.Contains(before.addresses, a) && !e.isContended(a) {
			e.contribute(a, after, true)
		}
	}
}

// finishAddress handles an address that the endpoint keeps.
func (e *Engine) finishAddress(a netip.Addr, before, after *touchedEndpoint) {
	s := before.foreign.standing(a)
	if before.node != after.node || s != after.foreign.standing(a) {
		e.contribute(a, before, false)
		e.contribute(a, after, true)
		return
	}
	diffSorted(before.groups, after.groups,
		func(g groupID) { e.recordStep(g, a, after.node, s, false) },
		func(g groupID) { e.recordStep(g, a, after.node, s, true) })
}

func (e *Engine) contribute(a netip.Addr, t *touchedEndpoint, in bool) {
	s := t.foreign.standing(a)
	for _, g := range t.groups {
		e.recordStep(g, a, t.node, s, in)
	}
}

// recordStep records a change of a group that existed before and still exists. Other groups are published whole.
func (e *Engine) recordStep(id groupID, a netip.Addr, n nodeID, s standing, in bool) {
	g := e.groups.at(id)
	if s.peer && g.peerOf > 0 && (!g.touched || g.wasPeer) {
		e.batch.peerSteps = append(e.batch.peerSteps, peerStep{id, in, a})
	}
	if s.applied && e.nodes.at(n).name != "" && g.appliedOf > 0 && (!g.touched || g.wasApplied) {
		e.batch.places = append(e.batch.places, placeStep{id, n, in, a})
	}
}

// noteContended collects, by contested address, the touched endpoints that had it.
func (e *Engine) noteContended(crowded map[netip.Addr][]uint32, addresses []netip.Addr,
	place uint32) map[netip.Addr][]uint32 {
	if len(e.batch.contended)+len(e.contested) == 0 {
		return crowded
	}
	for _, a := range addresses {
		if !e.isContended(a) {
			continue
		}
		if crowded == nil {
			crowded = map[netip.Addr][]uint32{}
		}
		list := crowded[a]
		if place != 0 && !slices.Contains(list, place) {
			list = append(list, place)
		}
		crowded[a] = list
	}
	return crowded
}

// finishContended handles addresses that several endpoints claim, or claimed during the batch.
func (e *Engine) finishContended(crowded map[netip.Addr][]uint32) {
	addresses := make([]netip.Addr, 0, len(crowded))
	for a := range crowded {
		addresses = append(addresses, a)
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	for _, a := range addresses {
		e.moved = append(e.moved, e.claimants(a)...)
		before, after := e.claimsBefore(a, crowded[a]), e.claimsNow(a)
		was, is := stand(a, before), stand(a, after)
		for s := range was {
			if !is[s] {
				e.recordStep(s.group, a, s.node, standing{s.peer, !s.peer}, false)
			}
		}
		for s := range is {
			if !was[s] {
				e.recordStep(s.group, a, s.node, standing{s.peer, !s.peer}, true)
			}
		}
		if holders := top(a, after); len(holders) > 1 && len(top(a, before)) < 2 {
			e.conflict(a, holders)
		}
	}
}

// claimsBefore returns the claims on an address before the batch.
func (e *Engine) claimsBefore(a netip.Addr, touched []uint32) (out []touchedEndpoint) {
	for _, place := range touched {
		out = append(out, e.batch.endpoints[place-1])
	}
	for _, c := range e.claimsNow(a) {
		if e.endpoints.at(c.id).touched == 0 {
			out = append(out, c)
		}
	}
	return out
}

func (e *Engine) claimsNow(a netip.Addr) (out []touchedEndpoint) {
	for _, id := range e.claimants(a) {
		var c touchedEndpoint
		e.contribution(id, &c)
		out = append(out, c)
	}
	return out
}

// top returns the claims of the highest rank, without foreign ones.
func top(a netip.Addr, claims []touchedEndpoint) (out []touchedEndpoint) {
	for _, c := range claims {
		if c.foreign.has(a) {
			continue
		}
		if len(out) > 0 && c.rank > out[0].rank {
			out = out[:0]
		}
		if len(out) == 0 || c.rank == out[0].rank {
			out = append(out, c)
		}
	}
	return out
}

// stand returns where an address is effective: in which peer groups, and on which nodes in which appliedTo groups.
func stand(a netip.Addr, claims []touchedEndpoint) map[place]bool {
	out := map[place]bool{}
	for _, c := range claims {
		if !c.foreign.has(a) {
			continue
		}
		for _, g := range c.groups {
			out[place{g, c.node, false}] = true
		}
	}
	holders := top(a, claims)
	for _, c := range holders {
		for _, g := range c.groups {
			out[place{g, c.node, false}] = true
			if len(holders) == 1 {
				out[place{g, 0, true}] = true
			}
		}
	}
	return out
}

type place struct {
	group groupID
	node  nodeID
	peer  bool
}

// finishPeers returns the changes of peer groups.
func (e *Engine) finishPeers() []policy.GroupChange {
	n := len(e.batch.peerSteps)
	for _, id := range e.batch.groups {
		if g := e.groups.at(id); g.wasPeer != (g.peerOf > 0) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	out, lists := make([]policy.GroupChange, 0, n), sharedLists{}
	for _, id := range e.batch.groups {
		g := e.groups.at(id)
		switch is := g.peerOf > 0; {
		case is && !g.wasPeer:
			out = append(out, policy.GroupChange{Key: g.key, Added: e.sharedMembers(g, lists)})
		case !is && g.wasPeer:
			out = append(out, policy.GroupChange{Key: g.key, Gone: true})
		}
	}
	steps := e.batch.peerSteps
	slices.SortFunc(steps,
		func(a, b peerStep) int { return cmp.Or(cmp.Compare(a.group, b.group), a.addr.Compare(b.addr)) })
	for len(steps) > 0 {
		n := 1
		for n < len(steps) && steps[n].group == steps[0].group {
			n++
		}
		d := difference(steps[:n], func(s *peerStep) (netip.Addr, bool) { return s.addr, s.in })
		if len(d.added)+len(d.removed) > 0 {
			out = append(out,
				policy.GroupChange{Key: e.groups.at(steps[0].group).key, Added: d.added, Removed: d.removed})
		}
		steps = steps[n:]
	}
	return out
}

type delta struct{ added, removed []netip.Addr }

// difference returns the net effect of steps, which are sorted by address.
func difference[T any](steps []T, of func(*T) (netip.Addr, bool)) (d delta) {
	for i := 0; i < len(steps); {
		a, _ := of(&steps[i])
		net := 0
		for ; i < len(steps); i++ {
			b, in := of(&steps[i])
			if b != a {
				break
			}
			if in {
				net++
			} else {
				net--
			}
		}
		switch {
		case net > 0:
			d.added = append(d.added, a)
		case net < 0:
			d.removed = append(d.removed, a)
		}
	}
	return d
}

// sharedLists holds member lists of groups by a hash of their classes.
type sharedLists map[uint64][]sharedList

type sharedList struct {
	group   *group
	members []netip.Addr
}

// minShared is the minimal number of endpoints of groups that share their member lists.
const minShared = 64

// sharedMembers returns the addresses of a peer group. Groups with equal classes share a list.
func (e *Engine) sharedMembers(g *group, lists sharedLists) []netip.Addr {
	if g.members < minShared {
		return e.peerMembers(g)
	}
	var buf, other [1]classID
	sum := e.hash.salt
	classes := g.classes.all(&buf)
	for _, c := range classes {
		sum = mix(sum, uint64(c))
	}
	for _, l := range lists[sum] {
		if slices.Equal(classes, l.group.classes.all(&other)) {
			return l.members
		}
	}
	members := e.peerMembers(g)
	lists[sum] = append(lists[sum], sharedList{g, members})
	return members
}

// peerMembers returns the addresses of a peer group.
func (e *Engine) peerMembers(g *group) []netip.Addr {
	if g.members < minShared { // few, and perhaps none of them has an address
		e.batch.addresses = e.appendMembers(e.batch.addresses[:0], g)
		return append([]netip.Addr(nil), e.batch.addresses...)
	}
	return e.appendMembers(make([]netip.Addr, 0, g.members), g)
}

// appendMembers appends the addresses of a peer group to a list.
func (e *Engine) appendMembers(list []netip.Addr, g *group) []netip.Addr {
	var buf [1]classID
	for _, c := range g.classes.all(&buf) {
		for id := e.classes.at(c).endpoints; id != 0; {
			ep := e.endpoints.at(id)
			for i, a := range ep.addresses() {
				if e.standingOf(ep, a).peer && !slices.Contains(ep.addresses()[:i], a) {
					list = append(list, a)
				}
			}
			id = ep.next
		}
	}
	return list
}
