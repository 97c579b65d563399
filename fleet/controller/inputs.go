package controller

import (
	"cmp"
	"log/slog"
	"maps"
	"reflect"
	"slices"

	"github.com/flowkeep/flowkeep/fleet"
	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
	clusterv1beta1 "open-cluster-management.io/api/cluster/v1beta1"
	workv1 "open-cluster-management.io/api/work/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// What is watched. Of the first ones there is one watch each, where their kinds are served; of parameters one for each ConfigMap that a
// class names and each Secret that a listener names, of policies one for each kind that is listed, of network policies
// one while there is a set.
var (
	definitions     = &input{"CustomResourceDefinitions", schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}, true}
	classes         = &input{"GatewayClasses", gatewayv1.SchemeGroupVersion.WithResource("gatewayclasses"), true}
	gateways        = &input{"Gateways", gatewayv1.SchemeGroupVersion.WithResource("gateways"), true}
	placements      = &input{"Placements", clusterv1beta1.GroupVersion.WithResource("placements"), true}
	decisions       = &input{"PlacementDecisions", clusterv1beta1.GroupVersion.WithResource("placementdecisions"), true}
	clusters        = &input{"ManagedClusters", clusterv1.GroupVersion.WithResource("managedclusters"), true}
	works           = &input{"ManifestWorks", workv1.GroupVersion.WithResource("manifestworks"), true}
	overrides       = &input{"PolicyOverrides", fleetv1alpha1.GroupVersion.WithResource(fleetv1alpha1.ResourceOverride), false}
	sets            = &input{"NetworkPolicySets", fleetv1alpha1.GroupVersion.WithResource(fleetv1alpha1.ResourceSet), false}
	networkPolicies = &input{name: "NetworkPolicies"}
	parameters      = &input{name: "ConfigMaps"}
	policies        = &input{name: "policies"}
	secrets         = &input{name: "Secrets"}

	// single are those of which there is one watch.
	single = []*input{definitions, classes, gateways, placements, decisions, clusters, works, overrides, sets}

	networkPolicyResource = schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}
	secretResource        = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	configMapResource     = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// slim makes of an object what is kept of it; nil: nothing could be made of it.
func (t *table) slim(o *unstructured.Unstructured) any { return slim(t.role, t.log, o) }

func slim(role *input, log *slog.Logger, o *unstructured.Unstructured) any {
	switch role {
	case definitions:
		return slimDefinition(o)
	case classes:
		return slimBoth[gatewayv1.GatewayClass](log, o)
	case sets:
		return slimBoth[fleetv1alpha1.NetworkPolicySet](log, o)
	case placements:
		return slimPlacement(o)
	case decisions:
		return typed[clusterv1beta1.PlacementDecision](log, o)
	case clusters:
		return slimCluster(log, o)
	case works:
		return slimWork(log, o)
	case overrides:
		return slimOverride(log, o)
	case parameters:
		return typed[corev1.ConfigMap](log, o)
	case policies:
		return slimPolicy(o)
	case secrets:
		return slimSecret(o)
	}
	return slimObject(o)
}

// changed takes a change up; nil stands for what is not there.
func (t *table) changed(name fleet.Name, old, now any) {
	switch t.role {
	case classes:
		t.statuses.tell(classSource(name.Name))
	case gateways:
		t.gatewayChanged(name, old, now)
	case placements:
		t.touchPlacement(name)
	case decisions:
		t.decisionChanged(name, old, now)
	case clusters:
		t.clusterChanged(name, old, now)
	case works:
		t.workChanged(name, old, now)
	case overrides:
		t.overrideChanged(name, old, now)
	case sets:
		t.setChanged(name, old, now)
	case networkPolicies:
		t.networkPolicyChanged(name, old, now)
	case policies:
		t.policyChanged(name, old, now)
	case secrets:
		t.subs.touchSecret(name)
	}
}

// typed converts an object to the type, without its managed fields.
func typed[T any](log *slog.Logger, o *unstructured.Unstructured) any {
	o.SetManagedFields(nil)
	value := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, value); err != nil {
		log.Error("cannot read an object of the hub", "kind", o.GetKind(), "namespace", o.GetNamespace(), "name", o.GetName(), "error", err)
		return nil
	}
	return value
}

func slimDefinition(o *unstructured.Unstructured) any {
	d, ok := fleet.ReadDefinition(o.Object)
	if !ok {
		return nil
	}
	return &d
}

// object is one of which the content counts.
type object struct {
	fleet.Object
	// targets of a policy; the zero name stands for those that can't be read.
	targets []fleet.Name
}

func slimObject(o *unstructured.Unstructured) any {
	o.SetManagedFields(nil)
	return &object{Object: o.Object}
}

func slimPolicy(o *unstructured.Unstructured) any {
	o.SetManagedFields(nil)
	targets, err := fleet.Targets(o.Object)
	if err != nil {
		targets = []fleet.Name{{}}
	}
	return &object{Object: o.Object, targets: targets}
}

// placement is there; nothing of it counts.
type placement struct{}

func slimPlacement(o *unstructured.Unstructured) any {
	if o.GetDeletionTimestamp() != nil {
		return nil
	}
	return &placement{}
}

// both is an object as it is, and as its type.
type both[T any] struct {
	object fleet.Object
	typed  *T
}

func slimBoth[T any](log *slog.Logger, o *unstructured.Unstructured) any {
	value, ok := typed[T](log, o).(*T)
	if !ok {
		return nil
	}
	return &both[T]{o.Object, value}
}

// networkPolicySet and gatewayClass are rows of theirs.
type (
	networkPolicySet = both[fleetv1alpha1.NetworkPolicySet]
	gatewayClass     = both[gatewayv1.GatewayClass]
)

func slimCluster(log *slog.Logger, o *unstructured.Unstructured) any {
	m, ok := typed[clusterv1.ManagedCluster](log, o).(*clusterv1.ManagedCluster)
	if !ok {
		return nil
	}
	c := fleet.ClusterOf(m)
	return &c
}

func slimOverride(log *slog.Logger, o *unstructured.Unstructured) any {
	v, ok := typed[fleetv1alpha1.PolicyOverride](log, o).(*fleetv1alpha1.PolicyOverride)
	if !ok {
		return nil
	}
	return &override{fleet.ReadOverride(v), v, o.Object}
}

// override is a PolicyOverride, read and as it is.
type override struct {
	*fleet.Override
	typed  *fleetv1alpha1.PolicyOverride
	object fleet.Object
}

// same reports whether two versions of an object differ only in what is no matter for what is sent: in the status, and
// in who wrote what.
func same(a, b any) bool {
	x, y := spokesPart(a), spokesPart(b)
	return x != nil && y != nil && reflect.DeepEqual(x, y)
}

func spokesPart(o any) fleet.Object {
	switch o := o.(type) {
	case *object:
		return partOf(o.Object)
	case *override:
		return partOf(o.object)
	case *networkPolicySet:
		return partOf(o.object)
	}
	return nil
}

func partOf(o fleet.Object) fleet.Object {
	part := maps.Clone(o)
	delete(part, "status")
	if meta, ok := o["metadata"].(map[string]any); ok {
		meta = maps.Clone(meta)
		delete(meta, "resourceVersion")
		delete(meta, "generation")
		part["metadata"] = meta
	}
	return part
}

func (w *world) gatewayChanged(name fleet.Name, old, now any) {
	w.statuses.tell(fleet.GatewaySource(name))
	if same(old, now) {
		return
	}
	w.touchGateway(name)
	w.subs.unsettled = w.subs.unsettled || w.subs.sendsSecrets()
	for _, o := range []any{old, now} {
		g, ok := o.(*object)
		if !ok {
			continue
		}
		u := unstructured.Unstructured{Object: g.Object}
		class, _, _ := unstructured.NestedString(g.Object, "spec", "gatewayClassName")
		w.gatewaysOf.set(class, name, o == now)
		w.gatewaysAt.set(fleet.Name{Namespace: name.Namespace, Name: u.GetLabels()[fleet.LabelPlacement]}, name, o == now)
	}
}

// touchGateway has looked at what goes along with a gateway: policies with several gateways move between bundles, so those of their other
// gateways too.
func (w *world) touchGateway(name fleet.Name) {
	w.sync(fleet.GatewaySource(name))
	w.statuses.tell(fleet.GatewaySource(name))
	for id := range w.policiesOf[name] {
		w.touchPolicy(id)
	}
}

func (w *world) touchPolicy(id policyID) {
	p := w.hub.policy(id)
	if p == nil {
		return
	}
	w.statuses.tell(p.Source())
	w.sync(p.Source())
	targets := w.hub.targets(id)
	if len(targets) < 2 {
		return
	}
	for _, g := range targets {
		w.sync(fleet.GatewaySource(g))
	}
}

func (t *table) policyChanged(name fleet.Name, old, now any) {
	id := policyID{t.feed.resource.GroupResource(), name}
	kind, ok := t.subs.kinds[id.resource]
	if !ok {
		kind = t.kind // it is being dropped
	}
	source := fleet.Source{Group: kind.Group, Kind: kind.Kind, Name: name}
	t.statuses.tell(source)
	if same(old, now) {
		return
	}
	t.sync(source)
	for _, o := range []any{old, now} {
		p, ok := o.(*object)
		if !ok {
			continue
		}
		for _, g := range p.targets {
			t.policiesOf.set(g, id, o == now)
			if g == (fleet.Name{}) { // it may be held by any gateway's bundle, and hold any gateway
				t.eachRow(gateways, func(name fleet.Name, _ any) {
					t.sync(fleet.GatewaySource(name))
					t.statuses.tell(fleet.GatewaySource(name))
				})
				continue
			}
			t.sync(fleet.GatewaySource(g))
			t.statuses.tell(fleet.GatewaySource(g))
		}
	}
}

func (w *world) touchPlacement(name fleet.Name) {
	for g := range w.gatewaysAt[name] {
		w.touchGateway(g)
	}
	w.touchSets(name.Namespace)
}

func (w *world) decisionChanged(name fleet.Name, old, now any) {
	for _, o := range []any{old, now} {
		if d, ok := o.(*clusterv1beta1.PlacementDecision); ok {
			placement := fleet.Name{Namespace: name.Namespace, Name: d.Labels[clusterv1beta1.PlacementLabel]}
			w.decisionsOf.set(placement, name, o == now)
			w.touchPlacement(placement)
		}
	}
	if d, ok := old.(*clusterv1beta1.PlacementDecision); ok {
		w.departures.leave(fleet.Name{Namespace: name.Namespace, Name: d.Labels[clusterv1beta1.PlacementLabel]}, fleet.DecidedClusters([]*clusterv1beta1.PlacementDecision{d}))
	}
}

// clusterChanged marks what depends on a cluster: copies by its labels, where an override selects by them, and statuses
// by its availability.
func (w *world) clusterChanged(name fleet.Name, old, now any) {
	for b := range w.parked[name.Name] {
		w.sync(b)
	}
	delete(w.parked, name.Name)
	before, _ := old.(*fleet.Cluster)
	after, _ := now.(*fleet.Cluster)
	w.departures.availabilityChanged(name.Name, before, after)
	if before == nil || after == nil || !maps.Equal(before.Labels, after.Labels) {
		w.eachRow(overrides, func(_ fleet.Name, row any) { w.touchOverride(row.(*override)) })
	}
	if before == nil || after == nil || before.Available != after.Available || before.Known != after.Known {
		w.eachRow(works, func(at fleet.Name, row any) {
			if at.Namespace == name.Name {
				w.statuses.tellBundle(row.(*work))
			}
		})
	}
}

func (w *world) overrideChanged(name fleet.Name, old, now any) {
	w.statuses.tell(overrideSource(name))
	if same(old, now) {
		return
	}
	for _, o := range []any{old, now} {
		if v, ok := o.(*override); ok {
			w.overridesOf.set(v.Target, name, o == now)
			w.touchOverride(v)
		}
	}
}

func (w *world) touchOverride(v *override) {
	w.statuses.tell(overrideSource(v.Name))
	for resource, kind := range w.subs.kinds {
		if kind.Group == v.Target.Group && kind.Kind == v.Target.Kind {
			id := policyID{resource, v.Target.Name}
			w.touchPolicy(id)
			for _, g := range w.hub.targets(id) {
				w.sync(fleet.GatewaySource(g))
			}
		}
	}
}

func (w *world) setChanged(name fleet.Name, old, now any) {
	w.statuses.tell(fleet.SetSource(name))
	if same(old, now) {
		return
	}
	w.sync(fleet.SetSource(name))
	w.touchSets("") // of two that want one name on a spoke, one may have its turn now
}

func (w *world) networkPolicyChanged(name fleet.Name, old, now any) {
	if !same(old, now) {
		w.touchSets(name.Namespace)
	}
}

// touchSets has looked at those of a namespace, or all: sets that send into one namespace keep each other's NetworkPolicies out.
func (w *world) touchSets(namespace string) {
	touched := map[string]bool{}
	target := func(s *fleetv1alpha1.NetworkPolicySet) string {
		if s.Spec.TargetNamespace != "" {
			return s.Spec.TargetNamespace
		}
		return s.Namespace
	}
	w.eachRow(sets, func(name fleet.Name, row any) {
		if namespace == "" || name.Namespace == namespace {
			touched[target(row.(*networkPolicySet).typed)] = true
		}
	})
	w.eachRow(sets, func(name fleet.Name, row any) {
		if touched[target(row.(*networkPolicySet).typed)] {
			w.sync(fleet.SetSource(name))
			w.statuses.tell(fleet.SetSource(name))
		}
	})
}

// eachRow visits those of an input of which there is one watch.
func (w *world) eachRow(in *input, visit func(fleet.Name, any)) {
	t := w.current[in]
	if t == nil {
		return
	}
	for _, name := range slices.SortedFunc(maps.Keys(t.rows), fleet.Name.Compare) {
		visit(name, t.rows[name])
	}
}

// work is a ManifestWork of ours.
type work struct {
	*fleet.Existing
	answers   []fleet.Answer
	annotated bool
	label     string // of its bundle
}

func slimWork(log *slog.Logger, o *unstructured.Unstructured) any {
	m, ok := typed[workv1.ManifestWork](log, o).(*workv1.ManifestWork)
	if !ok {
		return nil
	}
	return &work{fleet.ReadExisting(m), fleet.Answers(m), len(m.Annotations) > 0, m.Labels[fleet.LabelBundle]}
}

func (w *world) workChanged(name fleet.Name, old, now any) {
	before, _ := old.(*work)
	after, _ := now.(*work)
	if after != nil && after.Bundle == (fleet.Source{}) && before != nil {
		after.Bundle = before.Bundle // its annotation was removed
	}
	for _, one := range []*work{before, after} {
		if one == nil {
			continue
		}
		w.worksOf.set(one.Bundle, name, one == after)
		for i := range one.Sent {
			w.holds(one.Sent[i].Source, one.Bundle, name, one == after)
			if !one.Sent[i].Orphan {
				w.holds(nameSource(one.Sent[i].Key), one.Bundle, name, one == after)
			}
		}
	}
	if before == nil || after == nil || !sameWork(before.Existing, after.Existing) {
		look := w.answered
		if before == nil || after == nil || before.Generation != after.Generation {
			look = w.sync
		}
		w.touchWork(before, look)
		w.touchWork(after, look)
		w.touchBeside(before, after)
	}
	w.statuses.tellAnswers(before, after)
}

// sameWork reports whether two versions of a work are equal as far as writes depend on them.
func sameWork(a, b *fleet.Existing) bool {
	x, y := *a, *b
	x.ResourceVersion, y.ResourceVersion = "", ""
	return reflect.DeepEqual(x, y)
}

// touchWork has looked at the bundle of a work, and at others that share sources with it: what moves goes on when it has arrived. So do gateways
// that wait for a policy in it.
func (w *world) touchWork(one *work, look func(fleet.Source)) {
	if one == nil {
		return
	}
	look(one.Bundle)
	for _, g := range w.gatewaysBeside(one.Bundle) {
		if w.waits(one.Cluster, g) {
			look(g)
		}
	}
	for i := range one.Sent {
		for _, s := range []fleet.Source{one.Sent[i].Source, nameSource(one.Sent[i].Key)} {
			for b := range w.holdersOf[s] {
				look(b)
			}
		}
	}
}

// touchBeside has looked at policies of several gateways where one of these is there, or is gone, under some name: they stay where it is.
func (w *world) touchBeside(before, after *work) {
	had, has := gatewaysIn(before), gatewaysIn(after)
	if slices.Equal(had, has) {
		return
	}
	one := cmp.Or(after, before)
	for id := range w.policiesOf[one.Bundle.Name] {
		if p := w.hub.policy(id); p != nil && len(w.worksOf[p.Source()]) > 0 {
			w.sync(p.Source())
		}
	}
}

// gatewaysIn are the names under which a work has the gateway that it is named by.
func gatewaysIn(one *work) (keys []fleet.Key) {
	if one == nil || one.Bundle.Group != gatewayv1.GroupName || one.Bundle.Kind != kindGateway {
		return nil
	}
	for i := range one.Sent {
		if s := &one.Sent[i]; s.Source == one.Bundle && !s.Asked {
			keys = append(keys, s.Key)
		}
	}
	return keys
}

// gatewaysBeside are those that the policy targets which a bundle is of; none if it is of something else.
func (w *world) gatewaysBeside(b fleet.Source) (bundles []fleet.Source) {
	if id, watched := w.hub.policyOf(b); watched {
		for _, name := range w.hub.targets(id) {
			bundles = append(bundles, fleet.GatewaySource(name))
		}
	}
	return bundles
}

// waits reports whether a gateway is only asked for in a cluster.
func (w *world) waits(cluster string, gateway fleet.Source) bool {
	for at := range w.worksOf[gateway] {
		if at.Namespace == cluster && slices.ContainsFunc(row[*work](w, works, at).Sent, func(s fleet.Sent) bool { return s.Source == gateway && s.Asked }) {
			return true
		}
	}
	return false
}

// adopt finds the bundle of works that do not name it, by their label.
func (w *world) adopt() {
	lost := w.worksOf[fleet.Source{}]
	if len(lost) == 0 {
		return
	}
	bundles := map[string]fleet.Source{}
	note := func(b fleet.Source) { bundles[fleet.BundleLabel(b)] = b }
	w.eachRow(gateways, func(name fleet.Name, _ any) { note(fleet.GatewaySource(name)) })
	w.eachRow(sets, func(name fleet.Name, _ any) { note(fleet.SetSource(name)) })
	for _, t := range w.tables {
		for name := range t.rows {
			if t.role == policies {
				note(fleet.Source{Group: t.kind.Group, Kind: t.kind.Kind, Name: name})
			}
		}
	}
	for at := range maps.Clone(lost) {
		one := row[*work](w, works, at)
		found, ok := bundles[one.label]
		if !ok {
			w.log.Warn("a ManifestWork has our label, but no source; it stays unchanged", "cluster", at.Namespace, "work", at.Name)
			continue
		}
		adopted := *one
		named := *one.Existing
		named.Bundle = found
		adopted.Existing = &named
		w.current[works].have(at, &adopted)
	}
}
