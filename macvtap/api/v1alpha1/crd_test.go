package v1alpha1

import (
	"testing"

	"github.com/flowkeep/flowkeep/internal/crdtest"
)

var group = crdtest.Group{
	GroupVersion: GroupVersion, AddToScheme: AddToScheme, Conditions: []string{ConditionAvailable, ConditionDegraded, ConditionConflict},
	Kinds: []crdtest.Kind{
		{Name: KindNode, Plural: ResourceNode, Short: "mvn", Scope: "Cluster", Object: &MacvtapNode{}, List: &MacvtapNodeList{}},
		{Name: KindPolicy, Plural: ResourcePolicy, Short: "mvp", Scope: "Namespaced", Object: &MacvtapNetworkNodePolicy{}, List: &MacvtapNetworkNodePolicyList{}},
	},
}

func TestCRDsAreTheTypes(t *testing.T) { group.AreTheTypes(t) }

func TestPrinterColumns(t *testing.T) { group.PrinterColumns(t) }

func TestRulesHaveSentences(t *testing.T) { group.RulesHaveSentences(t, 15) }

func TestExpressions(t *testing.T) { group.Expressions(t) }
