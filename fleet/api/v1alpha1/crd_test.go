package v1alpha1

import (
	"reflect"
	"testing"

	"github.com/flowkeep/flowkeep/internal/crdtest"
)

var group = crdtest.Group{
	GroupVersion: GroupVersion, AddToScheme: AddToScheme, Free: []reflect.Type{reflect.TypeFor[Patch]()},
	Conditions: []string{ConditionAccepted, ConditionDistributed, ConditionEnforced},
	Kinds: []crdtest.Kind{
		{Name: KindOverride, Plural: ResourceOverride, Short: "pov", Scope: "Namespaced", Object: &PolicyOverride{}, List: &PolicyOverrideList{}},
		{Name: KindSet, Plural: ResourceSet, Short: "nps", Scope: "Namespaced", Object: &NetworkPolicySet{}, List: &NetworkPolicySetList{}},
		{Name: KindEnforcement, Plural: ResourceEnforcement, Short: "npe", Scope: "Namespaced", Object: &NetworkPolicyEnforcement{}, List: &NetworkPolicyEnforcementList{}},
	},
}

func TestCRDsAreTheTypes(t *testing.T) { group.AreTheTypes(t) }

func TestPrinterColumns(t *testing.T) { group.PrinterColumns(t) }

func TestRulesHaveSentences(t *testing.T) { group.RulesHaveSentences(t, 20) }

func TestExpressions(t *testing.T) { group.Expressions(t) }
