package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
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

// hubWork has the fields of a ManifestWork that are read: not its manifests.
type hubWork struct {
	metav1.ObjectMeta `json:"metadata"`
	Status            workv1.ManifestWorkStatus `json:"status"`
}

// pathOf returns the API server's path of a resource.
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
		Policies: map[schema.GroupResource][]fleet.Object{}, UnreadParameters: map[fleet.Name]bool{},
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

// allowed notes objects that this user may not read, which is no error: the rest is printed.
func allowed(h *fleet.Hub, what, without string, err error) (bool, error) {
	if !apiserver.IsForbidden(err) {
		return err == nil, err
	}
	n, _ := errors.AsType[*apiserver.NotOK](err)
	h.Unread = append(h.Unread, fmt.Sprintf("%s cannot be read by this user (%s)%s", what, n.Message, without))
	return false, nil
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
	may, err := allowed(h, "CustomResourceDefinitions", ": which kinds of policies go along is not known", err)
	if err != nil {
		return err
	}
	h.NoDefinitions = !may
	for _, o := range definitions {
		if d, ok := fleet.ReadDefinition(o.Object); ok {
			h.Definitions = append(h.Definitions, d)
		}
	}
	for _, ref := range h.ParametersRefs() {
		parameters, err := apiserver.One[corev1.ConfigMap](ctx, c, "/api/v1/namespaces/"+ref.Namespace+"/configmaps/"+ref.Name)
		if apiserver.IsNotFound(err) {
			continue
		}
		may, err := allowed(h, "ConfigMap "+ref.String(), ": what goes with gateways of its classes is not known", err)
		switch {
		case err != nil:
			return err
		case may:
			h.Parameters[ref] = parameters
		default:
			h.UnreadParameters[ref] = true
		}
	}
	return nil
}

func readPlaces(ctx context.Context, c *apiserver.Client, h *fleet.Hub) error {
	placements, err := needed[clusterv1beta1.Placement](ctx, c, clusterv1beta1.GroupVersion.WithResource("placements"))
	may, err := allowed(h, "Placements", ": those with a decision are taken to be there", err)
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
	for _, d := range h.Decisions {
		if name := d.Labels[clusterv1beta1.PlacementLabel]; !may && name != "" {
			h.Placements[fleet.Name{Namespace: d.Namespace, Name: name}] = true
		}
	}
	clusters, err := needed[clusterv1.ManagedCluster](ctx, c, clusterv1.GroupVersion.WithResource("managedclusters"))
	may, err = allowed(h, "ManagedClusters", ": those that decisions name are assumed to exist, without labels", err)
	if err != nil {
		return err
	}
	if !may {
		for _, name := range fleet.DecidedClusters(h.Decisions) {
			h.Clusters[name] = fleet.Cluster{Name: name, Known: true, Available: true}
		}
	}
	for i := range clusters {
		h.Clusters[clusters[i].Name] = fleet.ClusterOf(&clusters[i])
	}
	return nil
}

func readPolicies(ctx context.Context, c *apiserver.Client, h *fleet.Hub) error {
	gateways, err := needed[hubObject](ctx, c, gatewayv1.SchemeGroupVersion.WithResource("gateways"))
	if _, err = allowed(h, "Gateways", ": neither they nor their policies are listed", err); err != nil {
		return err
	}
	h.Gateways = plainObjects(gateways)
	for _, k := range h.Kinds() {
		all, err := apiserver.List[hubObject](ctx, c, pathOf(k.GroupVersion().WithResource(k.Resource)))
		if _, err = allowed(h, k.Kind+"."+k.Group, ": those policies are not listed", err); err != nil {
			return err
		}
		h.Policies[schema.GroupResource{Group: k.Group, Resource: k.Resource}] = plainObjects(all)
	}
	overrides, err := wanted[fleetv1alpha1.PolicyOverride](ctx, c, fleetv1alpha1.GroupVersion.WithResource(fleetv1alpha1.ResourceOverride))
	h.Overrides = pointers(overrides)
	_, err = allowed(h, "PolicyOverrides", ": copies of policies that they change count as of another version", err)
	return err
}

func readSets(ctx context.Context, c *apiserver.Client, h *fleet.Hub) error {
	sets, err := wanted[fleetv1alpha1.NetworkPolicySet](ctx, c, fleetv1alpha1.GroupVersion.WithResource(fleetv1alpha1.ResourceSet))
	if _, err = allowed(h, "NetworkPolicySets", ": they are not listed", err); err != nil || len(sets) == 0 {
		return err
	}
	h.Sets = pointers(sets)
	policies, err := needed[hubObject](ctx, c, schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"})
	h.NetworkPolicies = plainObjects(policies)
	_, err = allowed(h, "NetworkPolicies", ": those of sets are not listed", err)
	return err
}

// readWorks reads those of the controller; with bundles only theirs.
func readWorks(ctx context.Context, c *apiserver.Client, h *fleet.Hub, bundles []fleet.Source, progress func(read, about int)) error {
	controller := string(h.Controller)
	selector := fleet.LabelController + "=" + fleet.ControllerLabel(controller)
	if bundles != nil {
		var values []string
		for _, b := range bundles {
			values = append(values, fleet.BundleLabel(b))
		}
		selector += fmt.Sprintf(",%s in (%s)", fleet.LabelBundle, strings.Join(values, ","))
	}
	path := pathOf(workv1.GroupVersion.WithResource("manifestworks"))
	var works []*workv1.ManifestWork
	err := apiserver.Each(ctx, c, path, selector, func(w *hubWork, about int) {
		works = append(works, &workv1.ManifestWork{ObjectMeta: w.ObjectMeta, Status: w.Status})
		progress(len(works), about)
	})
	if apiserver.IsNotFound(err) {
		return fmt.Errorf("%s knows no manifestworks.%s: %w", c.Server(), workv1.GroupName, errNoHub)
	}
	h.Works = works
	_, err = allowed(h, "ManifestWorks", ": what clusters have and say is not known", err)
	return err
}

// progressAfter is how long it is read without a word.
const progressAfter = 2 * time.Second

// reading returns callbacks that print how many works have been read, if that takes long. done clears the line.
func reading(w io.Writer, since time.Time, now func() time.Time) (progress func(read, about int), done func()) {
	var told time.Time
	progress = func(read, about int) {
		const every = 200 * time.Millisecond
		if at := now(); at.Sub(since) >= progressAfter && at.Sub(told) >= every {
			told = at
			text := fmt.Sprint(read)
			if about > read {
				text += fmt.Sprintf(" of %d", about)
			}
			fmt.Fprintf(w, "\rreading works: %s\x1b[K", text)
		}
	}
	return progress, func() {
		if !told.IsZero() {
			fmt.Fprint(w, "\r\x1b[K")
		}
	}
}
