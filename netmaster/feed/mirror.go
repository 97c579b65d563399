package feed

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// mirror is what nodes should hold: the engine's changes, summed up.
type mirror struct {
	revision uint64
	rules    map[policy.Key]*policy.Rule // with all origins; nodes get them brief
	groups   map[policy.Key]members
	hashes   map[policy.Key]policy.Key // of groups, since they changed last: thousands of nodes may hold the same at once
	nodes    map[string]*view
	// rulesAt and groupsAt are the nodes in whose span a rule or a peer group is: a change costs as many as it concerns.
	rulesAt, groupsAt holders
}

type holders map[policy.Key][]*view

// add is for a node that was not there; remove for one that was.
func (h holders) add(k policy.Key, v *view) { h[k] = append(h[k], v) }

func (h holders) remove(k policy.Key, v *view) {
	all := h[k]
	i := slices.Index(all, v)
	if i < 0 {
		return
	}
	last := len(all) - 1
	all[i], all[last] = all[last], nil
	if last == 0 {
		delete(h, k)
	} else {
		h[k] = all[:last]
	}
}

// enter and leave keep a span's keys and who has them alike.
func (h holders) enter(span map[policy.Key]struct{}, keys []policy.Key, v *view) {
	for _, k := range keys {
		if _, there := span[k]; !there {
			span[k] = struct{}{}
			h.add(k, v)
		}
	}
}

func (h holders) leave(span map[policy.Key]struct{}, keys []policy.Key, v *view) {
	for _, k := range keys {
		if _, there := span[k]; there {
			delete(span, k)
			h.remove(k, v)
		}
	}
}

type members map[netip.Addr]struct{}

type groupID struct {
	kind policy.GroupKind
	key  policy.Key
}

// view is one node's span, and what a connection of it has yet to be sent.
type view struct {
	rules   map[policy.Key]struct{}
	groups  map[policy.Key]struct{}
	applied map[policy.Key]members
	pending *pending                          // nil: not connected
	early   map[string]policy.SettledEndpoint // since a hello is being taken over, by ID: of what it announced; nil: none is
	dryRuns bool                              // the connected node knows of them: to one of before, such a rule would be one in force
}

// needs tells whether a node is to hold a rule.
func (m *mirror) needs(v *view, k policy.Key) bool {
	_, ok := v.rules[k]
	return ok && (v.dryRuns || !m.rules[k].Audit)
}

// pending is what changed since the node was last sent something: keys, not a queue, so that it never outgrows what the
// node holds.
type pending struct {
	rules   map[policy.Key]struct{}
	groups  map[groupID]map[netip.Addr]bool   // true: added; a nil map: the group is sent whole
	settled map[string]policy.SettledEndpoint // by ID
	wake    chan struct{}
	flights []flight
	always  bool // something is due even if nothing changed
	// most is how much more than the node's span may wait, and outgrown is called, if set, when more does: of a node that takes
	// little, what came into its span and left it again would add up for ever.
	most     int
	outgrown func()
}

// slack is how much more may wait than what did at the start.
const slack = 10_000

func newMirror() *mirror {
	return &mirror{rules: map[policy.Key]*policy.Rule{}, groups: map[policy.Key]members{}, hashes: map[policy.Key]policy.Key{}, nodes: map[string]*view{}, rulesAt: holders{}, groupsAt: holders{}}
}

func newPending() *pending {
	return &pending{rules: map[policy.Key]struct{}{}, groups: map[groupID]map[netip.Addr]bool{}, settled: map[string]policy.SettledEndpoint{}, wake: make(chan struct{}, 1)}
}

func (p *pending) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pending) size() int { return len(p.rules) + len(p.groups) }

func (p *pending) measure(span int) {
	if p.outgrown != nil && p.size() > p.most+span {
		p.outgrown()
	}
}

func (p *pending) whole(id groupID) { p.groups[id] = nil }

// patch notes changed members, and falls back to the whole group where the patch would be larger.
func (p *pending) patch(id groupID, size int, added, removed []netip.Addr) {
	patch, known := p.groups[id]
	if known && patch == nil {
		return
	}
	if patch == nil {
		patch = map[netip.Addr]bool{}
		p.groups[id] = patch
	}
	for _, a := range removed {
		patch[a] = false
	}
	for _, a := range added {
		patch[a] = true
	}
	if len(patch) > size+16 {
		p.whole(id)
	}
}

func (m *mirror) view(node string) *view {
	v := m.nodes[node]
	if v == nil {
		v = &view{rules: map[policy.Key]struct{}{}, groups: map[policy.Key]struct{}{}, applied: map[policy.Key]members{}}
		m.nodes[node] = v
	}
	return v
}

func (m *mirror) apply(c *policy.Changes) {
	m.revision = c.Revision
	var told []policy.RuleChange
	for _, r := range c.Rules {
		before := m.rules[r.Key]
		if r.Rule == nil {
			delete(m.rules, r.Key)
			continue
		}
		m.rules[r.Key] = r.Rule
		if before == nil || !slices.Equal(before.Brief().Origins, r.Rule.Brief().Origins) {
			told = append(told, r)
		}
	}
	for i := range c.Groups {
		m.applyGroup(&c.Groups[i])
	}
	m.markRules(told)
	m.markGroups(c.Groups)
	for i := range c.Nodes {
		m.applyNode(&c.Nodes[i])
	}
	for _, s := range c.Settled {
		v := m.view(s.Node)
		switch {
		case v.pending != nil:
			v.pending.settled[s.ID] = s
			v.pending.signal()
		case v.early != nil:
			v.early[s.ID] = s
		}
	}
}

func (m *mirror) applyGroup(g *policy.GroupChange) {
	delete(m.hashes, g.Key)
	if g.Gone {
		delete(m.groups, g.Key)
		return
	}
	set := m.groups[g.Key]
	if set == nil {
		set = make(members, len(g.Added))
		m.groups[g.Key] = set
	}
	set.change(g.Added, g.Removed)
}

func (s members) change(added, removed []netip.Addr) {
	for _, a := range removed {
		delete(s, a)
	}
	for _, a := range added {
		s[a] = struct{}{}
	}
}

// markRules and markGroups tell the connected nodes that had these before the batch; entering and leaving is in NodeChange.
func (m *mirror) markRules(changes []policy.RuleChange) {
	for _, r := range changes {
		for _, v := range m.rulesAt[r.Key] {
			if v.pending != nil {
				v.pending.rules[r.Key] = struct{}{}
				v.pending.signal()
			}
		}
	}
}

func (m *mirror) markGroups(changes []policy.GroupChange) {
	for i := range changes {
		g := &changes[i]
		if g.Gone {
			continue
		}
		for _, v := range m.groupsAt[g.Key] {
			if v.pending != nil {
				v.pending.patch(groupID{policy.PeerGroup, g.Key}, len(m.groups[g.Key]), g.Added, g.Removed)
				v.pending.signal()
			}
		}
	}
}

func (m *mirror) applyNode(n *policy.NodeChange) {
	v := m.view(n.Node)
	m.rulesAt.leave(v.rules, n.RemoveRules, v)
	m.rulesAt.enter(v.rules, n.AddRules, v)
	m.groupsAt.leave(v.groups, n.RemoveGroups, v)
	m.groupsAt.enter(v.groups, n.AddGroups, v)
	for i := range n.AppliedTo {
		v.applyApplied(&n.AppliedTo[i])
	}
	if v.pending != nil {
		v.markSpan(n)
		v.pending.signal()
		v.pending.measure(len(v.rules) + len(v.groups) + len(v.applied))
	}
}

func (v *view) applyApplied(a *policy.AppliedToChange) {
	id := groupID{policy.AppliedToGroup, a.Key}
	if a.Gone {
		delete(v.applied, a.Key)
		if v.pending != nil {
			v.pending.whole(id)
		}
		return
	}
	set := v.applied[a.Key]
	fresh := set == nil
	if fresh {
		set = make(members, len(a.Added))
		v.applied[a.Key] = set
	}
	set.change(a.Added, a.Removed)
	if v.pending != nil && fresh {
		v.pending.whole(id)
	} else if v.pending != nil {
		v.pending.patch(id, len(set), a.Added, a.Removed)
	}
}

func (v *view) markSpan(n *policy.NodeChange) {
	for _, keys := range [][]policy.Key{n.AddRules, n.RemoveRules} {
		for _, k := range keys {
			v.pending.rules[k] = struct{}{}
		}
	}
	for _, keys := range [][]policy.Key{n.AddGroups, n.RemoveGroups} {
		for _, k := range keys {
			v.pending.whole(groupID{policy.PeerGroup, k})
		}
	}
}

// resume marks the difference between what a node holds and what it should.
func (m *mirror) resume(v *view, held []wire.Held) *pending {
	p := newPending()
	p.always = true
	if v.early != nil {
		p.settled, v.early = v.early, nil
	}
	v.pending = p
	has := make(map[wire.Held]struct{}, len(held))
	for _, h := range held {
		has[h] = struct{}{}
		m.markUnneeded(v, p, h)
	}
	for k := range v.rules {
		if _, ok := has[wire.Held{Key: k, Hash: m.rules[k].Brief().Hash()}]; !ok && m.needs(v, k) {
			p.rules[k] = struct{}{}
		}
	}
	for k := range v.groups {
		p.compare(has, groupID{policy.PeerGroup, k}, m.hash(k))
	}
	for k, set := range v.applied {
		p.compare(has, groupID{policy.AppliedToGroup, k}, policy.MembersHash(set.all))
	}
	p.most = p.size() + slack
	p.signal()
	return p
}

func (m *mirror) markUnneeded(v *view, p *pending, h wire.Held) {
	needed := false
	switch h.Group {
	case 0:
		needed = m.needs(v, h.Key)
	case policy.PeerGroup:
		_, needed = v.groups[h.Key]
	case policy.AppliedToGroup:
		_, needed = v.applied[h.Key]
	}
	switch {
	case needed:
	case h.Group == 0:
		p.rules[h.Key] = struct{}{}
	default:
		p.whole(groupID{h.Group, h.Key})
	}
}

func (p *pending) compare(has map[wire.Held]struct{}, id groupID, hash policy.Key) {
	if _, ok := has[wire.Held{Group: id.kind, Key: id.key, Hash: hash}]; !ok {
		p.whole(id)
	}
}

// hash is a peer group's.
func (m *mirror) hash(k policy.Key) policy.Key {
	hash, ok := m.hashes[k]
	if !ok {
		hash = policy.MembersHash(m.groups[k].all)
		m.hashes[k] = hash
	}
	return hash
}

func (s members) all(yield func(netip.Addr) bool) {
	for a := range s {
		if !yield(a) {
			return
		}
	}
}

// take builds what brings the node to the present revision; nil if nothing is due.
func (m *mirror) take(v *view) *policy.NodeUpdate {
	p := v.pending
	if !p.always && len(p.rules)+len(p.groups)+len(p.settled) == 0 {
		return nil
	}
	u := &policy.NodeUpdate{Revision: m.revision}
	for k := range p.rules {
		change := policy.RuleChange{Key: k}
		if m.needs(v, k) {
			change.Rule = m.rules[k].Brief()
		}
		u.Rules = append(u.Rules, change)
	}
	for id, patch := range p.groups {
		u.Groups = append(u.Groups, m.groupUpdate(v, id, patch))
	}
	for _, settled := range p.settled {
		u.Settled = append(u.Settled, settled)
	}
	p.depart(flight{u.Revision, p.always, p.rules, p.groups}, len(v.rules)+len(v.groups)+len(v.applied))
	p.rules, p.groups, p.settled, p.always = map[policy.Key]struct{}{}, map[groupID]map[netip.Addr]bool{}, map[string]policy.SettledEndpoint{}, false
	return u
}

// origins are those of the rules that a node needs, each once; at most as many as a message holds.
func (m *mirror) origins(v *view, rules []policy.Key) []policy.Origin {
	var out []policy.Origin
	seen := map[policy.Origin]struct{}{}
	for _, key := range rules {
		if _, ok := v.rules[key]; !ok {
			continue
		}
		for _, o := range m.rules[key].Origins {
			if _, twice := seen[o]; !twice && len(out) < wire.MaxErrorKeys {
				seen[o] = struct{}{}
				out = append(out, o)
			}
		}
	}
	return out
}

func (m *mirror) groupUpdate(v *view, id groupID, patch map[netip.Addr]bool) policy.GroupUpdate {
	u := policy.GroupUpdate{Key: id.key, Kind: id.kind}
	set, ok := v.applied[id.key]
	if id.kind == policy.PeerGroup {
		if _, ok = v.groups[id.key]; ok {
			set = m.groups[id.key]
		}
	}
	switch {
	case !ok:
		u.Gone = true
	case patch == nil:
		u.Replace = true
		for a := range set {
			u.Added = append(u.Added, a)
		}
	default:
		for a, in := range patch {
			if in {
				u.Added = append(u.Added, a)
			} else {
				u.Removed = append(u.Removed, a)
			}
		}
	}
	return u
}
