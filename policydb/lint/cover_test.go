package lint

import (
	"math/rand/v2"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// randomSet is of few ports of few protocols, and at times of all others.
func randomSet(r *rand.Rand) explain.Connections {
	c := explain.Connections{}
	if r.IntN(4) == 0 {
		c = explain.All()
	}
	for range 1 + r.IntN(3) {
		first := uint16(r.IntN(6))
		some := explain.Ports(policy.Protocol([]int{6, 17, 255}[r.IntN(3)]), first, first+uint16(r.IntN(4))*20_000)
		if r.IntN(3) == 0 {
			c = c.Minus(some)
		} else {
			c = c.Union(some)
		}
	}
	return c
}

func TestCoverage_IsWhatTheSetsSay(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		var sets []explain.Connections
		var lists []ports
		for range 1 + r.IntN(6) {
			sets = append(sets, randomSet(r))
			lists = append(lists, portsOf(sets[len(sets)-1]))
		}
		c := newCoverage(lists)
		gone := r.IntN(len(sets))
		c.add(lists[gone], -1)
		others := explain.Connections{}
		for i, s := range sets {
			if i != gone {
				others = others.Union(s)
			}
		}
		if got, want := c.over(lists[gone]) >= 1, others.Covers(sets[gone]); got != want {
			t.Fatalf("%v without %s: covered %v, want %v", sets, sets[gone], got, want)
		}
		if got, want := c.over(everywhere) >= 1, others.IsAll(); got != want {
			t.Fatalf("%v without %s: everywhere %v, want %v", sets, sets[gone], got, want)
		}
	}
}
