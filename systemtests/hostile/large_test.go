package hostile_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/hostile"
	"github.com/flowkeep/flowkeep/systemtests/simnodes"
)

var (
	large     = flag.Bool("large", false, "the long form: all attacks on the largest cluster, and TestLargeCluster")
	largePods = flag.Int("large-pods", 100_000, "pods of TestLargeCluster, and ten times its policies")
)

// What a large cluster may cost without nodes.
const (
	maxLargeLive = 1 << 30               // netmaster's live heap, in bytes
	maxHold      = 50 * time.Millisecond // of an edited policy, on the mean
	largeTimeout = 12 * time.Minute      // of any step
)

// TestLargeCluster measures netmaster, under the chart's memory limit, with 100,000 pods and 10,000 policies and no
// connected node: memory, and for how long the edit of a policy holds the owner.
func TestLargeCluster(t *testing.T) {
	if !*large {
		t.Skip("the gate leaves it out: make test-full PART=hostile-large")
	}
	sizes := simnodes.Sizes{Nodes: 2000, Pods: *largePods, Policies: *largePods / 10, Stored: true}
	rig := startRig(t, sizes, largeTimeout)
	arena, l, err := hostile.StartAlone(t.Context(), rig, limited(t), memoryLimit)
	if err != nil {
		t.Fatal(err)
	}
	if err := arena.EditAlone(t.Context(), &l, 50); err != nil {
		t.Fatal(err)
	}
	writeTable(t, fmt.Sprintf("%d pods, %d policies, no connected nodes: ready after %v with %v of CPU time and %d MB resident; "+
		"live heap %d MB; each of %d edits holds the owner for %v\n", sizes.Pods, sizes.Policies, ms(l.Ready), ms(l.CPU),
		l.Peak>>20, l.Live>>20, l.Edits, l.Hold))
	if l.Live > maxLargeLive {
		t.Errorf("netmaster's live heap is %d MB", l.Live>>20)
	}
	if l.Hold > maxHold {
		t.Errorf("an edit holds the owner for %v", l.Hold)
	}
}
