package fleet_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/fleet"
)

// The walk-through of docs/policy-sync.md, as it is written there.
func TestFleetGuide(t *testing.T) {
	w := newSynced(t)
	text, err := os.ReadFile(filepath.Join(w.Source, "docs", "policy-sync.md"))
	w.must(err)
	steps, err := fleet.ReadGuide(string(text), fleet.WalkThrough)
	w.must(err)
	if len(steps) < 15 {
		t.Fatalf("only %d commands are found in the guide", len(steps))
	}
	for _, namespace := range fleet.Played {
		w.PlayControllers(w.ctx, namespace)
	}
	for i := range steps {
		if _, err := w.Follow(w.ctx, &steps[i]); err != nil {
			t.Fatal(err)
		}
	}
}
