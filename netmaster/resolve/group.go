package resolve

import (
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

type groupID uint32

// group is the set of classes that match a pair of selectors. It exists while rules or port watches refer to it.
type group struct {
	key       policy.Key
	pods      policy.Selector
	rare      *rareGroup
	classes   few[classID]
	appliedOn counts // number of its addresses on each node, as an appliedTo group
	span      counts // number of rules that need it on each node, as a peer group
	ns        namespaceID
	isolation [2]ruleID // enforced rules that allow nothing: ingress, egress
	applied   ruleID    // head of the list of rules that apply to it
	appliedOf uint32    // number of these rules
	peerOf    uint32    // number of rules with it as a peer group
	holds     uint32    // number of references of any kind
	members   uint32    // number of its endpoints, with or without an address

	touched    bool // in this batch
	wasPeer    bool // state before the batch, if touched
	wasApplied bool
}

// rareGroup holds the fields that most groups do not need.
type rareGroup struct {
	namespaces *policy.Selector // if ns is 0
	port       *policy.NamedPort
	watched    map[portName]*portNumbers
	matchers   *matchers // nil: the selectors have few terms
}

// matchers match selectors of many terms; nil: the selector has few.
type matchers struct {
	namespaces, pods *policy.Matcher
	anchor           int // index of the anchor in the selector of pods; -1: it has none
}

func newMatchers(s *spec) *matchers {
	m := &matchers{namespaces: policy.NewMatcher(s.namespaces), pods: policy.NewMatcher(s.pods)}
	if m.namespaces == nil && m.pods == nil {
		return nil
	}
	m.anchor = slices.IndexFunc(s.pods.Requirements, isAnchor)
	return m
}

// anchor returns the requirement by which the group is indexed; nil if none requires values. Terms are searched only if
// there are few, as it is called for each namespace.
func (g *group) anchor() *policy.Requirement {
	m := g.more().matchers
	switch {
	case m == nil:
		return anchor(&g.pods)
	case m.anchor < 0:
		return nil
	}
	return &g.pods.Requirements[m.anchor]
}

var noRare rareGroup

func (g *group) more() *rareGroup {
	if g.rare == nil {
		return &noRare
	}
	return g.rare
}

// spec is the content of a group, for look-ups.
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

// text describes a group for users.
func (e *Engine) text(g *group) string {
	s := e.publicSpec(&spec{g.ns, g.more().namespaces, &g.pods, g.more().port})
	return s.String()
}

// is reports whether the group has exactly this spec.
func (g *group) is(s *spec) bool {
	if g.ns != s.ns || !sameSelector(&g.pods, s.pods) {
		return false
	}
	rare := g.more()
	if (rare.namespaces == nil) != (s.namespaces == nil) || (rare.port == nil) != (s.port == nil) {
		return false
	}
	return (s.namespaces == nil || sameSelector(rare.namespaces, s.namespaces)) &&
		(s.port == nil || *rare.port == *s.port)
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

// group returns the group of a spec. It creates one if necessary, which is deleted unless it is referenced by the
// end of the batch.
func (e *Engine) group(s *spec) groupID {
	hash := e.hash.spec(s)
	for id := range e.groupBySpec.each(hash) {
		if g := e.groups.at(id); g.is(s) {
			g.pods = *s.pods // of the newest object; older ones may have been replaced
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
	if m := newMatchers(s); s.namespaces != nil || s.port != nil || m != nil {
		g.rare = &rareGroup{namespaces: s.namespaces, port: s.port, matchers: m}
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

// release drops a reference. An unreferenced group is deleted at the end of the batch.
func (e *Engine) release(id groupID) {
	g := e.groups.at(id)
	g.holds--
	if g.holds == 0 {
		e.batch.unheld = append(e.batch.unheld, id)
	}
}

// covers reports whether the group can match pods of the namespace.
func (e *Engine) covers(g *group, id groupID, ns namespaceID) bool {
	if g.ns != 0 {
		return g.ns == ns
	}
	if g.rare.port != nil {
		n := e.namespaces.at(ns)
		return n.known && g.matchesNamespace(n.labels)
	}
	return has(e.namespaces.at(ns).covering, id)
}

// matchesNamespace reports whether the namespace selector of a group for any namespace matches labels.
func (g *group) matchesNamespace(labels map[string]string) bool {
	if m := g.rare.matchers; m != nil && m.namespaces != nil {
		return m.namespaces.Matches(labels)
	}
	return g.rare.namespaces.Matches(labels)
}

// matchesPod reports whether the pod selector matches labels.
func (g *group) matchesPod(labels map[string]string) bool {
	if m := g.more().matchers; m != nil && m.pods != nil {
		return m.pods.Matches(labels)
	}
	return g.pods.Matches(labels)
}

// chooses reports whether the group matches a class. Call it only for namespaces that the group covers.
func (g *group) chooses(c *class) bool {
	return c.member && g.matchesPod(c.labels) &&
		(g.rare == nil || g.rare.port == nil || slices.Contains(c.ports(), *g.rare.port))
}

// fill adds a new group to the indexes and finds its members. A group for a port number is indexed by the port's
// name only. It covers the namespaces of the group without the port, which exists as long.
func (e *Engine) fill(id groupID, g *group) {
	if g.more().port != nil {
		e.filePortGroup(id, g, true)
		return
	}
	if g.ns != 0 {
		e.fillFrom(id, g, g.ns, e.namespaces.at(g.ns))
		return
	}
	e.fileSelector(id, g.rare.namespaces, true)
	e.fileAnchored(id, 0, g.anchor(), true)
	for nid := range e.candidates(g.rare.namespaces) {
		ns := e.namespaces.at(nid)
		if ns.known && g.matchesNamespace(ns.labels) && !has(ns.covering, id) {
			ns.covering = insert(ns.covering, id)
			e.fillFrom(id, g, nid, ns)
		}
	}
}

// candidates returns the namespaces that a selector may match, possibly with duplicates.
func (e *Engine) candidates(s *policy.Selector) func(func(namespaceID) bool) {
	return func(yield func(namespaceID) bool) {
		r := anchor(s)
		if r == nil {
			e.work += int(e.namespaces.last)
			for id := namespaceID(1); id <= e.namespaces.last; id++ {
				if !yield(id) {
					return
				}
			}
			return
		}
		for hash := range e.hash.anchors(0, r) {
			it := e.namespaceIndex.find(hash)
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

// fileSelector adds a group to the index of namespace selectors, or removes it.
func (e *Engine) fileSelector(id groupID, s *policy.Selector, in bool) {
	r := anchor(s)
	switch {
	case r == nil && in:
		e.unanchored = insert(e.unanchored, id)
	case r == nil:
		e.unanchored = remove(e.unanchored, id)
	default:
		for hash := range e.hash.anchors(0, r) {
			if in {
				e.namespaceIndex.addGroup(hash, id)
			} else {
				e.namespaceIndex.removeGroup(hash, id)
			}
		}
	}
}

// fileGroup adds a group to the index of a namespace's pod selectors, or removes it. Groups whose namespace selector
// requires a label value are indexed once for all namespaces (fileAnchored).
func (e *Engine) fileGroup(id groupID, nid namespaceID, ns *namespace, in bool) {
	g := e.groups.at(id)
	switch r := g.anchor(); {
	case r == nil && in:
		ns.always = insert(ns.always, id)
	case r == nil:
		ns.always = remove(ns.always, id)
	case g.ns != 0:
		e.fileAnchored(id, nid, r, in)
	}
}

// fileAnchored adds a group to the index under each value of its anchor, or removes it. A nil anchor has no effect.
func (e *Engine) fileAnchored(id groupID, nid namespaceID, r *policy.Requirement, in bool) {
	if r == nil {
		return
	}
	for hash := range e.hash.anchors(nid, r) {
		if in {
			e.pods.addGroup(hash, id)
		} else {
			e.pods.removeGroup(hash, id)
		}
	}
}

func (e *Engine) fillFrom(id groupID, g *group, nid namespaceID, ns *namespace) {
	e.fileGroup(id, nid, ns, true)
	r := g.anchor()
	if r == nil || e.hasFewerClasses(ns, len(r.Values)) {
		for cid := ns.classes; cid != 0; cid = e.classes.at(cid).next {
			e.enrol(id, g, nid, cid)
		}
		return
	}
	for hash := range e.hash.anchors(nid, r) {
		it := e.pods.find(hash)
		if it == nil {
			continue
		}
		var buf [1]classID
		for _, cid := range it.objects.all(&buf) {
			e.enrol(id, g, nid, cid)
		}
	}
}

// hasFewerClasses reports whether a namespace has less than n classes.
func (e *Engine) hasFewerClasses(ns *namespace, n int) bool {
	for cid := ns.classes; cid != 0 && n > 0; cid = e.classes.at(cid).next {
		n--
	}
	return n > 0
}

// enrol adds a class to a new group if it matches. Endpoints are not touched, as the group is published whole.
func (e *Engine) enrol(id groupID, g *group, nid namespaceID, cid classID) {
	e.work++
	c := e.classes.at(cid)
	if c.ns != nid || !g.chooses(c) || has(c.groups, id) {
		return
	}
	if n := len(c.groups); n > 0 && c.groups[n-1] > id {
		c.groups = slices.Clone(c.groups)
	}
	c.groups = insert(c.groups, id)
	g.classes.insert(cid)
	e.resize(g, int(c.size))
}

// drop deletes an unreferenced group.
func (e *Engine) drop(id groupID) {
	g := e.groups.at(id)
	if g.ns != 0 {
		ns := e.namespaces.at(g.ns)
		ns.groups--
		e.batch.leftNamespaces = append(e.batch.leftNamespaces, g.ns)
	}
	switch {
	case g.more().port != nil:
		e.filePortGroup(id, g, false)
	case g.ns != 0:
		e.fileGroup(id, g.ns, e.namespaces.at(g.ns), false)
	default:
		e.fileSelector(id, g.rare.namespaces, false)
		e.fileAnchored(id, 0, g.anchor(), false)
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
		e.work++
	}
	e.groupByKey.remove(e.hash.key(g.key), id)
	e.groupBySpec.remove(e.hash.spec(&spec{g.ns, g.more().namespaces, &g.pods, g.more().port}), id)
	e.groups.give(id)
}
