package resolve

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// node is one node's span.
type node struct{ name string }

// batchState is how things were before the batch, as far as it touched them, and what it changes of the nodes' spans.
type batchState struct {
	addresses map[netip.Addr]standing
	rules     map[policy.Key]*policy.Rule // nil: there was none
	peers     map[*group]bool             // was a peer group
	applied   map[*group]bool             // was an appliedTo group
	unheld    map[*group]struct{}
	recompile map[*policyState]struct{}
	settled   []policy.SettledEndpoint
	nodes     map[*node]*nodeDelta
	groups    map[*group]*delta
	conflicts []Conflict
}

func newBatchState() *batchState {
	return &batchState{
		addresses: map[netip.Addr]standing{}, rules: map[policy.Key]*policy.Rule{}, peers: map[*group]bool{}, applied: map[*group]bool{},
		unheld: map[*group]struct{}{}, recompile: map[*policyState]struct{}{}, nodes: map[*node]*nodeDelta{}, groups: map[*group]*delta{},
	}
}

// standing is what an address belongs to.
type standing struct {
	peer      []*group
	applied   []placement
	contested bool
}

type placement struct {
	node   string
	groups []*group
}

type delta struct{ added, removed []netip.Addr }

type nodeDelta struct {
	rules   map[policy.Key]int
	groups  map[policy.Key]int
	applied map[*group]*delta
}

func (e *Engine) standing(a netip.Addr) standing {
	holders := e.holders(a)
	var s standing
	for _, ep := range holders {
		if n := ep.node(); n != "" {
			s.applied = append(s.applied, placement{n, ep.groups})
		}
	}
	s.contested = len(holders) > 1
	if len(holders) == 1 {
		s.peer = holders[0].groups
	}
	return s
}

// touch must come before anything changes that the address's standing depends on.
func (e *Engine) touch(a netip.Addr) {
	if _, ok := e.batch.addresses[a]; !ok {
		e.batch.addresses[a] = e.standing(a)
	}
}

func (e *Engine) touchRule(key policy.Key) {
	if _, ok := e.batch.rules[key]; ok {
		return
	}
	if r := e.rules[key]; r != nil {
		e.batch.rules[key] = r.publish()
	} else {
		e.batch.rules[key] = nil
	}
}

func (e *Engine) touchPeer(g *group) {
	if _, ok := e.batch.peers[g]; !ok {
		e.batch.peers[g] = len(g.peerOf) > 0
	}
}

func (e *Engine) touchApplied(g *group) {
	if _, ok := e.batch.applied[g]; !ok {
		e.batch.applied[g] = len(g.appliedOf) > 0
	}
}

func (e *Engine) nodeDelta(n *node) *nodeDelta {
	d := e.batch.nodes[n]
	if d == nil {
		d = &nodeDelta{rules: map[policy.Key]int{}, groups: map[policy.Key]int{}, applied: map[*group]*delta{}}
		e.batch.nodes[n] = d
	}
	return d
}

func (e *Engine) node(name string) *node {
	n := e.nodes[name]
	if n == nil {
		n = &node{name}
		e.nodes[name] = n
	}
	return n
}

// enter brings a rule and its peer groups into a node's span.
func (e *Engine) enter(n *node, r *rule) {
	d := e.nodeDelta(n)
	d.rules[r.key]++
	for _, g := range r.peers {
		g.span[n]++
		if g.span[n] == 1 {
			d.groups[g.key]++
		}
	}
}

func (e *Engine) leave(n *node, r *rule) {
	d := e.nodeDelta(n)
	d.rules[r.key]--
	for _, g := range r.peers {
		g.span[n]--
		if g.span[n] == 0 {
			delete(g.span, n)
			d.groups[g.key]--
		}
	}
}

// finish compares the touched with how it was and tells the difference.
func (e *Engine) finish() (policy.Changes, []Conflict) {
	for a, before := range e.batch.addresses {
		e.finishAddress(a, before, e.standing(a))
	}
	for g, was := range e.batch.applied {
		e.finishApplied(g, was)
	}
	out := policy.Changes{Settled: e.batch.settled}
	out.Rules = e.ruleChanges()
	out.Groups = e.groupChanges()
	out.Nodes = e.nodeChanges()
	for g := range e.batch.unheld {
		if g.holds == 0 && e.groups[g.key] == g {
			e.drop(g)
		}
	}
	if len(out.Rules)+len(out.Groups)+len(out.Nodes) > 0 {
		e.revision++
	}
	out.Revision = e.revision
	conflicts := e.batch.conflicts
	slices.SortFunc(conflicts, func(a, b Conflict) int { return a.Address.Compare(b.Address) })
	e.batch = nil
	return out, conflicts
}

func (e *Engine) finishAddress(a netip.Addr, before, after standing) {
	diffSorted(before.peer, after.peer,
		func(g *group) { e.peerDelta(g, func(d *delta) { d.removed = append(d.removed, a) }) },
		func(g *group) { e.peerDelta(g, func(d *delta) { d.added = append(d.added, a) }) })
	e.finishPlacements(a, before.applied, after.applied)
	if after.contested && !before.contested {
		c := Conflict{Address: a}
		for _, ep := range e.holders(a) {
			c.Endpoints = append(c.Endpoints, ep.obj.ID())
		}
		e.batch.conflicts = append(e.batch.conflicts, c)
	}
}

// peerDelta notes a change of a group that was and is a peer group; others are told whole.
func (e *Engine) peerDelta(g *group, note func(*delta)) {
	if was, ok := e.batch.peers[g]; ok && !was || len(g.peerOf) == 0 {
		return
	}
	d := e.batch.groups[g]
	if d == nil {
		d = &delta{}
		e.batch.groups[g] = d
	}
	note(d)
}

func (e *Engine) finishPlacements(a netip.Addr, before, after []placement) {
	if len(before) <= 1 && len(after) <= 1 && nodeOf(before) == nodeOf(after) {
		name := nodeOf(after)
		diffSorted(groupsOf(before), groupsOf(after), func(g *group) { e.place(g, name, a, false) }, func(g *group) { e.place(g, name, a, true) })
		return
	}
	was, is := placed(before), placed(after)
	for at := range was {
		if !is[at] {
			e.place(at.group, at.node, a, false)
		}
	}
	for at := range is {
		if !was[at] {
			e.place(at.group, at.node, a, true)
		}
	}
}

func nodeOf(p []placement) string {
	if len(p) == 0 {
		return ""
	}
	return p[0].node
}

func groupsOf(p []placement) []*group {
	if len(p) == 0 {
		return nil
	}
	return p[0].groups
}

type place struct {
	node  string
	group *group
}

func placed(all []placement) map[place]bool {
	out := map[place]bool{}
	for _, p := range all {
		for _, g := range p.groups {
			out[place{p.node, g}] = true
		}
	}
	return out
}

// place adds an address to an appliedTo group on a node, or removes it.
func (e *Engine) place(g *group, name string, a netip.Addr, in bool) {
	if was, ok := e.batch.applied[g]; ok && !was || len(g.appliedOf) == 0 {
		return
	}
	e.placeOn(g, e.node(name), a, in)
}

func (e *Engine) placeOn(g *group, n *node, a netip.Addr, in bool) {
	nd := e.nodeDelta(n)
	d := nd.applied[g]
	if d == nil {
		d = &delta{}
		nd.applied[g] = d
	}
	if in {
		d.added = append(d.added, a)
		g.appliedOn[n]++
		if g.appliedOn[n] == 1 {
			for r := range g.appliedOf {
				e.enter(n, r)
			}
		}
		return
	}
	d.removed = append(d.removed, a)
	g.appliedOn[n]--
	if g.appliedOn[n] == 0 {
		delete(g.appliedOn, n)
		for r := range g.appliedOf {
			e.leave(n, r)
		}
	}
}

// finishApplied tells a group whole that has become an appliedTo group, or is none any more.
func (e *Engine) finishApplied(g *group, was bool) {
	is := len(g.appliedOf) > 0
	switch {
	case is && !was:
		for name, addrs := range e.placements(g) {
			for _, a := range addrs {
				e.placeOn(g, e.node(name), a, true)
			}
		}
	case was && !is:
		for n := range g.appliedOn {
			e.nodeDelta(n).applied[g] = &delta{}
		}
		clear(g.appliedOn)
	}
}

// placements are the group's addresses by node, each once.
func (e *Engine) placements(g *group) map[string][]netip.Addr {
	out := map[string][]netip.Addr{}
	for _, ep := range g.members {
		name := ep.node()
		if name == "" {
			continue
		}
		for _, a := range ep.addresses() {
			if slices.Contains(e.holders(a), ep) && (len(e.claims[a]) == 1 || !slices.Contains(out[name], a)) {
				out[name] = append(out[name], a)
			}
		}
	}
	return out
}

// peerMembers are the addresses that the group has for others.
func (e *Engine) peerMembers(g *group) []netip.Addr {
	var out []netip.Addr
	for _, ep := range g.members {
		for _, a := range ep.addresses() {
			if h := e.holders(a); len(h) == 1 && h[0] == ep {
				out = append(out, a)
			}
		}
	}
	return out
}

func (e *Engine) ruleChanges() []policy.RuleChange {
	var out []policy.RuleChange
	for key, before := range e.batch.rules {
		r := e.rules[key]
		switch {
		case r == nil && before != nil:
			out = append(out, policy.RuleChange{Key: key})
		case r != nil:
			if now := r.publish(); before == nil || !slices.Equal(before.Origins, now.Origins) {
				out = append(out, policy.RuleChange{Key: key, Rule: now})
			}
		}
	}
	slices.SortFunc(out, func(a, b policy.RuleChange) int { return compareKeys(a.Key, b.Key) })
	return out
}

func (e *Engine) groupChanges() []policy.GroupChange {
	var out []policy.GroupChange
	for g, was := range e.batch.peers {
		switch is := len(g.peerOf) > 0; {
		case is && !was:
			out = append(out, policy.GroupChange{Key: g.key, Added: sortAddrs(e.peerMembers(g))})
		case was && !is:
			out = append(out, policy.GroupChange{Key: g.key, Gone: true})
		}
	}
	for g, d := range e.batch.groups {
		out = append(out, policy.GroupChange{Key: g.key, Added: sortAddrs(d.added), Removed: sortAddrs(d.removed)})
	}
	slices.SortFunc(out, func(a, b policy.GroupChange) int { return compareKeys(a.Key, b.Key) })
	return out
}

func (e *Engine) nodeChanges() []policy.NodeChange {
	var out []policy.NodeChange
	for n, d := range e.batch.nodes {
		c := policy.NodeChange{Node: n.name}
		c.AddRules, c.RemoveRules = split(d.rules)
		c.AddGroups, c.RemoveGroups = split(d.groups)
		for g, change := range d.applied {
			if ac, ok := e.appliedChange(g, n, change); ok {
				c.AppliedTo = append(c.AppliedTo, ac)
			}
		}
		slices.SortFunc(c.AppliedTo, func(a, b policy.AppliedToChange) int { return compareKeys(a.Key, b.Key) })
		if len(c.AddRules)+len(c.RemoveRules)+len(c.AddGroups)+len(c.RemoveGroups)+len(c.AppliedTo) > 0 {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b policy.NodeChange) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// appliedChange tells what a node must do; a group without members there is Gone, whatever else is in the delta.
func (e *Engine) appliedChange(g *group, n *node, d *delta) (policy.AppliedToChange, bool) {
	if g.appliedOn[n] == 0 {
		return policy.AppliedToChange{Key: g.key, Gone: true}, true
	}
	return policy.AppliedToChange{Key: g.key, Added: sortAddrs(d.added), Removed: sortAddrs(d.removed)}, len(d.added)+len(d.removed) > 0
}

func split(net map[policy.Key]int) (add, remove []policy.Key) {
	for k, v := range net {
		switch {
		case v > 0:
			add = append(add, k)
		case v < 0:
			remove = append(remove, k)
		}
	}
	slices.SortFunc(add, compareKeys)
	slices.SortFunc(remove, compareKeys)
	return add, remove
}

func compareKeys(a, b policy.Key) int { return slices.Compare(a[:], b[:]) }

func sortAddrs(a []netip.Addr) []netip.Addr {
	slices.SortFunc(a, netip.Addr.Compare)
	return a
}
