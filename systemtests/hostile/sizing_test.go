package hostile_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/hostile"
	"github.com/flowkeep/flowkeep/systemtests/simnodes"
)

var sizing = flag.Bool("sizing", false, "measure what connected nodes cost netmaster (docs/scale.md)")

// TestSizing measures what 100 connected nodes cost netmaster, by connecting half of the largest cluster after the
// other. Heap and processor time are those of the second half.
func TestSizing(t *testing.T) {
	if !*sizing {
		t.Skip("a table to print: run with -sizing")
	}
	rig := startRig(t, largest, largeTimeout)
	arena, l, err := hostile.StartAlone(t.Context(), rig, limited(t), memoryLimit)
	if err != nil {
		t.Fatal(err)
	}
	used := func() simnodes.Usage {
		t.Helper()
		u, err := arena.Usage(simnodes.Netmaster)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	var live, resident [2]int64
	var took time.Duration
	var state simnodes.State
	for half := range 2 {
		sim, err := rig.StartNodes(t.Context(), fmt.Sprint("half-", half), half*largest.Nodes/2, largest.Nodes/2)
		if err != nil {
			t.Fatal(err)
		}
		before := used()
		if err := sim.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if state, _, err = sim.Current(t.Context()); err != nil {
			t.Fatal(err)
		}
		after := used()
		took, resident[half] = after.CPU-before.CPU, after.RSS
		if live[half], err = arena.Heap(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	hundreds := float64(largest.Nodes) / 2 / 100
	mib := func(n int64) float64 { return float64(n) / (1 << 20) }
	writeTable(t, fmt.Sprintf("%d pods, %d policies, no nodes: %.0f MiB live, ready after %v of CPU time. Each 100 "+
		"nodes of %d rules, %d groups, %d addresses: %.1f MiB live, %.0f MiB resident, %.0f ms of CPU time when they "+
		"connect. %s, %s\n",
		largest.Pods, largest.Policies, mib(l.Live), ms(l.CPU), state.Rules/state.Nodes, state.Groups/state.Nodes,
		state.Members/state.Nodes, mib(live[1]-live[0])/hundreds, mib(resident[1]-resident[0])/hundreds,
		float64(took.Milliseconds())/hundreds, time.Now().Format(time.DateOnly), machine()))
}
