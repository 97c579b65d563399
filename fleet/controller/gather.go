package controller

import (
	"maps"
	"slices"

	"github.com/flowkeep/flowkeep/fleet"
	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// gathered is what is known of a bundle.
type gathered struct {
	// bundle is the desired one; without clusters all of it is removed.
	bundle *fleet.Bundle
	// frozen is why nothing of it is changed; empty: it may be.
	frozen string
	// there: the hub has the object that names the bundle, and it gets a status.
	there bool
}

// gatherer finds the desired bundles. The world's mutex guards it.
type gatherer struct{ w *world }

// gather returns the desired bundle, within the hub's limit. The world's lock is held; objects are not changed.
func (ga *gatherer) gather(b fleet.Source) gathered {
	g := ga.gatherAny(b)
	if g.bundle != nil {
		g.bundle.Restrict(ga.w.limit.bytes, ga.w.limit.alone, ga.w.limit.words)
	}
	return g
}

func (ga *gatherer) gatherAny(b fleet.Source) gathered {
	if why := ga.w.hub.lacks(b); why != "" {
		return gathered{frozen: why}
	}
	switch {
	case b == fleet.Source{}:
		return gathered{frozen: "it is not known whose works these are"}
	case b.Group == gatewayv1.GroupName && b.Kind == "Gateway":
		g := ga.gatherGateway(b)
		g.there = row[*object](ga.w, gateways, b.Name) != nil
		return g
	case b.Group == fleet.Group && b.Kind == fleetv1alpha1.KindSet:
		g := ga.gatherSet(b)
		g.there = row[*networkPolicySet](ga.w, sets, b.Name) != nil
		return g
	}
	return ga.gatherPolicy(b)
}

func (ga *gatherer) labelsOf(cluster string) map[string]string {
	return ga.w.hub.clusterOf(cluster).Labels
}

func (ga *gatherer) gatherGateway(b fleet.Source) gathered {
	selection := ga.selections()
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
	for _, id := range slices.Concat(ga.policiesAt(b.Name), ga.policiesAt(fleet.Name{})) {
		a, problem := ga.w.hub.aim(id, selection)
		switch {
		case problem != nil: // it may target this one
			held = append(held, problem.Source)
			if id.Namespace == b.Namespace { // what others' namespaces have that can't be read keeps no gateway back
				beside = append(beside, ga.w.hub.policy(id))
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
	bundle := fleet.GatewayBundle(s.Gateway, along, ga.labelsOf)
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
func (ga *gatherer) selections() func(fleet.Name) fleet.Selection {
	known := map[fleet.Name]fleet.Selection{}
	return func(name fleet.Name) fleet.Selection {
		s, ok := known[name]
		if !ok {
			s = ga.w.hub.selection(name)
			known[name] = s
		}
		return s
	}
}

func (ga *gatherer) policiesAt(gateway fleet.Name) []policyID {
	return slices.SortedFunc(maps.Keys(ga.w.policiesOf[gateway]), policyID.compare)
}

func (ga *gatherer) gatherPolicy(b fleet.Source) gathered {
	none := gathered{bundle: &fleet.Bundle{Source: b}}
	id, watched := ga.w.hub.policyOf(b)
	if !watched {
		for _, c := range ga.w.subs.classes {
			if c.Err != nil { // it may list the kind
				none.frozen = c.Err.Error()
			}
		}
		return none
	}
	if t := ga.w.hub.policyTable(id.resource); t == nil || !t.synced || t.err != nil {
		none.frozen = id.resource.String() + " cannot be read"
		return none
	}
	a, problem := ga.w.hub.aim(id, ga.selections())
	switch {
	case problem != nil:
		none.frozen = problem.Message
	case a == nil:
	case a.Frozen:
		none.frozen = "it is not known where one of the gateways that it targets goes"
	case a.Bundle() == b:
		return gathered{bundle: fleet.PolicyBundle(a, ga.labelsOf)}
	}
	return none
}

func (ga *gatherer) gatherSet(b fleet.Source) gathered {
	selected, frozen, problems := ga.selectSets()
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

func (ga *gatherer) selectSets() ([]*fleet.Set, []fleet.Name, []fleet.Problem) {
	var all []*fleetv1alpha1.NetworkPolicySet
	ga.w.eachRow(sets, func(_ fleet.Name, row any) { all = append(all, row.(*networkPolicySet).typed) })
	var policies []fleet.Object
	ga.w.eachRow(networkPolicies, func(_ fleet.Name, row any) { policies = append(policies, row.(*object).Object) })
	return fleet.SelectSets(all, policies, ga.w.hub.lookup())
}
