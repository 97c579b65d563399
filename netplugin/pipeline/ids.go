package pipeline

import (
	"maps"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// IDSpace tells apart what ids are given to.
type IDSpace uint8

// Id spaces.
const (
	RuleIDs    IDSpace = iota + 1 // conjunction ids; content is the rule's key
	ClassIDs                      // register values; content is the hash of the class's groups
	ServiceIDs                    // register values; content is the hash of a pool's or an endpoint's name
)

// Assignment is an id given to some content; an id of 0 says that the content gave its id back. The agent keeps them on
// disk, so that a restarted node compiles the very flows that the switch holds.
type Assignment struct {
	Space   IDSpace
	Content policy.Key
	ID      uint32
}

// reuseAfter is how many ids must have been given back since before one is given out again: what still carries it, a
// packet in the pipeline or a person's notes, does not soon speak of something else.
const reuseAfter = 64

// idPool gives out new ids densely, from 1, and those given back in the order in which they came back.
type idPool struct {
	space IDSpace
	of    map[policy.Key]uint32
	next  uint32
	free  []uint32 // oldest first
	fresh []uint32 // given back since the last rest
	log   *[]Assignment
}

func newIDPool(space IDSpace, log *[]Assignment) *idPool {
	return &idPool{space: space, of: map[policy.Key]uint32{}, next: 1, log: log}
}

func (p *idPool) get(content policy.Key) uint32 {
	if id, ok := p.of[content]; ok {
		return id
	}
	id := p.next
	if len(p.free) > reuseAfter {
		id, p.free = p.free[0], p.free[1:]
	} else {
		p.next++
	}
	p.of[content] = id
	*p.log = append(*p.log, Assignment{p.space, content, id})
	return id
}

func (p *idPool) put(content policy.Key) {
	id, ok := p.of[content]
	if !ok {
		return
	}
	delete(p.of, content)
	p.fresh = append(p.fresh, id)
	*p.log = append(*p.log, Assignment{p.space, content, 0})
}

// rename gives the id of some content to another, and reports whether it did: not where that one has an id.
func (p *idPool) rename(from, to policy.Key) bool {
	id, ok := p.of[from]
	if _, taken := p.of[to]; !ok || taken {
		return false
	}
	delete(p.of, from)
	p.of[to] = id
	*p.log = append(*p.log, Assignment{p.space, from, 0}, Assignment{p.space, to, id})
	return true
}

// rest begins the wait of the ids given back since the last one.
func (p *idPool) rest() {
	p.free = append(p.free, p.fresh...)
	p.fresh = nil
}

func (p *idPool) assigned() []Assignment {
	out := make([]Assignment, 0, len(p.of))
	for content, id := range p.of {
		out = append(out, Assignment{p.space, content, id})
	}
	return out
}

// restore takes assignments over from before a restart. Ids that two contents claim, or out of reason, are left out: they
// are given anew, which costs flow mods and nothing else.
func (p *idPool) restore(saved []Assignment) {
	taken := map[uint32]bool{}
	for _, a := range saved {
		if a.Space != p.space || a.ID == 0 || a.ID > 1<<24 || taken[a.ID] {
			continue
		}
		taken[a.ID] = true
		p.of[a.Content] = a.ID
		p.next = max(p.next, a.ID+1)
	}
	for id := uint32(1); id < p.next; id++ {
		if !taken[id] {
			p.free = append(p.free, id)
		}
	}
}

// retain gives back the ids of content that is in use no more.
func (p *idPool) retain(used map[policy.Key]bool) {
	for _, content := range slices.SortedFunc(maps.Keys(p.of), compareKeys) {
		if !used[content] {
			p.put(content)
		}
	}
}

func compareKeys(a, b policy.Key) int { return slices.Compare(a[:], b[:]) }
