package pipeline

import (
	"cmp"
	"crypto/sha256"
	"maps"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// side is all of one direction, of the policies in force or of those in a dry run: its rules, and three dimensions in which packets are classed before rules are matched.
type side struct {
	c         *Compiler
	direction policy.Direction
	dryRun    bool  // of policies in a dry run: nothing ends here
	table     uint8 // first of four
	next      uint8 // where allowed packets go on
	denied    uint8 // where the others end, or are told of
	rules     map[policy.Key]*ruleEntry
	chunks    map[uint32]map[*ruleEntry]struct{}
	applied   *dimension
	peers     *dimension
	blocks    *dimension
	blockSet  blockSet

	dirtyClauses map[clauseID]struct{}
	dirtyPorts   map[portClause]struct{}
	dirtyClasses map[*class]struct{} // whose default drop and allow-all are to be looked at
	idle         map[*class]struct{} // may have lost their last address
}

type clauseID struct {
	class *class
	chunk uint32
}

type portClause struct {
	portMatch
	chunk uint32
}

// ruleEntry is a rule with what matching it takes. A rule that lets nothing through has no id.
type ruleEntry struct {
	rule     *policy.Rule
	id       uint32 // conjunction id; 0: none is needed
	allowAll bool
	peers    []policy.Key
	blocks   []blockGroup
	ports    map[portMatch]struct{}
}

// clauses returns the number of clauses in the rule's conjunction: the endpoint, and peer and port if restricted.
func (e *ruleEntry) clauses() uint8 {
	n := uint8(1)
	if !e.rule.AnyPeer {
		n++
	}
	if !e.rule.AnyPort {
		n++
	}
	return n
}

func (e *ruleEntry) chunk() uint32 { return e.id / ChunkSize }

func newSide(c *Compiler, d policy.Direction, dryRun bool) *side {
	s := &side{
		c: c, direction: d, dryRun: dryRun, table: TableEgress, next: TableIngress, denied: TableEgressDenied, rules: map[policy.Key]*ruleEntry{},
		chunks: map[uint32]map[*ruleEntry]struct{}{}, blockSet: newBlockSet(),
		dirtyClauses: map[clauseID]struct{}{}, dirtyPorts: map[portClause]struct{}{},
		dirtyClasses: map[*class]struct{}{}, idle: map[*class]struct{}{},
	}
	if d == policy.Ingress {
		s.table, s.next, s.denied = TableIngress, TableCommit, TableIngressDenied
	}
	if dryRun {
		s.table, s.denied = s.table+tablesOfASide, s.denied+TableEgressDryRunDenied-TableEgressDenied
	}
	s.applied = newDimension(s, "applied", 0, regApplied, KindApplied)
	s.peers = newDimension(s, "peer", 1, regPeer, KindPeer)
	s.blocks = newDimension(s, "block", 2, regBlock, KindBlock)
	return s
}

// name returns the name of the side, which the hashes of its classes contain too.
func (s *side) name() string {
	if s.dryRun {
		return s.direction.String() + "-dryrun"
	}
	return s.direction.String()
}

func (s *side) dimensions() []*dimension { return []*dimension{s.applied, s.peers, s.blocks} }

func (s *side) register(reg int) int {
	if s.direction == policy.Ingress {
		return reg + 3
	}
	return reg
}

func (s *side) rulesTable() uint8 { return s.table + 3 }

func (s *side) put(r *policy.Rule) {
	if e := s.rules[r.Key]; e != nil { // only Origins can differ
		e.rule = r
		return
	}
	e := s.newEntry(r)
	s.rules[r.Key] = e
	s.applied.use(r.AppliedTo, e)
	if e.id == 0 {
		return
	}
	for _, key := range e.peers {
		s.peers.use(key, e)
	}
	for i := range e.blocks {
		s.blockSet.add(&e.blocks[i])
		s.blocks.use(e.blocks[i].key, e)
	}
	if s.chunks[e.chunk()] == nil {
		s.chunks[e.chunk()] = map[*ruleEntry]struct{}{}
	}
	s.chunks[e.chunk()][e] = struct{}{}
	s.c.ruleByID[e.id] = e
	s.touchRule(e)
	s.c.ports.add(e.ports, 1)
	s.setAllow(e)
}

func (s *side) newEntry(r *policy.Rule) *ruleEntry {
	e := &ruleEntry{rule: r}
	if !r.AnyPeer { // with it, what else is said of peers counts for nothing, and may not pass for the clause of ports
		e.peers, e.blocks = r.Peers, blockGroups(r.Blocks)
	}
	if !r.AnyPort {
		e.ports = matchesOf(r.Ports)
	}
	passes := (r.AnyPeer || len(e.peers)+len(e.blocks) > 0) && (r.AnyPort || len(e.ports) > 0)
	e.allowAll = passes && r.AnyPeer && r.AnyPort
	if !passes || e.allowAll {
		return e
	}
	e.id = s.c.rules.get(r.Key)
	return e
}

func (s *side) remove(key policy.Key) {
	e := s.rules[key]
	if e == nil {
		return
	}
	delete(s.rules, key)
	s.applied.release(e.rule.AppliedTo, e)
	if e.id == 0 {
		return
	}
	s.touchRule(e)
	s.c.ports.add(e.ports, -1)
	delete(s.chunks[e.chunk()], e)
	delete(s.c.ruleByID, e.id)
	if len(s.chunks[e.chunk()]) == 0 {
		delete(s.chunks, e.chunk())
	}
	for _, peer := range e.peers {
		s.peers.release(peer, e)
	}
	for i := range e.blocks {
		block := e.blocks[i].key
		s.blockSet.remove(block)
		s.blocks.release(block, e)
	}
	for _, k := range s.allowKeys(e) {
		s.c.flows.unset(k)
	}
	s.c.rules.put(key)
}

// touchRule marks the port clauses of the rule's chunk; those of classes are marked by use and release.
func (s *side) touchRule(e *ruleEntry) {
	for m := range e.ports {
		s.dirtyPorts[portClause{m, e.chunk()}] = struct{}{}
	}
}

// allowKeys returns the keys of the two flows of a met conjunction. The second one matches packets that are evaluated
// again after the commit of their connection, and so counts connections.
func (s *side) allowKeys(e *ruleEntry) [2]flowKey {
	m := ofctl.Match{ConjID: e.id}
	return [2]flowKey{{s.rulesTable(), prioConjID, m}, {s.rulesTable(), prioConjID + 1, committed(m)}}
}

// committed returns the match for packets whose connection was committed just before.
func committed(m ofctl.Match) ofctl.Match {
	m.Reg[regCommit] = exactReg(justCommitted)
	return m
}

func (s *side) setAllow(e *ruleEntry) {
	for _, k := range s.allowKeys(e) {
		s.c.flows.set(ofctl.Flow{Table: k.table, Priority: k.priority, Match: k.match, Cookie: cookie(KindAllow, e.id), Actions: gotoTable(s.next)})
	}
}

func gotoTable(t uint8) []ofctl.Action { return []ofctl.Action{{Kind: ofctl.GotoTable, Table: t}} }

// settle brings the flows of everything that was touched up to date.
func (s *side) settle() {
	for _, d := range s.dimensions() {
		d.forget()
	}
	s.blockSet.settle(s.blocks)
	for _, d := range s.dimensions() {
		d.renameClasses()
		drain(d.dirty, netip.Addr.Compare, d.reclass)
		d.forgetKeys()
	}
	drain(s.idle, compareClasses, func(cl *class) {
		if cl.refs == 0 {
			cl.dimension.drop(cl)
		}
	})
	drain(s.dirtyClauses, compareClauses, s.setClause)
	drain(s.dirtyPorts, comparePorts, s.setPorts)
	drain(s.dirtyClasses, compareClasses, s.setDefault)
}

// drain does f for each of a set, in order, and empties it: ids and flow mods are the same whenever the same is done.
func drain[T comparable](set map[T]struct{}, compare func(a, b T) int, f func(T)) {
	for _, v := range slices.SortedFunc(maps.Keys(set), compare) {
		f(v)
	}
	clear(set)
}

func compareClasses(a, b *class) int { return cmp.Compare(a.id, b.id) }

func compareClauses(a, b clauseID) int {
	return cmp.Or(cmp.Compare(a.class.id, b.class.id), cmp.Compare(a.chunk, b.chunk))
}

func comparePorts(a, b portClause) int {
	return cmp.Or(cmp.Compare(a.chunk, b.chunk), comparePortMatches(a.portMatch, b.portMatch))
}

func chunkPriority(chunk uint32) uint16 { return uint16(prioChunk - min(chunk, prioChunk-2)) }

// setClause writes the flow of a class and a chunk: the clause of every rule of the chunk that the class is in.
func (s *side) setClause(id clauseID) {
	d := id.class.dimension
	k := flowKey{table: s.rulesTable(), priority: chunkPriority(id.chunk), match: d.classMatch(id.class)}
	var actions []ofctl.Action
	if id.class.refs > 0 {
		for _, e := range d.choosing(id.class, id.chunk) {
			actions = append(actions, ofctl.Action{Kind: ofctl.Conjunction, Value: e.id, Clause: d.clause(), Clauses: e.clauses()})
		}
	}
	if len(actions) > 0 {
		id.class.chunks[id.chunk] = struct{}{}
	} else {
		delete(id.class.chunks, id.chunk)
	}
	s.setConjunctions(k, cookie(KindClause, id.class.id), actions)
}

func (s *side) setConjunctions(k flowKey, ck uint64, actions []ofctl.Action) {
	if len(actions) == 0 {
		s.c.flows.unset(k)
		return
	}
	slices.SortFunc(actions, func(a, b ofctl.Action) int { return int(a.Value) - int(b.Value) })
	s.c.flows.set(ofctl.Flow{Table: k.table, Priority: k.priority, Match: k.match, Cookie: ck, Actions: actions})
}

func (s *side) setPorts(id portClause) {
	var actions []ofctl.Action
	for e := range s.chunks[id.chunk] {
		if _, ok := e.ports[id.portMatch]; ok {
			actions = append(actions, ofctl.Action{Kind: ofctl.Conjunction, Value: e.id, Clause: e.clauses(), Clauses: e.clauses()})
		}
	}
	for _, etherType := range families {
		m := trackedMatch(etherType)
		m.CtProto, m.CtTpDst = uint8(id.protocol), id.port
		m.Reg[regPort] = exactReg(0)
		k := flowKey{s.rulesTable(), chunkPriority(id.chunk), m}
		s.setConjunctions(k, cookie(KindClause, 0), actions)
	}
}

// setDefault writes what happens to a class of endpoints that no rule speaks of: let through by a rule without
// restriction, or dropped, by way of a table that may tell of it. A dry run tells, and lets through.
func (s *side) setDefault(cl *class) {
	one := s.applied.classMatch(cl)
	allows := [2]flowKey{{s.rulesTable(), prioAllow, one}, {s.rulesTable(), prioAllow + 1, committed(one)}}
	all := false
	for _, key := range cl.keys {
		u := s.applied.uses[key]
		all = all || u != nil && u.open > 0
	}
	for _, k := range allows {
		if cl.refs > 0 && all {
			s.c.flows.set(ofctl.Flow{Table: k.table, Priority: k.priority, Match: k.match, Cookie: cookie(KindAllowAll, cl.id), Actions: gotoTable(s.next)})
		} else {
			s.c.flows.unset(k)
		}
	}
	drops, actions := []flowKey{{s.rulesTable(), prioDrop, one}}, gotoTable(s.denied)
	if s.dryRun { // the second counts connections
		drops = append(drops, flowKey{s.rulesTable(), prioDrop + 1, committed(one)})
		actions = []ofctl.Action{{Kind: ofctl.Resubmit, Table: s.denied}, goTo(s.next)}
	}
	for _, k := range drops {
		if cl.refs > 0 {
			s.c.flows.set(ofctl.Flow{Table: k.table, Priority: k.priority, Match: k.match, Cookie: cookie(KindDefaultDrop, cl.id), Actions: actions})
		} else {
			s.c.flows.unset(k)
		}
	}
}

var families = []uint16{ofctl.EtherIPv4, ofctl.EtherIPv6}

// trackedMatch returns the prerequisite of matches on conntrack's original tuple (ovs-fields(7)).
func trackedMatch(etherType uint16) ofctl.Match {
	return ofctl.Match{EtherType: etherType, CtState: ofctl.U32{Value: ofctl.CtTrk, Mask: ofctl.CtTrk | ofctl.CtInv}}
}

func etherTypeOf(a netip.Addr) uint16 {
	if a.Is4() {
		return ofctl.EtherIPv4
	}
	return ofctl.EtherIPv6
}

func exactReg(v uint32) ofctl.U32 { return ofctl.U32{Value: v, Mask: 0xffffffff} }

// contentOf returns the hash of a class: of its tag and the groups in it.
func contentOf(tag string, keys []policy.Key) policy.Key {
	h := sha256.New()
	h.Write([]byte(tag))
	for _, k := range keys {
		h.Write(k[:])
	}
	return policy.Key(h.Sum(nil)[:16])
}
