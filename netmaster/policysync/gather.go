package policysync

import (
	"maps"
	"slices"

	fleetv1alpha1 "github.com/flowkeep/flowkeep/api/fleet/v1alpha1"
	"github.com/flowkeep/flowkeep/internal/fleet"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// gathered is what is known of a bundle.
type gathered struct {
	// bundle is what it is to be; without clusters all of it goes.
	bundle *fleet.Bundle
	// frozen is why nothing of it is changed; empty: it may be.
	frozen string
	// there: the hub has the object that the bundle is named by, so that something is to be told on it.
	there bool
}

// gather puts together what a bundle is to be. The world's lock is held; objects are not changed by anybody.
func (w *world) gather(b fleet.Source) gathered {
	if why := w.lacks(b); why != "" {
		return gathered{frozen: why}
	}
	switch {
	case b == fleet.Source{}:
		return gathered{frozen: "it is not known whose works these are"}
	case b.Group == gatewayv1.GroupName && b.Kind == "Gateway":
		g := w.gatherGateway(b)
		g.there = row[*object](w, gateways, b.Name) != nil
		return g
	case b.Group == fleet.Group && b.Kind == fleetv1alpha1.KindSet:
		g := w.gatherSet(b)
		g.there = row[*networkPolicySet](w, sets, b.Name) != nil
		return g
	}
	return w.gatherPolicy(b)
}

func (w *world) labelsOf(cluster string) map[string]string { return w.clusterOf(cluster).Labels }

func (w *world) gatherGateway(b fleet.Source) gathered {
	selection := w.selections()
	s := selection(b.Name)
	if s.Gateway == nil {
		g := gathered{bundle: &fleet.Bundle{Source: b}}
		if s.Frozen {
			g.frozen = s.Problem.Message
		}
		return g
	}
	var along []*fleet.Aimed
	var beside []*fleet.Policy
	var held []fleet.Source
	for _, id := range slices.Concat(w.policiesAt(b.Name), w.policiesAt(fleet.Name{})) {
		a, problem := w.aim(id, selection)
		switch {
		case problem != nil: // it may target this one
			held = append(held, problem.Source)
			if id.Namespace == b.Namespace { // what others' namespaces have that can't be read keeps no gateway back
				beside = append(beside, w.policy(id))
			}
		case a == nil:
		case a.Frozen: // it would go with several, but it is not known where all of them go
			held, beside = append(held, a.Source()), append(beside, a.Policy)
		case a.Bundle() == b:
			along = append(along, a)
		case slices.Contains(a.Gateways, s.Gateway):
			beside = append(beside, a.Policy)
		}
	}
	bundle := fleet.GatewayBundle(s.Gateway, along, w.labelsOf)
	for i := range bundle.Clusters {
		hold(&bundle.Clusters[i], held)
	}
	for _, p := range beside {
		if s.Gateway.Lists(p.Kind) {
			bundle.Await(s.Gateway, p)
		}
	}
	return gathered{bundle: bundle}
}

func hold(c *fleet.ClusterBundle, held []fleet.Source) {
	if c.Held == nil && len(held) > 0 {
		c.Held = map[fleet.Source]bool{}
	}
	for _, s := range held {
		c.Held[s] = true
	}
}

// selections remembers them for as long as the lock is held.
func (w *world) selections() func(fleet.Name) fleet.Selection {
	known := map[fleet.Name]fleet.Selection{}
	return func(name fleet.Name) fleet.Selection {
		s, ok := known[name]
		if !ok {
			s = w.selection(name)
			known[name] = s
		}
		return s
	}
}

func (w *world) policiesAt(gateway fleet.Name) []policyID {
	return slices.SortedFunc(maps.Keys(w.policiesOf[gateway]), policyID.compare)
}

func (w *world) gatherPolicy(b fleet.Source) gathered {
	none := gathered{bundle: &fleet.Bundle{Source: b}}
	id, watched := w.policyOf(b)
	if !watched {
		for _, c := range w.classes {
			if c.Err != nil { // it may list the kind
				none.frozen = c.Err.Error()
			}
		}
		return none
	}
	if t := w.policyTable(id.resource); t == nil || !t.synced || t.err != nil {
		none.frozen = id.resource.String() + " cannot be read"
		return none
	}
	a, problem := w.aim(id, w.selections())
	switch {
	case problem != nil:
		none.frozen = problem.Message
	case a == nil:
	case a.Frozen:
		none.frozen = "it is not known where one of the gateways that it targets goes"
	case a.Bundle() == b:
		return gathered{bundle: fleet.PolicyBundle(a, w.labelsOf)}
	}
	return none
}

func (w *world) gatherSet(b fleet.Source) gathered {
	selected, frozen, problems := w.selectSets()
	g := gathered{bundle: &fleet.Bundle{Source: b}}
	for _, s := range selected {
		if s.Name == b.Name {
			g.bundle = fleet.SetBundle(s)
		}
	}
	if slices.Contains(frozen, b.Name) {
		for _, p := range problems {
			if p.Source == b {
				g.frozen = p.Message
			}
		}
	}
	return g
}

func (w *world) selectSets() ([]*fleet.Set, []fleet.Name, []fleet.Problem) {
	var all []*fleetv1alpha1.NetworkPolicySet
	w.eachRow(sets, func(_ fleet.Name, row any) { all = append(all, row.(*networkPolicySet).typed) })
	var policies []fleet.Object
	w.eachRow(networkPolicies, func(_ fleet.Name, row any) { policies = append(policies, row.(*object).Object) })
	return fleet.SelectSets(all, policies, w.lookup())
}
