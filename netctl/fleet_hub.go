package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	fleetv1alpha1 "github.com/flowkeep/flowkeep/api/fleet/v1alpha1"
	"github.com/flowkeep/flowkeep/internal/fleet"
	"github.com/flowkeep/flowkeep/netctl/apiserver"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
	clusterv1beta1 "open-cluster-management.io/api/cluster/v1beta1"
	workv1 "open-cluster-management.io/api/work/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// hubObject is an object as it is, with whole numbers whole.
type hubObject struct{ fleet.Object }

func (o *hubObject) UnmarshalJSON(raw []byte) error { return utiljson.Unmarshal(raw, &o.Object) }

// hubWork is what of a ManifestWork is looked at: its manifests are not.
type hubWork struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            workv1.ManifestWorkStatus `json:"status"`
}

// pathOf is where an API server has the objects of a resource.
func pathOf(r schema.GroupVersionResource) string {
	if r.Group == "" {
		return "/api/" + r.Version + "/" + r.Resource
	}
	return "/apis/" + r.Group + "/" + r.Version + "/" + r.Resource
}

// readHub reads all but the works.
func readHub(ctx context.Context, c *apiserver.Client, controller gatewayv1.GatewayController, withSets bool) (*fleet.Hub, error) {
	h := &fleet.Hub{
		Controller: controller, Parameters: map[fleet.Name]*corev1.ConfigMap{}, Placements: map[fleet.Name]bool{}, Clusters: map[string]fleet.Cluster{},
		Policies: map[schema.GroupResource][]fleet.Object{},
	}
	reads := []func(context.Context, *apiserver.Client, *fleet.Hub) error{readClasses, readPlaces, readPolicies}
	if withSets {
		reads = append(reads, readSets)
	}
	for _, read := range reads {
		if err := read(ctx, c, h); err != nil {
			return nil, err
		}
	}
	return h, nil
}

var errNoHub = errors.New("it is no hub of policy-sync, or not set up as one: see docs/policy-sync.md, and give the hub's --kubeconfig or --context")

// needed reads all objects of a kind that a hub has.
func needed[T any](ctx context.Context, c *apiserver.Client, r schema.GroupVersionResource) ([]T, error) {
	all, err := apiserver.List[T](ctx, c, pathOf(r))
	if apiserver.IsNotFound(err) {
		return nil, fmt.Errorf("%s knows no %s.%s: %w", c.Server(), r.Resource, r.Group, errNoHub)
	}
	return all, err
}

// wanted reads all objects of a kind that a hub may lack.
func wanted[T any](ctx context.Context, c *apiserver.Client, r schema.GroupVersionResource) ([]T, error) {
	all, err := apiserver.List[T](ctx, c, pathOf(r))
	if apiserver.IsNotFound(err) {
		return nil, nil
	}
	return all, err
}

func pointers[T any](all []T) (to []*T) {
	for i := range all {
		to = append(to, &all[i])
	}
	return to
}

func plainObjects(all []hubObject) (plain []fleet.Object) {
	for _, o := range all {
		plain = append(plain, o.Object)
	}
	return plain
}

func readClasses(ctx context.Context, c *apiserver.Client, h *fleet.Hub) error {
	classes, err := needed[gatewayv1.GatewayClass](ctx, c, gatewayv1.SchemeGroupVersion.WithResource("gatewayclasses"))
	if err != nil {
		return err
	}
	h.Classes = pointers(classes)
	definitions, err := needed[hubObject](ctx, c, schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if err != nil {
		return err
	}
	for _, o := range definitions {
		if d, ok := fleet.ReadDefinition(o.Object); ok {
			h.Definitions = append(h.Definitions, d)
		}
	}
	for _, ref := range h.ParametersRefs() {
		parameters, err := apiserver.One[corev1.ConfigMap](ctx, c, "/api/v1/namespaces/"+ref.Namespace+"/configmaps/"+ref.Name)
		switch {
		case apiserver.IsNotFound(err):
		case err != nil:
			return err
		default:
			h.Parameters[ref] = parameters
		}
	}
	return nil
}

func readPlaces(ctx context.Context, c *apiserver.Client, h *fleet.Hub) error {
	placements, err := needed[clusterv1beta1.Placement](ctx, c, clusterv1beta1.GroupVersion.WithResource("placements"))
	if err != nil {
		return err
	}
	for i := range placements {
		if p := &placements[i]; p.DeletionTimestamp == nil {
			h.Placements[fleet.Name{Namespace: p.Namespace, Name: p.Name}] = true
		}
	}
	decisions, err := needed[clusterv1beta1.PlacementDecision](ctx, c, clusterv1beta1.GroupVersion.WithResource("placementdecisions"))
	if err != nil {
		return err
	}
	h.Decisions = pointers(decisions)
	clusters, err := needed[clusterv1.ManagedCluster](ctx, c, clusterv1.GroupVersion.WithResource("managedclusters"))
	if err != nil {
		return err
	}
	for i := range clusters {
		h.Clusters[clusters[i].Name] = fleet.ClusterOf(&clusters[i])
	}
	return nil
}

func readPolicies(ctx context.Context, c *apiserver.Client, h *fleet.Hub) error {
	gateways, err := needed[hubObject](ctx, c, gatewayv1.SchemeGroupVersion.WithResource("gateways"))
	if err != nil {
		return err
	}
	h.Gateways = plainObjects(gateways)
	for _, k := range h.Kinds() {
		all, err := apiserver.List[hubObject](ctx, c, pathOf(k.GroupVersion().WithResource(k.Resource)))
		if err != nil {
			return err
		}
		h.Policies[schema.GroupResource{Group: k.Group, Resource: k.Resource}] = plainObjects(all)
	}
	overrides, err := wanted[fleetv1alpha1.PolicyOverride](ctx, c, fleetv1alpha1.GroupVersion.WithResource(fleetv1alpha1.ResourceOverride))
	h.Overrides = pointers(overrides)
	return err
}

func readSets(ctx context.Context, c *apiserver.Client, h *fleet.Hub) error {
	sets, err := wanted[fleetv1alpha1.NetworkPolicySet](ctx, c, fleetv1alpha1.GroupVersion.WithResource(fleetv1alpha1.ResourceSet))
	if err != nil || len(sets) == 0 {
		return err
	}
	h.Sets = pointers(sets)
	policies, err := needed[hubObject](ctx, c, schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"})
	h.NetworkPolicies = plainObjects(policies)
	return err
}

// readWorks reads those of the controller; with bundles only theirs.
func readWorks(ctx context.Context, c *apiserver.Client, controller string, bundles []fleet.Source) (works []*workv1.ManifestWork, err error) {
	selector := fleet.LabelController + "=" + fleet.ControllerLabel(controller)
	if bundles != nil {
		var values []string
		for _, b := range bundles {
			values = append(values, fleet.BundleLabel(b))
		}
		selector += fmt.Sprintf(",%s in (%s)", fleet.LabelBundle, strings.Join(values, ","))
	}
	path := pathOf(workv1.GroupVersion.WithResource("manifestworks"))
	all, err := apiserver.Select[hubWork](ctx, c, path, selector)
	if apiserver.IsNotFound(err) {
		return nil, fmt.Errorf("%s knows no manifestworks.%s: %w", c.Server(), workv1.GroupName, errNoHub)
	}
	for i := range all {
		works = append(works, &workv1.ManifestWork{ObjectMeta: all[i].ObjectMeta, Status: all[i].Status})
	}
	return works, err
}
