package policysync

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	fleetv1alpha1 "github.com/flowkeep/flowkeep/api/fleet/v1alpha1"
	"github.com/flowkeep/flowkeep/internal/fleet"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1beta1 "open-cluster-management.io/api/cluster/v1beta1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// What of the world package fleet asks for. All of it is called with the world's lock held.

func classSource(name string) fleet.Source {
	return fleet.Source{Group: gatewayv1.GroupName, Kind: "GatewayClass", Name: fleet.Name{Name: name}}
}

func overrideSource(name fleet.Name) fleet.Source {
	return fleet.Source{Group: fleet.Group, Kind: fleetv1alpha1.KindOverride, Name: name}
}

// row is an input's, of those of which there is one watch; the zero value if there is none.
func row[T any](w *world, in *input, name fleet.Name) (value T) {
	if t := w.current[in]; t != nil {
		value, _ = t.rows[name].(T)
	}
	return value
}

func (w *world) lookup() fleet.Lookup {
	return fleet.Lookup{
		Class:     func(name string) *fleet.Class { return w.classes[name] },
		Placement: func(name fleet.Name) bool { return row[*placement](w, placements, name) != nil },
		Decisions: func(name fleet.Name) (all []*clusterv1beta1.PlacementDecision) {
			for d := range w.decisionsOf[name] {
				all = append(all, row[*clusterv1beta1.PlacementDecision](w, decisions, d))
			}
			if d := w.lingering(name, time.Now()); len(d.Status.Decisions) > 0 {
				all = append(all, d)
			}
			return all
		},
		Namespaces: w.namespaces,
	}
}

// lingering are the clusters that are about to leave a Placement's decisions.
func (w *world) lingering(placement fleet.Name, now time.Time) *clusterv1beta1.PlacementDecision {
	d := new(clusterv1beta1.PlacementDecision)
	for cluster, until := range w.leaving[placement] {
		if now.Before(until) && w.clusterOf(cluster).Known {
			d.Status.Decisions = append(d.Status.Decisions, clusterv1beta1.ClusterDecision{ClusterName: cluster})
		}
	}
	return d
}

func (w *world) selection(name fleet.Name) fleet.Selection {
	g := row[*object](w, gateways, name)
	if g == nil {
		return fleet.Selection{}
	}
	return fleet.SelectGateway(g.Object, w.lookup())
}

// compare orders policies.
func (id policyID) compare(with policyID) int {
	return cmp.Or(strings.Compare(id.resource.String(), with.resource.String()), id.Compare(with.Name))
}

// table of the policies of a kind that is watched, or nil.
func (w *world) policyTable(resource schema.GroupResource) *table {
	return w.tables[feed{resource: resource.WithVersion(w.kinds[resource].Version)}]
}

func (w *world) policyRow(id policyID) *object {
	if t := w.policyTable(id.resource); t != nil {
		o, _ := t.rows[id.Name].(*object)
		return o
	}
	return nil
}

func (w *world) policy(id policyID) *fleet.Policy {
	o := w.policyRow(id)
	if o == nil {
		return nil
	}
	return &fleet.Policy{Kind: w.kinds[id.resource], Name: id.Name, Object: o.Object}
}

func (w *world) targets(id policyID) []fleet.Name {
	if o := w.policyRow(id); o != nil {
		return o.targets
	}
	return nil
}

// policyOf finds the policy that a source names, if its kind is watched.
func (w *world) policyOf(s fleet.Source) (id policyID, watched bool) {
	for resource, kind := range w.kinds {
		if kind.Group == s.Group && kind.Kind == s.Kind {
			return policyID{resource, s.Name}, true
		}
	}
	return policyID{}, false
}

func (w *world) aim(id policyID, selection func(fleet.Name) fleet.Selection) (*fleet.Aimed, *fleet.Problem) {
	p := w.policy(id)
	if p == nil {
		return nil, nil
	}
	a, problem := fleet.Aim(p, selection)
	if a != nil {
		for _, name := range slices.SortedFunc(maps.Keys(w.overridesOf[p.Source()]), fleet.Name.Compare) {
			a.Overrides = append(a.Overrides, row[*override](w, overrides, name).Override)
		}
	}
	return a, problem
}

// clusterOf is what is known of a cluster.
func (w *world) clusterOf(name string) fleet.Cluster {
	if c := row[*fleet.Cluster](w, clusters, fleet.Name{Name: name}); c != nil {
		return *c
	}
	return fleet.Cluster{Name: name}
}

// lacks is what is not known that must be before anything of a bundle is changed; empty: nothing.
func (w *world) lacks(bundle fleet.Source) string {
	needs := []*input{definitions, classes, gateways, placements, decisions, clusters, works}
	if bundle.Group == fleet.Group && bundle.Kind == fleetv1alpha1.KindSet && !w.defined(sets.resource.GroupResource()) {
		needs = []*input{definitions, works} // without their CustomResourceDefinition there are none
	} else if bundle.Group == fleet.Group {
		needs = []*input{definitions, sets, networkPolicies, placements, decisions, clusters, works}
	} else if w.absent[overrides] == "" {
		needs = append(needs, overrides)
	}
	for _, in := range needs {
		if why := w.lack(in); why != "" {
			return why
		}
	}
	return ""
}

// defined tells whether the hub has a CustomResourceDefinition, whatever versions of it are served.
func (w *world) defined(resource schema.GroupResource) bool {
	return slices.ContainsFunc(w.definitions, func(d fleet.Definition) bool { return d.Group == resource.Group && d.Resource == resource.Resource })
}

// lack is why nothing is known of an input; empty: it is known.
func (w *world) lack(in *input) string {
	t := w.current[in]
	switch {
	case w.absent[in] != "":
		return w.absent[in]
	case in == networkPolicies && t == nil && w.current[sets] != nil:
		return "" // without a set none are asked for
	case t == nil:
		return in.name + " have not been read yet"
	case t.err != nil:
		return fmt.Sprintf("%s cannot be read: %v", in.name, t.err)
	case !t.synced:
		return in.name + " have not been read yet"
	}
	return ""
}

// unready is what keeps the controller from its work; empty: nothing. Of what it can do without, it is enough to know that it is not there.
func (w *world) unready() string {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for _, in := range single {
		if in.needed || w.absent[in] == "" {
			if why := w.lack(in); why != "" {
				return why
			}
		}
	}
	if w.current[sets] != nil {
		return w.lack(networkPolicies)
	}
	return ""
}
