package native

import (
	"os"
	"regexp"
	"testing"

	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"sigs.k8s.io/yaml"
)

var fencedYAML = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// TestGuideExamples applies each object of the guides to a node with the interfaces and labels that they name, and
// reads the node back.
func TestGuideExamples(t *testing.T) {
	found := map[string]int{}
	for _, name := range []string{"node-state", "kubernetes-nmstate"} {
		guide, err := os.ReadFile("../../docs/" + name + ".md")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range fencedYAML.FindAllSubmatch(guide, -1) {
			var object struct {
				Kind string
				Spec map[string]any
			}
			if err := yaml.Unmarshal(m[1], &object); err != nil {
				t.Fatal(err)
			}
			found[object.Kind]++
			guideExample(t, object.Kind, object.Spec)
		}
	}
	if found["NodeNetworkState"] < 5 || found["NodeNetworkConfigurationPolicy"] < 4 {
		t.Errorf("only %v were found", found)
	}
}

func guideExample(t *testing.T, kind string, spec map[string]any) {
	t.Helper()
	f := newFake()
	f.Links["old0"] = &link{Name: "old0", Type: typeDummy, Up: true, MTU: 1500}
	f.Links["ens1f0"] = &link{Name: "ens1f0", Type: typeEthernet, MTU: 1500, MAC: "02:00:00:00:02:01", Driver: "ixgbe"}
	b := &bench{onFake(f), t}
	var desired nmstate.State
	switch kind {
	case "NodeNetworkState":
		text, err := yaml.Marshal(spec["desiredState"])
		if err != nil {
			t.Fatal(err)
		}
		desired = state(t, string(text))
	case "NodeNetworkConfigurationPolicy":
		text, err := yaml.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		desired = byPolicy(t, b.show(), string(text))
	default:
		t.Fatalf("%s is no kind of nmstate.io", kind)
	}
	b.apply(indent(desired))
}
