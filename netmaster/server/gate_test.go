package server

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

func settledOn(node, id string) policy.SettledEndpoint {
	return policy.SettledEndpoint{Node: node, ID: id}
}

// TestGate plays random histories against the rule itself: an answer passes as soon as a list was confirmed that began
// after its pod was last seen, and no policy of the pod's namespace waits. Answers about one pod keep their order.
func TestGate(t *testing.T) {
	held := 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		var g gate
		var list uint64                 // under way; 0: none
		begun, confirmed := 0, -1       // steps: of the list under way, and of the newest list that was confirmed
		seen := map[string]int{}        // step in which a pod was seen
		wait := map[string][]string{}   // by node
		passed := map[string][]string{} // by node
		want := map[string][]string{}
		lags := map[string]bool{}
		known := func(id string) bool {
			namespace, _, _ := strings.Cut(id, "/")
			at, was := seen[id]
			return !lags[namespace] && (!was || at < confirmed)
		}
		settle := func() {
			for node, all := range wait {
				wait[node] = nil
				for _, id := range all {
					if known(id) {
						want[node] = append(want[node], id)
					} else {
						wait[node] = append(wait[node], id)
					}
				}
				held += len(wait[node])
			}
		}
		for step := range 200 {
			node, id := fmt.Sprint("node", r.IntN(3)), fmt.Sprint("ns", r.IntN(2), "/", r.IntN(3))
			switch r.IntN(7) {
			case 0:
				g.see(id)
				seen[id] = step
			case 1, 2:
				wait[node] = append(wait[node], id)
				settle()
				for _, a := range g.pass([]policy.SettledEndpoint{settledOn(node, id)}, time.Time{}) {
					passed[a.Node] = append(passed[a.Node], a.ID)
				}
			case 3:
				if list == 0 && g.wants() {
					list, begun = g.begin(), step
				}
			case 4:
				if list == 0 {
					continue
				}
				confirmed = begun
				if r.IntN(2) == 0 {
					lags["ns1"] = true
					g.lag(map[string]bool{"ns1": true})
				}
				settle()
				for _, a := range g.confirm(list) {
					passed[a.Node] = append(passed[a.Node], a.ID)
				}
				list = 0
			case 5:
				clear(lags)
				clear(g.lags)
				settle()
				for _, a := range g.confirm(0) {
					passed[a.Node] = append(passed[a.Node], a.ID)
				}
			case 6:
				if r.IntN(20) == 0 {
					g.drop(node)
					delete(wait, node)
				}
			}
			for node := range want {
				if !slices.Equal(passed[node], want[node]) {
					t.Fatalf("seed %d, step %d: %s was answered %v, want %v",
						seed, step, node, passed[node], want[node])
				}
			}
		}
	}
	if held == 0 {
		t.Error("no answer waited")
	}
}

// TestGateSeesAll: pods of which nothing is noted wait for the next list, too; the zero gate holds no answer back.
func TestGateSeesAll(t *testing.T) {
	var g gate
	answer := []policy.SettledEndpoint{settledOn("node1", "ns/a")}
	if len(g.pass(answer, time.Time{})) != 1 || g.wants() {
		t.Error("the zero gate is closed")
	}
	g.see("ns/a")
	early := g.begin()
	g.seeAll()
	if len(g.pass(answer, time.Time{})) != 0 || len(g.confirm(early)) != 0 {
		t.Error("an answer passed by a list that began before")
	}
	if !g.wants() || g.waits() != 1 {
		t.Errorf("wants a list: %v, %d wait", g.wants(), g.waits())
	}
	g.begin()
	if g.wants() {
		t.Error("two lists are wanted for one pod")
	}
	if g.abandon(); !g.wants() {
		t.Error("the pod waits for a list that will not be compared")
	}
	if len(g.confirm(g.begin())) != 1 || g.wants() || len(g.needs) != 0 {
		t.Errorf("wants a list: %v, %d pods are noted", g.wants(), len(g.needs))
	}
}
