package fleet

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// What the spokes' controllers are for these kinds is played: there are no nodes, so no gateways run. Each spoke has an address of its own.
const (
	gatewaysPath     = "/apis/gateway.networking.k8s.io/v1/namespaces/%s/gateways/"
	rateLimitsPath   = "/apis/kuadrant.io/v1beta2/namespaces/%s/ratelimitpolicies/"
	enforcementsPath = "/apis/fleet.flowkeep.io/v1alpha1/namespaces/%s/networkpolicyenforcements/"
)

// PlayControllers plays the spokes' controllers in a namespace until the context ends: what they are asked for is always well.
func (f *Fleet) PlayControllers(ctx context.Context, namespace string) {
	for n, name := range f.names {
		go f.Spokes[name].play(ctx, namespace, fmt.Sprintf("192.0.2.%d", n+1))
	}
}

func (s *Server) play(ctx context.Context, namespace, address string) {
	for tick := time.NewTicker(200 * time.Millisecond); ; {
		s.answer(ctx, fmt.Sprintf(gatewaysPath, namespace), func(o *played) string { return gatewayStatus(o, address) })
		s.answer(ctx, fmt.Sprintf(rateLimitsPath, namespace), func(o *played) string {
			return fmt.Sprintf(`{"observedGeneration":%d,"conditions":[%s,%s]}`, o.Metadata.Generation,
				condition("Accepted", "RateLimitPolicy has been accepted", o), condition("Enforced", "RateLimitPolicy has been successfully enforced", o))
		})
		s.answer(ctx, fmt.Sprintf(enforcementsPath, namespace), func(o *played) string { return s.enforcementStatus(ctx, namespace, o) })
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
	}
}

// played is what of an object matters to who answers for its controller.
type played struct {
	Metadata struct {
		Name        string
		Generation  int64
		Annotations map[string]string
	}
	Spec struct {
		Policy    string
		Listeners []struct{ Name string }
	}
	Status struct {
		Conditions []Condition
		Copy       string
	}
}

// answer writes the statuses that are not of their object's generation. What fails is tried again at the next time.
func (s *Server) answer(ctx context.Context, path string, status func(*played) string) {
	var list struct{ Items []played }
	if err := s.Get(ctx, strings.TrimSuffix(path, "/"), &list); err != nil {
		return
	}
	for i := range list.Items {
		o := &list.Items[i]
		text := status(o)
		told := slices.ContainsFunc(o.Status.Conditions, func(c Condition) bool { return c.ObservedGeneration == o.Metadata.Generation && c.Reason != "Pending" })
		if text != "" && !told {
			_ = s.Do(ctx, http.MethodPatch, path+o.Metadata.Name+"/status", fmt.Appendf(nil, `[{"op":"add","path":"/status","value":%s}]`, text))
		}
	}
}

// condition is True, for the reason that it is.
func condition(kind, message string, o *played) string {
	return fmt.Sprintf(`{"type":%q,"status":"True","reason":%[1]q,"message":%q,"observedGeneration":%d,"lastTransitionTime":%q}`,
		kind, message, o.Metadata.Generation, time.Now().UTC().Format(time.RFC3339))
}

func gatewayStatus(o *played, address string) string {
	var listeners []string
	for _, l := range o.Spec.Listeners {
		listeners = append(listeners, fmt.Sprintf(`{"name":%q,"attachedRoutes":1,"supportedKinds":[],"conditions":[%s,%s,%s]}`, l.Name,
			condition("Accepted", "", o), condition("Programmed", "", o), condition("ResolvedRefs", "", o)))
	}
	return fmt.Sprintf(`{"addresses":[{"type":"IPAddress","value":%q}],"listeners":[%s],"conditions":[%s,%s]}`, address, strings.Join(listeners, ","),
		condition("Accepted", "", o), condition("Programmed", "", o))
}

// enforcementStatus is about the NetworkPolicy as it is.
func (s *Server) enforcementStatus(ctx context.Context, namespace string, o *played) string {
	var policy played
	if err := s.Get(ctx, "/apis/networking.k8s.io/v1/namespaces/"+namespace+"/networkpolicies/"+o.Spec.Policy, &policy); err != nil {
		return ""
	}
	copied := policy.Metadata.Annotations["fleet.flowkeep.io/copy"]
	if o.Status.Copy != copied {
		o.Status.Conditions = nil // what it says is of another version
	}
	return fmt.Sprintf(`{"policyGeneration":%d,"copy":%q,"nodes":2,"nodesEnforcing":2,"conditions":[%s]}`, policy.Metadata.Generation, copied,
		strings.Replace(condition("Enforced", "in force on 2 of 2 nodes", o), `"reason":"Enforced"`, `"reason":"InForce"`, 1))
}
