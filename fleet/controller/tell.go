package controller

import (
	"context"
	"maps"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// report is a status, or annotations, to write on a hub object.
type report struct {
	resource schema.GroupVersionResource
	object   fleet.Object
	status   any // nil: it stays
	// annotations of a gateway in the place of a status; an empty value removes one.
	annotations map[string]string
}

// tell writes the status of a hub object if it differs from the stored one. It reports whether the key is done: false
// queues it again.
func (c *controller) tell(ctx context.Context, s fleet.Source, _ time.Time) bool {
	if s.Name == (fleet.Name{}) {
		return c.sweep(ctx, s)
	}
	c.world.mu.RLock()
	from := c.reporter()
	reports := from.reports(s)
	c.world.mu.RUnlock()
	if from.early {
		c.world.statuses.tell(s) // queues the key again until the bundle is decided
		return false
	}
	for _, r := range reports {
		var err error
		if r.annotations != nil {
			err = c.client.annotate(ctx, r.resource, r.object, r.annotations)
		} else {
			err = c.client.putStatus(ctx, r.resource, r.object, r.status)
		}
		switch c.metrics.status(s.Kind, err) {
		case written:
			c.log.Debug("status written", "object", s)
		case failed:
			if ctx.Err() == nil {
				c.log.Warn("could not write the status; retrying", "object", s, "error", err)
			}
			return false
		default:
			return false // the newer version is on its way
		}
		if len(reports) > 1 {
			return false // the version that the next one names is an old one now
		}
	}
	return true
}

// reporter computes statuses, for as long as the world's lock is held, and keeps intermediate results.
type reporter struct {
	*controller
	selection func(fleet.Name) fleet.Selection
	answered  map[fleet.Source]map[string][]fleet.Answer
	// early is set while the desired bundle is not decided yet: reports would count for the hub's objects as
	// they are now.
	early bool
}

// known of a bundle, if nothing is newer.
func (c *reporter) known(b fleet.Source) *known {
	if c.world.bundles.hasNews(b) {
		c.early = true
		return nil
	}
	return c.controller.known(b)
}

func (c *controller) reporter() *reporter {
	return &reporter{
		controller: c,
		selection:  c.world.gatherer.selections(),
		answered:   map[fleet.Source]map[string][]fleet.Answer{},
	}
}

// reports returns the reports of an object that are not written yet.
func (c *reporter) reports(s fleet.Source) []report {
	if c.world.hub.lacks(s) != "" {
		return nil
	}
	switch {
	case s.Group == gatewayv1.GroupName && s.Kind == "GatewayClass":
		return c.classReport(s)
	case s.Group == gatewayv1.GroupName && s.Kind == "Gateway":
		return c.gatewayReport(s)
	case s.Group == fleet.Group && s.Kind == fleetv1alpha1.KindSet:
		return c.setReport(s)
	case s.Group == fleet.Group && s.Kind == fleetv1alpha1.KindOverride:
		return c.overrideReport(s)
	}
	return c.policyReport(s)
}

func (c *reporter) classReport(s fleet.Source) []report {
	o, known := row[*gatewayClass](c.world, classes, s.Name), c.world.subs.classes[s.Name.Name]
	if o == nil || known == nil || known.Pending {
		return nil
	}
	status, changed := fleet.ClassStatus(o.object, known, metav1.Now())
	return reportIf(changed, classes.resource, o.object, status)
}

func reportIf(changed bool, resource schema.GroupVersionResource, o fleet.Object, status any) []report {
	if !changed {
		return nil
	}
	return []report{{resource: resource, object: o, status: status}}
}

func (c *reporter) gatewayReport(s fleet.Source) []report {
	w := c.world
	o := row[*object](w, gateways, s.Name)
	selected := c.selection(s.Name)
	switch {
	case o == nil || fleet.IsCopyOrGoing(o.Object) || selected.Pending:
		return nil
	case selected.Gateway == nil && selected.Problem == nil:
		return c.withoutUs(o.Object)
	}
	r := &fleet.GatewayReport{Controller: w.gatewayController(), Gateway: o.Object, Problem: selected.Problem}
	if known := c.known(s); known != nil && (selected.Gateway != nil || selected.Frozen) {
		r.States = c.states(known, s, "Gateway", known.spokeOf(s), known.clusters())
		if g := selected.Gateway; g != nil {
			r.States = fleet.WithSecrets(r.States, c.secretStates(known, g), g.Kept)
		}
		for _, id := range w.gatherer.policiesAt(s.Name) {
			if p, _ := c.policyStates(id); p != nil {
				r.Policies = append(r.Policies, *p)
			}
		}
		r.States = fleet.Awaiting(s.Name, r.States, known.bundle.After, r.Policies)
		r.Left = known.bundle.Left
	} else if selected.Gateway != nil || selected.Frozen {
		return nil // it has not been looked at yet
	}
	status, changed := fleet.GatewayStatus(r, metav1.Now())
	reports := reportIf(changed, gateways.resource, o.Object, status)
	return c.annotate(reports, o.Object, fleet.OverriddenAnnotation(s.Name, r.Policies), r.ClustersAnnotation())
}

// withoutUs removes our conditions from a gateway that is not ours any more.
func (c *reporter) withoutUs(gateway fleet.Object) []report {
	status, changed := fleet.GatewayWithoutUs(c.world.gatewayController(), gateway)
	reports := reportIf(changed, gateways.resource, gateway, status)
	return c.annotate(reports, gateway, "", "")
}

// annotate adds a report of a gateway's annotations that have other values.
func (c *reporter) annotate(reports []report, gateway fleet.Object, overridden, clusters string) []report {
	controller := c.world.gatewayController()
	want := map[string]string{fleet.OverriddenKey(controller): overridden, fleet.ClustersKey(controller): clusters}
	maps.DeleteFunc(want, func(key, value string) bool { return annotationOf(gateway, key) == value })
	if len(want) == 0 {
		return reports
	}
	return append(reports, report{resource: gateways.resource, object: gateway, annotations: want})
}

func annotationOf(o fleet.Object, key string) string {
	meta, _ := o["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	value, _ := annotations[key].(string)
	return value
}

func (c *reporter) policyReport(s fleet.Source) []report {
	id, watched := c.world.hub.policyOf(s)
	p := c.world.hub.policy(id)
	if !watched || p == nil || !p.Kind.Subresource {
		return nil // without a subresource each status would be a new generation, which needs a status
	}
	r, unknown := c.policyStates(id)
	if unknown {
		return nil
	}
	if r == nil {
		r = &fleet.PolicyReport{Policy: *p}
	}
	status, changed := fleet.PolicyStatus(c.world.gatewayController(), r, metav1.Now())
	resource := schema.GroupVersionResource{Group: p.Kind.Group, Version: p.Kind.Version, Resource: p.Kind.Resource}
	return reportIf(changed, resource, p.Object, status)
}

// policyStates is how a policy is in the clusters of its gateways. Unknown: one of them is frozen, or it has not been looked at yet.
func (c *reporter) policyStates(id policyID) (r *fleet.PolicyReport, unknown bool) {
	a, problem := c.world.hub.aim(id, c.selection)
	if a == nil {
		return nil, problem != nil
	}
	known := c.known(a.Bundle())
	if a.Frozen || known == nil {
		return nil, true
	}
	r = &fleet.PolicyReport{Policy: *a.Policy}
	for _, g := range a.Gateways {
		r.Targets = append(r.Targets, fleet.Target{
			Gateway: g.Name, Spoke: g.Parameters.SpokeName(g.Name), States: c.states(known, a.Source(), a.Kind.Kind, g.Parameters.SpokeName(a.Name), g.Clusters),
		})
	}
	return r, false
}

func (c *reporter) setReport(s fleet.Source) []report {
	o := row[*networkPolicySet](c.world, sets, s.Name)
	known := c.known(s)
	if o == nil || known == nil {
		return nil
	}
	r := &fleet.SetReport{}
	selected, _, problems := c.world.gatherer.selectSets()
	for _, p := range problems {
		if p.Source == s {
			r.Problem = &p
		}
	}
	for _, one := range selected {
		if one.Name != s.Name {
			continue
		}
		r.Clusters = one.Clusters
		for _, p := range one.Policies {
			r.Policies = append(r.Policies, c.setPolicy(known, one, p))
		}
	}
	status, changed := fleet.SetStatus(o.typed, r, metav1.Now())
	return reportIf(changed, sets.resource, o.object, status)
}

func (c *reporter) overrideReport(s fleet.Source) []report {
	v := row[*override](c.world, overrides, s.Name)
	if v == nil || !c.world.shared {
		return nil
	}
	var where []string
	var problem *fleet.Problem
	id, watched := c.world.hub.policyOf(v.Target)
	a, _ := c.world.hub.aim(id, c.selection)
	switch {
	case v.Err != nil:
		problem = &fleet.Problem{Source: s, Reason: fleet.ReasonInvalid, Message: v.Err.Error()}
	case !watched || c.world.hub.policy(id) == nil:
		problem = &fleet.Problem{Source: s, Reason: "TargetNotFound", Message: "spec.targetRef: there is no " + v.Target.String() + " of a kind that goes along with gateways"}
	case a == nil:
		problem = &fleet.Problem{Source: s, Reason: "TargetNotSent", Message: "spec.targetRef: " + v.Target.String() + " targets no gateway that goes to clusters"}
	default:
		known := c.known(a.Bundle())
		if known == nil || a.Frozen {
			return nil
		}
		where = known.bundle.Overridden[s.Name]
	}
	status, changed := fleet.OverrideStatus(v.typed, where, problem, metav1.Now())
	return reportIf(changed, overrides.resource, v.object, status)
}
