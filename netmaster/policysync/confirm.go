package policysync

import (
	"context"
	"maps"
	"reflect"

	"github.com/flowkeep/flowkeep/internal/fleet"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1beta1 "open-cluster-management.io/api/cluster/v1beta1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Watches do not keep step with each other: that of works may know of one whose gateway that of gateways has not brought yet. So before
// something goes from a spoke all that decides about it is asked for, by reads that are never old, and has to be what it was decided by.

// How many objects are asked for before removals: they are as many as bundles that something goes of, so they must not keep the API server
// from the rest.
const (
	asksASecond = 200
	asksAtOnce  = 400
)

// witnesses are what a removal was decided by: objects, or lists of them, as far as they count for it. Nil stands for what is not there.
type witnesses map[feed]witness

type witness struct {
	of *input
	// known is the rows as they were when it was decided.
	known map[fleet.Name]any
}

// witnesses of all that goes with writes of a bundle. The world's lock is held.
func (w *world) witnesses(b fleet.Source, writes []fleet.Write) witnesses {
	found := witnesses{}
	for i := range writes {
		for _, s := range writes[i].Drops {
			w.witnessCopy(found, b, s)
			if b.Group == gatewayv1.GroupName && b.Kind == kindGateway {
				w.witnessGateway(found, b.Name)
			}
		}
	}
	return found
}

const kindGateway = "Gateway"

// one object of an input, as it is known.
func (found witnesses) one(t *table, of *input, resource schema.GroupVersionResource, name fleet.Name) any {
	seen := witness{of, map[fleet.Name]any{}}
	if t != nil {
		if row, ok := t.rows[name]; ok {
			seen.known[name] = row
		}
	}
	found[feed{resource: resource, namespace: name.Namespace, name: name.Name}] = seen
	return seen.known[name]
}

// witnessOne of an input of which there is one watch. When its definition is deleted the API server deletes all objects first, so what is not there is
// gone only if that is there.
func (w *world) witnessOne(found witnesses, in *input, name fleet.Name) any {
	one := found.one(w.current[in], in, in.resource, name)
	if one == nil && in != definitions {
		w.witnessDefinition(found, in.resource.GroupResource())
	}
	return one
}

func (w *world) witnessDefinition(found witnesses, resource schema.GroupResource) {
	w.witnessOne(found, definitions, fleet.Name{Name: resource.String()})
}

func (w *world) witnessCopy(found witnesses, b fleet.Source, s fleet.Sent) {
	switch {
	case b.Group == fleet.Group:
		w.witnessSet(found, b.Name)
		if t := w.current[networkPolicies]; t != nil && s.Source.Kind == "NetworkPolicy" {
			found.one(t, networkPolicies, networkPolicyResource, s.Source.Name)
		}
	case s.Source.Group == gatewayv1.GroupName && s.Source.Kind == kindGateway:
		w.witnessGateway(found, s.Source.Name)
	case s.Source != fleet.Source{}:
		w.witnessDefinition(found, schema.GroupResource{Group: s.Group, Resource: s.Resource})
		id, watched := w.policyOf(s.Source)
		if !watched {
			w.witnessClasses(found)
			return
		}
		resource := id.resource.WithVersion(w.kinds[id.resource].Version)
		found.one(w.policyTable(id.resource), policies, resource, id.Name)
		for _, g := range w.targets(id) {
			if g.Name != "" {
				w.witnessGateway(found, g)
			}
		}
	}
}

func (w *world) witnessSet(found witnesses, name fleet.Name) {
	w.witnessDefinition(found, sets.resource.GroupResource())
	if w.current[sets] == nil {
		return
	}
	if o, ok := w.witnessOne(found, sets, name).(*networkPolicySet); ok {
		w.witnessPlacement(found, fleet.Name{Namespace: name.Namespace, Name: o.typed.Spec.Placement})
	}
}

// witnessGateway: where a gateway goes, and what along with it.
func (w *world) witnessGateway(found witnesses, name fleet.Name) {
	o, ok := w.witnessOne(found, gateways, name).(*object)
	if !ok {
		return
	}
	class, _, _ := unstructured.NestedString(o.Object, "spec", "gatewayClassName")
	w.witnessClass(found, class)
	u := unstructured.Unstructured{Object: o.Object}
	w.witnessPlacement(found, fleet.Name{Namespace: name.Namespace, Name: u.GetLabels()[fleet.LabelPlacement]})
}

func (w *world) witnessPlacement(found witnesses, name fleet.Name) {
	if name.Name == "" {
		return
	}
	w.witnessOne(found, placements, name)
	w.witnessDefinition(found, decisions.resource.GroupResource())
	seen := witness{decisions, map[fleet.Name]any{}}
	for d := range w.decisionsOf[name] {
		seen.known[d] = w.current[decisions].rows[d]
	}
	found[feed{resource: decisions.resource, namespace: name.Namespace, selector: clusterv1beta1.PlacementLabel + "=" + name.Name}] = seen
}

func (w *world) witnessClass(found witnesses, name string) {
	if name == "" {
		return
	}
	o, ok := w.witnessOne(found, classes, fleet.Name{Name: name}).(*gatewayClass)
	if !ok || string(o.typed.Spec.ControllerName) != w.controller {
		return
	}
	if at, err := fleet.ParametersRef(o.typed); err == nil {
		found.one(w.tables[feed{resource: configMapResource, namespace: at.Namespace, name: at.Name}], parameters, configMapResource, at)
	}
}

// witnessClasses: any class might list a kind that none lists.
func (w *world) witnessClasses(found witnesses) {
	seen := witness{classes, map[fleet.Name]any{}}
	w.eachRow(classes, func(name fleet.Name, row any) {
		seen.known[name] = row
		w.witnessClass(found, name.Name)
	})
	found[feed{resource: classes.resource}] = seen
}

// confirmed tells whether all that a removal was decided by is so. Where that can't be known it is not.
func (c *controller) confirmed(ctx context.Context, b fleet.Source, asked witnesses) bool {
	log := c.log.With("bundle", b)
	for f, seen := range asked {
		if err := c.asking.Wait(ctx); err != nil {
			return false
		}
		live, err := c.client.rows(ctx, f, func(o *unstructured.Unstructured) any { return slim(seen.of, c.log, o) })
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil:
			log.Warn("what is to go from spokes stays until it is certain: something that decides about it cannot be read", "read", f, "error", err)
			return false
		case !maps.EqualFunc(seen.known, live, func(a, b any) bool { return reflect.DeepEqual(decisive(a), decisive(b)) }):
			log.Info("what is to go from spokes stays until the watch has brought what is new of what decides about it", "read", f)
			return false
		}
	}
	return true
}

// rows are what a feed would have, read now.
func (c client) rows(ctx context.Context, f feed, slim func(*unstructured.Unstructured) any) (map[fleet.Name]any, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	found := map[fleet.Name]any{}
	take := func(o *unstructured.Unstructured) {
		if value := slim(o); value != nil {
			found[fleet.Name{Namespace: o.GetNamespace(), Name: o.GetName()}] = value
		}
	}
	in := c.Resource(f.resource).Namespace(f.namespace)
	if f.name == "" {
		list, err := in.List(ctx, metav1.ListOptions{LabelSelector: f.selector})
		if err != nil {
			return nil, explained(err)
		}
		for i := range list.Items {
			take(&list.Items[i])
		}
		return found, nil
	}
	o, err := in.Get(ctx, f.name, metav1.GetOptions{})
	switch {
	case err == nil:
		take(o)
	case !apierrors.IsNotFound(err), apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse): // that is of a kind that is not served
		return nil, explained(err)
	}
	return found, nil
}

// decisive is what of a row counts for what is sent.
func decisive(row any) any {
	switch o := row.(type) {
	case *gatewayClass:
		return []any{o.typed.Spec, o.typed.DeletionTimestamp != nil}
	case *clusterv1beta1.PlacementDecision:
		return []any{fleet.DecidedClusters([]*clusterv1beta1.PlacementDecision{o}), o.Labels[clusterv1beta1.PlacementLabel]}
	case *corev1.ConfigMap:
		return o.Data
	}
	if part := spokesPart(row); part != nil {
		return part
	}
	return row
}
