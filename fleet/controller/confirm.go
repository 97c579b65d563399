package controller

import (
	"context"
	"maps"
	"reflect"

	"github.com/flowkeep/flowkeep/fleet"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1beta1 "open-cluster-management.io/api/cluster/v1beta1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Watches do not keep step with each other: that of works may know of one whose gateway that of gateways has not brought yet. So before
// something is removed from a spoke, all that decides about it is read from the API server, and has to be equal to what
// was known.

// How many objects are read before removals: they are as many as bundles that something goes of, so they must not keep
// the API server from the rest.
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

// evidence collects what a removal is decided by. The world's mutex guards it.
type evidence struct{ w *world }

// witnesses returns all that goes with writes of a bundle.
func (cf *evidence) witnesses(b fleet.Source, writes []fleet.Write) witnesses {
	found := witnesses{}
	for i := range writes {
		if len(writes[i].Drops) > 0 { // an unavailable cluster keeps what it has
			cf.witnessOne(found, clusters, fleet.Name{Name: writes[i].Cluster})
		}
		for _, s := range writes[i].Drops {
			cf.witnessCopy(found, b, s)
			if b.Group == gatewayv1.GroupName && b.Kind == kindGateway {
				cf.witnessGateway(found, b.Name)
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
func (cf *evidence) witnessOne(found witnesses, in *input, name fleet.Name) any {
	one := found.one(cf.w.current[in], in, in.resource, name)
	if one == nil && in != definitions {
		cf.witnessDefinition(found, in.resource.GroupResource())
	}
	return one
}

func (cf *evidence) witnessDefinition(found witnesses, resource schema.GroupResource) {
	cf.witnessOne(found, definitions, fleet.Name{Name: resource.String()})
}

func (cf *evidence) witnessCopy(found witnesses, b fleet.Source, s fleet.Sent) {
	switch {
	case b.Group == fleet.Group:
		cf.witnessSet(found, b.Name)
		if t := cf.w.current[networkPolicies]; t != nil && s.Source.Kind == "NetworkPolicy" {
			found.one(t, networkPolicies, networkPolicyResource, s.Source.Name)
		}
	case s.Source == fleet.SecretSource(s.Source.Name):
		if t := cf.w.tables[secretFeed(s.Source.Name)]; t != nil {
			found.one(t, secrets, secretResource, s.Source.Name)
		}
	case s.Source.Group == gatewayv1.GroupName && s.Source.Kind == kindGateway:
		cf.witnessGateway(found, s.Source.Name)
	case s.Source != fleet.Source{}:
		cf.witnessDefinition(found, schema.GroupResource{Group: s.Group, Resource: s.Resource})
		id, watched := cf.w.hub.policyOf(s.Source)
		if !watched {
			cf.witnessClasses(found)
			return
		}
		resource := id.resource.WithVersion(cf.w.subs.kinds[id.resource].Version)
		found.one(cf.w.hub.policyTable(id.resource), policies, resource, id.Name)
		for _, g := range cf.w.hub.targets(id) {
			if g.Name != "" {
				cf.witnessGateway(found, g)
			}
		}
	}
}

func (cf *evidence) witnessSet(found witnesses, name fleet.Name) {
	cf.witnessDefinition(found, sets.resource.GroupResource())
	if cf.w.current[sets] == nil {
		return
	}
	if o, ok := cf.witnessOne(found, sets, name).(*networkPolicySet); ok {
		cf.witnessPlacement(found, fleet.Name{Namespace: name.Namespace, Name: o.typed.Spec.Placement})
	}
}

// witnessGateway: where a gateway goes, and what along with it.
func (cf *evidence) witnessGateway(found witnesses, name fleet.Name) {
	o, ok := cf.witnessOne(found, gateways, name).(*object)
	if !ok {
		return
	}
	class, _, _ := unstructured.NestedString(o.Object, "spec", "gatewayClassName")
	cf.witnessClass(found, class)
	u := unstructured.Unstructured{Object: o.Object}
	cf.witnessPlacement(found, fleet.Name{Namespace: name.Namespace, Name: u.GetLabels()[fleet.LabelPlacement]})
}

func (cf *evidence) witnessPlacement(found witnesses, name fleet.Name) {
	if name.Name == "" {
		return
	}
	cf.witnessOne(found, placements, name)
	cf.witnessDefinition(found, decisions.resource.GroupResource())
	seen := witness{decisions, map[fleet.Name]any{}}
	for d := range cf.w.decisionsOf[name] {
		seen.known[d] = cf.w.current[decisions].rows[d]
	}
	found[feed{resource: decisions.resource, namespace: name.Namespace, selector: clusterv1beta1.PlacementLabel + "=" + name.Name}] = seen
}

func (cf *evidence) witnessClass(found witnesses, name string) {
	if name == "" {
		return
	}
	o, ok := cf.witnessOne(found, classes, fleet.Name{Name: name}).(*gatewayClass)
	if !ok || string(o.typed.Spec.ControllerName) != cf.w.controller {
		return
	}
	if at, err := fleet.ParametersRef(o.typed); err == nil {
		t := cf.w.tables[feed{resource: configMapResource, namespace: at.Namespace, name: at.Name}]
		found.one(t, parameters, configMapResource, at)
	}
}

// witnessClasses: any class might list a kind that none lists.
func (cf *evidence) witnessClasses(found witnesses) {
	seen := witness{classes, map[fleet.Name]any{}}
	cf.w.eachRow(classes, func(name fleet.Name, row any) {
		seen.known[name] = row
		cf.witnessClass(found, name.Name)
	})
	found[feed{resource: classes.resource}] = seen
}

// confirmed reports whether all that a removal was decided by is so. Where that can't be known it is not.
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
			log.Warn("no deletion on spokes: cannot read an object that decides about it", "read", f, "error", err)
			return false
		case !maps.EqualFunc(seen.known, live, func(a, b any) bool { return reflect.DeepEqual(decisive(a), decisive(b)) }):
			log.Info("no deletion on spokes until the watch has delivered the objects that decide about it", "read", f)
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

// decisive returns the part of a row that what is sent depends on.
func decisive(row any) any {
	switch o := row.(type) {
	case *gatewayClass:
		return []any{o.typed.Spec, o.typed.DeletionTimestamp != nil}
	case *clusterv1beta1.PlacementDecision:
		return []any{fleet.DecidedClusters([]*clusterv1beta1.PlacementDecision{o}), o.Labels[clusterv1beta1.PlacementLabel]}
	case *corev1.ConfigMap:
		return o.Data
	case *fleet.Cluster:
		return []bool{o.Known, o.Away()}
	}
	if part := spokesPart(row); part != nil {
		return part
	}
	return row
}
