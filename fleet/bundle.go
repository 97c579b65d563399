package fleet

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Bundle is copies that travel together, by cluster. It is named by a Source: that of a hub Gateway, of a policy, or of a NetworkPolicySet.
type Bundle struct {
	Source
	// Clusters in order of name.
	Clusters []ClusterBundle
	// Problems keep sources, or what some clusters get of them, from going out.
	Problems []Problem
	// After are the policies that the gateway waits for where it is new.
	After []Await
	// With are the gateways that a policy goes with which is a bundle of its own.
	With []Source
	// Left is the begin of the grace periods of clusters that no decision names any more.
	Left Left
	// Overridden is where overrides take effect.
	Overridden map[Name][]string

	limit int // of the hub, in bytes of manifests in a work; 0: none is known
}

// ClusterBundle is what one cluster gets of a bundle. Copies that clusters have alike are the same.
type ClusterBundle struct {
	Cluster string
	// Copies in the order in which they are applied: namespaces, policies, the gateway.
	Copies []*Copy
	// Held are sources of which it is not known what the cluster is to have. What it has of them stays; where it
	// has nothing, the copy above goes, if there is one.
	Held map[Source]bool
}

// Hold keeps what clusters have of a source in the bundle's works, whatever the bundle has of it: for hub objects that can't be read.
func (b *Bundle) Hold(source Source) {
	for i := range b.Clusters {
		b.Clusters[i].hold(source)
	}
}

func (c *ClusterBundle) hold(source Source) {
	if c.Held == nil {
		c.Held = map[Source]bool{}
	}
	c.Held[source] = true
}

// ClusterLabels are those of a ManagedCluster.
type ClusterLabels func(cluster string) map[string]string

// GatewayBundle is what goes with a gateway: its copies, and those policies that go with it alone. Where the gateway is new it waits for them, and
// for what else it is to Await.
func GatewayBundle(g *Gateway, policies []*Aimed, of ClusterLabels) *Bundle {
	b := newBundler(GatewaySource(g.Name), of)
	policies = slices.Clone(policies)
	slices.SortFunc(policies, func(a, b *Aimed) int { return a.Source().Compare(b.Source()) })
	for _, p := range policies {
		b.policy(p)
	}
	b.gateway(g)
	bundle := b.bundle()
	bundle.Left = g.Left
	for _, p := range policies {
		bundle.Await(g, p.Policy)
	}
	return bundle
}

// PolicyBundle is a policy that goes with several gateways.
func PolicyBundle(p *Aimed, of ClusterLabels) *Bundle {
	b := newBundler(p.Source(), of)
	b.policy(p)
	bundle := b.bundle()
	for _, g := range p.Gateways {
		bundle.With = append(bundle.With, GatewaySource(g.Name))
	}
	return bundle
}

// SetBundle returns the bundle of a set: its NetworkPolicies, and with each a NetworkPolicyEnforcement.
func SetBundle(s *Set) *Bundle {
	b := newBundler(SetSource(s.Name), nil)
	for _, p := range s.Policies {
		b.networkPolicy(s, p)
	}
	bundle := b.bundle()
	bundle.Left = s.Left
	return bundle
}

// bundler gathers copies by cluster.
type bundler struct {
	b          *Bundle
	of         ClusterLabels
	clusters   map[string]*ClusterBundle
	namespaces map[string]*Copy
	has        map[clusterNamespace]bool
}

type clusterNamespace struct{ cluster, namespace string }

func newBundler(source Source, of ClusterLabels) *bundler {
	return &bundler{
		b: &Bundle{Source: source}, of: of,
		clusters: map[string]*ClusterBundle{}, namespaces: map[string]*Copy{}, has: map[clusterNamespace]bool{},
	}
}

func (b *bundler) problem(source Source, cluster, reason, format string, args ...any) {
	p := Problem{Source: source, Cluster: cluster, Reason: reason, Message: fmt.Sprintf(format, args...)}
	if !slices.Contains(b.b.Problems, p) {
		b.b.Problems = append(b.b.Problems, p)
	}
}

func (b *bundler) cluster(name string) *ClusterBundle {
	c := b.clusters[name]
	if c == nil {
		c = &ClusterBundle{Cluster: name}
		b.clusters[name] = c
	}
	return c
}

// add gives a cluster a copy, if it is not too large for any work.
func (b *bundler) add(cluster string, c *Copy) {
	to := b.cluster(cluster)
	if size := c.size(); size > copyBytes {
		b.hold(cluster, c.Source)
		b.problem(c.Source, "", ReasonTooLarge, "its copy has %d bytes, and no more than %d go out; what was sent before stays", size, copyBytes)
		return
	}
	to.Copies = append(to.Copies, c)
}

func (b *bundler) hold(cluster string, source Source) {
	b.cluster(cluster).hold(source)
}

// namespace goes ahead of what lies in it. It is the spoke's: it stays as it is if there is one, and stays when the rest goes. It is made if
// there is none, or only asked for.
func (b *bundler) namespace(cluster, name string, made bool) {
	at := clusterNamespace{cluster, name}
	if b.has[at] {
		return
	}
	b.has[at] = true
	c := b.namespaces[name]
	if c == nil {
		c = namespaceCopy(name, made)
		b.namespaces[name] = c
	}
	to := b.cluster(cluster)
	to.Copies = append(to.Copies, c)
}

func namespaceCopy(name string, made bool) *Copy {
	o := Object{"apiVersion": "v1", "kind": "Namespace", "metadata": Object{"name": name}}
	raw, _ := json.Marshal(o) // texts alone always can be
	c := &Copy{
		Source: Source{"", "Namespace", Name{"", name}}, Resource: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"},
		Kind: "Namespace", Name: Name{"", name}, Object: o, JSON: raw, CreateOnly: made, ReadOnly: !made, Orphan: true,
	}
	return c.finish()
}

var gatewayKind = Kind{
	GroupVersionKind: schema.GroupVersionKind{Group: gatewayv1.GroupName, Version: "v1", Kind: kindGateway}, Resource: "gateways", Status: true, Subresource: true,
}

func (b *bundler) gateway(g *Gateway) {
	spec := maps.Clone(object(g.Object, "spec"))
	if spec == nil {
		spec = Object{}
	}
	spec["gatewayClassName"] = g.Parameters.Class
	if g.Parameters.Secrets {
		spec = mapSecretRefs(spec, g.Namespace, g.Parameters.SpokeName)
		b.secrets(g)
	}
	c, err := newCopy(g.Object, gatewayKind, GatewaySource(g.Name), g.Parameters.SpokeName(g.Name), spec)
	if err != nil {
		b.broken(GatewaySource(g.Name), g.Clusters, err)
		return
	}
	for _, cluster := range g.Clusters {
		b.namespace(cluster, c.Namespace, true)
		b.add(cluster, c)
	}
}

// broken: nothing can be made of an object of the hub's.
func (b *bundler) broken(source Source, clusters []string, err error) {
	b.problem(source, "", ReasonInvalid, "%v; what was sent before stays", err)
	for _, cluster := range clusters {
		b.hold(cluster, source)
	}
}

// newCopy returns a copy of a hub object with another spec, or with none.
func newCopy(o Object, kind Kind, source Source, to Name, spec Object) (*Copy, error) {
	o = maps.Clone(o)
	o["apiVersion"], o["kind"] = kind.GroupVersion().String(), kind.Kind
	var body any
	if spec != nil {
		body = spec
	}
	copied, raw, hash, err := stamped(o, source, to, body)
	if err != nil {
		return nil, err
	}
	c := &Copy{
		Source: source, Resource: kind.GroupVersion().WithResource(kind.Resource), Kind: kind.Kind, Name: to,
		Object: copied, JSON: raw, Hash: hash, Feedback: Feedback(kind, copied),
		created: textOf(object(o, "metadata"), "creationTimestamp"),
	}
	return c.finish(), nil
}

// location is where on spokes gateways lie that a policy goes with, and the name that its copy has there.
type location struct {
	to       Name
	gateways []*Gateway
}

// locations: gateways of classes that put them into one namespace share a copy. With some it must not go.
func (a *Aimed) locations() (all []location) {
	for _, g := range a.Gateways {
		if a.refused(g) != "" {
			continue
		}
		to := g.Parameters.SpokeName(a.Name)
		at := slices.IndexFunc(all, func(l location) bool { return l.to == to })
		if at < 0 {
			all, at = append(all, location{to: to}), len(all)
		}
		all[at].gateways = append(all[at].gateways, g)
	}
	return all
}

// policy adds a policy's copies. Clusters that have the same of its gateways and the same overrides share one.
func (b *bundler) policy(a *Aimed) {
	overrides := sortOverrides(a.Overrides)
	for _, g := range a.Gateways {
		if why := a.refused(g); why != "" {
			for _, cluster := range g.Clusters {
				b.problem(a.Source(), cluster, ReasonRefNotPermitted, "%s", why)
			}
		}
	}
	for _, l := range a.locations() {
		made := map[string]*Copy{}
		for _, cluster := range clustersOf(l.gateways) {
			here, applied, variant := b.variant(a, l, overrides, cluster)
			c, known := made[variant]
			if !known {
				c = b.policyCopy(a, l, here, applied)
				made[variant] = c
			}
			if c == nil {
				b.hold(cluster, a.Source())
				continue
			}
			b.namespace(cluster, c.Namespace, true)
			b.add(cluster, c)
		}
	}
}

func clustersOf(gateways []*Gateway) (clusters []string) {
	if len(gateways) == 1 {
		return gateways[0].Clusters
	}
	for _, g := range gateways {
		clusters = append(clusters, g.Clusters...)
	}
	slices.Sort(clusters)
	return slices.Compact(clusters)
}

// variant is what makes the copy of a cluster other than those of others: which of the gateways are there, and which overrides are for it.
func (b *bundler) variant(a *Aimed, l location, overrides []*Override, cluster string) (here aims, applied []*Override, variant string) {
	here = aims{}
	for _, g := range a.Gateways {
		here[g.Name] = Name{}
	}
	var key strings.Builder
	for i, g := range l.gateways {
		if _, there := slices.BinarySearch(g.Clusters, cluster); there {
			here[g.Name] = g.Parameters.SpokeName(g.Name)
			fmt.Fprint(&key, i, ",")
		}
	}
	var of map[string]string
	if len(overrides) > 0 && b.of != nil {
		of = b.of(cluster)
	}
	for i, v := range overrides {
		switch {
		case !v.For(cluster, of):
		case v.Err != nil:
			b.hold(cluster, a.Source())
			b.problem(a.Source(), cluster, ReasonInvalidOverride, "PolicyOverride %s: %v", v.Name, v.Err)
		default:
			applied = append(applied, v)
			b.overridden(v, cluster)
			fmt.Fprint(&key, ";", i)
		}
	}
	return here, applied, key.String()
}

func (b *bundler) overridden(v *Override, cluster string) {
	if b.b.Overridden == nil {
		b.b.Overridden = map[Name][]string{}
	}
	if where := b.b.Overridden[v.Name]; !slices.Contains(where, cluster) {
		b.b.Overridden[v.Name] = append(where, cluster)
	}
}

// annotations returns those that the gateways' classes add. Of several values of one annotation the first gateway's
// counts.
func (l *location) annotations() map[string]string {
	all := map[string]string{}
	for _, g := range slices.Backward(l.gateways) {
		maps.Copy(all, g.Parameters.PolicyAnnotations)
	}
	return all
}

// policyCopy is nil if none can be made, which is a problem.
func (b *bundler) policyCopy(a *Aimed, l location, here aims, applied []*Override) *Copy {
	spec, hits, err := here.aim(object(a.Object, "spec"), a.Namespace)
	if err == nil && !hits {
		err = fmt.Errorf("it targets none of the gateways %s any more", l.gateways[0].Name)
	}
	if err == nil {
		for _, v := range applied {
			spec = merge(spec, v.merge)
		}
		var c *Copy
		if c, err = newCopy(annotated(a.Object, l.annotations()), a.Kind, a.Source(), l.to, spec); err == nil {
			return c
		}
	}
	b.problem(a.Source(), "", ReasonInvalid, "%v; what was sent before stays", err)
	return nil
}

var networkPolicyKind = Kind{GroupVersionKind: schema.GroupVersionKind{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"}, Resource: "networkpolicies"}

var enforcementKind = Kind{
	GroupVersionKind: fleetv1alpha1.GroupVersion.WithKind(fleetv1alpha1.KindEnforcement), Resource: fleetv1alpha1.ResourceEnforcement, Status: true, Subresource: true,
}

func (b *bundler) networkPolicy(s *Set, p Object) {
	name := nameOf(p)
	source, to := networkPolicySource(name), Name{s.TargetNamespace, name.Name}
	question := Object{"metadata": Object{}, "spec": Object{"policy": to.Name}}
	spec := object(p, "spec")
	if spec == nil {
		b.broken(source, s.Clusters, fmt.Errorf("it has no spec"))
		return
	}
	c, err := newCopy(p, networkPolicyKind, source, to, spec)
	if err != nil {
		b.broken(source, s.Clusters, err)
		return
	}
	asked, err := newCopy(question, enforcementKind, source, to, object(question, "spec"))
	if err != nil {
		b.broken(source, s.Clusters, err)
		return
	}
	for _, cluster := range s.Clusters {
		if !s.conflicts[place{cluster, to}] {
			b.namespace(cluster, to.Namespace, false)
			b.add(cluster, c)
			b.add(cluster, asked)
		}
	}
}

// bundle is what was gathered: namespaces come first.
func (b *bundler) bundle() *Bundle {
	for _, name := range slices.Sorted(maps.Keys(b.clusters)) {
		c := b.clusters[name]
		slices.SortStableFunc(c.Copies, func(x, y *Copy) int {
			switch {
			case x.Orphan == y.Orphan:
				return 0
			case x.Orphan:
				return -1
			}
			return 1
		})
		b.b.Clusters = append(b.b.Clusters, *c)
	}
	return b.b
}
