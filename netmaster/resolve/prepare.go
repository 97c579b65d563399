package resolve

import "github.com/flowkeep/flowkeep/policydb/policy"

// sliceWork is the number of namespaces and classes that one slice examines: some 10 ms of work.
const sliceWork = 100_000

// A Preparation creates the groups of policies that are about to be added, in slices, so that Apply need not create
// many at once. Groups are not published until a rule refers to them. Batches may be applied between slices.
type Preparation struct {
	e       *Engine
	next    func(members int) *policy.Policy
	policy  *policy.Policy // in progress; nil: none
	peers   []*policy.Peer // its remaining peers
	cost    int            // of its completed peers, as in Budgets.Policy.Members
	known   map[groupID]struct{}
	members int // addresses of its groups that are new to its nodes
	entries int // that Apply publishes for it
	done    bool
	held    []groupID
	listed  map[groupID]struct{} // groups whose members Apply publishes
}

// Prepare starts preparing a batch. The function next returns its policies one by one, and nil at the end. Its
// argument is the number of addresses that nodes may need for the previous policy: members of peers that its
// enforced version lacks.
func (e *Engine) Prepare(next func(members int) *policy.Policy) *Preparation {
	return &Preparation{e: e, next: next, listed: map[groupID]struct{}{}}
}

// Entries returns an estimate of what Apply publishes for the previous policy when the function next is called: the
// members of its new groups, and its rules on each node.
func (p *Preparation) Entries() int { return p.entries }

// Slice does a part of the work. It reports whether there is more.
func (p *Preparation) Slice() bool {
	e := p.e
	recost := e.batch.recost
	for e.work = 0; e.work < sliceWork && !p.done; {
		if len(p.peers) == 0 {
			p.begin()
			continue
		}
		s := peerSpec(p.peers[0], e.namespaceID(p.policy.Namespace))
		id, g := p.hold(&s)
		if _, known := p.known[id]; !known {
			p.known[id] = struct{}{}
			p.members += int(g.members)
		}
		if _, listed := p.listed[id]; !listed && g.peerOf == 0 {
			p.listed[id] = struct{}{}
			p.entries += int(g.members)
		}
		if p.cost += policy.GroupCost(int(g.members)); p.cost > e.budgets.Policy.Members {
			p.peers = nil
		} else {
			p.peers = p.peers[1:]
		}
	}
	e.batch.recost = recost // groups without a policy cost nothing
	return !p.done
}

// hold creates a group if necessary, and keeps it until End.
func (p *Preparation) hold(s *spec) (groupID, *group) {
	id := p.e.group(s)
	g := p.e.groups.at(id)
	g.holds++
	p.held = append(p.held, id)
	p.e.work += sliceWork / 1000 // fixed cost of a group
	return id, g
}

// begin starts the next policy.
func (p *Preparation) begin() {
	e := p.e
	p.policy = p.next(p.members)
	p.cost, p.members, p.known = 0, 0, map[groupID]struct{}{}
	if p.done = p.policy == nil; p.done {
		return
	}
	selectors(p.policy, func(peer *policy.Peer) { p.peers = append(p.peers, peer) })
	ns := e.namespaceID(p.policy.Namespace)
	_, applied := p.hold(&spec{ns: ns, pods: &p.policy.AppliedTo})
	p.entries = (2 + len(p.policy.Ingress) + len(p.policy.Egress)) * min(int(applied.members), e.nodes.len())
	id := e.policyOf(p.policy.Namespace, p.policy.Name)
	if len(p.peers) == 0 || id == 0 {
		return
	}
	selectors(e.policies.at(id).planned(), func(peer *policy.Peer) {
		s := peerSpec(peer, ns)
		p.known[e.group(&s)] = struct{}{}
	})
}

// End releases the groups. Call it after the batch with the policies was applied.
func (p *Preparation) End() {
	for _, id := range p.held {
		p.e.release(id)
	}
	p.held = nil
}

// Tidy deletes unreferenced groups that the last Apply left for lack of time. It reports whether there are more.
func (e *Engine) Tidy() bool {
	e.work = 0
	e.dropGroups()
	return e.Untidy()
}

// Untidy reports whether Tidy has anything to do.
func (e *Engine) Untidy() bool { return len(e.batch.unheld) > 0 }

// dropGroups deletes unreferenced groups, up to one slice of work.
func (e *Engine) dropGroups() {
	list := e.batch.unheld
	for len(list) > 0 && e.work < sliceWork {
		if g := e.groups.at(list[0]); g.holds == 0 && g.key != (policy.Key{}) {
			e.work += sliceWork / 1000
			e.drop(list[0])
		}
		list = list[1:]
	}
	if len(list) == 0 {
		e.batch.unheld = emptied(e.batch.unheld)
		return
	}
	e.batch.unheld = append(e.batch.unheld[:0], list...)
}
