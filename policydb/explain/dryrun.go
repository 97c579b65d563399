package explain

import (
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// DryRun is the verdict of all policies in a dry run (policy.Policy.DryRun), with those in force, on a packet that
// passes.
type DryRun struct {
	Allowed bool `json:"allowed"`
	// Egress and Ingress are the sides that only policies in a dry run would isolate, and that those therefore judge;
	// else nil. Their Policies and Remedies are of dry runs.
	Egress  *Side `json:"egress,omitempty"`
	Ingress *Side `json:"ingress,omitempty"`
}

// dryRun returns the verdict of the dry runs, or nil if no dry run applies to the packet.
func (x *Explanation) dryRun(egress, ingress view) *DryRun {
	if !x.Allowed {
		return nil
	}
	run := DryRun{Allowed: true, Egress: egress.dryRun(&x.Egress), Ingress: ingress.dryRun(&x.Ingress)}
	if run.Egress == nil && run.Ingress == nil {
		return nil
	}
	for _, side := range []*Side{run.Egress, run.Ingress} {
		run.Allowed = run.Allowed && (side == nil || side.Allowed)
	}
	return &run
}

// dryRun returns the side with the dry runs in force, or nil if the present side, now, already isolates the pod.
func (v *view) dryRun(now *Side) *Side {
	policies := v.m.dryRuns.isolating(v.direction, v.self.pod)
	if now.Reason != ReasonOpen || len(policies) == 0 {
		return nil
	}
	side := v.side(policies)
	return &side
}

// Alike reports whether two results have the same verdict for the same reasons, such as those of two address families;
// either may be nil.
func (r *DryRun) Alike(o *DryRun) bool {
	if r == nil || o == nil {
		return r == o
	}
	return r.Egress.Alike(o.Egress) && r.Ingress.Alike(o.Ingress)
}

// Enforced returns the world in which the policies in a dry run are in force together with all others. A packet that
// is allowed now and denied there is one that the dry runs would deny. The worlds share everything else.
func Enforced(w *policy.World) *policy.World {
	out := *w
	out.Policies = slices.Clone(w.Policies)
	for i, p := range out.Policies {
		if p.DryRun {
			enforced := *p
			enforced.DryRun = false
			out.Policies[i] = &enforced
		}
	}
	return &out
}
