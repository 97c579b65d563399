package fleet

import (
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AnnotationPoliciesFirst on a hub Gateway, with the value false, has it made in clusters whether its policies are there or not.
const AnnotationPoliciesFirst = wellknown.AnnotationPoliciesFirst

// ReasonPoliciesFirst is that of a gateway that is not made in a cluster, as policies of it are not there.
const ReasonPoliciesFirst = "PoliciesFirst"

// Await is a policy that a gateway which is new in a cluster waits for there, in whichever work it goes.
type Await struct {
	Source Source
	Copy   Key // on spokes
}

// Await has a bundle's gateway wait for a policy that targets it. What does not go with it is not waited for.
func (b *Bundle) Await(g *Gateway, p *Policy) {
	if p.refused(g) != "" || textOf(object(g.Object, "metadata", "annotations"), AnnotationPoliciesFirst) == "false" {
		return
	}
	b.After = append(b.After, Await{p.Source(), Key{p.Kind.Group, p.Kind.Resource, g.Parameters.SpokeName(p.Name)}})
}

// Awaited are the sources that go in other bundles and that the gateway waits for in some cluster, as no work has it there under the name that it is
// to have.
func (b *Bundle) Awaited(existing []*Existing) (sources []Source) {
	type in struct {
		cluster string
		Key
	}
	made := map[in]bool{}
	for _, e := range existing {
		for _, s := range e.Sent {
			if s.Source == b.Source && !s.Asked && !s.Lost && !e.Deleting {
				made[in{e.Cluster, s.Key}] = true
			}
		}
	}
	if !slices.ContainsFunc(b.Clusters, func(c ClusterBundle) bool {
		return slices.ContainsFunc(c.Copies, func(one *Copy) bool { return one.Source == b.Source && !made[in{c.Cluster, one.Key()}] })
	}) {
		return nil
	}
	for _, a := range b.After {
		sources = append(sources, a.Source)
	}
	return sources
}

// Beside returns the gateways that a policy targets if a cluster still has a copy of the policy under an old name,
// and nil otherwise.
func (b *Bundle) Beside(existing []*Existing) []Source {
	if len(b.With) == 0 {
		return nil
	}
	wanted := map[string][]*Copy{}
	for _, c := range b.Clusters {
		wanted[c.Cluster] = c.Copies
	}
	for _, e := range existing {
		for _, s := range e.Sent {
			if s.Source == b.Source && !s.Asked && !slices.ContainsFunc(wanted[e.Cluster], func(c *Copy) bool { return c.Key() == s.Key }) {
				return b.With
			}
		}
	}
	return nil
}

// waits reports whether a gateway that is not in a cluster yet waits for policies of it.
func (c *clusterPlan) waits(w *Work) bool {
	return slices.ContainsFunc(w.After, func(a Await) bool { return !c.arrived(a) })
}

// blocked reports whether a copy is a gateway that waits for a policy which cannot come: another source has its name,
// or it is not known what is wanted of it.
func (c *clusterPlan) blocked(one placed) bool {
	w := c.wanted[one.work]
	return one.Source == w.Bundle && slices.ContainsFunc(w.After, func(a Await) bool {
		_, held := c.held[a.Source]
		return held || c.gives(a.Source, a.Copy)
	})
}

// arrived reports whether a policy has been applied in the version that is wanted. One of which it is not known what
// is wanted has not.
func (c *clusterPlan) arrived(a Await) bool {
	if _, untold := c.held[a.Source]; untold {
		return false
	}
	for _, one := range c.copies[a.Copy] {
		if one.Source == a.Source && slices.ContainsFunc(c.sent[a.Copy], func(s at) bool {
			return s.Source == a.Source && s.Hash == one.Hash && s.Applied && !s.work.Deleting
		}) {
			return true
		}
	}
	return false
}

// Awaiting says of a gateway's states in clusters where it is not made yet which of the policies that it waits for are not there.
func Awaiting(gateway Name, states []State, after []Await, policies []PolicyReport) []State {
	if len(after) == 0 {
		return states
	}
	states = slices.Clone(states)
	for i := range states {
		s := &states[i]
		if s.Phase != Waiting || s.Answer == nil || s.Answer.Applied.Status != metav1.ConditionTrue || s.Answer.Available.Status != metav1.ConditionFalse {
			continue
		}
		var keep []string
		refused := false
		for _, a := range after {
			phase, why := awaited(gateway, s.Cluster, a, policies)
			if phase == Answered {
				continue
			}
			keep = append(keep, a.Source.Kind+"/"+a.Source.Name.String()+": "+cut(why, mostOfACluster/2))
			refused = refused || phase == Refused || phase == NotSent
		}
		if len(keep) == 0 {
			continue
		}
		s.Reason, s.Message = ReasonPoliciesFirst, "it is not made there before its policies: "+strings.Join(keep, ", ")
		if refused {
			s.Phase = NotSent
		}
	}
	return states
}

// awaited is how far a policy has come in a cluster.
func awaited(gateway Name, cluster string, a Await, policies []PolicyReport) (Phase, string) {
	for i := range policies {
		if policies[i].Policy.Source() != a.Source {
			continue
		}
		for _, t := range policies[i].Targets {
			if at := slices.IndexFunc(t.States, func(s State) bool { return s.Cluster == cluster }); t.Gateway == gateway && at >= 0 {
				return t.States[at].Phase, t.States[at].Message
			}
		}
	}
	return NotSent, "cannot determine what to send"
}
