package controller

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/fleet"
	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1beta1 "open-cluster-management.io/api/cluster/v1beta1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// The lookups of package fleet. All are called with the world's lock held.

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

// hubView reads the objects of the hub as package fleet needs them. The world's mutex guards it.
type hubView struct{ w *world }

func (hb *hubView) lookup() fleet.Lookup {
	return fleet.Lookup{
		Class:     func(name string) *fleet.Class { return hb.w.subs.classes[name] },
		Placement: func(name fleet.Name) bool { return row[*placement](hb.w, placements, name) != nil },
		Decisions: func(name fleet.Name) (all []*clusterv1beta1.PlacementDecision) {
			for d := range hb.w.decisionsOf[name] {
				all = append(all, row[*clusterv1beta1.PlacementDecision](hb.w, decisions, d))
			}
			return all
		},
		Kept:       hb.w.departures.kept,
		Secret:     hb.w.subs.secret,
		Namespaces: hb.w.namespaces,
	}
}

func (hb *hubView) selection(name fleet.Name) fleet.Selection {
	g := row[*object](hb.w, gateways, name)
	if g == nil {
		return fleet.Selection{}
	}
	return fleet.SelectGateway(g.Object, hb.lookup())
}

// compare orders policies.
func (id policyID) compare(with policyID) int {
	return cmp.Or(strings.Compare(id.resource.String(), with.resource.String()), id.Compare(with.Name))
}

// table of the policies of a kind that is watched, or nil.
func (hb *hubView) policyTable(resource schema.GroupResource) *table {
	return hb.w.tables[feed{resource: resource.WithVersion(hb.w.subs.kinds[resource].Version)}]
}

func (hb *hubView) policyRow(id policyID) *object {
	if t := hb.policyTable(id.resource); t != nil {
		o, _ := t.rows[id.Name].(*object)
		return o
	}
	return nil
}

func (hb *hubView) policy(id policyID) *fleet.Policy {
	o := hb.policyRow(id)
	if o == nil {
		return nil
	}
	return &fleet.Policy{Kind: hb.w.subs.kinds[id.resource], Name: id.Name, Object: o.Object}
}

func (hb *hubView) targets(id policyID) []fleet.Name {
	if o := hb.policyRow(id); o != nil {
		return o.targets
	}
	return nil
}

// policyOf finds the policy that a source names, if its kind is watched.
func (hb *hubView) policyOf(s fleet.Source) (id policyID, watched bool) {
	for resource, kind := range hb.w.subs.kinds {
		if kind.Group == s.Group && kind.Kind == s.Kind {
			return policyID{resource, s.Name}, true
		}
	}
	return policyID{}, false
}

func (hb *hubView) aim(id policyID, selection func(fleet.Name) fleet.Selection) (*fleet.Aimed, *fleet.Problem) {
	p := hb.policy(id)
	if p == nil {
		return nil, nil
	}
	a, problem := fleet.Aim(p, selection)
	if a != nil {
		for _, name := range slices.SortedFunc(maps.Keys(hb.w.overridesOf[p.Source()]), fleet.Name.Compare) {
			a.Overrides = append(a.Overrides, row[*override](hb.w, overrides, name).Override)
		}
	}
	return a, problem
}

// clusterOf is what is known of a cluster.
func (hb *hubView) clusterOf(name string) fleet.Cluster {
	if c := row[*fleet.Cluster](hb.w, clusters, fleet.Name{Name: name}); c != nil {
		return *c
	}
	return fleet.Cluster{Name: name}
}

// lacks is what is not known that must be before anything of a bundle is changed; empty: nothing.
func (hb *hubView) lacks(bundle fleet.Source) string {
	needs := []*input{definitions, classes, gateways, placements, decisions, clusters, works}
	if bundle.Group == fleet.Group && bundle.Kind == fleetv1alpha1.KindSet && !hb.defined(sets.resource.GroupResource()) {
		needs = []*input{definitions, works} // without their CustomResourceDefinition there are none
	} else if bundle.Group == fleet.Group {
		needs = []*input{definitions, sets, networkPolicies, placements, decisions, clusters, works}
	} else if hb.w.subs.absent[overrides] == "" {
		needs = append(needs, overrides)
	}
	for _, in := range needs {
		if why := hb.lack(in); why != "" {
			return why
		}
	}
	return ""
}

// defined reports whether the hub has a CustomResourceDefinition, whatever versions of it are served.
func (hb *hubView) defined(resource schema.GroupResource) bool {
	return slices.ContainsFunc(hb.w.subs.definitions, func(d fleet.Definition) bool {
		return d.Group == resource.Group && d.Resource == resource.Resource
	})
}

// lack is why nothing is known of an input; empty: it is known.
func (hb *hubView) lack(in *input) string {
	t := hb.w.current[in]
	switch {
	case hb.w.subs.absent[in] != "":
		return hb.w.subs.absent[in]
	case in == networkPolicies && t == nil && hb.w.current[sets] != nil:
		return "" // without a set none are watched
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
func (hb *hubView) unready() string {
	hb.w.mu.RLock()
	defer hb.w.mu.RUnlock()
	for _, in := range single {
		if in.needed || hb.w.subs.absent[in] == "" {
			if why := hb.lack(in); why != "" {
				return why
			}
		}
	}
	if hb.w.current[sets] != nil {
		return hb.lack(networkPolicies)
	}
	return ""
}
