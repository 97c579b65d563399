package main

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"sigs.k8s.io/yaml"
)

// The program nmstatectl knows nothing of Flowkeep: what would touch it does not get there.
func TestGuard(t *testing.T) {
	text, err := os.ReadFile("../nodestate/nmstate/testdata/ofFlowkeep.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct{ Desired, Path string }
	if err := yaml.UnmarshalStrict(text, &cases); err != nil || len(cases) < 7 {
		t.Fatalf("%d cases: %v", len(cases), err)
	}
	o := nodeStateFlags{bridge: "fk0"}
	guard := func(desired string) error {
		s, err := nmstate.Parse([]byte(desired))
		if err != nil {
			t.Fatal(err)
		}
		return o.guard(s)
	}
	for _, c := range cases {
		if err := guard(c.Desired); !errors.Is(err, nodestate.ErrRefused) || !strings.HasPrefix(err.Error(), c.Path) {
			t.Errorf("%s: %v", c.Desired, err)
		}
	}
	if err := guard("interfaces: [{name: eth1, mtu: 1400}, {name: fk0, state: ignore}]"); err != nil {
		t.Error(err)
	}
}
