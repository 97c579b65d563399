package controller

import (
	"fmt"
	"math/rand/v2"
	"testing"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestDeadNodesHoldNobodyUp: fewer than maxUnavailable nodes die, at any moment, and do nothing any more, while handlers die before and
// after writes and see late. There are never more changing than may, those that are dead included, and all others get what they are to have.
func TestDeadNodesHoldNobodyUp(t *testing.T) {
	for _, central := range []bool{false, true} {
		for seed := range uint64(60) {
			r := rand.New(rand.NewPCG(seed, 5))
			most := 2 + r.IntN(2)
			g := newGame(t, seed, central, most)
			for n := range 1 + r.IntN(most-1) {
				g.dies[fmt.Sprintf("node%d", n)] = r.IntN(40)
			}
			g.until(func() bool { return g.allLive("1400") })
			g.setPolicy("p", mtuPolicy(1450, fmt.Sprintf(", maxUnavailable: %d", most)))
			g.until(func() bool { return g.allLive("1450") })
		}
	}
}

// TestRollout_SilentNodesGetNoTurn: with the handler for all nodes however many may be away, if they had no turn before.
func TestRollout_SilentNodesGetNoTurn(t *testing.T) {
	for seed := range uint64(30) {
		g := newGame(t, seed, true, 1)
		for _, name := range []string{"node0", "node1", "node2"} {
			g.dies[name] = 0
			g.ready(name, corev1.ConditionUnknown)
		}
		g.until(func() bool { return g.allLive("1400") })
		for name := range g.dies {
			if g.wants(name, "1400") || g.phase("p", name) != nmstatev1.PhaseWaiting {
				t.Fatalf("seed %d: %s has begun, and nobody is there", seed, name)
			}
			delete(g.dies, name)
			g.ready(name, corev1.ConditionTrue)
		}
		g.until(func() bool { return g.all("1400") })
	}
}

// TestAnAgentThatIsAwayTakesOneTurn: an agent died unseen, with a change of one policy; other policies' roll-outs pass it by.
func TestAnAgentThatIsAwayTakesOneTurn(t *testing.T) {
	g := newGame(t, 1, true, 2)
	g.dies["node0"] = 0
	g.until(func() bool { return g.allLive("1400") && g.wants("node0", "1400") })
	g.setPolicy("q", `{match: [{name: eth0}], maxUnavailable: 1, desiredState: {interfaces: [{mtu: 1300}]}}`)
	g.until(func() bool {
		for name := range g.states {
			if name != "node0" && !g.wants(name, "1300") {
				return false
			}
		}
		return g.phase("q", "node0") == nmstatev1.PhaseWaiting
	})
	if g.wants("node0", "1300") {
		t.Error("it takes a turn of the second policy")
	}
}
