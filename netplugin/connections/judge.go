package connections

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Judge answers whether this node's rules let a connection live, and by which rule, without asking the switch: by the resolved
// rules themselves. Not for concurrent use.
type Judge struct {
	rules   map[policy.Key]*policy.Rule
	members map[groupID]map[netip.Addr]struct{}
	groups  map[policy.GroupKind]map[netip.Addr]map[policy.Key]struct{} // that an address is in
	applied map[side]ruleSet
	wide    map[side]ruleSet // of applied, those whose peers are any, or blocks
	peers   map[way]ruleSet  // of applied, by peer group
	node    map[netip.Addr]struct{}
	dead    map[Tuple]struct{} // of pods that are gone, counted, and still in conntrack when it was last read
}

type groupID struct {
	kind policy.GroupKind
	key  policy.Key
}

// side is what a direction's rules have in common that isolate the same appliedTo group; way, that let the same peers in or out too.
type side struct {
	direction policy.Direction
	applied   policy.Key
}

type way struct {
	side
	peer policy.Key
}

type ruleSet map[policy.Key]*policy.Rule

// NewJudge makes one that knows no rule.
func NewJudge() *Judge {
	return &Judge{
		rules: map[policy.Key]*policy.Rule{}, members: map[groupID]map[netip.Addr]struct{}{},
		groups:  map[policy.GroupKind]map[netip.Addr]map[policy.Key]struct{}{policy.PeerGroup: {}, policy.AppliedToGroup: {}},
		applied: map[side]ruleSet{}, wide: map[side]ruleSet{}, peers: map[way]ruleSet{}, node: map[netip.Addr]struct{}{}, dead: map[Tuple]struct{}{},
	}
}

// SetNode tells the node's own addresses: what it begins is never judged.
func (j *Judge) SetNode(addrs []netip.Addr) {
	clear(j.node)
	for _, a := range addrs {
		j.node[a] = struct{}{}
	}
}

// Apply takes an update over.
func (j *Judge) Apply(u *policy.NodeUpdate) {
	for _, c := range u.Rules {
		if old := j.rules[c.Key]; old != nil {
			j.unindex(old)
			delete(j.rules, c.Key)
		}
		if c.Rule != nil && !c.Rule.Audit { // a dry run has no part in what lives
			j.rules[c.Key] = c.Rule
			j.index(c.Rule)
		}
	}
	for i := range u.Groups {
		j.applyGroup(&u.Groups[i])
	}
}

func put[K comparable](in map[K]ruleSet, at K, r *policy.Rule) {
	if in[at] == nil {
		in[at] = ruleSet{}
	}
	in[at][r.Key] = r
}

func remove[K comparable](in map[K]ruleSet, at K, r *policy.Rule) {
	delete(in[at], r.Key)
	if len(in[at]) == 0 {
		delete(in, at)
	}
}

func (j *Judge) index(r *policy.Rule) {
	s := side{r.Direction, r.AppliedTo}
	put(j.applied, s, r)
	if r.AnyPeer || len(r.Blocks) > 0 {
		put(j.wide, s, r)
	}
	for _, key := range r.Peers {
		put(j.peers, way{s, key}, r)
	}
}

func (j *Judge) unindex(r *policy.Rule) {
	s := side{r.Direction, r.AppliedTo}
	remove(j.applied, s, r)
	remove(j.wide, s, r)
	for _, key := range r.Peers {
		remove(j.peers, way{s, key}, r)
	}
}

func (j *Judge) applyGroup(g *policy.GroupUpdate) {
	id := groupID{g.Kind, g.Key}
	if g.Replace || g.Gone {
		for a := range j.members[id] {
			j.leave(id, a)
		}
		delete(j.members, id)
	}
	if g.Gone {
		return
	}
	for _, a := range g.Removed {
		j.leave(id, a)
		delete(j.members[id], a)
	}
	for _, a := range g.Added {
		if j.members[id] == nil {
			j.members[id] = map[netip.Addr]struct{}{}
		}
		j.members[id][a] = struct{}{}
		of := j.groups[g.Kind]
		if of[a] == nil {
			of[a] = map[policy.Key]struct{}{}
		}
		of[a][g.Key] = struct{}{}
	}
}

func (j *Judge) leave(id groupID, a netip.Addr) {
	of := j.groups[id.kind]
	delete(of[a], id.key)
	if len(of[a]) == 0 {
		delete(of, a)
	}
}

// Verdict is what is said of a connection.
type Verdict struct {
	Allowed bool
	// Direction is where it is denied, or, where it is allowed, the last side that judged; 0 where nobody did.
	Direction policy.Direction
	// Rules let it live, one a side that isolates; nil for a side that does not, or that denies.
	Rules [policy.Egress + 1]*policy.Rule
}

// Verdict judges a connection by its first packet, on the side or the sides of this node's pods.
func (j *Judge) Verdict(t Tuple) Verdict {
	v := Verdict{Allowed: true}
	if _, own := j.node[t.Src]; own || t.Src == t.Dst { // a pod reaches itself, through its Service
		return v
	}
	for _, side := range []struct {
		direction policy.Direction
		own, peer netip.Addr
	}{{policy.Egress, t.Src, t.Dst}, {policy.Ingress, t.Dst, t.Src}} {
		if !j.isolated(side.own, side.direction) {
			continue
		}
		r := j.allowing(side.direction, side.own, side.peer, t)
		v.Direction = side.direction
		if r == nil {
			v.Allowed = false
			return v
		}
		v.Rules[side.direction] = r
	}
	return v
}

func (j *Judge) isolated(a netip.Addr, d policy.Direction) bool {
	for key := range j.groups[policy.AppliedToGroup][a] {
		if len(j.applied[side{d, key}]) > 0 {
			return true
		}
	}
	return false
}

// allowing is the rule with the smallest key of those that let the connection through.
func (j *Judge) allowing(d policy.Direction, own, peer netip.Addr, t Tuple) (found *policy.Rule) {
	consider := func(r *policy.Rule) {
		if (found == nil || bytes.Compare(r.Key[:], found.Key[:]) < 0) && portAllowed(r, t) {
			found = r
		}
	}
	theirs := j.groups[policy.PeerGroup][peer]
	for applied := range j.groups[policy.AppliedToGroup][own] {
		s := side{d, applied}
		for _, r := range j.wide[s] {
			if r.AnyPeer || slices.ContainsFunc(r.Blocks, func(b policy.IPBlock) bool { return contains(&b, peer) }) {
				consider(r)
			}
		}
		for key := range theirs {
			for _, r := range j.peers[way{s, key}] {
				consider(r)
			}
		}
	}
	return found
}

func contains(b *policy.IPBlock, a netip.Addr) bool {
	return b.CIDR.Contains(a) && !slices.ContainsFunc(b.Except, func(p netip.Prefix) bool { return p.Contains(a) })
}

func portAllowed(r *policy.Rule, t Tuple) bool {
	return r.AnyPort || slices.ContainsFunc(r.Ports, func(p policy.PortRange) bool {
		return p.Protocol == t.Protocol && p.First <= t.DstPort && t.DstPort <= p.Last
	})
}

// Isolating are the origins of what isolates an address, without those that may let something through: why it is denied.
func (j *Judge) Isolating(a netip.Addr, d policy.Direction) (origins []policy.Origin) {
	for key := range j.groups[policy.AppliedToGroup][a] {
		for _, r := range j.applied[side{d, key}] {
			origins = append(origins, r.Origins...)
		}
	}
	return policies(origins)
}

// policies reduces origins to the isolation of each policy, sorted.
func policies(origins []policy.Origin) (out []policy.Origin) {
	for _, o := range origins {
		out = append(out, policy.Origin{Policy: o.Policy, Rule: -1})
	}
	slices.SortFunc(out, func(a, b policy.Origin) int { return strings.Compare(a.Policy, b.Policy) })
	return slices.Compact(out)
}

// Narrows tells whether an update could end a connection: it takes a rule or a peer away, or puts a rule or a pod where it may be
// the first that isolates.
func Narrows(u *policy.NodeUpdate) bool {
	return slices.ContainsFunc(u.Rules, func(c policy.RuleChange) bool { return c.Rule == nil || !c.Rule.Audit }) || slices.ContainsFunc(u.Groups, func(g policy.GroupUpdate) bool {
		if g.Kind == policy.AppliedToGroup {
			return g.Replace || g.Gone || len(g.Added)+len(g.Removed) > 0 // a group left may be the one whose rule let it live
		}
		return g.Replace || g.Gone || len(g.Removed) > 0
	})
}
