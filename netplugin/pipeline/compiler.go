package pipeline

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/netplugin/groups"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Compiler holds what a node should enforce and the flows that do it. Each call changes the one and the other; Take gives
// the flow mods since the last Take. The work of a call follows the change, not what is held. Not for concurrent use.
type Compiler struct {
	config      Config
	endpoints   map[string]LocalEndpoint
	portless    map[string]LocalEndpoint // those that have no port for now
	groups      *groups.Replica
	setsOf      map[policy.GroupKind]map[netip.Addr][]*groups.Set // that have an address, by their IDs
	sides       []*side                                           // in the order in which they give ids
	rules       *idPool
	classIDs    *idPool
	classByID   map[uint32]*class
	ruleByID    map[uint32]*ruleEntry
	log         []Assignment
	flows       flowSet
	ports       namedPorts
	services    services
	driftChecks uint64 // begun
}

// New makes a compiler that gives the ids it gave before, as far as saved tells them.
func New(config Config, saved []Assignment) *Compiler {
	c := &Compiler{
		endpoints: map[string]LocalEndpoint{},
		portless:  map[string]LocalEndpoint{},
		groups:    groups.New(),
		setsOf:    map[policy.GroupKind]map[netip.Addr][]*groups.Set{policy.PeerGroup: {}, policy.AppliedToGroup: {}},
		classByID: map[uint32]*class{},
		ruleByID:  map[uint32]*ruleEntry{},
		flows:     newFlowSet(),
		ports:     newNamedPorts(),
	}
	c.services = newServices(saved, &c.log)
	c.rules = newIDPool(RuleIDs, &c.log)
	c.classIDs = newIDPool(ClassIDs, &c.log)
	c.rules.restore(saved)
	c.classIDs.restore(saved)
	for _, dryRun := range []bool{false, true} {
		c.sides = append(c.sides, newSide(c, policy.Egress, dryRun), newSide(c, policy.Ingress, dryRun))
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
	c.settlePorts()
	c.setDryRuns()
}

func (c *Compiler) applyRule(change policy.RuleChange) {
	if change.Rule == nil {
		for _, s := range c.sides {
			s.remove(change.Key)
		}
		return
	}
	for _, s := range c.sides {
		if s.direction == change.Rule.Direction && s.dryRun == change.Rule.DryRun {
			s.put(change.Rule)
		}
	}
}

func (c *Compiler) applyGroup(g policy.GroupUpdate) {
	if c.setsOf[g.Kind] == nil {
		return
	}
	for _, change := range c.groups.Apply(&g) {
		set := change.Set
		switch {
		case len(set.Keys()) == 0:
			for a := range set.Members() {
				c.leave(set, a)
			}
		case change.New:
			for a := range set.Members() {
				c.join(set, a)
			}
		default:
			c.changeSet(&change)
		}
	}
}

// changeSet follows a set that was there and is.
func (c *Compiler) changeSet(change *groups.Change) {
	for _, a := range change.Removed {
		c.leave(change.Set, a)
	}
	for _, a := range change.Added {
		c.join(change.Set, a)
	}
	if change.Keys {
		for a := range change.Set.Members() {
			c.touch(change.Set.Kind(), a)
		}
	}
}

func (c *Compiler) join(set *groups.Set, a netip.Addr) {
	of := c.setsOf[set.Kind()]
	at, _ := slices.BinarySearchFunc(of[a], set.ID(), compareSet)
	of[a] = slices.Insert(of[a], at, set)
	c.touch(set.Kind(), a)
}

func (c *Compiler) leave(set *groups.Set, a netip.Addr) {
	of := c.setsOf[set.Kind()]
	if at, ok := slices.BinarySearchFunc(of[a], set.ID(), compareSet); ok {
		of[a] = slices.Delete(of[a], at, at+1)
	}
	if len(of[a]) == 0 {
		delete(of, a)
	}
	c.touch(set.Kind(), a)
}

func compareSet(s *groups.Set, id uint64) int { return cmp.Compare(s.ID(), id) }

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
	mods := c.flows.take()
	return mods, c.Settle()
}

// Settle does what Take does, for a switch that is about to be compared with all flows: it returns no mods.
func (c *Compiler) Settle() []Assignment {
	log := c.log
	c.log = nil
	c.rules.rest()
	c.services.ids.rest()
	c.classIDs.rest()
	c.flows.settle()
	return log
}

// Flows returns every wanted flow, in no particular order.
func (c *Compiler) Flows() []ofctl.Flow { return c.flows.all() }

// Count returns the number of wanted flows.
func (c *Compiler) Count() int { return len(c.flows.now) }

// Assignments returns all IDs in use.
func (c *Compiler) Assignments() []Assignment {
	return slices.Concat(c.rules.assigned(), c.classIDs.assigned(), c.services.ids.assigned())
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
