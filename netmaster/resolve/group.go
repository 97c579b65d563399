package resolve

import (
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

type groupID uint32

// group is the classes that a pair of selectors chooses. It lives while a rule, or the named ports of a policy, refer to it.
type group struct {
	key       policy.Key
	pods      policy.Selector
	rare      *rareGroup
	classes   few[classID]
	appliedOn counts // how many addresses of a node are in it, as an appliedTo group
	span      counts // how many rules bring the group to a node, as a peer group
	ns        namespaceID
	isolation [2]ruleID // the rules in force that let nothing through: ingress, egress
	applied   ruleID    // the first of the rules that apply to it, linked
	appliedOf uint32    // how many those are
	peerOf    uint32    // of how many rules it is a peer group
	holds     uint32    // references of any kind

	touched    bool // in this batch
	wasPeer    bool // before the batch, if touched
	wasApplied bool
}

// rareGroup is what most groups have not.
type rareGroup struct {
	namespaces *policy.Selector // where ns is 0
	port       *policy.NamedPort
	watched    map[portName]*portNumbers
}

var noRare rareGroup

func (g *group) more() *rareGroup {
	if g.rare == nil {
		return &noRare
	}
	return g.rare
}

// spec is what to look a group up by.
type spec struct {
	ns         namespaceID
	namespaces *policy.Selector
	pods       *policy.Selector
	port       *policy.NamedPort
}

func (e *Engine) publicSpec(s *spec) policy.GroupSpec {
	out := policy.GroupSpec{Namespaces: s.namespaces, Pods: s.pods, Port: s.port}
	if s.ns != 0 {
		out.Namespace = e.namespaces.at(s.ns).name
	}
	return out
}

// text tells a group's content in a person's words.
func (e *Engine) text(g *group) string {
	s := e.publicSpec(&spec{g.ns, g.more().namespaces, &g.pods, g.more().port})
	return s.String()
}

// is tells whether the group was made of a spec written exactly so.
func (g *group) is(s *spec) bool {
	if g.ns != s.ns || !sameSelector(&g.pods, s.pods) {
		return false
	}
	rare := g.more()
	if (rare.namespaces == nil) != (s.namespaces == nil) || (rare.port == nil) != (s.port == nil) {
		return false
	}
	return (s.namespaces == nil || sameSelector(rare.namespaces, s.namespaces)) && (s.port == nil || *rare.port == *s.port)
}

func sameSelector(a, b *policy.Selector) bool {
	return slices.EqualFunc(a.Requirements, b.Requirements, func(x, y policy.Requirement) bool {
		return x.Key == y.Key && x.Operator == y.Operator && slices.Equal(x.Values, y.Values)
	})
}

func (h *hashing) selector(sum uint64, s *policy.Selector) uint64 {
	for i := range s.Requirements {
		r := &s.Requirements[i]
		sum = mix(mix(sum, h.text(r.Key)), uint64(r.Operator))
		for _, v := range r.Values {
			sum = mix(sum, h.text(v))
		}
	}
	return mix(sum, uint64(len(s.Requirements)))
}

func (h *hashing) spec(s *spec) uint32 {
	sum := h.selector(uint64(s.ns), s.pods)
	if s.namespaces != nil {
		sum = h.selector(sum, s.namespaces)
	}
	if s.port != nil {
		sum = mix(mix(sum, h.text(s.port.Name)), uint64(s.port.Protocol)<<16|uint64(s.port.Number))
	}
	return h.fold(sum)
}

// group finds or makes the group of a spec. One that nobody holds at the end of the batch goes.
func (e *Engine) group(s *spec) groupID {
	hash := e.hash.spec(s)
	for id := range e.groupBySpec.each(hash) {
		if g := e.groups.at(id); g.is(s) {
			g.pods = *s.pods // of the newest object: the one before it may have been replaced
			return id
		}
	}
	public := e.publicSpec(s)
	key := public.Key()
	if id := e.groupOf(key); id != 0 {
		return id
	}
	id, g := e.groups.take()
	g.key, g.ns, g.pods = key, s.ns, *s.pods
	if s.namespaces != nil || s.port != nil {
		g.rare = &rareGroup{namespaces: s.namespaces, port: s.port}
	}
	if s.ns != 0 {
		e.namespaces.at(s.ns).groups++
	}
	e.groupBySpec.add(hash, id)
	e.groupByKey.add(e.hash.key(key), id)
	e.fill(id, g)
	e.batch.unheld = append(e.batch.unheld, id)
	return id
}

func (e *Engine) groupOf(key policy.Key) groupID {
	for id := range e.groupByKey.each(e.hash.key(key)) {
		if e.groups.at(id).key == key {
			return id
		}
	}
	return 0
}

// release gives a reference back; the last one takes the group away at the end of the batch.
func (e *Engine) release(id groupID) {
	g := e.groups.at(id)
	g.holds--
	if g.holds == 0 {
		e.batch.unheld = append(e.batch.unheld, id)
	}
}

// covers tells whether the group chooses pods of the namespace at all.
func (e *Engine) covers(g *group, id groupID, ns namespaceID) bool {
	if g.ns != 0 {
		return g.ns == ns
	}
	return has(e.namespaces.at(ns).covering, id)
}

// chooses is asked only for classes of namespaces that the group covers.
func (g *group) chooses(c *class) bool {
	return c.member && g.pods.Matches(c.labels) && (g.rare == nil || g.rare.port == nil || slices.Contains(c.ports(), *g.rare.port))
}

// fill files a new group in the indexes and finds its members.
func (e *Engine) fill(id groupID, g *group) {
	if g.ns != 0 {
		e.fillFrom(id, g, g.ns, e.namespaces.at(g.ns))
		return
	}
	e.fileTeam(id, g.rare.namespaces, true)
	for nid := range e.candidates(g.rare.namespaces) {
		ns := e.namespaces.at(nid)
		if ns.known && g.rare.namespaces.Matches(ns.labels) && !has(ns.covering, id) {
			ns.covering = insert(ns.covering, id)
			e.fillFrom(id, g, nid, ns)
		}
	}
}

// candidates are the namespaces that a selector could choose, some perhaps twice.
func (e *Engine) candidates(s *policy.Selector) func(func(namespaceID) bool) {
	return func(yield func(namespaceID) bool) {
		r := anchor(s)
		if r == nil {
			for id := namespaceID(1); id <= e.namespaces.last; id++ {
				if !yield(id) {
					return
				}
			}
			return
		}
		for hash := range e.hash.anchors(0, r) {
			it := e.teams.find(hash)
			if it == nil {
				continue
			}
			var buf [1]namespaceID
			for _, id := range it.objects.all(&buf) {
				if !yield(id) {
					return
				}
			}
		}
	}
}

// fileTeam files a group under its selector of namespaces, or takes it from there.
func (e *Engine) fileTeam(id groupID, s *policy.Selector, in bool) {
	r := anchor(s)
	switch {
	case r == nil && in:
		e.anywhere = insert(e.anywhere, id)
	case r == nil:
		e.anywhere = remove(e.anywhere, id)
	default:
		for hash := range e.hash.anchors(0, r) {
			if in {
				e.teams.addGroup(hash, id)
			} else {
				e.teams.removeGroup(hash, id)
			}
		}
	}
}

// fileGroup files a group under its selector of pods in a namespace, or takes it from there.
func (e *Engine) fileGroup(id groupID, nid namespaceID, ns *namespace, in bool) {
	r := anchor(&e.groups.at(id).pods)
	switch {
	case r == nil && in:
		ns.always = insert(ns.always, id)
	case r == nil:
		ns.always = remove(ns.always, id)
	default:
		for hash := range e.hash.anchors(nid, r) {
			if in {
				e.pods.addGroup(hash, id)
			} else {
				e.pods.removeGroup(hash, id)
			}
		}
	}
}

func (e *Engine) fillFrom(id groupID, g *group, nid namespaceID, ns *namespace) {
	e.fileGroup(id, nid, ns, true)
	r := anchor(&g.pods)
	if r == nil {
		for cid := ns.classes; cid != 0; cid = e.classes.at(cid).next {
			e.enrol(id, g, nid, cid)
		}
		return
	}
	for hash := range e.hash.anchors(nid, r) {
		var buf [1]classID
		for _, cid := range e.pods.find(hash).objects.all(&buf) {
			e.enrol(id, g, nid, cid)
		}
	}
}

// enrol makes a class a member of a new group, if the group chooses it. No endpoint is touched: the group is told whole.
func (e *Engine) enrol(id groupID, g *group, nid namespaceID, cid classID) {
	c := e.classes.at(cid)
	if c.ns != nid || !g.chooses(c) || has(c.groups, id) {
		return
	}
	if n := len(c.groups); n > 0 && c.groups[n-1] > id {
		c.groups = slices.Clone(c.groups)
	}
	c.groups = insert(c.groups, id)
	g.classes.insert(cid)
}

// drop takes a group away that nothing refers to.
func (e *Engine) drop(id groupID) {
	g := e.groups.at(id)
	if g.ns != 0 {
		ns := e.namespaces.at(g.ns)
		e.fileGroup(id, g.ns, ns, false)
		ns.groups--
		e.batch.leftNamespaces = append(e.batch.leftNamespaces, g.ns)
	} else {
		e.fileTeam(id, g.rare.namespaces, false)
		for nid := range e.candidates(g.rare.namespaces) {
			if ns := e.namespaces.at(nid); has(ns.covering, id) {
				ns.covering = remove(ns.covering, id)
				e.fileGroup(id, nid, ns, false)
			}
		}
	}
	var buf [1]classID
	for _, cid := range g.classes.all(&buf) {
		c := e.classes.at(cid)
		c.groups = remove(c.groups, id)
	}
	e.groupByKey.remove(e.hash.key(g.key), id)
	e.groupBySpec.remove(e.hash.spec(&spec{g.ns, g.more().namespaces, &g.pods, g.more().port}), id)
	e.groups.give(id)
}
