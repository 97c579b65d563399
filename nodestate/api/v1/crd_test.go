package v1

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/crdtest"
)

var group = crdtest.Group{
	GroupVersion: GroupVersion,
	AlsoServed:   []string{"v1beta1"},
	AddToScheme:  AddToScheme,
	Free:         []reflect.Type{reflect.TypeFor[State]()},
	Conditions: []string{
		ConditionInSync, ConditionAvailable, ConditionDegraded, ConditionProgressing, ConditionConflict,
	},
	Kinds: []crdtest.Kind{
		{Name: KindState, Plural: ResourceState, Short: "nns", Scope: "Cluster", Object: &NodeNetworkState{}, List: &NodeNetworkStateList{}},
		{Name: KindPolicy, Plural: ResourcePolicy, Short: "nncp", Scope: "Cluster", Object: &NodeNetworkConfigurationPolicy{}, List: &NodeNetworkConfigurationPolicyList{}},
	},
}

func TestCRDsAreTheTypes(t *testing.T) { group.AreTheTypes(t) }

func TestPrinterColumns(t *testing.T) { group.PrinterColumns(t) }

func TestRulesHaveSentences(t *testing.T) { group.RulesHaveSentences(t, 15) }

func TestExpressions(t *testing.T) { group.Expressions(t) }

// What is below a state is described too: kubectl explain tells each field.
func TestStatesAreDescribed(t *testing.T) {
	for _, k := range group.Kinds {
		for _, complaint := range undescribed("spec.desiredState", crdtest.Schema(t, k.Plural).Properties["spec"].Properties["desiredState"]) {
			t.Error(complaint)
		}
	}
	for _, complaint := range undescribed("status.currentState", crdtest.Schema(t, ResourceState).Properties["status"].Properties["currentState"]) {
		t.Error(complaint)
	}
}

func undescribed(path string, p crdtest.Property) (wrong []string) {
	if p.Description == "" && !strings.HasSuffix(path, "[]") {
		wrong = append(wrong, path+" has no description")
	}
	if p.Items != nil {
		wrong = append(wrong, undescribed(path+"[]", *p.Items)...)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
		wrong = append(wrong, undescribed(path+"."+name, p.Properties[name])...)
	}
	return wrong
}
