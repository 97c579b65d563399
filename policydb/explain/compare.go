package explain

import (
	"maps"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// comparison is of two boards whose ends have the same indexes.
type comparison struct {
	work          *work
	in            *interner
	before, after *board
	causes        *causes
	known         map[[2]int32]outcome
	// egress and ingress are true for ends with possibly different policies than before; targets lists those of
	// ingress.
	egress, ingress []bool
	targets         []int
}

// samePeers reports whether two models have the same pods and namespaces, so that they differ in policies only.
func samePeers(a, b *Model) bool {
	return slices.Equal(a.endpoints, b.endpoints) &&
		maps.EqualFunc(a.namespaces, b.namespaces, func(x, y *policy.Namespace) bool {
			return maps.Equal(x.Labels, y.Labels)
		})
}

// touch finds the ends whose policies may be others than before: all, unless the peers are shared.
func (c *comparison) touch(shared bool) {
	c.egress, c.ingress = c.touched(policy.Egress, shared), c.touched(policy.Ingress, shared)
	for to, is := range c.ingress {
		if is {
			c.targets = append(c.targets, to)
		}
	}
}

// changes returns the cells that differ, in order. Alone reports whether an index is a group of one pod; a pod always
// reaches itself.
func (c *comparison) changes(alone func(int) bool) (list []change) {
	c.known = map[[2]int32]outcome{}
	all := make([]int, len(c.egress))
	for i := range all {
		all[i] = i
	}
	for _, to := range c.targets {
		c.before.widen(c.before.isolated[policy.Ingress][to])
		c.after.widen(c.after.isolated[policy.Ingress][to])
	}
	for from := range c.egress {
		look := c.targets
		if c.egress[from] {
			look = all
			c.before.widen(c.before.isolated[policy.Egress][from])
			c.after.widen(c.after.isolated[policy.Egress][from])
		}
		if !c.work.step(1 + len(look)) {
			return nil
		}
		list = c.row(list, from, look, alone)
	}
	return list
}

func (c *comparison) touched(d policy.Direction, shared bool) []bool {
	touched := make([]bool, len(c.after.ends))
	for i := range touched {
		touched[i] = !shared || !slices.Equal(c.before.isolatedBy(d, i), c.after.isolatedBy(d, i))
	}
	return touched
}

func (b *board) isolatedBy(d policy.Direction, self int) []*policy.Policy {
	number := b.isolated[d][self]
	if number == noIsolation {
		return nil
	}
	return b.isolations[number].policies
}

// changeBytes is the memory of a change, with what becomes of it.
const changeBytes = 200

func (c *comparison) row(list []change, from int, look []int, alone func(int) bool) []change {
	if len(look) == 0 || !c.after.ends[from].addr.IsValid() {
		return list
	}
	for _, to := range look {
		if to == from && alone(to) || !c.after.ends[to].addr.IsValid() {
			continue
		}
		was, is := c.before.cell(from, to), c.after.cell(from, to)
		if was == is {
			continue
		}
		if !c.work.hold(changeBytes) {
			return nil
		}
		o := c.outcome(was, is)
		o.causes = c.causes.of(c, from, to, o)
		list = append(list, change{from, to, o})
	}
	return list
}

func (c *comparison) outcome(was, is int32) outcome {
	o, known := c.known[[2]int32{was, is}]
	if !known {
		o = outcome{gained: c.in.minus(is, was), lost: c.in.minus(was, is)}
		c.known[[2]int32{was, is}] = o
	}
	return o
}
