package store

import (
	"maps"
	"net/netip"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// pending is what waits to be written: of each key the newest value, nil to delete it.
type pending struct {
	namespaces map[string]*policy.Namespace
	endpoints  map[string]*policy.Endpoint
	policies   map[string]*policy.Policy
	nodes      map[string]*NodeRecord
	announced  map[string]*Announcement
	rules      map[policy.Key]*policy.Rule
	groups     map[policy.Key]*patch
	infos      *[]policy.NodeInfo
	revision   uint64 // 0: as it is
	whole      bool   // rules and groups that are not here go
}

// patch is a change of a group. With fresh the earlier members are discarded. It has a list or members, not both: large
// lists come with new groups, and are shared with the engine.
type patch struct {
	fresh   bool
	gone    bool
	list    []netip.Addr        // added; do not modify it
	members map[netip.Addr]bool // true: added; false: removed
}

func newPending() *pending {
	return &pending{namespaces: map[string]*policy.Namespace{}, endpoints: map[string]*policy.Endpoint{},
		policies: map[string]*policy.Policy{},
		nodes:    map[string]*NodeRecord{}, announced: map[string]*Announcement{}, rules: map[policy.Key]*policy.Rule{},
		groups: map[policy.Key]*patch{}}
}

func (p *pending) size() int {
	n := len(p.namespaces) + len(p.endpoints) + len(p.policies) + len(p.nodes) + len(p.announced) + len(p.rules) +
		len(p.groups)
	if p.infos != nil {
		n++
	}
	return n
}

func (p *pending) empty() bool { return p.size() == 0 && p.revision == 0 && !p.whole }

func (p *pending) add(c *Change) {
	maps.Copy(p.namespaces, c.Namespaces)
	maps.Copy(p.endpoints, c.Endpoints)
	maps.Copy(p.policies, c.Policies)
	maps.Copy(p.nodes, c.Nodes)
	maps.Copy(p.announced, c.Announced)
	if c.Infos != nil {
		p.infos = c.Infos
	}
	if c.Whole {
		p.forgetResolved()
	}
	if c.Resolved != nil {
		p.addResolved(c.Resolved)
	}
}

func (p *pending) forgetResolved() {
	p.whole = true
	clear(p.rules)
	clear(p.groups)
}

func (p *pending) addResolved(c *policy.Changes) {
	p.revision = max(p.revision, c.Revision)
	for i := range c.Rules {
		if r := c.Rules[i].Rule; r != nil {
			p.rules[c.Rules[i].Key] = r.Brief()
		} else {
			p.rules[c.Rules[i].Key] = nil
		}
	}
	for i := range c.Groups {
		g := &c.Groups[i]
		if g.Gone {
			p.groups[g.Key] = &patch{fresh: true, gone: true}
			continue
		}
		p.group(g.Key).change(g.Added, g.Removed)
	}
}

func (p *pending) group(k policy.Key) *patch {
	g := p.groups[k]
	if g == nil {
		g = &patch{}
		p.groups[k] = g
	}
	return g
}

func (g *patch) change(added, removed []netip.Addr) {
	g.gone = false
	if g.list == nil && g.members == nil && len(removed) == 0 {
		g.list = added
		return
	}
	g.unlist()
	for _, a := range removed {
		g.members[a] = false
	}
	for _, a := range added {
		g.members[a] = true
	}
}

// unlist replaces the list by members.
func (g *patch) unlist() {
	if g.members == nil {
		g.members = make(map[netip.Addr]bool, len(g.list))
	}
	for _, a := range g.list {
		g.members[a] = true
	}
	g.list = nil
}

// absorb puts what came later on top.
func (p *pending) absorb(later *pending) {
	maps.Copy(p.namespaces, later.namespaces)
	maps.Copy(p.endpoints, later.endpoints)
	maps.Copy(p.policies, later.policies)
	maps.Copy(p.nodes, later.nodes)
	maps.Copy(p.announced, later.announced)
	if later.infos != nil {
		p.infos = later.infos
	}
	if later.whole {
		p.forgetResolved()
	}
	p.revision = max(p.revision, later.revision)
	maps.Copy(p.rules, later.rules)
	for k, g := range later.groups {
		if g.fresh || p.groups[k] == nil {
			p.groups[k] = g
			continue
		}
		mine := p.groups[k]
		mine.gone = false
		mine.unlist()
		mine.change(g.list, nil)
		maps.Copy(mine.members, g.members)
	}
}
