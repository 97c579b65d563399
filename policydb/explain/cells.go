package explain

import (
	"fmt"
	"strconv"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// board computes the Connections between each two of a list of ends, all of one model. Ends that may share an index in two
// boards (of two models, or of two families) have invalid addresses where they don't exist.
type board struct {
	m    *Model
	in   *interner
	ends []end
	// portClass numbers the ends' sets of named ports; 0 is none.
	portClass []int
	peers     map[string][]bool
	rules     map[ruleKey]int32
	policies  map[policyKey][]int32
	// isolations are those that occur, by number; isolated is the number of each end's in a direction, or none.
	isolations []isolation
	numbers    map[string]int
	isolated   [policy.Egress + 1][]int
}

// isolation is what isolates an end in a direction: policies, and for ingress its class of ports, which they allow.
type isolation struct {
	direction policy.Direction
	policies  []*policy.Policy
	class     int
	self      *policy.Endpoint // one of those that are isolated so
	side      []int32          // what is allowed with each other end; nil until somebody asks
}

// noIsolation is the number of an end that no policy isolates.
const noIsolation = -1

// ruleKey is what a rule, whose peers match, lets through to a class of ports.
type ruleKey struct {
	rule  *policy.PolicyRule
	names bool
	class int
}

type policyKey struct {
	policy    *policy.Policy
	direction policy.Direction
	class     int
}

func newBoard(m *Model, in *interner, ends []end) *board {
	b := &board{
		m: m, in: in, ends: ends, portClass: make([]int, len(ends)),
		peers: map[string][]bool{}, rules: map[ruleKey]int32{}, policies: map[policyKey][]int32{}, numbers: map[string]int{},
	}
	classes := map[string]int{"": 0}
	for i, e := range ends {
		if e.pod == nil {
			continue
		}
		text := m.facts.ports(e.pod)
		if _, known := classes[text]; !known {
			classes[text] = len(classes)
		}
		b.portClass[i] = classes[text]
	}
	for _, d := range directions {
		b.isolated[d] = make([]int, len(ends))
		for i := range ends {
			b.isolated[d][i] = b.isolation(d, i)
		}
	}
	return b
}

var directions = []policy.Direction{policy.Egress, policy.Ingress}

func (b *board) isolation(d policy.Direction, self int) int {
	policies := b.m.isolating(d, b.ends[self].pod)
	if len(policies) == 0 {
		return noIsolation
	}
	class := 0
	if d == policy.Ingress {
		class = b.portClass[self]
	}
	key := []byte(d.String() + strconv.Itoa(class))
	for _, pol := range policies {
		key = fmt.Appendf(key, "|%p", pol)
	}
	number, known := b.numbers[string(key)]
	if !known {
		number = len(b.isolations)
		b.numbers[string(key)] = number
		b.isolations = append(b.isolations, isolation{direction: d, policies: policies, class: class, self: b.ends[self].pod})
	}
	return number
}

// cells are by source and destination; none where an end doesn't exist. They hold for two different addresses.
func (b *board) cells() [][]int32 {
	ingress := make([][]int32, len(b.ends))
	for to := range b.ends {
		ingress[to] = b.side(policy.Ingress, to)
	}
	cells := make([][]int32, len(b.ends))
	for from := range b.ends {
		cells[from] = b.row(from, ingress)
	}
	return cells
}

func (b *board) row(from int, ingress [][]int32) []int32 {
	row := make([]int32, len(b.ends))
	if !b.ends[from].addr.IsValid() {
		return row
	}
	egress := b.side(policy.Egress, from)
	for to := range row {
		if b.ends[to].addr.IsValid() {
			row[to] = b.in.meet(at(egress, to), at(ingress[to], from))
		}
	}
	return row
}

// at is the value at an index of a side; a nil side is open.
func at(side []int32, i int) int32 {
	if side == nil {
		return allID
	}
	return side[i]
}

// side is what the policies of one end allow with each other end; nil where none isolates it.
func (b *board) side(d policy.Direction, self int) []int32 {
	number := b.isolated[d][self]
	if number == noIsolation {
		return nil
	}
	i := &b.isolations[number]
	if i.side == nil {
		i.side = make([]int32, len(b.ends))
		for _, pol := range i.policies {
			b.unite(i.side, b.policy(policyKey{pol, d, i.class}, i.self))
		}
	}
	return i.side
}

func (b *board) unite(into, side []int32) {
	for i, id := range side {
		if id != noneID {
			into[i] = b.in.union(into[i], id)
		}
	}
}

// policy is what a policy's rules allow with each end. The class is that of self where the packets go there.
func (b *board) policy(key policyKey, self *policy.Endpoint) []int32 {
	side, known := b.policies[key]
	if known {
		return side
	}
	side = make([]int32, len(b.ends))
	rules := rulesOf(key.policy, key.direction)
	for i := range rules {
		r := &rules[i]
		for other, by := range b.matches(key.policy, r) {
			if by == 0 {
				continue
			}
			to, class := self, key.class
			if key.direction == policy.Egress {
				to, class = b.ends[other].pod, b.portClass[other]
			}
			side[other] = b.in.union(side[other], b.rule(r, by, key.direction, to, class))
		}
	}
	b.policies[key] = side
	return side
}

func (b *board) rule(r *policy.PolicyRule, by match, d policy.Direction, to *policy.Endpoint, class int) int32 {
	if r.AnyPort {
		return allID
	}
	key := ruleKey{r, by.names(d), class}
	id, known := b.rules[key]
	if !known {
		id = b.in.id(by.connections(r, d, to))
		b.rules[key] = id
	}
	return id
}

// matches is by what a rule's peers match each end.
func (b *board) matches(pol *policy.Policy, r *policy.PolicyRule) []match {
	by := make([]match, len(b.ends))
	if r.AnyPeer {
		for i := range by {
			by[i] = byAny
		}
		return by
	}
	for i := range r.Peers {
		kind := kindOf(&r.Peers[i])
		for end, matches := range b.peer(pol, &r.Peers[i]) {
			if matches {
				by[end] |= kind
			}
		}
	}
	return by
}

func (b *board) peer(pol *policy.Policy, peer *policy.Peer) []bool {
	key := peerKey(pol, peer)
	matches, known := b.peers[key]
	if !known {
		matches = make([]bool, len(b.ends))
		for i, e := range b.ends {
			matches[i] = e.addr.IsValid() && b.m.peerMatches(pol, peer, e)
		}
		b.peers[key] = matches
	}
	return matches
}

func peerKey(pol *policy.Policy, peer *policy.Peer) string {
	if peer.Block != nil {
		return blockText(peer.Block)
	}
	namespace := ""
	if peer.Namespaces == nil {
		namespace = pol.Namespace
	}
	return namespace + "|" + peer.Namespaces.Canonical() + "|" + peer.Pods.Canonical()
}
