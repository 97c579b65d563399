package fleet

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Feedback rules of kinds that are not policies and report more than their version.
const (
	kindGateway     = "Gateway"
	kindEnforcement = "NetworkPolicyEnforcement"
)

// Names of feedback values; those of conditions have what they are about before them and the field behind.
const (
	toldCopy             = "copy"
	toldGeneration       = "generation"
	toldTop              = "top"
	toldAncestor         = "ancestor" // and the number of the ref
	toldListener         = "listener" // and its name
	toldAddress          = "address"  // and a number
	toldPolicyGeneration = "policyGeneration"
	toldPolicyCopy       = "policyCopy"
	toldNodes            = "nodes"
	toldNodesEnforcing   = "nodesEnforcing"
	// toldNotTrue is in the place of a condition's type: the first condition that is not True, whatever its type.
	toldNotTrue = "notTrue"
)

// mostAncestors bounds the gateways in the feedback rules of a copy.
const mostAncestors = 4

// Fields of conditions in feedback rules, each as a value of its own: spokes return no lists. Rules and values are the
// larger part of a work, which is read and written as a whole many times for each edit. So of a sum's types it is only
// requested whether they are True and of which version, and the reason once, of the first condition that is not True.
// Where a policy has lost, the message has the winner, and a loss is reported also where it is a condition's reason
// (lossPaths).
var (
	summedTypes   = []string{conditionAccepted, conditionEnforced, conditionProgrammed}
	summedFields  = []string{"status", "observedGeneration"}
	lossTypes     = []string{conditionOverridden, conditionConflicted}
	notTrueFields = []string{"type", "reason", "message"}
)

// Feedback returns the feedback rules of a copy: paths of scalars in the object. None of them is an
// error where the value is missing, or the spoke would report one. Values of kinds without a status are those of the
// metadata alone. Works that were written with another path under a name are left with it until there is something else
// to write (digestOf).
func Feedback(kind Kind, sent Object) []workv1.JsonPath {
	paths := []workv1.JsonPath{
		sourcePath,
		{Name: toldCopy, Path: ".metadata.annotations." + strings.ReplaceAll(AnnotationCopy, ".", `\.`)},
		{Name: toldGeneration, Path: ".metadata.generation"},
	}
	switch {
	case kind.Group == gatewayv1.GroupName && kind.Kind == kindGateway:
		return append(paths, gatewayFeedback(sent)...)
	case kind.Group == Group && kind.Kind == kindEnforcement:
		return append(append(paths, conditionPaths(toldTop, ".status", []string{conditionEnforced}, []string{"status", "reason", "message", "observedGeneration"})...),
			workv1.JsonPath{Name: toldPolicyGeneration, Path: ".status.policyGeneration"},
			workv1.JsonPath{Name: toldPolicyCopy, Path: ".status.copy"},
			workv1.JsonPath{Name: toldNodes, Path: ".status.nodes"},
			workv1.JsonPath{Name: toldNodesEnforcing, Path: ".status.nodesEnforcing"})
	case kind.Ancestors:
		return append(paths, ancestorFeedback(sent)...)
	case kind.Status:
		return append(paths, policyPaths(toldTop, ".status")...)
	}
	return paths
}

// gatewayFeedback asks for three addresses at most, the first two and the last: an index behind the end would be an error of the spoke's. Each has a type, as the API
// server sees to.
func gatewayFeedback(sent Object) []workv1.JsonPath {
	paths := append(conditionPaths(toldTop, ".status", []string{conditionAccepted, conditionProgrammed}, summedFields), notTruePaths(toldTop, ".status")...)
	for i, at := range []string{"0:", "1:", "-1:"} {
		for _, field := range []string{"type", "value"} {
			paths = append(paths, workv1.JsonPath{Name: fmt.Sprintf("%s.%d.%s", toldAddress, i, field), Path: fmt.Sprintf(".status.addresses[%s].%s", at, field)})
		}
	}
	for _, l := range listeners(sent) {
		about, at := toldListener+"."+l, fmt.Sprintf(".status.listeners[?(@.name==%q)]", l)
		paths = append(paths, workv1.JsonPath{Name: about + ".attachedRoutes", Path: at + ".attachedRoutes"})
		paths = append(paths, conditionPaths(about, at, []string{conditionAccepted, conditionProgrammed, conditionResolvedRefs}, []string{"status", "reason"})...)
	}
	return paths
}

// ancestorFeedback asks for a gateway's entry by its name; where the policy names several sections of one gateway, by the section's.
func ancestorFeedback(sent Object) (paths []workv1.JsonPath) {
	for i, by := range ancestorFilters(sent) {
		about, at := fmt.Sprintf("%s.%d", toldAncestor, i), ".status.ancestors[?(@.ancestorRef."+by+")]"
		paths = append(paths,
			workv1.JsonPath{Name: about + ".name", Path: at + ".ancestorRef.name"},
			workv1.JsonPath{Name: about + ".namespace", Path: at + ".ancestorRef.namespace"},
			workv1.JsonPath{Name: about + ".sectionName", Path: at + ".ancestorRef.sectionName"})
		paths = append(paths, policyPaths(about, at)...)
	}
	return paths
}

func ancestorFilters(sent Object) (filters []string) {
	refs := gatewayRefs(sent)
	for _, ref := range refs {
		by := fmt.Sprintf("name==%q", ref.name)
		several := slices.ContainsFunc(refs, func(r gatewayRef) bool { return r.name == ref.name && r.section != ref.section })
		if several && ref.section != "" {
			by = fmt.Sprintf("sectionName==%q", ref.section)
		}
		if !slices.Contains(filters, by) && len(filters) < mostAncestors {
			filters = append(filters, by)
		}
	}
	return filters
}

// policyPaths are those of a policy's conditions.
func policyPaths(about, at string) []workv1.JsonPath {
	return slices.Concat(conditionPaths(about, at, summedTypes, summedFields), lossPaths(about, at), notTruePaths(about, at))
}

// lossPaths are those of conditions of a loss's type, and of the message of the first such condition, or else of the first condition for a reason of
// that name: so a message without a status is a loss that is a reason. The empty slice before the filters has them read as what they are, several.
func lossPaths(about, at string) (paths []workv1.JsonPath) {
	for _, loss := range lossTypes {
		paths = append(paths, conditionPaths(about, at, []string{loss}, []string{"status"})...)
		paths = append(paths, workv1.JsonPath{Name: about + "." + loss + ".message", Path: fmt.Sprintf("%s.conditions[0:0,?(@.type==%q),?(@.reason==%q)].message", at, loss, loss)})
	}
	return paths
}

// notTruePaths are those of why not all is True.
func notTruePaths(about, at string) (paths []workv1.JsonPath) {
	for _, field := range notTrueFields {
		paths = append(paths, workv1.JsonPath{Name: about + "." + toldNotTrue + "." + field, Path: fmt.Sprintf("%s.conditions[?(@.status!=%q)].%s", at, metav1.ConditionTrue, field)})
	}
	return paths
}

// conditionPaths are those of some fields of conditions of some types, in the conditions of what lies there.
func conditionPaths(about, at string, types, fields []string) (paths []workv1.JsonPath) {
	for _, t := range types {
		for _, field := range fields {
			paths = append(paths, workv1.JsonPath{Name: about + "." + t + "." + field, Path: fmt.Sprintf("%s.conditions[?(@.type==%q)].%s", at, t, field)})
		}
	}
	return paths
}

// gatewayRef is a target of a policy that is a gateway.
type gatewayRef struct{ namespace, name, section string }

// gatewayRefs are the gateways that a policy's targetRef and targetRefs name, in that order.
func gatewayRefs(o Object) (refs []gatewayRef) {
	spec, _ := o["spec"].(map[string]any)
	all, _ := spec["targetRefs"].([]any)
	if one, ok := spec["targetRef"].(map[string]any); ok {
		all = append([]any{one}, all...)
	}
	for _, r := range all {
		ref, _ := r.(map[string]any)
		if textOf(ref, "group") != gatewayv1.GroupName || textOf(ref, "kind") != kindGateway || textOf(ref, "name") == "" {
			continue
		}
		refs = append(refs, gatewayRef{textOf(ref, "namespace"), textOf(ref, "name"), textOf(ref, "sectionName")})
	}
	return refs
}

// listeners returns the names of a Gateway's listeners.
func listeners(o Object) (names []string) {
	spec, _ := o["spec"].(map[string]any)
	all, _ := spec["listeners"].([]any)
	for _, l := range all {
		listener, _ := l.(map[string]any)
		if name := textOf(listener, "name"); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// textOf returns a field's text, "" if it is absent.
func textOf(o Object, field string) string {
	text, _ := o[field].(string)
	return text
}
