package conntrack

import (
	"bytes"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/netplugin/groups"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Judge answers whether this node's rules let a connection live, and by which rule, without asking the switch: by the
// resolved rules themselves. Not for concurrent use.
type Judge struct {
	rules   map[policy.Key]*policy.Rule
	groups  *groups.Replica
	setsOf  map[policy.GroupKind]map[netip.Addr][]*groups.Set // that have an address
	applied map[side]ruleSet
	wide    map[side]ruleSet // of applied, those whose peers are any, or blocks
	peers   map[way]ruleSet  // of applied, by peer group
	node    map[netip.Addr]struct{}
	dead    map[Tuple]struct{} // of pods that are gone, counted, and still in conntrack when it was last read
}

// side is what a direction's rules have in common that isolate the same appliedTo group; way, that let the same peers
// in or out too.
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
		rules: map[policy.Key]*policy.Rule{}, groups: groups.New(),
		setsOf:  map[policy.GroupKind]map[netip.Addr][]*groups.Set{policy.PeerGroup: {}, policy.AppliedToGroup: {}},
		applied: map[side]ruleSet{}, wide: map[side]ruleSet{}, peers: map[way]ruleSet{},
		node: map[netip.Addr]struct{}{}, dead: map[Tuple]struct{}{},
	}
}

// SetNode sets the node's own addresses. Connections that they open are not evaluated.
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
		if c.Rule != nil && !c.Rule.DryRun { // a dry run has no part in what lives
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

func (j *Judge) applyGroup(u *policy.GroupUpdate) {
	for _, c := range j.groups.Apply(u) {
		switch {
		case len(c.Set.Keys()) == 0:
			for a := range c.Set.Members() {
				j.leave(c.Set, a)
			}
		case c.New:
			for a := range c.Set.Members() {
				j.join(c.Set, a)
			}
		default:
			for _, a := range c.Removed {
				j.leave(c.Set, a)
			}
			for _, a := range c.Added {
				j.join(c.Set, a)
			}
		}
	}
}

func (j *Judge) join(s *groups.Set, a netip.Addr) {
	of := j.setsOf[s.Kind()]
	of[a] = append(of[a], s)
}

func (j *Judge) leave(s *groups.Set, a netip.Addr) {
	of := j.setsOf[s.Kind()]
	if i := slices.Index(of[a], s); i >= 0 {
		of[a] = slices.Delete(of[a], i, i+1)
	}
	if len(of[a]) == 0 {
		delete(of, a)
	}
}

// groupsOf returns the keys of the groups of a kind that an address is in.
func (j *Judge) groupsOf(kind policy.GroupKind, a netip.Addr) iter.Seq[policy.Key] {
	return func(yield func(policy.Key) bool) {
		for _, s := range j.setsOf[kind][a] {
			for _, k := range s.Keys() {
				if !yield(k) {
					return
				}
			}
		}
	}
}

// Verdict is what is said of a connection.
type Verdict struct {
	Allowed bool
	// Direction is where the connection is denied or, if it is allowed, the last side that was evaluated; 0 if none
	// was.
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
	for key := range j.groupsOf(policy.AppliedToGroup, a) {
		if len(j.applied[side{d, key}]) > 0 {
			return true
		}
	}
	return false
}

// allowing returns the rule that allows the connection; of several the one with the smallest key.
func (j *Judge) allowing(d policy.Direction, own, peer netip.Addr, t Tuple) (found *policy.Rule) {
	consider := func(r *policy.Rule) {
		if (found == nil || bytes.Compare(r.Key[:], found.Key[:]) < 0) && portAllowed(r, t) {
			found = r
		}
	}
	for applied := range j.groupsOf(policy.AppliedToGroup, own) {
		s := side{d, applied}
		for _, r := range j.wide[s] {
			if r.AnyPeer || slices.ContainsFunc(r.Blocks, func(b policy.IPBlock) bool { return contains(&b, peer) }) {
				consider(r)
			}
		}
		for key := range j.groupsOf(policy.PeerGroup, peer) {
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

// Isolating returns the origins of the isolation of an address, without rules that may allow something: they explain
// why a connection is denied.
func (j *Judge) Isolating(a netip.Addr, d policy.Direction) (origins []policy.Origin) {
	for key := range j.groupsOf(policy.AppliedToGroup, a) {
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

// Narrows reports whether an update can terminate a connection: it removes a rule or a peer, or it adds a rule or a
// pod that may be the first cause of an isolation.
func Narrows(u *policy.NodeUpdate) bool {
	return slices.ContainsFunc(u.Rules, func(c policy.RuleChange) bool { return c.Rule == nil || !c.Rule.DryRun }) ||
		slices.ContainsFunc(u.Groups, func(g policy.GroupUpdate) bool {
			if g.Kind == policy.AppliedToGroup {
				// a group left may be the one whose rule let it live
				return g.Replace || g.Gone || len(g.Added)+len(g.Removed) > 0
			}
			// Groups that become like another one may lose members, unless that one only gets some.
			return g.Replace || g.Gone || len(g.Removed) > 0 || len(g.Alike) > 0 && len(g.Added) == 0
		})
}
