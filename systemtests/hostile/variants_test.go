package hostile_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/hostile"
)

func objectsOf(seed uint64, each int) (all []hostile.Object) {
	for _, k := range hostile.Variants(seed, each) {
		all = append(all, k.Objects...)
	}
	return all
}

// TestVariants_DependOnTheirSeed: a failed run is repeated by its seed. The API server takes objects of up to 1.5 MiB.
func TestVariants_DependOnTheirSeed(t *testing.T) {
	names := map[string]bool{}
	for seed := range uint64(20) {
		objects := objectsOf(seed, 2)
		if !slices.Equal(objects, objectsOf(seed, 2)) {
			t.Errorf("seed %d has other objects the second time", seed)
		}
		for i := range objects {
			o := &objects[i]
			if !json.Valid([]byte(o.Text)) || !json.Valid([]byte(o.Patch)) || len(o.Text) > 3<<19 {
				t.Errorf("seed %d: %s/%s with %d bytes: %.300s", seed, o.Resource, o.Name, len(o.Text), o.Text)
			}
		}
		for _, k := range hostile.Variants(seed, 2) {
			names[k.Name] = true
		}
	}
	if len(names) < 20*8 {
		t.Errorf("%d different variants of 20 seeds", len(names))
	}
}
