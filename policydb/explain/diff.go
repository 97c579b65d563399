package explain

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Difference is what changes between the pods or addresses of groups: from each of From to each of To the same.
type Difference struct {
	// From and To are indexes of Delta.Groups, sorted.
	From []int `json:"from"`
	To   []int `json:"to"`
	// Family is 4 or 6 where only the addresses of that family change so, else 0.
	Family int         `json:"family,omitempty"`
	Gained Connections `json:"gained"`
	Lost   Connections `json:"lost"`
	// Because are all that explains it, egress first.
	Because []Cause `json:"because,omitempty"`
}

// Delta is how two worlds differ.
type Delta struct {
	// Groups are all that Differences speak of.
	Groups []Group `json:"groups,omitempty"`
	// Differences speak of each pair of groups at most once a family. They are sorted by To, then by From.
	Differences []Difference `json:"differences,omitempty"`
	// OnlyBefore and OnlyAfter are the pods that have an address of their own in one of the worlds only: namespace/name,
	// sorted. They are in no Difference.
	OnlyBefore []string `json:"onlyBefore,omitempty"`
	OnlyAfter  []string `json:"onlyAfter,omitempty"`

	finder *finder // of a Delta that Diff made
}

// Same tells whether nothing differs.
func (d *Delta) Same() bool {
	return len(d.Differences) == 0 && len(d.OnlyBefore) == 0 && len(d.OnlyAfter) == 0
}

// Diff tells between whom the Connections of two worlds differ, addresses outside the cluster included. A pod is the same
// in both worlds if its namespace and name are, and has the address families that it has in both; groups are of pods that neither world's policies can tell apart, their
// labels those of the world after. Where the worlds share their pods and namespaces, as with a Trial, the cost is that of the pods
// that the changed policies apply to, times all others.
func Diff(before, after *Model) Delta {
	d, _ := DiffWithin(before, after, math.MaxInt)
	return d
}

// ErrTooMany is returned where more pairs of groups would have to be compared than was allowed.
var ErrTooMany = errors.New("too many groups of pods that policies tell apart")

// DiffWithin is Diff, which gives up where it would compare more than most pairs of groups: memory may be needed for each.
func DiffWithin(before, after *Model, most int) (Delta, error) {
	d, old, now := pair(before, after)
	in := newInterner()
	causes := newCauses(in)
	shared := samePeers(before, after)
	var by [2][]change
	for family, six := range families {
		if now.any(family) {
			c := comparison{in: in, before: newBoard(before, in, old.ends(before, six)), after: newBoard(after, in, now.ends(after, six)), causes: causes}
			c.touch(shared)
			if n := c.pairs(); n > most {
				return Delta{}, fmt.Errorf("%w: %d pairs of groups, and no more than %d are compared", ErrTooMany, n, most)
			}
			by[family] = c.changes(now.alone)
		}
	}
	d.Differences = fold(in, causes, now.mergeChanges(by[0], by[1]))
	var index []int
	d.Groups, index = used(now.groups, d.Differences)
	d.finder = newFinder(&d, after, &now, index)
	return d, nil
}

// pair groups the pods that both worlds have. The two lists of groups have the same indexes, and other representatives.
func pair(before, after *Model) (d Delta, old, now groups) {
	was := map[string]*policy.Endpoint{}
	for _, e := range before.endpoints {
		if before.addressable(e) && was[e.ID()] == nil {
			was[e.ID()] = e
		}
	}
	both := map[string]*policy.Endpoint{}
	named := before.facts.with(&after.facts)
	now.named = &named
	for _, e := range after.endpoints {
		switch id := e.ID(); {
		case !after.addressable(e) || both[id] != nil:
		case was[id] == nil:
			d.OnlyAfter = append(d.OnlyAfter, id)
		default:
			both[id] = was[id]
			now.add(before.class(was[id])+"\n"+after.class(e), e, after)
		}
	}
	for id := range was {
		if both[id] == nil {
			d.OnlyBefore = append(d.OnlyBefore, id)
		}
	}
	slices.Sort(d.OnlyBefore)
	slices.Sort(d.OnlyAfter)
	now.finish()
	now.addOutside(before, after)
	return d, now.asBefore(before, both), now
}

// asBefore is the same groups with the pods as the world before has them. Both lists then know the families that a group has
// in both worlds.
func (l *groups) asBefore(before *Model, was map[string]*policy.Endpoint) groups {
	old := *l
	old.members = make([][]*policy.Endpoint, len(l.members))
	for i, members := range l.members {
		for _, e := range members {
			old.members[i] = append(old.members[i], was[e.ID()])
		}
		if len(members) > 0 {
			had := before.has(old.members[i][0])
			l.has[i] = [2]bool{l.has[i][0] && had[0], l.has[i][1] && had[1]}
		}
	}
	old.has = l.has
	return old
}
