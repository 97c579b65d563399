package controller

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/flowkeep/flowkeep/fleet"
	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// known is a bundle as it was when it was looked at last.
type known struct {
	bundle *fleet.Bundle
	frozen string
}

// known of a bundle; nil: it has not been looked at yet.
func (c *controller) known(b fleet.Source) *known {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bundles[b]
}

// remember keeps the desired bundle. A frozen one stays as it was.
func (c *controller) remember(b fleet.Source, g gathered) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.bundles[b]
	switch {
	case g.frozen != "" && k != nil:
		c.bundles[b] = &known{k.bundle, g.frozen}
	case g.frozen != "":
		c.bundles[b] = &known{&fleet.Bundle{Source: b}, g.frozen}
	case len(g.bundle.Clusters) == 0 && len(g.bundle.Problems) == 0 && !g.there:
		delete(c.bundles, b)
	default:
		c.bundles[b] = &known{bundle: g.bundle}
	}
}

func nameOf(o fleet.Object) fleet.Name {
	u := unstructured.Unstructured{Object: o}
	return fleet.Name{Namespace: u.GetNamespace(), Name: u.GetName()}
}

// frozen is how many bundles are.
func (c *controller) frozen() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.bundles {
		if k.frozen != "" {
			n++
		}
	}
	return n
}

// problems returns those of the bundle; none of nil.
func (k *known) problems() []fleet.Problem {
	if k == nil {
		return nil
	}
	return k.bundle.Problems
}

func (k *known) clusters() (names []string) {
	for i := range k.bundle.Clusters {
		names = append(names, k.bundle.Clusters[i].Cluster)
	}
	return names
}

// problem of a source in a cluster.
func (k *known) problem(s fleet.Source, cluster string) *fleet.Problem {
	for i := range k.bundle.Problems {
		if p := &k.bundle.Problems[i]; p.Source == s && (p.Cluster == "" || p.Cluster == cluster) {
			return p
		}
	}
	return nil
}

// copies of a cluster.
func (k *known) copies(cluster string) []*fleet.Copy {
	at, ok := slices.BinarySearchFunc(k.bundle.Clusters, cluster, func(c fleet.ClusterBundle, name string) int { return cmp.Compare(c.Cluster, name) })
	if !ok {
		return nil
	}
	return k.bundle.Clusters[at].Copies
}

// states of a source's copies of a kind and a name on the spokes, one per cluster.
func (c *reporter) states(k *known, s fleet.Source, kind string, spoke fleet.Name, clusters []string) (states []fleet.State) {
	answers := c.answers(k.bundle.Source)
	for _, cluster := range clusters {
		var wanted *fleet.Copy
		for _, one := range k.copies(cluster) {
			if one.Source == s && one.Kind == kind && one.Name == spoke {
				wanted = one
			}
		}
		state := fleet.StateOf(c.world.hub.clusterOf(cluster), wanted, k.problem(s, cluster), answers[cluster])
		if p := c.refusal(k.bundle.Source, s, cluster); p != nil && state.Phase == fleet.Waiting {
			state.Phase, state.Reason, state.Message = fleet.NotSent, p.Reason, p.Message
		}
		states = append(states, state)
	}
	return states
}

// answers of all of a bundle's works, by cluster.
func (c *reporter) answers(b fleet.Source) map[string][]fleet.Answer {
	found := c.answered[b]
	if found != nil {
		return found
	}
	found = map[string][]fleet.Answer{}
	for at := range c.world.worksOf[b] {
		if one := row[*work](c.world, works, at); one != nil {
			found[at.Namespace] = append(slices.Clip(found[at.Namespace]), one.answers...)
		}
	}
	c.answered[b] = found
	return found
}

// spokeOf is the name of a source's copies on the spokes.
func (k *known) spokeOf(s fleet.Source) fleet.Name {
	for i := range k.bundle.Clusters {
		for _, one := range k.bundle.Clusters[i].Copies {
			if one.Source == s {
				return one.Name
			}
		}
	}
	return fleet.Name{}
}

func (c *reporter) setPolicy(k *known, s *fleet.Set, p fleet.Object) fleet.SetPolicy {
	name := nameOf(p)
	source := fleet.Source{Group: networkPolicyResource.Group, Kind: "NetworkPolicy", Name: name}
	spoke := fleet.Name{Namespace: s.TargetNamespace, Name: name.Name}
	return fleet.SetPolicy{
		Name:         name,
		States:       c.states(k, source, "NetworkPolicy", spoke, s.Clusters),
		Enforcements: c.states(k, source, fleetv1alpha1.KindEnforcement, spoke, s.Clusters),
	}
}

// statuses queues the objects of the hub with a status to write.
type statuses struct {
	w     *world
	tells *queue
}

// tellAnswers marks the statuses of copies of which a spoke's report has changed.
func (ss *statuses) tellAnswers(before, after *work) {
	one := after
	if one == nil {
		one = before
	}
	ss.tell(one.Bundle)
	for i := range one.Sent {
		s := one.Sent[i].Source
		if before == nil || after == nil || !reflect.DeepEqual(answerOf(before, one.Sent[i].Key), answerOf(after, one.Sent[i].Key)) {
			ss.tell(s)
			if s == one.Bundle {
				for _, g := range ss.w.gatewaysBeside(s) {
					ss.tell(g)
				}
			}
		}
	}
}

func answerOf(one *work, k fleet.Key) *fleet.Answer {
	for i := range one.answers {
		if one.answers[i].Copy == k {
			return &one.answers[i]
		}
	}
	return nil
}

// tellBundle marks the statuses of all copies in a work.
func (ss *statuses) tellBundle(one *work) { ss.tellAnswers(nil, one) }
