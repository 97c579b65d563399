package explain

import (
	"context"
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
	// Groups are the groups in Differences.
	Groups []Group `json:"groups,omitempty"`
	// Differences have each pair of groups at most once a family. They are sorted by To, then by From.
	Differences []Difference `json:"differences,omitempty"`
	// OnlyBefore and OnlyAfter are the pods that have an address of their own in one of the worlds only:
	// namespace/name, sorted. They are in no Difference.
	OnlyBefore []string `json:"onlyBefore,omitempty"`
	OnlyAfter  []string `json:"onlyAfter,omitempty"`

	finder *finder // of a Delta that Diff made
}

// Same reports whether the worlds do not differ.
func (d *Delta) Same() bool {
	return len(d.Differences) == 0 && len(d.OnlyBefore) == 0 && len(d.OnlyAfter) == 0
}

// Diff returns the pairs of groups with different Connections in two worlds, including addresses outside the cluster.
// A pod is the same in both worlds if its namespace and name are equal; it has the address families that it has in
// both. Groups have pods that the policies of neither world distinguish; their labels are those of the world after. If
// the worlds have the same pods and namespaces, as with a Trial, the cost is proportional to the number of pods that
// the changed policies apply to, times the number of all others.
func Diff(before, after *Model) Delta {
	d, _ := DiffWithin(context.Background(), before, after, Bounds{})
	return d
}

// DiffWithin computes a Delta within a context and bounds. Its errors are the context's and ErrTooMany.
func DiffWithin(ctx context.Context, before, after *Model, bounds Bounds) (Delta, error) {
	w := newWork(ctx, bounds)
	shared := samePeers(before, after)
	d, old, now := pair(w, before, after, shared)
	in := newInterner(w)
	causes := newCauses(in)
	var by [2][]change
	for family, six := range families {
		if w.err != nil {
			return Delta{}, w.err
		}
		if now.any(family) {
			c := comparison{
				work:   w,
				in:     in,
				before: newBoard(w, before, in, old.ends(before, six)),
				after:  newBoard(w, after, in, now.ends(after, six)),
				causes: causes,
			}
			c.touch(shared)
			by[family] = c.changes(now.alone)
		}
	}
	if w.err != nil {
		return Delta{}, w.err
	}
	d.Differences = fold(in, causes, now.mergeChanges(by[0], by[1]))
	var index []int
	d.Groups, index = used(now.groups, d.Differences)
	d.finder = newFinder(&d, after, &now, index)
	return d, w.err
}

// podName is the name of a pod; it needs no memory of its own.
type podName struct{ namespace, name string }

func nameOf(e *policy.Endpoint) podName { return podName{e.Namespace, e.Name} }

// pair groups the pods that both worlds have. The two lists of groups have the same indexes, and other representatives
// unless the worlds share their pods.
func pair(w *work, before, after *Model, shared bool) (d Delta, old, now groups) {
	was := map[podName]*policy.Endpoint{}
	for _, e := range before.endpoints {
		if w.step(1) && before.addressable(e) && was[nameOf(e)] == nil {
			w.hold(cellBytes)
			was[nameOf(e)] = e
		}
	}
	named := before.facts.with(&after.facts)
	now.named = &named
	both := make(map[podName]bool, len(was))
	for _, e := range after.endpoints {
		switch name := nameOf(e); {
		case !w.step(1):
			return d, old, now
		case !after.addressable(e) || both[name]:
		case was[name] == nil:
			d.OnlyAfter = append(d.OnlyAfter, e.ID())
		default:
			both[name] = true
			now.key = append(appendClass(before, now.key[:0], was[name], w), '\n')
			now.key = appendClass(after, now.key, e, w)
			now.add(w, e, after)
		}
	}
	for name, e := range was {
		if !both[name] {
			d.OnlyBefore = append(d.OnlyBefore, e.ID())
		}
	}
	slices.Sort(d.OnlyBefore)
	slices.Sort(d.OnlyAfter)
	now.finish()
	now.addOutside(before, after)
	if shared {
		return d, now, now
	}
	return d, now.asBefore(before, was), now
}

// asBefore returns the same groups with the pods as they are in the world before. Afterwards both lists have the
// address families that a group has in both worlds.
func (l *groups) asBefore(before *Model, was map[podName]*policy.Endpoint) groups {
	old := *l
	old.members = make([][]*policy.Endpoint, len(l.members))
	for i, members := range l.members {
		for _, e := range members {
			old.members[i] = append(old.members[i], was[nameOf(e)])
		}
		if len(members) > 0 {
			had := before.has(old.members[i][0])
			l.has[i] = [2]bool{l.has[i][0] && had[0], l.has[i][1] && had[1]}
		}
	}
	old.has = l.has
	return old
}
