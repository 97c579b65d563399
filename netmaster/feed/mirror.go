package feed

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// mirror is the state that nodes should hold, accumulated from the engine's changes.
type mirror struct {
	revision uint64
	rules    map[policy.Key]*policy.Rule // with all origins; nodes receive only the first few
	groups   map[policy.Key]*memberSet
	nodes    map[string]*view
	// rulesAt and groupsAt are the nodes that need a rule or a peer group.
	rulesAt, groupsAt holders
	alike             *alikeIndex
}

type holders map[policy.Key][]*view

// add adds a node that is not a holder yet; remove removes a holder.
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

// enter and leave keep a span and its holders consistent.
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

// view is a node's span, and the pending updates of its connection.
type view struct {
	rules   map[policy.Key]struct{}
	groups  map[policy.Key]struct{}
	applied map[policy.Key]members
	pending *pending // nil: not connected
	// settled pods by ID, collected while a hello is processed; nil: none is
	settled map[string]policy.SettledEndpoint
	dryRuns bool // the connected node supports dry runs; an older one would enforce such a rule
	alike   bool // the connected node supports groups by reference
}

// needs reports whether a node must hold a rule.
func (m *mirror) needs(v *view, k policy.Key) bool {
	_, ok := v.rules[k]
	return ok && (v.dryRuns || !m.rules[k].DryRun)
}

// pending is the set of changes that were not sent yet. It holds keys, not a queue of changes, so its size is
// bounded by what the node holds.
type pending struct {
	rules   map[policy.Key]struct{}
	groups  map[policy.GroupID]map[netip.Addr]bool // true: added; a nil map: the group is sent whole
	settled map[string]policy.SettledEndpoint      // by ID
	wake    chan struct{}
	flights []flight
	always  bool // an update is due even without changes
	// limit is how much pending may exceed the node's span. Beyond it outgrown is called, if set: for a slow node,
	// keys that entered and left its span would accumulate without bound.
	limit    int
	outgrown func()
}

// slack is how much pending may grow beyond its initial size.
const slack = 10_000

func newMirror() *mirror {
	return &mirror{
		rules:    map[policy.Key]*policy.Rule{},
		groups:   map[policy.Key]*memberSet{},
		nodes:    map[string]*view{},
		rulesAt:  holders{},
		groupsAt: holders{},
		alike:    newAlikeIndex(),
	}
}

func newPending() *pending {
	return &pending{
		rules:   map[policy.Key]struct{}{},
		groups:  map[policy.GroupID]map[netip.Addr]bool{},
		settled: map[string]policy.SettledEndpoint{},
		wake:    make(chan struct{}, 1),
	}
}

func (p *pending) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pending) size() int { return len(p.rules) + len(p.groups) }

func (p *pending) measure(span int) {
	if p.outgrown != nil && p.size() > p.limit+span {
		p.outgrown()
	}
}

func (p *pending) whole(id policy.GroupID) { p.groups[id] = nil }

// patch records changed members. If the patch would be larger than the group, the group is sent whole.
func (p *pending) patch(id policy.GroupID, size int, added, removed []netip.Addr) {
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
		v = &view{
			rules:   map[policy.Key]struct{}{},
			groups:  map[policy.Key]struct{}{},
			applied: map[policy.Key]members{},
		}
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
	lists := sharedLists{}
	for i := range c.Groups {
		m.applyGroup(&c.Groups[i], lists)
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
		case v.settled != nil:
			v.settled[s.ID] = s
		}
	}
}

func (m *mirror) applyGroup(g *policy.GroupChange, lists sharedLists) {
	set := m.groups[g.Key]
	if set != nil {
		m.alike.remove(g.Key, set)
	}
	switch {
	case g.Gone:
		delete(m.groups, g.Key)
		return
	case set == nil:
		set = &memberSet{base: lists.of(g.Added)}
		m.groups[g.Key] = set
	default:
		m.alike.change(set, g.Added, g.Removed)
	}
	m.alike.add(g.Key, set)
	m.share(g.Key, set)
}

// share gives a new or rewritten set the list of an equal one.
func (m *mirror) share(key policy.Key, set *memberSet) {
	fresh := len(set.changed) == 0
	if !fresh && !set.isWide() {
		return
	}
	for k := range m.alike.keys[set.sum] {
		if other := m.groups[k]; k != key && !other.isWide() {
			set.base, set.changed, set.removed = other.base, maps.Clone(other.changed), other.removed
			return
		}
	}
	if !fresh {
		set.base = &memberList{members: slices.Collect(set.all), sum: set.sum}
		set.changed, set.removed = nil, 0
	}
}

func (s members) change(added, removed []netip.Addr) {
	for _, a := range removed {
		delete(s, a)
	}
	for _, a := range added {
		s[a] = struct{}{}
	}
}

// markRules and markGroups mark changes for connected nodes that already hold the keys. New and removed keys are in
// NodeChange.
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
				v.pending.patch(policy.PeerGroup.ID(g.Key), m.groups[g.Key].len(), g.Added, g.Removed)
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
		m.markSpan(v, n)
		v.pending.signal()
		v.pending.measure(len(v.rules) + len(v.groups) + len(v.applied))
	}
}

func (v *view) applyApplied(a *policy.AppliedToChange) {
	id := policy.AppliedToGroup.ID(a.Key)
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

func (m *mirror) markSpan(v *view, n *policy.NodeChange) {
	for _, keys := range [][]policy.Key{n.AddRules, n.RemoveRules} {
		for _, k := range keys {
			v.pending.rules[k] = struct{}{}
		}
	}
	for _, k := range n.AddGroups {
		id := policy.PeerGroup.ID(k)
		// Of a group that the node does not hold there is nothing to send while it is empty.
		if _, due := v.pending.groups[id]; due || m.groups[k].len() > 0 {
			v.pending.whole(id)
		}
	}
	for _, k := range n.RemoveGroups {
		v.pending.whole(policy.PeerGroup.ID(k))
	}
}

func (s members) all(yield func(netip.Addr) bool) {
	for a := range s {
		if !yield(a) {
			return
		}
	}
}

// take returns the update that brings the node to the present revision; nil if nothing is due.
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
	u.Groups = m.groupUpdates(v)
	for _, settled := range p.settled {
		u.Settled = append(u.Settled, settled)
	}
	p.depart(flight{u.Revision, p.always, p.rules, p.groups}, len(v.rules)+len(v.groups)+len(v.applied))
	p.rules = map[policy.Key]struct{}{}
	p.groups = map[policy.GroupID]map[netip.Addr]bool{}
	p.settled = map[string]policy.SettledEndpoint{}
	p.always = false
	return u
}

// origins returns the origins of the rules that a node needs, without duplicates, and not more than fit in a message.
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

func (m *mirror) groupUpdate(v *view, id policy.GroupID, patch map[netip.Addr]bool) policy.GroupUpdate {
	u := policy.GroupUpdate{Key: id.Key, Kind: id.Kind}
	applied, ok := v.applied[id.Key]
	members := func() []netip.Addr { return slices.Collect(applied.all) }
	if id.Kind == policy.PeerGroup {
		set := m.groups[id.Key]
		members = set.list
		_, ok = v.groups[id.Key]
		ok = ok && set.len() > 0 // nodes do not hold empty groups
	}
	switch {
	case !ok:
		u.Gone = true
	case patch == nil:
		u.Replace = true
		u.Added = members()
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
