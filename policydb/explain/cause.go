package explain

import (
	"fmt"
	"strconv"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Effect is how a policy changes what is allowed.
type Effect string

// Effects. The first two deny, the others allow.
const (
	Isolates         Effect = "isolates"         // it isolates the pod, which nothing did before
	AllowsNoLonger   Effect = "allowsNoLonger"   // its rule allowed it, and none does now
	Allows           Effect = "allows"           // its rule allows it now
	IsolatesNoLonger Effect = "isolatesNoLonger" // it isolated the pod, and nothing does now
)

// Cause is what a policy has to do with a Difference, on one side: egress at the source, ingress at the destination.
type Cause struct {
	Direction string `json:"direction"`
	Effect    Effect `json:"effect"`
	Policy    string `json:"policy"` // namespace/name
	// Rule is the index in ingress or egress, of the policy before for AllowsNoLonger; -1 for the isolation itself.
	Rule int `json:"rule"`
	// Connections is the part of what is gained or lost that it speaks of.
	Connections Connections `json:"connections"`
}

// Denies reports whether the cause explains lost connections.
func (c *Cause) Denies() bool { return c.Effect == Isolates || c.Effect == AllowsNoLonger }

// effectTexts are completed by a direction, where the isolation is meant, and a place.
var effectTexts = map[Effect]string{
	Isolates: "isolated for %s by", IsolatesNoLonger: "no longer isolated for %s by",
	AllowsNoLonger: "no longer allowed by", Allows: "allowed by",
}

func (c *Cause) String() string {
	text := effectTexts[c.Effect]
	if c.Rule < 0 {
		text = fmt.Sprintf(text, c.Direction)
	}
	return text + " " + c.place()
}

// place returns the policy, or its rule.
func (c *Cause) place() string {
	if c.Rule < 0 {
		return c.Policy
	}
	return fmt.Sprintf("%s %s[%d]", c.Policy, c.Direction, c.Rule)
}

// causeBytes is the memory of a cause.
const causeBytes = 120

// causes finds the causes of changes, and numbers equal lists of them.
type causes struct {
	in    *interner
	lists [][]Cause
	ids   map[string]int32
	sides map[sideChange]int32
	pairs map[[2]int32]int32
}

// sideChange is what the causes of one side follow from.
type sideChange struct {
	c            *comparison
	direction    policy.Direction
	before, now  int // isolations
	other        int
	gained, lost int32 // by this side
}

func newCauses(in *interner) *causes {
	c := &causes{in: in, ids: map[string]int32{}, sides: map[sideChange]int32{}, pairs: map[[2]int32]int32{}}
	c.id(nil)
	return c
}

func (k *causes) id(list []Cause) int32 {
	var key []byte
	for i := range list {
		c := &list[i]
		key = append(key, c.Direction+" "+string(c.Effect)+" "+c.Policy+" "+strconv.Itoa(c.Rule)+" "...)
		key = append(c.Connections.appendKey(key), '|')
	}
	short := shortKey(key)
	id, known := k.ids[short]
	if !known {
		k.in.work.hold(cellBytes + len(short) + causeBytes*len(list))
		id = int32(len(k.lists))
		k.ids[short] = id
		k.lists = append(k.lists, list)
	}
	return id
}

// of returns the ID of the list of causes of a changed cell.
func (k *causes) of(c *comparison, from, to int, o outcome) int32 {
	both := [2]int32{k.side(c, policy.Egress, from, to, o), k.side(c, policy.Ingress, to, from, o)}
	id, known := k.pairs[both]
	if !known && k.in.work.hold(cellBytes) {
		id = k.id(append(k.lists[both[0]][:len(k.lists[both[0]]):len(k.lists[both[0]])], k.lists[both[1]]...))
		k.pairs[both] = id
	}
	return id
}

// side returns the causes of one side: what is lost that this side denies now, and what is gained that this side
// denied before.
func (k *causes) side(c *comparison, d policy.Direction, self, other int, o outcome) int32 {
	s := sideChange{
		c:         c,
		direction: d,
		before:    c.before.isolated[d][self],
		now:       c.after.isolated[d][self],
		other:     other,
	}
	s.lost = k.in.minus(o.lost, c.after.allowed(d, self, other))
	s.gained = k.in.minus(o.gained, c.before.allowed(d, self, other))
	if s.lost == noneID && s.gained == noneID {
		return 0
	}
	id, known := k.sides[s]
	if !known && k.in.work.hold(2*cellBytes) {
		list := k.part(nil, c.after, c.before, s.now, s.before, s.lost, other, [2]Effect{Isolates, AllowsNoLonger})
		list = k.part(list, c.before, c.after, s.before, s.now, s.gained, other, [2]Effect{IsolatesNoLonger, Allows})
		id = k.id(list)
		k.sides[s] = id
	}
	return id
}

// part appends the causes of what one world denies and the other does not: the isolation that only the first world
// has, or the rules of the other world that allow it.
func (k *causes) part(
	list []Cause, denying, allowing *board, denies, allows int, what int32, other int, effects [2]Effect,
) []Cause {
	if what == noneID {
		return list
	}
	if allows == noIsolation {
		i := &denying.isolations[denies]
		for _, pol := range i.policies {
			list = append(list, Cause{
				Direction:   i.direction.String(),
				Effect:      effects[0],
				Policy:      pol.ID(),
				Rule:        -1,
				Connections: k.in.values[what],
			})
		}
		return list
	}
	i := &allowing.isolations[allows]
	for _, pol := range i.policies {
		rules := rulesOf(pol, i.direction)
		for r := range rules {
			part := k.in.values[what].Intersect(allowing.allowedBy(pol, &rules[r], i, other))
			if part.IsNone() || !k.in.work.step(part.size()) {
				continue
			}
			list = append(list, Cause{
				Direction:   i.direction.String(),
				Effect:      effects[1],
				Policy:      pol.ID(),
				Rule:        r,
				Connections: part,
			})
		}
	}
	return list
}
