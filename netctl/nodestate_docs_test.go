package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/flowkeep/flowkeep/nodestate/nodeconfig"
	"github.com/flowkeep/flowkeep/policydb/kube"
	"sigs.k8s.io/yaml"
)

var fenced = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// Every object of docs/node-state.md is one that agents and handlers understand, and the outputs are those of the tests.
func TestNodeStateGuide(t *testing.T) {
	guide, err := os.ReadFile("../docs/node-state.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, m := range fenced.FindAllSubmatch(guide, -1) {
		objects, err := kube.ReadFrom("node-state.md", strings.NewReader(string(m[1])))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			found++
			switch o.Kind {
			case nmstatev1.KindState:
				var s nmstatev1.NodeNetworkState
				if err := yaml.UnmarshalStrict(o.JSON, &s); err != nil {
					t.Errorf("%v: %v", &o, err)
				} else if _, err := nmstate.Parse(s.Spec.DesiredState.Raw); err != nil {
					t.Errorf("%v: %v", &o, err)
				}
			case nmstatev1.KindPolicy:
				var p nmstatev1.NodeNetworkConfigurationPolicy
				if err := yaml.UnmarshalStrict(o.JSON, &p); err != nil {
					t.Errorf("%v: %v", &o, err)
				} else if understood := nodeconfig.NewPolicy(&p); understood.Err != nil {
					t.Errorf("%v: %v", &o, understood.Err)
				}
			default:
				t.Errorf("%v is nothing of nmstate.io", &o)
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d objects were found", found)
	}
	outputs, err := os.ReadFile("testdata/nodestate.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, plan, _ := strings.Cut(string(guide), "$ netctl node-state plan -f mtu.yaml\n")
	plan, _, _ = strings.Cut(plan, "\n`")
	if plan = strings.TrimSpace(strings.ReplaceAll(plan, "\n    ", "\n")); len(plan) < 100 || !strings.Contains(string(outputs), plan) {
		t.Errorf("netctl prints something else than\n%s", plan)
	}
}
