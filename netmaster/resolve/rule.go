package resolve

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

type ruleID uint32

// rule is a resolved rule, shared by all policies that contain it. It exists while it has origins. Its effects on
// groups and spans are computed at the end of a batch.
type rule struct {
	key       policy.Key
	body      *ruleBody // fields that few rules need
	origin    origin    // if there is only one
	applied   groupID
	next      ruleID // in the group's list of rules that apply to it
	previous  ruleID
	peer      groupID // the only peer group, if there is no body
	touched   uint32  // index in batch.rules, plus one
	direction policy.Direction
	anyPeer   bool
	anyPort   bool
	dryRun    bool
}

// ruleBody holds the fields that only some rules need.
type ruleBody struct {
	peers   []groupID // all, sorted by key
	blocks  []policy.IPBlock
	ports   []policy.PortRange
	origins []policy.Origin // if there are several, sorted; replaced, never modified
}

var noBody ruleBody

func (r *rule) more() *ruleBody {
	if r.body == nil {
		return &noBody
	}
	return r.body
}

// origin is a policy.Origin in eight bytes.
type origin struct {
	policy policyID
	index  int32
}

func (r *rule) alive() bool { return r.origin.policy != 0 || len(r.more().origins) > 0 }

// peers returns the rule's peer groups, sorted by key.
func (r *rule) peers(buf *[1]groupID) []groupID {
	if r.peer == 0 {
		return r.more().peers
	}
	buf[0] = r.peer
	return buf[:]
}

// content is the content of a rule, as compiled.
type content struct {
	direction        policy.Direction
	anyPeer, anyPort bool
	dryRun           bool
	applied          groupID
	peers            []groupID // sorted by key, without duplicates
	blocks           []policy.IPBlock
	ports            []policy.PortRange
}

func (r *rule) is(c *content) bool {
	if r.direction != c.direction || r.anyPeer != c.anyPeer || r.anyPort != c.anyPort || r.dryRun != c.dryRun ||
		r.applied != c.applied {
		return false
	}
	var buf [1]groupID
	return slices.Equal(r.peers(&buf), c.peers) && slices.Equal(r.more().ports, c.ports) &&
		slices.EqualFunc(r.more().blocks, c.blocks, sameBlock)
}

func sameBlock(a, b policy.IPBlock) bool {
	return a.CIDR == b.CIDR && slices.Equal(a.Except, b.Except)
}

func (r *rule) content(buf *[1]groupID) content {
	return content{
		r.direction,
		r.anyPeer,
		r.anyPort,
		r.dryRun,
		r.applied,
		r.peers(buf),
		r.more().blocks,
		r.more().ports,
	}
}

func (h *hashing) content(c *content) uint32 {
	flags := uint64(c.direction) << 3
	if c.anyPeer {
		flags |= 1
	}
	if c.anyPort {
		flags |= 2
	}
	if c.dryRun {
		flags |= 4
	}
	sum := mix(mix(h.salt, flags), uint64(c.applied))
	for _, g := range c.peers {
		sum = mix(sum, uint64(g))
	}
	for i := range c.blocks {
		sum = h.prefix(sum, c.blocks[i].CIDR)
		for _, p := range c.blocks[i].Except {
			sum = h.prefix(sum, p)
		}
	}
	for _, p := range c.ports {
		sum = mix(sum, uint64(p.Protocol)<<32|uint64(p.First)<<16|uint64(p.Last))
	}
	return h.fold(sum)
}

func (h *hashing) prefix(sum uint64, p netip.Prefix) uint64 {
	return mix(sum, uint64(h.address(p.Addr()))<<8|uint64(uint8(p.Bits())))
}

// rule returns the rule of a content. It creates one if necessary, which is deleted unless it has an origin at the
// end of the batch.
func (e *Engine) rule(c *content) ruleID {
	var hash uint32
	isolation := e.isolation(c)
	if isolation != nil && *isolation != 0 {
		return *isolation
	}
	if isolation == nil {
		hash = e.hash.content(c)
		for id := range e.ruleByContent.each(hash) {
			if e.rules.at(id).is(c) {
				return id
			}
		}
	}
	id := e.makeRule(c)
	if isolation != nil {
		*isolation = id
	} else {
		e.ruleByContent.add(hash, id)
	}
	return id
}

// isolation returns the group's reference to its rule that allows nothing; nil for other rules and dry runs. Most
// rules are of this kind.
func (e *Engine) isolation(c *content) *ruleID {
	if c.dryRun || c.anyPeer || c.anyPort || len(c.peers)+len(c.blocks)+len(c.ports) > 0 {
		return nil
	}
	return &e.groups.at(c.applied).isolation[c.direction-policy.Ingress]
}

func (e *Engine) makeRule(c *content) ruleID {
	id, r := e.rules.take()
	r.direction, r.anyPeer, r.anyPort, r.dryRun, r.applied = c.direction, c.anyPeer, c.anyPort, c.dryRun, c.applied
	e.groups.at(c.applied).holds++
	for _, g := range c.peers {
		e.groups.at(g).holds++
	}
	switch {
	case len(c.peers) == 1 && len(c.blocks)+len(c.ports) == 0:
		r.peer = c.peers[0]
	case len(c.peers)+len(c.blocks)+len(c.ports) > 0:
		r.body = &ruleBody{peers: slices.Clone(c.peers), blocks: c.blocks, ports: c.ports}
	}
	r.key = e.ruleKey(r)
	return id
}

func (e *Engine) ruleKey(r *rule) policy.Key {
	var space [8]policy.Key
	out := policy.Rule{
		Direction: r.direction,
		AppliedTo: e.groups.at(r.applied).key,
		AnyPeer:   r.anyPeer,
		AnyPort:   r.anyPort,
		DryRun:    r.dryRun,
		Peers:     e.peerKeys(r, space[:0]),
		Blocks:    r.more().blocks,
		Ports:     r.more().ports,
	}
	return policy.RuleKey(&out)
}

func (e *Engine) peerKeys(r *rule, out []policy.Key) []policy.Key {
	var buf [1]groupID
	for _, g := range r.peers(&buf) {
		out = append(out, e.groups.at(g).key)
	}
	return out
}

// addOrigin and dropOrigin record that a policy contains the rule, or no longer does.
func (e *Engine) addOrigin(id ruleID, o origin)  { e.noteOrigin(id, o, true) }
func (e *Engine) dropOrigin(id ruleID, o origin) { e.noteOrigin(id, o, false) }

func (e *Engine) noteOrigin(id ruleID, o origin, in bool) {
	r, b := e.rules.at(id), &e.batch
	if r.touched == 0 {
		b.rules = append(b.rules, touchedRule{id: id, first: o, in: in})
		r.touched = uint32(len(b.rules))
		return
	}
	t := &b.rules[r.touched-1]
	b.origins = append(b.origins, originStep{o, in, t.steps})
	t.steps = uint32(len(b.origins))
}

// settleOrigins updates the origins of a touched rule, and reports whether they have changed.
func (e *Engine) settleOrigins(t *touchedRule) bool {
	r := e.rules.at(t.id)
	if t.steps == 0 && t.in && !r.alive() {
		r.origin = t.first
		return true
	}
	added, removed := e.netOrigins(t)
	if len(added)+len(removed) == 0 {
		return false
	}
	only := r.origin.policy != 0
	switch {
	case len(r.more().origins) == 0 && len(added) == 1 && only == (len(removed) == 1):
		r.origin = added[0]
	case only && len(added) == 0:
		r.origin = origin{}
	default:
		e.mergeOrigins(r, added, removed)
	}
	return true
}

// netOrigins returns the changes of a rule's origins that do not cancel out.
func (e *Engine) netOrigins(t *touchedRule) (added, removed []origin) {
	first := originStep{t.first, t.in, t.steps}
	for s := &first; ; s = &e.batch.origins[s.next-1] {
		if s.in {
			added = append(added, s.origin)
		} else {
			removed = append(removed, s.origin)
		}
		if s.next == 0 {
			break
		}
	}
	if len(removed) == 0 {
		return added, removed
	}
	return cancel(added, removed, func(a, b origin) int {
		return cmp.Or(cmp.Compare(a.policy, b.policy), cmp.Compare(a.index, b.index))
	})
}

// cancel sorts two lists and removes common elements, as often as they are in both.
func cancel[T any](a, b []T, compare func(T, T) int) ([]T, []T) {
	if len(a) == 0 || len(b) == 0 {
		return a, b
	}
	slices.SortFunc(a, compare)
	slices.SortFunc(b, compare)
	i, j, onlyA, onlyB := 0, 0, a[:0], b[:0]
	for i < len(a) && j < len(b) {
		switch c := compare(a[i], b[j]); {
		case c < 0:
			onlyA = append(onlyA, a[i])
			i++
		case c > 0:
			onlyB = append(onlyB, b[j])
			j++
		default:
			i++
			j++
		}
	}
	return append(onlyA, a[i:]...), append(onlyB, b[j:]...)
}

func compareOrigins(a, b policy.Origin) int {
	return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Rule, b.Rule))
}

func (e *Engine) publicOrigin(o origin) policy.Origin {
	return policy.Origin{Policy: e.policies.at(o.policy).obj.ID(), Rule: int(o.index)}
}

func (e *Engine) publicOrigins(list []origin) []policy.Origin {
	out := make([]policy.Origin, len(list))
	for i, o := range list {
		out[i] = e.publicOrigin(o)
	}
	slices.SortFunc(out, compareOrigins)
	return out
}

// mergeOrigins rewrites a list of several origins in one pass. The rules of a policy for both directions mostly have
// the same list, which they share.
func (e *Engine) mergeOrigins(r *rule, added, removed []origin) {
	var before []policy.Origin
	switch {
	case len(r.more().origins) > 0:
		before = r.body.origins
	case r.origin.policy != 0:
		before = []policy.Origin{e.publicOrigin(r.origin)}
	}
	m := merge{before: before, come: e.publicOrigins(added), gone: e.publicOrigins(removed)}
	if i := slices.IndexFunc(e.batch.merges, m.same); i >= 0 {
		m.out = e.batch.merges[i].out
	} else {
		m.do()
		e.batch.merges = append(e.batch.merges[max(0, len(e.batch.merges)-3):], m)
	}
	if r.body == nil {
		var buf [1]groupID
		r.body = &ruleBody{peers: slices.Clone(r.peers(&buf))}
		r.peer = 0
	}
	r.origin, r.body.origins = origin{}, m.out
}

// merge is a change of a sorted list, and the result.
type merge struct{ before, come, gone, out []policy.Origin }

func (m merge) same(o merge) bool {
	return sameOrigins(m.before, o.before) && sameOrigins(m.come, o.come) && sameOrigins(m.gone, o.gone)
}

func sameOrigins(a, b []policy.Origin) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

func (m *merge) do() {
	before, come, gone := m.before, m.come, m.gone
	out := make([]policy.Origin, 0, max(0, len(before)+len(come)-len(gone)))
	for len(come)+len(gone) > 0 {
		if len(gone) == 0 || len(come) > 0 && compareOrigins(come[0], gone[0]) < 0 {
			i, _ := slices.BinarySearchFunc(before, come[0], compareOrigins)
			out = append(append(out, before[:i]...), come[0])
			before, come = before[i:], come[1:]
			continue
		}
		i, found := slices.BinarySearchFunc(before, gone[0], compareOrigins)
		out = append(out, before[:i]...)
		if before = before[i:]; found {
			before = before[1:]
		}
		gone = gone[1:]
	}
	m.out = append(out, before...)
}

// link and unlink maintain the list of rules that apply to a group.
func (e *Engine) link(id ruleID, r *rule) {
	g := e.groups.at(r.applied)
	if r.next = g.applied; r.next != 0 {
		e.rules.at(r.next).previous = id
	}
	g.applied = id
}

func (e *Engine) unlink(r *rule) {
	if r.next != 0 {
		e.rules.at(r.next).previous = r.previous
	}
	if r.previous != 0 {
		e.rules.at(r.previous).next = r.next
	} else {
		e.groups.at(r.applied).applied = r.next
	}
}

// dropRule deletes a rule without origins.
func (e *Engine) dropRule(id ruleID, r *rule) {
	var buf [1]groupID
	c := r.content(&buf)
	if isolation := e.isolation(&c); isolation != nil {
		*isolation = 0
	} else {
		e.ruleByContent.remove(e.hash.content(&c), id)
	}
	e.release(c.applied)
	for _, g := range c.peers {
		e.release(g)
	}
	e.rules.give(id)
}
