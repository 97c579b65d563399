package fleet

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Rivals says which of a gateway's policies target the same as an older one of their kind, as the hub's objects have it. By Gateway API the older
// has precedence; what comes of it is for the kind's controllers to say. So of those that all clusters say to have taken nothing is said.
func Rivals(gateway Name, policies []PolicyReport) (rivals []string) {
	type at struct{ group, kind, section string }
	first := map[at]*PolicyReport{}
	each := func(visit func(*PolicyReport, at)) {
		for i := range policies {
			p := &policies[i]
			if slices.ContainsFunc(p.Targets, func(t Target) bool { return t.Gateway == gateway }) {
				for _, section := range sectionsOf(p.Policy.Object, gateway) {
					visit(p, at{p.Policy.Kind.Group, p.Policy.Kind.Kind, section})
				}
			}
		}
	}
	each(func(p *PolicyReport, of at) {
		if first[of] == nil || older(p.Policy.Object, first[of].Policy.Object) {
			first[of] = p
		}
	})
	each(func(p *PolicyReport, of at) {
		if first[of] != p && !p.taken(gateway) {
			what := "the gateway"
			if of.section != "" {
				what = "its section " + of.section
			}
			rivals = append(rivals, fmt.Sprintf("%s targets %s, as %s does, which is older", policyName(p), what, policyName(first[of])))
		}
	})
	slices.Sort(rivals)
	return rivals
}

// sectionsOf a gateway that a policy targets, each once; "" is all of it.
func sectionsOf(policy Object, gateway Name) (sections []string) {
	_, _ = mapRefs(object(policy, "spec"), func(ref Object) (Object, error) { // what can't be read targets nothing
		if target, err := gatewayOf(ref, nameOf(policy).Namespace); err == nil && target == gateway {
			sections = append(sections, textOf(ref, "sectionName"))
		}
		return ref, nil
	})
	slices.Sort(sections)
	return slices.Compact(sections)
}

// taken: every cluster says of the policy that it is accepted, programmed or enforced with regard to the gateway, and nothing against it.
func (r *PolicyReport) taken(gateway Name) bool {
	for i := range r.Targets {
		t := &r.Targets[i]
		if t.Gateway != gateway {
			continue
		}
		if len(t.States) == 0 {
			return false
		}
		for j := range t.States {
			s, yes := &t.States[j], 0
			for _, typ := range toldOfPolicies {
				switch said := t.said(s); s.verdict(typ, said).status {
				case metav1.ConditionTrue:
					yes++
				case metav1.ConditionFalse:
					return false
				}
			}
			if yes == 0 {
				return false
			}
		}
	}
	return true
}

// rivals adds to the condition of conflicts those of the hub's objects, where no cluster reports a conflict.
func (r *GatewayReport) rivals(c metav1.Condition) metav1.Condition {
	all := Rivals(nameOf(r.Gateway), r.Policies)
	if len(all) == 0 {
		return c
	}
	text := strings.Join(all[:min(len(all), mostNamed)], "; ")
	if more := len(all) - mostNamed; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	if c.Status == metav1.ConditionFalse {
		c.Status, c.Reason = metav1.ConditionUnknown, "SameTarget"
		c.Message = "no cluster reports a conflict, and not all have reported: "
	} else {
		c.Message += "; "
	}
	c.Message = cut(c.Message+text+" (which counts is for their controllers to say)", mostMessage)
	return c
}
