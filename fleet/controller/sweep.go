package controller

import (
	"context"

	"github.com/flowkeep/flowkeep/fleet"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Conditions on policies of a kind that no class lists any more would stay, True perhaps. They are not watched, so they
// are gone through once: when the kind is taken off the list, and by a new leader, which can't know what was taken off
// before.

// sweepPage is how many policies are listed at a time.
const sweepPage = 500

// markUnlisted marks the kinds whose policies may have conditions that are out of date. The world's lock is held.
func (st *subscriptions) markUnlisted() {
	for _, d := range st.definitions {
		resource := schema.GroupResource{Group: d.Group, Resource: d.Resource}
		if _, listed := st.kinds[resource]; listed {
			delete(st.swept, resource)
			continue
		}
		if kind := st.unlisted(fleet.Source{Group: d.Group, Kind: d.Kind}); kind != nil {
			st.w.statuses.tell(fleet.Source{Group: d.Group, Kind: d.Kind})
		}
	}
}

// unlisted is a kind of policies that has been listed perhaps and is not now; nil: it is, or it is not known, or it has been gone through.
func (st *subscriptions) unlisted(s fleet.Source) *fleet.Kind {
	if _, watched := st.w.hub.policyOf(s); watched || st.w.hub.lacks(s) != "" {
		return nil
	}
	for _, c := range st.classes {
		if c.Err != nil { // it may list the kind
			return nil
		}
	}
	kind, problem := fleet.JudgeKind(fleet.KindRef{Group: s.Group, Kind: s.Kind}, st.definitions)
	if problem != nil || !kind.Subresource || !kind.Status ||
		st.swept[schema.GroupResource{Group: kind.Group, Resource: kind.Resource}] {
		return nil
	}
	return &kind
}

// sweep removes our conditions from all policies of a kind. It reports whether all are written.
func (c *controller) sweep(ctx context.Context, s fleet.Source) bool {
	c.world.mu.RLock()
	kind := c.world.subs.unlisted(s)
	c.world.mu.RUnlock()
	if kind == nil {
		return true
	}
	resource := schema.GroupVersionResource{Group: kind.Group, Version: kind.Version, Resource: kind.Resource}
	over := true
	err := c.eachPage(ctx, resource, func(o *unstructured.Unstructured) {
		p := &fleet.Policy{Kind: *kind, Name: fleet.Name{Namespace: o.GetNamespace(), Name: o.GetName()}, Object: o.Object}
		status, changed := fleet.PolicyWithoutUs(c.world.gatewayController(), p)
		if !changed {
			return
		}
		err := c.client.putStatus(ctx, resource, o.Object, status)
		if c.metrics.status(kind.Kind, err) != written {
			over = false
			c.log.Debug("could not remove the status of a policy; retrying", "object", p.Source(), "error", err)
		}
	})
	switch {
	case apierrors.IsForbidden(err): // of kinds that never were listed most are
		c.log.Debug("cannot read policies of a kind that is not listed; their status stays", "kind", s.Kind, "group", s.Group)
	case err != nil:
		if ctx.Err() == nil && !apierrors.IsNotFound(err) {
			c.log.Warn("cannot read policies of a kind that is not listed; retrying", "kind", s.Kind, "group", s.Group, "error", err)
		}
		return apierrors.IsNotFound(err)
	case !over:
		return false
	}
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	c.world.subs.swept[resource.GroupResource()] = true
	return true
}

// eachPage visits all objects of a resource.
func (c *controller) eachPage(ctx context.Context, resource schema.GroupVersionResource, visit func(*unstructured.Unstructured)) error {
	o := metav1.ListOptions{Limit: sweepPage}
	for {
		if err := c.asking.Wait(ctx); err != nil {
			return err
		}
		within, cancel := context.WithTimeout(ctx, requestLimit)
		list, err := c.client.Resource(resource).List(within, o)
		cancel()
		if err != nil {
			return err
		}
		for i := range list.Items {
			visit(&list.Items[i])
		}
		if o.Continue = list.GetContinue(); o.Continue == "" {
			return nil
		}
	}
}
