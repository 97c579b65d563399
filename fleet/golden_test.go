package fleet

import (
	"bytes"
	"cmp"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write testdata anew")

// TestGolden: testdata's hubs make testdata's works, as they are when all spokes have said that nothing is in the way.
func TestGolden(t *testing.T) {
	hubs, err := filepath.Glob("testdata/*/hub.yaml")
	if err != nil || len(hubs) == 0 {
		t.Fatal(hubs, err)
	}
	for _, path := range hubs {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := golden(t, raw)
			path := filepath.Join(filepath.Dir(path), "works.yaml")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s is not what comes out (-update writes it):\n%s", path, got)
			}
		})
	}
}

func golden(t *testing.T, text []byte) []byte {
	h, s := readHub(t, text), newSpokes(t)
	w := h.bundles()
	for _, work := range w.works(usual) {
		for _, c := range work.Copies {
			if c.ReadOnly {
				s.user(work.Cluster, c.Key())
			}
		}
	}
	s.settle(w, usual)
	var out bytes.Buffer
	slices.SortFunc(w.problems, func(a, b Problem) int {
		return cmp.Or(a.Source.Compare(b.Source), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Message, b.Message))
	})
	for _, p := range w.problems {
		out.WriteString("# " + p.Source.String() + " " + p.Cluster + " " + p.Reason + ": " + p.Message + "\n")
	}
	for _, at := range s.names() {
		work := s.works[at]
		work.ResourceVersion, work.Generation = "", 0
		var o Object
		if err := utiljson.Unmarshal([]byte(jsonOf(t, work)), &o); err != nil {
			t.Fatal(err)
		}
		delete(o, "status")
		raw, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
		out.Write(raw)
	}
	return out.Bytes()
}
