package native

import (
	_ "embed"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"sigs.k8s.io/yaml"
)

//go:embed testdata/examples.yaml
var examples []byte

// example is a document of testdata/examples.yaml.
type example struct {
	Name    string
	Needs   string // a kind of (*bench).has
	Before  string // what is applied first
	Desired string
	Policy  string // spec of a policy, in place of desired
	Says    string // the error of a document that is refused
	Shows   struct {
		Command string
		Has     []string
	}
}

func allExamples(t *testing.T) (list []example) {
	t.Helper()
	if err := yaml.UnmarshalStrict(examples, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// desiredState returns the example's desired state on a node.
func (c example) desiredState(t *testing.T, current nmstate.State) nmstate.State {
	t.Helper()
	if c.Policy != "" {
		return byPolicy(t, current, c.Policy)
	}
	return state(t, c.Desired)
}

// TestExamples: documents in the forms of nmstate's examples are refused, naming the field, and change nothing; or they
// are applied, read back as they are, and leave nothing to do.
func TestExamples(t *testing.T) {
	for _, c := range allExamples(t) {
		t.Run(c.Name, func(t *testing.T) {
			b := &bench{onFake(newFake()), t}
			if c.Before != "" {
				b.apply(c.Before)
			}
			before := b.show()
			desired := c.desiredState(t, before)
			_, planErr := Plan(Node{Report: before, Volatile: true}, desired, b.own)
			_, err := b.Apply(t.Context(), desired, volatile)
			after := b.show()
			if c.Says != "" {
				if !errors.Is(err, nodestate.ErrRefused) || !strings.Contains(err.Error(), c.Says) {
					t.Errorf("it is not refused with %q: %v", c.Says, err)
				}
				if planErr == nil || !strings.Contains(planErr.Error(), c.Says) {
					t.Errorf("a plan is not refused: %v", planErr)
				}
				if !reflect.DeepEqual(before, after) {
					t.Errorf("it changed the node: %v", nmstate.Diff(before, after))
				}
				return
			}
			if err != nil || planErr != nil || len(nmstate.Diff(desired, after)) > 0 {
				t.Errorf("%v, %v; differs: %v", err, planErr, nmstate.Diff(desired, after))
			}
			if again, err := b.Apply(t.Context(), desired, volatile); err != nil || len(again.Steps) > 0 {
				t.Errorf("applied again: %q, %v", again.Steps, err)
			}
		})
	}
}
