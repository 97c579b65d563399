package explain

import (
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// DryRun is what policies in a dry run (policy.Policy.Audit) would say, all of them together with those in force, of a packet that passes.
type DryRun struct {
	Allowed bool `json:"allowed"`
	// Egress and Ingress are the sides that only policies in a dry run would isolate, and that those therefore judge; else nil. Their
	// Policies and Remedies are of dry runs.
	Egress  *Side `json:"egress,omitempty"`
	Ingress *Side `json:"ingress,omitempty"`
}

// dryRun is nil where no dry run would judge the packet.
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

// dryRun is the side as dry runs would have it; nil if the side in force, now, leaves them nothing to judge.
func (v *view) dryRun(now *Side) *Side {
	policies := v.m.dryRuns.isolating(v.direction, v.self.pod)
	if now.Reason != ReasonOpen || len(policies) == 0 {
		return nil
	}
	side := v.side(policies)
	return &side
}

// Alike tells whether both say the same for the same reasons, as of two address families; either may be nil.
func (r *DryRun) Alike(o *DryRun) bool {
	if r == nil || o == nil {
		return r == o
	}
	return r.Egress.Alike(o.Egress) && r.Ingress.Alike(o.Ingress)
}

// Enforced is the world in which the policies in a dry run are in force with all others: what passes now, and is denied there, is what
// the dry runs would deny. The worlds share everything else.
func Enforced(w *policy.World) *policy.World {
	out := *w
	out.Policies = slices.Clone(w.Policies)
	for i, p := range out.Policies {
		if p.Audit {
			enforced := *p
			enforced.Audit = false
			out.Policies[i] = &enforced
		}
	}
	return &out
}
