package pipeline

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Compiler holds what a node should enforce and the flows that do it. Each call changes the one and the other; Take gives
// the flow mods since the last Take. The work of a call follows the change, not what is held. Not for concurrent use.
type Compiler struct {
	config    Config
	endpoints map[string]LocalEndpoint
	groups    map[groupID]map[netip.Addr]struct{}
	groupsOf  map[policy.GroupKind]map[netip.Addr][]policy.Key // sorted
	sides     []*side                                          // in the order in which they give ids
	rules     *idPool
	classIDs  *idPool
	classByID map[uint32]*class
	ruleByID  map[uint32]*ruleEntry
	log       []Assignment
	flows     flowSet
	audits    uint64 // begun
}

type groupID struct {
	kind policy.GroupKind
	key  policy.Key
}

// New makes a compiler that gives the ids it gave before, as far as saved tells them.
func New(config Config, saved []Assignment) *Compiler {
	c := &Compiler{
		endpoints: map[string]LocalEndpoint{},
		groups:    map[groupID]map[netip.Addr]struct{}{},
		groupsOf:  map[policy.GroupKind]map[netip.Addr][]policy.Key{policy.PeerGroup: {}, policy.AppliedToGroup: {}},
		classByID: map[uint32]*class{},
		ruleByID:  map[uint32]*ruleEntry{},
		flows:     newFlowSet(),
	}
	c.rules = newIDPool(RuleIDs, &c.log)
	c.classIDs = newIDPool(ClassIDs, &c.log)
	c.rules.restore(saved)
	c.classIDs.restore(saved)
	for _, audit := range []bool{false, true} {
		c.sides = append(c.sides, newSide(c, policy.Egress, audit), newSide(c, policy.Ingress, audit))
	}
	c.SetConfig(config)
	return c
}

// ForgetUnused gives back the ids of rules and classes that are not there any more: call it once after the first Apply
// that follows New, when everything that was saved is in.
func (c *Compiler) ForgetUnused() {
	rules, classes := map[policy.Key]bool{}, map[policy.Key]bool{}
	for _, s := range c.sides {
		for key := range s.rules {
			rules[key] = true
		}
		for _, d := range s.dimensions() {
			for content := range d.classes {
				classes[content] = true
			}
		}
	}
	c.rules.retain(rules)
	c.classIDs.retain(classes)
}

// Apply takes an update over.
func (c *Compiler) Apply(u policy.NodeUpdate) {
	for _, change := range u.Rules {
		c.applyRule(change)
	}
	for _, g := range u.Groups {
		c.applyGroup(g)
	}
	for _, s := range c.sides {
		s.settle()
	}
	c.heedAudits()
}

func (c *Compiler) applyRule(change policy.RuleChange) {
	if change.Rule == nil {
		for _, s := range c.sides {
			s.remove(change.Key)
		}
		return
	}
	for _, s := range c.sides {
		if s.direction == change.Rule.Direction && s.audit == change.Rule.Audit {
			s.put(change.Rule)
		}
	}
}

func (c *Compiler) applyGroup(g policy.GroupUpdate) {
	of := c.groupsOf[g.Kind]
	if of == nil {
		return
	}
	id := groupID{g.Kind, g.Key}
	members := c.groups[id]
	removed := g.Removed
	if g.Gone || g.Replace {
		removed = nil
		keep := map[netip.Addr]struct{}{}
		if !g.Gone {
			for _, a := range g.Added {
				keep[a] = struct{}{}
			}
		}
		for a := range members {
			if _, ok := keep[a]; !ok {
				removed = append(removed, a)
			}
		}
	}
	for _, a := range removed {
		c.leave(id, a)
	}
	if g.Gone {
		delete(c.groups, id)
		return
	}
	for _, a := range g.Added {
		c.join(id, a)
	}
}

func (c *Compiler) join(id groupID, a netip.Addr) {
	members := c.groups[id]
	if members == nil {
		members = map[netip.Addr]struct{}{}
		c.groups[id] = members
	}
	if _, ok := members[a]; ok {
		return
	}
	members[a] = struct{}{}
	keys := c.groupsOf[id.kind][a]
	at, _ := slices.BinarySearchFunc(keys, id.key, compareKeys)
	c.groupsOf[id.kind][a] = slices.Insert(slices.Clone(keys), at, id.key)
	c.touch(id.kind, a)
}

func (c *Compiler) leave(id groupID, a netip.Addr) {
	members := c.groups[id]
	if _, ok := members[a]; !ok {
		return
	}
	delete(members, a)
	keys := c.groupsOf[id.kind][a]
	if at, ok := slices.BinarySearchFunc(keys, id.key, compareKeys); ok {
		keys = slices.Delete(slices.Clone(keys), at, at+1)
	}
	if len(keys) == 0 {
		delete(c.groupsOf[id.kind], a)
	} else {
		c.groupsOf[id.kind][a] = keys
	}
	c.touch(id.kind, a)
}

// touch marks an address on the sides that have rules: the first that refers to a group marks all of its members.
func (c *Compiler) touch(kind policy.GroupKind, a netip.Addr) {
	for _, s := range c.sides {
		d := s.peers
		if kind == policy.AppliedToGroup {
			d = s.applied
		}
		if len(d.uses) > 0 {
			d.dirty[a] = struct{}{}
		}
	}
}

// Take gives the mods that bring a switch from the flows at the last Take to those now, and the ids given and given back
// since then. Ids given back are given again after a later Take only, so that no bundle has one id in two meanings. The
// same calls give the same mods in the same order.
func (c *Compiler) Take() ([]ofctl.FlowMod, []Assignment) {
	log := c.log
	c.log = nil
	c.rules.rest()
	c.classIDs.rest()
	return c.flows.take(), log
}

// Flows is every flow that the switch should hold, in no particular order.
func (c *Compiler) Flows() []ofctl.Flow { return c.flows.all() }

// Count is how many flows the switch should hold.
func (c *Compiler) Count() int { return len(c.flows.now) }

// Assignments are all ids in use.
func (c *Compiler) Assignments() []Assignment {
	return append(c.rules.assigned(), c.classIDs.assigned()...)
}

// Rule finds a rule by its key.
func (c *Compiler) Rule(key policy.Key) (*policy.Rule, bool) {
	for _, s := range c.sides {
		if e := s.rules[key]; e != nil {
			return e.rule, true
		}
	}
	return nil, false
}
