package hierarchy

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

const (
	// Annotation has, on an HTTPRoute, the policy of each of its effective rules, as JSON.
	Annotation = "example.com/effective"
	// ControllerName is that in the status of policies.
	ControllerName = "example.com/policies"

	policyAPI  = "example.com/v1"
	policyKind = "TestPolicy"
	routeAPI   = "gateway.networking.k8s.io/v1"
	interval   = 100 * time.Millisecond
)

// Controller enforces the TestPolicies of a namespace on its HTTPRoutes.
type Controller struct {
	API       *cluster.API
	Namespace string
	// HubAnnotation is that by which a hub's policy is recognised; none is without it.
	HubAnnotation string
}

type metadata struct {
	Name, CreationTimestamp string
	Generation              int64
	Annotations             map[string]string
}

type ref struct{ Kind, Name string }

type block struct {
	Strategy string
	Rules    map[string]string
}

type object struct {
	Metadata metadata
	Spec     struct {
		TargetRefs []ref
		ParentRefs []ref
		Defaults   *block
		Overrides  *block
	}
	Status json.RawMessage
}

type condition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	Reason             string `json:"reason"`
	Message            string `json:"message"`
	ObservedGeneration int64  `json:"observedGeneration"`
	LastTransitionTime string `json:"lastTransitionTime"`
}

type ancestor struct {
	AncestorRef    map[string]string `json:"ancestorRef"`
	ControllerName string            `json:"controllerName"`
	Conditions     []condition       `json:"conditions"`
}

type status struct {
	Ancestors []ancestor `json:"ancestors"`
}

// Run enforces policies until ctx ends. Errors are those of objects that changed or went meanwhile: the next round has
// them as they are.
func (c *Controller) Run(ctx context.Context) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		_ = c.round(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (c *Controller) round(ctx context.Context) error {
	var policies, routes struct{ Items []object }
	if err := c.API.Get(ctx, cluster.Path(policyAPI, policyKind, c.Namespace, ""), &policies); err != nil {
		return err
	}
	if err := c.API.Get(ctx, cluster.Path(routeAPI, "HTTPRoute", c.Namespace, ""), &routes); err != nil {
		return err
	}
	winners := map[string]map[string]bool{} // by policy: those that have rules where it applies
	for i := range routes.Items {
		r := &routes.Items[i]
		applies := c.policies(policies.Items, r)
		_, from := Effective(applies)
		for _, p := range applies {
			if winners[p.Name] == nil {
				winners[p.Name] = map[string]bool{}
			}
			for _, winner := range from {
				winners[p.Name][winner] = true
			}
		}
		if err := c.annotate(ctx, r, from); err != nil {
			return err
		}
	}
	for i := range policies.Items {
		if err := c.report(ctx, &policies.Items[i], routes.Items, winners); err != nil {
			return err
		}
	}
	return nil
}

// policies returns those that apply to a route.
func (c *Controller) policies(all []object, route *object) (applies []Policy) {
	for i := range all {
		o := &all[i]
		p := Policy{Name: c.Namespace + "/" + o.Metadata.Name, Created: o.Metadata.CreationTimestamp, Rank: Gateway}
		if _, hub := o.Metadata.Annotations[c.HubAnnotation]; hub {
			p.Rank = Hub
		}
		from := o.Spec.Defaults
		if o.Spec.Overrides != nil {
			from, p.Overrides = o.Spec.Overrides, true
		}
		if from == nil {
			continue
		}
		p.Merged, p.Rules = from.Strategy == "merge", from.Rules
		for _, target := range o.Spec.TargetRefs {
			switch {
			case target.Kind == "HTTPRoute" && target.Name == route.Metadata.Name:
				p.Rank = Route
				applies = append(applies, p)
			case target.Kind == "Gateway" && slices.ContainsFunc(route.Spec.ParentRefs, func(g ref) bool { return g.Name == target.Name }):
				applies = append(applies, p)
			}
		}
	}
	return applies
}

func (c *Controller) annotate(ctx context.Context, route *object, from map[string]string) error {
	text, err := json.Marshal(from)
	if err != nil || route.Metadata.Annotations[Annotation] == string(text) {
		return err
	}
	return c.API.Patch(ctx, cluster.Path(routeAPI, "HTTPRoute", c.Namespace, route.Metadata.Name),
		fmt.Sprintf(`{"metadata": {"annotations": {%q: %q}}}`, Annotation, text))
}

// report writes a policy's status: an entry for each gateway that it targets, directly or through a route.
func (c *Controller) report(ctx context.Context, o *object, routes []object, winners map[string]map[string]bool) error {
	name := c.Namespace + "/" + o.Metadata.Name
	enforced := condition{Type: "Enforced", Status: "True", Reason: "Enforced", Message: "it has rules in force"}
	if by := winners[name]; len(by) > 0 && !by[name] {
		enforced.Status, enforced.Reason = "False", "Overridden"
		enforced.Message = "overridden by " + strings.Join(slices.Sorted(maps.Keys(by)), ", ")
	}
	want := status{Ancestors: []ancestor{}}
	for _, gateway := range gatewaysOf(o, routes) {
		one := ancestor{
			AncestorRef:    map[string]string{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": gateway, "namespace": c.Namespace},
			ControllerName: ControllerName,
			Conditions:     []condition{{Type: "Accepted", Status: "True", Reason: "Accepted"}, enforced},
		}
		for i := range one.Conditions {
			one.Conditions[i].ObservedGeneration = o.Metadata.Generation
			one.Conditions[i].LastTransitionTime = "2026-01-01T00:00:00Z"
		}
		want.Ancestors = append(want.Ancestors, one)
	}
	var have status
	if json.Unmarshal(o.Status, &have) == nil && reflect.DeepEqual(have, want) {
		return nil
	}
	text, err := json.Marshal([]map[string]any{{"op": "add", "path": "/status", "value": want}})
	if err != nil {
		return err
	}
	return c.API.Do(ctx, http.MethodPatch, cluster.Path(policyAPI, policyKind, c.Namespace, o.Metadata.Name)+"/status", text)
}

func gatewaysOf(o *object, routes []object) (names []string) {
	for _, target := range o.Spec.TargetRefs {
		if target.Kind == "Gateway" {
			names = append(names, target.Name)
		}
		for i := range routes {
			if target.Kind == "HTTPRoute" && target.Name == routes[i].Metadata.Name {
				for _, g := range routes[i].Spec.ParentRefs {
					names = append(names, g.Name)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
