package pipeline

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// dimension classes addresses for one side: by the groups of its rules that they belong to.
type dimension struct {
	side    *side
	tag     string
	table   uint8
	reg     int
	kind    Kind
	uses    map[policy.Key]*use
	classes map[policy.Key]*class
	of      map[netip.Addr]*class
	dirty   map[netip.Addr]struct{}
	emptied map[policy.Key]struct{} // uses that lost their last rule
	keys    map[string]classKeys    // by the IDs of sets, while addresses are classed
}

// use is a group (or a CIDR block) that rules of the side refer to.
type use struct {
	rules   map[*ruleEntry]struct{}
	open    int // of rules, those without restriction
	classes map[*class]struct{}
}

// class is the exact set of groups that some addresses belong to.
type class struct {
	dimension *dimension
	id        uint32
	content   policy.Key
	keys      []policy.Key        // sorted
	refs      int                 // addresses, or CIDRs, that have it
	chunks    map[uint32]struct{} // of rules, that it has a flow for
}

func newDimension(s *side, tag string, offset uint8, reg int, kind Kind) *dimension {
	return &dimension{
		side: s, tag: s.name() + "/" + tag, table: s.table + offset, reg: s.register(reg), kind: kind,
		uses: map[policy.Key]*use{}, classes: map[policy.Key]*class{}, of: map[netip.Addr]*class{}, dirty: map[netip.Addr]struct{}{},
		emptied: map[policy.Key]struct{}{}, keys: map[string]classKeys{},
	}
}

// clause returns the number of the dimension's clause in a conjunction. Ports have the last number.
func (d *dimension) clause() uint8 {
	if d.kind == KindApplied {
		return 1
	}
	return 2
}

// use says that the rule refers to the group: its members get classes that tell so.
func (d *dimension) use(key policy.Key, e *ruleEntry) {
	u := d.uses[key]
	if u == nil {
		u = &use{rules: map[*ruleEntry]struct{}{}, classes: map[*class]struct{}{}}
		d.uses[key] = u
		d.touchMembers(key)
	}
	if _, ok := u.rules[e]; !ok && e.allowAll {
		u.open++
	}
	u.rules[e] = struct{}{}
	d.touchClasses(u, e)
}

func (d *dimension) release(key policy.Key, e *ruleEntry) {
	u := d.uses[key]
	if u == nil {
		return
	}
	if _, ok := u.rules[e]; ok && e.allowAll {
		u.open--
	}
	delete(u.rules, e)
	d.touchClasses(u, e)
	if len(u.rules) == 0 {
		d.emptied[key] = struct{}{}
	}
}

// forget ends the uses that have no rule left at the end of a batch.
func (d *dimension) forget() {
	for key := range d.emptied {
		if u := d.uses[key]; u != nil && len(u.rules) == 0 {
			delete(d.uses, key)
			d.touchMembers(key)
		}
	}
	clear(d.emptied)
}

func (d *dimension) touchClasses(u *use, e *ruleEntry) {
	for cl := range u.classes {
		if d.kind == KindApplied {
			d.side.dirtyClasses[cl] = struct{}{}
		}
		if e.id != 0 {
			d.side.dirtyClauses[clauseID{cl, e.chunk()}] = struct{}{}
		}
	}
}

func (d *dimension) groupKind() policy.GroupKind {
	if d.kind == KindApplied {
		return policy.AppliedToGroup
	}
	return policy.PeerGroup
}

func (d *dimension) touchMembers(key policy.Key) {
	if d.kind == KindBlock {
		return // blockSet reclasses CIDRs
	}
	for a := range d.side.c.groups.Set(d.groupKind().ID(key)).Members() {
		d.dirty[a] = struct{}{}
	}
}

// reclass brings the class and the flow of an address up to date.
func (d *dimension) reclass(a netip.Addr) {
	of := d.classKeys(a)
	keys := of.keys
	before := d.of[a]
	if before == nil && keys == nil || before != nil && before.content == of.content && d.classes[before.content] == before {
		return
	}
	if before != nil {
		d.unref(before)
	}
	k := d.addressKey(a)
	if keys == nil {
		delete(d.of, a)
		d.side.c.flows.unset(k)
		if d.isolates() {
			d.side.c.flows.unset(d.resumedKey(a))
		}
		return
	}
	cl := d.ref(of)
	d.of[a] = cl
	d.side.c.flows.set(ofctl.Flow{Table: k.table, Priority: k.priority, Match: k.match, Cookie: cookie(d.kind, cl.id), Actions: d.loadClass(cl)})
	if d.isolates() {
		k := d.resumedKey(a)
		d.side.c.flows.set(ofctl.Flow{Table: k.table, Priority: k.priority, Match: k.match, Cookie: cookie(d.kind, cl.id)})
	}
}

func (d *dimension) loadClass(cl *class) []ofctl.Action {
	return []ofctl.Action{{Kind: ofctl.SetReg, Reg: uint8(d.reg), Value: cl.id}, {Kind: ofctl.GotoTable, Table: d.table + 1}}
}

func (d *dimension) addressKey(a netip.Addr) flowKey {
	return flowKey{d.table, 100, d.tupleMatch(netip.PrefixFrom(a, a.BitLen()))}
}

// isolates reports whether addresses with a class are endpoints that enforced policies isolate.
func (d *dimension) isolates() bool { return d.kind == KindApplied && !d.side.dryRun }

// resumedKey is of the flow that drops what may be an answer to an isolated endpoint's connection that was cut, or its own in one to it: isolated
// for egress it is the destination of the packet that conntrack takes for the first one, for ingress its source.
func (d *dimension) resumedKey(a netip.Addr) flowKey {
	m := trackedMatch(etherTypeOf(a))
	if d.side.direction == policy.Egress {
		m.CtNwDst = single(a)
	} else {
		m.CtNwSrc = single(a)
	}
	return flowKey{TableResumed, 100, m}
}

// tupleMatch matches the original tuple's end that the dimension is about.
func (d *dimension) tupleMatch(p netip.Prefix) ofctl.Match {
	m := trackedMatch(etherTypeOf(p.Addr()))
	if p.Bits() == 0 {
		return m // all of a family: the switch gives no such field back, and what it gives back must be what was sent
	}
	if (d.side.direction == policy.Egress) == (d.kind == KindApplied) {
		m.CtNwSrc = p
	} else {
		m.CtNwDst = p
	}
	return m
}

func (d *dimension) classMatch(cl *class) ofctl.Match {
	var m ofctl.Match
	m.Reg[d.reg] = exactReg(cl.id)
	return m
}

// classKeys is the groups of a class, sorted; none: no class.
type classKeys struct {
	keys    []policy.Key
	content policy.Key
}

func (d *dimension) keysOf(keys []policy.Key) classKeys {
	return classKeys{keys, contentOf(d.tag, keys)}
}

// classKeys returns the groups of the side's rules that an address is in. It is computed once for all addresses that are
// in the same sets, until forgetKeys.
func (d *dimension) classKeys(a netip.Addr) classKeys {
	sets := d.side.c.setsOf[d.groupKind()][a]
	if len(sets) == 0 {
		return classKeys{}
	}
	var space [128]byte
	name := space[:0]
	for _, s := range sets {
		name = binary.LittleEndian.AppendUint64(name, s.ID())
	}
	out, known := d.keys[string(name)]
	if !known {
		var keys []policy.Key
		for _, s := range sets {
			for _, k := range s.Keys() {
				if d.uses[k] != nil {
					keys = append(keys, k)
				}
			}
		}
		if slices.SortFunc(keys, compareKeys); keys != nil {
			out = d.keysOf(keys)
		}
		d.keys[string(name)] = out
	}
	return out
}

// forgetKeys drops what classKeys computed. Sets and uses may change then.
func (d *dimension) forgetKeys() { clear(d.keys) }

// ref finds or makes the class of a set of groups and counts one more that has it.
func (d *dimension) ref(of classKeys) *class {
	cl := d.classes[of.content]
	if cl == nil {
		cl = &class{
			dimension: d,
			id:        d.side.c.classIDs.get(of.content),
			content:   of.content,
			keys:      of.keys,
			chunks:    map[uint32]struct{}{},
		}
		d.classes[of.content], d.side.c.classByID[cl.id] = cl, cl
	}
	cl.refs++
	if cl.refs == 1 {
		d.enter(cl)
	}
	return cl
}

// enter marks every flow of a class that has come into use.
func (d *dimension) enter(cl *class) {
	for _, k := range cl.keys {
		u := d.uses[k]
		u.classes[cl] = struct{}{}
		d.touchRules(cl, u)
	}
	if d.kind == KindApplied {
		d.side.dirtyClasses[cl] = struct{}{}
	}
}

func (d *dimension) touchRules(cl *class, u *use) {
	for e := range u.rules {
		if e.id != 0 {
			d.side.dirtyClauses[clauseID{cl, e.chunk()}] = struct{}{}
		}
	}
}

func (d *dimension) unref(cl *class) {
	cl.refs--
	if cl.refs == 0 {
		d.side.idle[cl] = struct{}{}
	}
}

// drop removes a class that nothing has any more, with its flows.
func (d *dimension) drop(cl *class) {
	delete(d.classes, cl.content)
	delete(d.side.c.classByID, cl.id)
	for _, k := range cl.keys {
		if u := d.uses[k]; u != nil {
			delete(u.classes, cl)
		}
	}
	for chunk := range cl.chunks {
		d.side.dirtyClauses[clauseID{cl, chunk}] = struct{}{}
	}
	if d.kind == KindApplied {
		d.side.dirtyClasses[cl] = struct{}{}
	}
	d.side.c.classIDs.put(cl.content)
}

// choosing returns the rules of a chunk whose clause of this dimension holds for the class, unsorted and each once.
func (d *dimension) choosing(cl *class, chunk uint32) []*ruleEntry {
	var out []*ruleEntry
	add := func(e *ruleEntry) {
		if !slices.Contains(out, e) { // a chunk's rules are few
			out = append(out, e)
		}
	}
	for _, key := range cl.keys {
		u := d.uses[key]
		if u == nil {
			continue
		}
		if all := d.side.chunks[chunk]; len(all) < len(u.rules) {
			for e := range all {
				if u.has(e) {
					add(e)
				}
			}
			continue
		}
		for e := range u.rules {
			if e.id != 0 && e.chunk() == chunk {
				add(e)
			}
		}
	}
	return out
}

func (u *use) has(e *ruleEntry) bool {
	_, ok := u.rules[e]
	return ok
}
