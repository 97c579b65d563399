package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons by which spokes say that a policy has lost against another.
const (
	reasonOverridden = "Overridden"
	reasonConflicted = "Conflicted"
)

// lossReasons are the types of conditions that report a loss by being False for that reason, the likeliest first.
var lossReasons = map[string][]string{
	reasonOverridden: {conditionEnforced, conditionAccepted},
	reasonConflicted: {conditionAccepted},
}

// Lost is a policy that has lost against another in a cluster.
type Lost struct {
	Policy  string // Kind/namespace/name on the hub
	Cluster string
	Message string
}

// Overridden are the policies of a gateway that a stronger one on a spoke takes the place of: a spoke's own policy, or a route's.
func Overridden(gateway Name, policies []PolicyReport) []Lost {
	return losses(gateway, policies, conditionOverridden, reasonOverridden)
}

// Conflicts are the policies of a gateway that a spoke does not take, as another one of the same rank was there before.
func Conflicts(gateway Name, policies []PolicyReport) []Lost {
	return losses(gateway, policies, conditionConflicted, reasonConflicted)
}

// losses returns those that a condition of their own reports, or the reason of another that is False.
func losses(gateway Name, policies []PolicyReport, typ, reason string) (lost []Lost) {
	for i := range policies {
		p := &policies[i]
		for j := range p.Targets {
			t := &p.Targets[j]
			if t.Gateway != gateway {
				continue
			}
			for k := range t.States {
				s := &t.States[k]
				if message, ok := lossIn(s, t.said(s), typ, reason); ok {
					lost = append(lost, Lost{policyName(p), s.Cluster, message})
				}
			}
		}
	}
	slices.SortFunc(lost, func(a, b Lost) int {
		return strings.Compare(a.Policy+" "+a.Cluster, b.Policy+" "+b.Cluster)
	})
	return slices.CompactFunc(lost, func(a, b Lost) bool { return a.Policy == b.Policy && a.Cluster == b.Cluster })
}

func lossIn(s *State, said []Said, typ, reason string) (message string, lost bool) {
	if v := s.verdict(typ, said); v.status == metav1.ConditionTrue {
		return lossText(v, typ), true
	}
	for _, other := range lossReasons[reason] {
		if v := s.verdict(other, said); v.status == metav1.ConditionFalse && v.reason == reason {
			return lossText(v, typ), true
		}
	}
	return "", false
}

func lossText(v verdict, typ string) string {
	if v.message == "" {
		return strings.ToLower(typ)
	}
	return cut(v.message, mostOfACluster)
}

// policyName returns the name of a policy in messages.
func policyName(p *PolicyReport) string {
	return fmt.Sprintf("%s/%s/%s", p.Policy.Kind.Kind, p.Policy.Namespace, p.Policy.Name.Name)
}

// mostAnnotation bounds the annotation: those of an object have 256 KiB together.
const mostAnnotation = 64 << 10

// OverriddenAnnotation is the value of AnnotationOverridden, empty where nothing is overridden and there shall be none. It is the same for
// the same.
func OverriddenAnnotation(gateway Name, policies []PolicyReport) string {
	all := map[string]map[string]string{}
	size := 0
	for _, l := range Overridden(gateway, policies) {
		if size += len(l.Policy) + len(l.Cluster) + len(l.Message) + 16; size > mostAnnotation {
			break
		}
		if all[l.Policy] == nil {
			all[l.Policy] = map[string]string{}
		}
		all[l.Policy][l.Cluster] = l.Message
	}
	if len(all) == 0 {
		return ""
	}
	text, err := json.Marshal(all)
	if err != nil {
		return "" // texts alone always can be
	}
	return string(text)
}

// conflicts is the Gateway's condition.
func (r *GatewayReport) conflicts(generation int64) metav1.Condition {
	c := metav1.Condition{Type: domainOf(r.Controller).of(plainPolicyConflicts), Status: metav1.ConditionFalse, Reason: "NoConflicts", Message: "no cluster reports a conflict", ObservedGeneration: generation}
	conflicts := Conflicts(nameOf(r.Gateway), r.Policies)
	if len(conflicts) == 0 {
		return r.rivals(c)
	}
	var parts []string
	for _, l := range conflicts[:min(len(conflicts), mostNamed)] {
		parts = append(parts, fmt.Sprintf("%s in %s: %s", l.Policy, l.Cluster, l.Message))
	}
	if more := len(conflicts) - mostNamed; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonConflicted, cut(strings.Join(parts, "; "), mostMessage)
	return r.rivals(c)
}
