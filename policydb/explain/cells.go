package explain

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// board computes the Connections between each two of a list of ends, all of one model. Ends that may share an index in
// two boards (of two models, or of two families) have invalid addresses where they don't exist.
type board struct {
	m    *Model
	in   *interner
	work *work
	ends []end
	// portClass numbers the ends' sets of named ports; 0 is none.
	portClass []int
	rules     map[ruleKey]int32 // numbers rules and what they depend on
	sets      map[string]int32  // interned Connections, by the numbers of the rules that match
	// matches is how the peers of a rule match each end, of isolations that have a side.
	matches map[*policy.PolicyRule][]match
	// isolations are those that occur, by number; isolated is the number of each end's in a direction, or none.
	isolations []isolation
	numbers    map[string]int
	isolated   [policy.Egress + 1][]int
	key        []byte             // scratch
	spans      []policy.PortRange // scratch
	found      []foundRule        // scratch
}

// isolation is the policies that isolate an end in a direction and, for ingress, its class of ports, which they allow.
type isolation struct {
	direction policy.Direction
	policies  []*policy.Policy
	class     int
	self      *policy.Endpoint // one of those that are isolated so
	// side is the interned Connections with each other end, unknownID until looked at. It is nil where few are looked
	// at: cells has these.
	side  []int32
	cells map[int]int32
}

const (
	// noIsolation is the number of an end that no policy isolates.
	noIsolation = -1
	unknownID   = -1
	cellBytes   = 40 // an entry of isolation.cells, or of another map of its kind
)

// ruleKey is what the Connections of a rule with matching peers depend on.
type ruleKey struct {
	rule  *policy.PolicyRule
	names bool
	class int
}

func newBoard(w *work, m *Model, in *interner, ends []end) *board {
	b := &board{
		m: m, in: in, work: w, ends: ends, portClass: make([]int, len(ends)),
		rules: map[ruleKey]int32{}, sets: map[string]int32{}, numbers: map[string]int{},
		matches: map[*policy.PolicyRule][]match{},
	}
	classes := map[string]int{"": 0}
	for i, e := range ends {
		if e.pod == nil || !w.step(1+len(e.pod.Ports)) {
			continue
		}
		text := m.facts.ports(e.pod)
		if _, known := classes[text]; !known {
			classes[text] = len(classes)
		}
		b.portClass[i] = classes[text]
	}
	numbers := map[*policy.Policy]uint32{}
	for _, d := range directions {
		b.isolated[d] = make([]int, len(ends))
		for i := range ends {
			b.isolated[d][i] = b.isolation(d, i, numbers)
		}
	}
	return b
}

var directions = []policy.Direction{policy.Egress, policy.Ingress}

func (b *board) isolation(d policy.Direction, self int, numbers map[*policy.Policy]uint32) int {
	pod := b.ends[self].pod
	if pod == nil || !b.work.step(1+len(b.m.policies[pod.Namespace])) {
		return noIsolation
	}
	policies := b.m.isolating(d, pod)
	if len(policies) == 0 {
		return noIsolation
	}
	class := 0
	if d == policy.Ingress {
		class = b.portClass[self]
	}
	b.key = binary.LittleEndian.AppendUint32(append(b.key[:0], byte(d)), uint32(class))
	for _, pol := range policies {
		n, known := numbers[pol]
		if !known {
			n = uint32(len(numbers))
			numbers[pol] = n
		}
		b.key = binary.LittleEndian.AppendUint32(b.key, n)
	}
	key := shortKey(b.key)
	number, known := b.numbers[key]
	if known {
		return number
	}
	if !b.work.hold(cellBytes + len(key) + 8*len(policies)) {
		return noIsolation
	}
	number = len(b.isolations)
	b.numbers[key] = number
	b.isolations = append(b.isolations, isolation{direction: d, policies: policies, class: class, self: pod})
	return number
}

// shortKey returns a string that only equal keys have, of no more than 64 bytes.
func shortKey(key []byte) string {
	if len(key) <= 2*sha256.Size {
		return string(key)
	}
	sum := sha256.Sum256(key)
	return string(sum[:])
}

// cells returns the cells by source and destination; a cell is empty if one of its ends does not exist. A cell is
// valid for two different addresses.
func (b *board) cells() [][]int32 {
	if !b.work.hold(4 * len(b.ends) * len(b.ends)) {
		return nil
	}
	for i := range b.isolations {
		b.widen(i)
	}
	cells := make([][]int32, len(b.ends))
	for from := range b.ends {
		cells[from] = make([]int32, len(b.ends))
		if !b.ends[from].addr.IsValid() || !b.work.step(len(b.ends)) {
			continue
		}
		for to := range cells[from] {
			if b.ends[to].addr.IsValid() {
				cells[from][to] = b.cell(from, to)
			}
		}
	}
	return cells
}

// cell returns what may pass from one end to another.
func (b *board) cell(from, to int) int32 {
	egress := b.allowed(policy.Egress, from, to)
	if egress == noneID {
		return noneID
	}
	return b.in.meet(egress, b.allowed(policy.Ingress, to, from))
}

// widen gives an isolation room for all other ends.
func (b *board) widen(number int) {
	if number == noIsolation || b.isolations[number].side != nil || !b.work.hold(4*len(b.ends)) {
		return
	}
	side := make([]int32, len(b.ends))
	for i := range side {
		side[i] = unknownID
	}
	b.isolations[number].side = side
}

// allowed returns what the policies of one end allow with another; all where none isolates it.
func (b *board) allowed(d policy.Direction, self, other int) int32 {
	number := b.isolated[d][self]
	if number == noIsolation {
		return allID
	}
	i := &b.isolations[number]
	if i.side != nil {
		if i.side[other] == unknownID {
			i.side[other] = b.unite(i, other)
		}
		return i.side[other]
	}
	id, known := i.cells[other]
	if !known && b.work.hold(cellBytes) {
		if i.cells == nil {
			i.cells = map[int]int32{}
		}
		id = b.unite(i, other)
		i.cells[other] = id
	}
	return id
}

// unite returns the union of what the matching rules of an isolation allow with another end. It is computed once for
// each set of rules, from all of their ports at once.
func (b *board) unite(i *isolation, other int) int32 {
	b.key, b.found = b.key[:0], b.found[:0]
	for _, pol := range i.policies {
		rules := rulesOf(pol, i.direction)
		for n := range rules {
			r := &rules[n]
			by := b.match(pol, r, i, other)
			if by == 0 {
				continue
			}
			if r.AnyPort {
				return allID
			}
			_, class := b.to(i, other)
			b.key = binary.LittleEndian.AppendUint32(b.key, uint32(b.number(ruleKey{r, by.names(i.direction), class})))
			b.found = append(b.found, foundRule{r, by})
		}
	}
	if len(b.found) == 0 {
		return noneID
	}
	key := shortKey(b.key)
	id, known := b.sets[key]
	if !known && b.work.hold(cellBytes+len(key)) {
		id = b.in.id(b.portsOf(i, other))
		b.sets[key] = id
	}
	return id
}

// match returns how the peers of a rule match an end.
func (b *board) match(pol *policy.Policy, r *policy.PolicyRule, i *isolation, other int) match {
	if r.AnyPeer || i.side == nil {
		if !b.work.step(1 + len(r.Peers)) {
			return 0
		}
		return b.m.match(pol, r, b.ends[other])
	}
	row := b.matches[r]
	if row == nil {
		if !b.work.hold(len(b.ends)) || !b.work.step(len(b.ends)*(1+len(r.Peers))) {
			return 0
		}
		row = make([]match, len(b.ends))
		for n, e := range b.ends {
			if e.addr.IsValid() {
				row[n] = b.m.match(pol, r, e)
			}
		}
		b.matches[r] = row
	}
	if !b.work.step(1) {
		return 0
	}
	return row[other]
}

// foundRule is a rule with the way in which its peers match.
type foundRule struct {
	rule *policy.PolicyRule
	by   match
}

func (b *board) portsOf(i *isolation, other int) Connections {
	to, _ := b.to(i, other)
	b.spans = b.spans[:0]
	for _, f := range b.found {
		cost := len(f.rule.Ports)
		if to != nil {
			cost += len(to.Ports)
		}
		if !b.work.step(cost) {
			return Connections{}
		}
		b.spans = f.by.appendPorts(b.spans, f.rule, i.direction, to)
	}
	return unionOf(b.spans)
}

func (b *board) number(key ruleKey) int32 {
	n, known := b.rules[key]
	if !known && b.work.hold(cellBytes) {
		n = int32(len(b.rules))
		b.rules[key] = n
	}
	return n
}

// to returns the pod that packets between an isolated end and another go to, and its class of ports.
func (b *board) to(i *isolation, other int) (*policy.Endpoint, int) {
	if i.direction == policy.Egress {
		return b.ends[other].pod, b.portClass[other]
	}
	return i.self, i.class
}

// allowedBy returns what one rule of an isolation allows with another end.
func (b *board) allowedBy(pol *policy.Policy, r *policy.PolicyRule, i *isolation, other int) Connections {
	to, _ := b.to(i, other)
	cost := 1 + len(r.Peers) + len(r.Ports)
	if to != nil {
		cost += len(to.Ports)
	}
	if !b.work.step(cost) {
		return Connections{}
	}
	return b.m.match(pol, r, b.ends[other]).connections(r, i.direction, to)
}
