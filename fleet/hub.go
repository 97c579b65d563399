package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1beta1 "open-cluster-management.io/api/cluster/v1beta1"
	workv1 "open-cluster-management.io/api/work/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Hub is what a hub has at one moment.
type Hub struct {
	Controller      gatewayv1.GatewayController
	Definitions     []Definition
	Classes         []*gatewayv1.GatewayClass
	Parameters      map[Name]*corev1.ConfigMap
	Gateways        []Object
	Placements      map[Name]bool
	Decisions       []*clusterv1beta1.PlacementDecision
	Clusters        map[string]Cluster
	Works           []*workv1.ManifestWork // of the controller
	Overrides       []*fleetv1alpha1.PolicyOverride
	Sets            []*fleetv1alpha1.NetworkPolicySet
	NetworkPolicies []Object
	// Namespaces of spokes that sets may write into.
	Namespaces Namespaces
	// Policies of the kinds that Kinds returns.
	Policies map[schema.GroupResource][]Object
	// Unread is the inputs that the caller may not read, UnreadParameters which ConfigMaps, NoDefinitions that
	// CustomResourceDefinitions are.
	Unread           []string
	UnreadParameters map[Name]bool
	NoDefinitions    bool
}

// View is what becomes of what a hub has, and what its spokes say of it.
type View struct {
	Classes  map[string]*Class
	Gateways []GatewayView // those of classes that are handled, in order of name
	Policies []PolicyView  // those of kinds that classes list, in order of kind and name
	Sets     []SetView     // in order of name
	Bundles  []*Bundle     // that are wanted
	Unread   []string      // what may not be read, so that something is not known
}

// GatewayView is a hub Gateway.
type GatewayView struct {
	Name
	Class     string
	Placement Name // Name "": it has no label
	Spoke     Name // its copies
	Selection Selection
	Works     map[string][]string // that carry it, by cluster
	Report    GatewayReport
}

// PolicyView is a policy of a kind that goes along with gateways.
type PolicyView struct {
	Policy
	// Targets are all the gateways that its refs name.
	Targets []TargetView
	// Frozen: it is not known what is wanted, so that what was sent before stays. Problem is its fault, if it has one.
	Frozen  bool
	Problem *Problem
	Copies  []CopyView // by cluster
	Report  PolicyReport
}

// TargetView is a gateway that a policy targets, and why the policy does not go where it goes, if it does not.
type TargetView struct {
	Gateway, Placement Name
	Class              string
	Clusters           []string
	// Ours: it is one of the gateways that go to clusters with policies of the kind, or would if nothing were in the way.
	Ours        bool
	Why, Reason string
}

// CopyView is a copy in a cluster.
type CopyView struct {
	Cluster   string
	Spoke     Name
	Works     []string // that carry it, or are about to
	Overrides []Name   // that are in it, the last one last
	State     State
}

// SetView is a NetworkPolicySet.
type SetView struct {
	Name
	Placement Name
	Target    string                       // namespace on the spokes
	Works     map[Name]map[string][]string // that carry its NetworkPolicies, by cluster
	Report    SetReport
}

// Kinds of policies that classes of ours list.
func (h *Hub) Kinds() []Kind {
	var all []Kind
	for _, c := range h.classes() {
		all = append(all, c.Kinds...)
	}
	return OneVersion(all)
}

// ParametersRefs are the ConfigMaps that classes of ours name.
func (h *Hub) ParametersRefs() (refs []Name) {
	for _, c := range h.ours() {
		if ref, err := ParametersRef(c); err == nil && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	return refs
}

func (h *Hub) ours() (classes []*gatewayv1.GatewayClass) {
	for _, c := range h.Classes {
		if c.Spec.ControllerName == h.Controller && c.DeletionTimestamp == nil {
			classes = append(classes, c)
		}
	}
	return classes
}

func (h *Hub) classes() map[string]*Class {
	classes := map[string]*Class{}
	var listed []Kind
	for _, c := range h.ours() {
		var parameters *corev1.ConfigMap
		ref, err := ParametersRef(c)
		if err == nil {
			parameters = h.Parameters[ref]
		}
		classes[c.Name] = ReadClass(c, parameters, h.Definitions)
		if err == nil && h.UnreadParameters[ref] {
			classes[c.Name].Err = fmt.Errorf("ConfigMap %s %w", ref, errUnread)
		}
		if h.NoDefinitions {
			classes[c.Name].Problems = nil
		}
		listed = append(listed, classes[c.Name].Kinds...)
	}
	one := OneVersion(listed)
	for _, c := range classes {
		for i, k := range c.Kinds {
			at := slices.IndexFunc(one, func(o Kind) bool { return o.Group == k.Group && o.Resource == k.Resource })
			c.Kinds[i] = one[at]
		}
	}
	return classes
}

// viewer makes a view.
type viewer struct {
	*Hub
	view      *View
	lookup    Lookup
	selected  map[Name]Selection
	overrides map[Source][]*Override
	answers   map[copyAt][]Answer
	carriers  map[*Bundle]map[carried][]string
}

// carried is a copy that a work carries to a cluster.
type carried struct {
	cluster string
	Key
}

// copyAt is where an answer is about; its resource may be unknown.
type copyAt struct {
	cluster string
	Name
}

// View puts together what becomes of all of it.
func (h *Hub) View() *View {
	v := &viewer{Hub: h, view: &View{Classes: h.classes(), Unread: h.Unread}, selected: map[Name]Selection{}, overrides: map[Source][]*Override{}, answers: map[copyAt][]Answer{}, carriers: map[*Bundle]map[carried][]string{}}
	decisions := map[Name][]*clusterv1beta1.PlacementDecision{}
	for _, d := range h.Decisions {
		of := Name{d.Namespace, d.Labels[clusterv1beta1.PlacementLabel]}
		decisions[of] = append(decisions[of], d)
	}
	v.lookup = Lookup{
		Class:     func(name string) *Class { return v.view.Classes[name] },
		Placement: func(name Name) bool { return h.Placements[name] },
		Decisions: func(name Name) []*clusterv1beta1.PlacementDecision { return decisions[name] }, Namespaces: h.Namespaces,
		Kept: func(bundle Source, _ Name) Left { return h.keeping(bundle) },
	}
	for _, o := range h.Overrides {
		if o.DeletionTimestamp == nil {
			one := ReadOverride(o)
			v.overrides[one.Target] = append(v.overrides[one.Target], one)
		}
	}
	for _, w := range h.Works {
		for _, a := range Answers(w) {
			at := copyAt{a.Cluster, a.Copy.Name}
			v.answers[at] = append(v.answers[at], a)
		}
	}
	for at, all := range v.answers { // with each what is said of its namespace
		if at.Namespace != "" {
			v.answers[at] = append(all, v.answers[copyAt{at.cluster, Name{"", at.Namespace}}]...)
		}
	}
	v.gateways()
	v.policies()
	v.sets()
	return v.view
}

// keeping returns the clusters that have works of a bundle. Policy sync deletes those of clusters that are to have
// none, when their time is over.
func (h *Hub) keeping(bundle Source) Left {
	left := Left{}
	for _, w := range h.Works {
		of := w.Annotations[AnnotationBundle]
		if w.DeletionTimestamp == nil && of == bundle.String() && h.Clusters[w.Namespace].Known {
			left[w.Namespace] = time.Time{}
		}
	}
	return left
}

func (v *viewer) gateways() {
	for _, o := range v.Gateways {
		name := nameOf(o)
		s := SelectGateway(o, v.lookup)
		v.selected[name] = s
		if s.Gateway == nil && s.Problem == nil {
			continue // not ours
		}
		class := textOf(object(o, "spec"), "gatewayClassName")
		g := GatewayView{Name: name, Class: class, Placement: PlacementOf(o), Selection: s}
		g.Report = GatewayReport{Controller: v.Controller, Gateway: o, Problem: s.Problem}
		if s.Gateway != nil {
			g.Spoke = s.Gateway.Parameters.SpokeName(name)
		}
		v.view.Gateways = append(v.view.Gateways, g)
	}
	slices.SortFunc(v.view.Gateways, func(a, b GatewayView) int { return a.Compare(b.Name) })
}

// PlacementOf returns the Placement that a hub Gateway names; its Name is empty where it names none.
func PlacementOf(gateway Object) Name {
	return Name{nameOf(gateway).Namespace, textOf(object(gateway, "metadata", "labels"), LabelPlacement)}
}

// policies finds where policies go, bundles them as they are sent, and reads what spokes say of them and of gateways.
func (v *viewer) policies() {
	along, aimed := map[Name][]*Aimed{}, []*Aimed{}
	for _, kind := range v.Kinds() {
		for _, o := range v.Policies[schema.GroupResource{Group: kind.Group, Resource: kind.Resource}] {
			if absent(o) {
				continue
			}
			p := PolicyView{Policy: Policy{Kind: kind, Name: nameOf(o), Object: o}}
			p.Targets = v.targets(&p.Policy)
			p.Report = PolicyReport{Policy: p.Policy}
			a, problem := Aim(&p.Policy, func(name Name) Selection { return v.selected[name] })
			if p.Problem = problem; a != nil {
				a.Overrides, p.Frozen = v.overrides[a.Source()], a.Frozen
				if len(a.Gateways) == 1 && !a.Frozen {
					along[a.Gateways[0].Name] = append(along[a.Gateways[0].Name], a)
				}
			}
			aimed, v.view.Policies = append(aimed, a), append(v.view.Policies, p)
		}
	}
	bundles := v.gatewayBundles(along)
	v.await(aimed, bundles)
	for i, a := range aimed {
		if a == nil || a.Frozen {
			continue
		}
		b := bundles[a.Bundle()]
		if b == nil {
			b = PolicyBundle(a, v.labels)
			v.view.Bundles = append(v.view.Bundles, b)
		}
		v.policy(&v.view.Policies[i], a, b)
	}
	slices.SortFunc(v.view.Policies, func(a, b PolicyView) int { return a.Source().Compare(b.Source()) })
	for i := range v.view.Gateways {
		g := &v.view.Gateways[i]
		for j := range v.view.Policies {
			if r := &v.view.Policies[j].Report; slices.ContainsFunc(r.Targets, func(t Target) bool { return t.Gateway == g.Name }) {
				g.Report.Policies = append(g.Report.Policies, *r)
			}
		}
		if b := bundles[GatewaySource(g.Name)]; b != nil {
			g.Report.States = Awaiting(g.Name, g.Report.States, b.After, g.Report.Policies)
		}
	}
}

func (v *viewer) labels(cluster string) map[string]string { return v.Clusters[cluster].Labels }

func (v *viewer) gatewayBundles(along map[Name][]*Aimed) map[Source]*Bundle {
	bundles := map[Source]*Bundle{}
	for i := range v.view.Gateways {
		g := &v.view.Gateways[i]
		if g.Selection.Gateway == nil {
			continue
		}
		b := GatewayBundle(g.Selection.Gateway, along[g.Name], v.labels)
		bundles[b.Source], v.view.Bundles = b, append(v.view.Bundles, b)
		g.Report.States = v.states(b, b.Source, kindGateway, g.Spoke, g.Selection.Gateway.Clusters)
		g.Works = v.carry(b, Key{gatewayv1.GroupName, gatewayKind.Resource, g.Spoke}, g.Selection.Gateway.Clusters)
	}
	return bundles
}

// await has gateways wait for policies that do not go in their bundles, and for those of their namespaces of which it can't be read what they target.
func (v *viewer) await(aimed []*Aimed, bundles map[Source]*Bundle) {
	for i, a := range aimed {
		p := &v.view.Policies[i]
		for j := range v.view.Gateways {
			g := v.view.Gateways[j].Selection.Gateway
			if g == nil {
				continue
			}
			b := bundles[GatewaySource(g.Name)]
			switch {
			case a == nil && p.Problem != nil && g.Namespace == p.Namespace && g.Lists(p.Kind), a != nil && a.Bundle() != b.Source && slices.Contains(a.Gateways, g):
				b.Await(g, &p.Policy)
			}
		}
	}
}

// states of a source's copies of a kind and a name, one per cluster.
func (v *viewer) states(b *Bundle, s Source, kind string, spoke Name, clusters []string) (states []State) {
	for _, cluster := range clusters {
		problem := b.problemOf(s, cluster)
		states = append(states, StateOf(v.cluster(cluster), b.copyOf(cluster, s, kind, spoke), problem, v.answers[copyAt{cluster, spoke}]))
	}
	return states
}

func (v *viewer) cluster(name string) Cluster {
	c := v.Clusters[name]
	c.Name = name
	return c
}

func (b *Bundle) copyOf(cluster string, s Source, kind string, spoke Name) *Copy {
	at, ok := slices.BinarySearchFunc(b.Clusters, cluster, func(c ClusterBundle, name string) int { return strings.Compare(c.Cluster, name) })
	if !ok {
		return nil
	}
	for _, c := range b.Clusters[at].Copies {
		if c.Source == s && c.Kind == kind && c.Name == spoke {
			return c
		}
	}
	return nil
}

func (b *Bundle) problemOf(s Source, cluster string) *Problem {
	for i := range b.Problems {
		if p := &b.Problems[i]; p.Source == s && (p.Cluster == "" || p.Cluster == cluster) {
			return p
		}
	}
	return nil
}

func (v *viewer) policy(p *PolicyView, a *Aimed, b *Bundle) {
	for _, g := range a.Gateways {
		spoke := g.Parameters.SpokeName(a.Name)
		t := Target{Gateway: g.Name, Spoke: g.Parameters.SpokeName(g.Name), States: v.states(b, a.Source(), a.Kind.Kind, spoke, g.Clusters)}
		p.Report.Targets = append(p.Report.Targets, t)
		for _, s := range t.States {
			if !slices.ContainsFunc(p.Copies, func(c CopyView) bool { return c.Cluster == s.Cluster && c.Spoke == spoke }) {
				p.Copies = append(p.Copies, v.copy(a, b, s, spoke))
			}
		}
	}
	slices.SortStableFunc(p.Copies, func(a, b CopyView) int { return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), a.Spoke.Compare(b.Spoke)) })
}

func (v *viewer) copy(a *Aimed, b *Bundle, s State, spoke Name) CopyView {
	c := CopyView{Cluster: s.Cluster, Spoke: spoke, State: s}
	for _, o := range sortOverrides(a.Overrides) {
		if o.Err == nil && o.For(s.Cluster, v.labels(s.Cluster)) {
			c.Overrides = append(c.Overrides, o.Name)
		}
	}
	c.Works = v.worksOf(b)[carried{s.Cluster, Key{a.Kind.Group, a.Kind.Resource, spoke}}]
	return c
}

// worksOf are the names of a bundle's works, by what they carry.
func (v *viewer) worksOf(b *Bundle) map[carried][]string {
	known := v.carriers[b]
	if known == nil {
		known = map[carried][]string{}
		for _, w := range b.Works(string(v.Controller)) {
			for _, c := range w.Copies {
				at := carried{w.Cluster, c.Key()}
				known[at] = append(known[at], w.Name)
			}
		}
		v.carriers[b] = known
	}
	return known
}

// carry are the names of the works that carry a copy, by cluster.
func (v *viewer) carry(b *Bundle, key Key, clusters []string) map[string][]string {
	works := map[string][]string{}
	for _, c := range clusters {
		works[c] = v.worksOf(b)[carried{c, key}]
	}
	return works
}

// targets are all the gateways that a policy names, and why it does not go along with them.
func (v *viewer) targets(p *Policy) (targets []TargetView) {
	names, err := Targets(p.Object)
	if err != nil {
		return nil
	}
	for _, name := range names {
		t := TargetView{Gateway: name}
		at := slices.IndexFunc(v.Gateways, func(o Object) bool { return nameOf(o) == name })
		if at < 0 {
			t.Why = "the hub has no such Gateway"
			targets = append(targets, t)
			continue
		}
		s := v.selected[name]
		t.Class, t.Placement = textOf(object(v.Gateways[at], "spec"), "gatewayClassName"), PlacementOf(v.Gateways[at])
		switch {
		case s.Problem != nil:
			t.Ours, t.Why = true, s.Problem.Message
		case s.Gateway == nil && v.view.Classes[t.Class] == nil:
			t.Why = fmt.Sprintf("its class %s is not one of %s", t.Class, v.Controller)
		case s.Gateway == nil:
			t.Why = "it is being deleted, or is a copy itself"
		case !s.Gateway.Lists(p.Kind):
			t.Why = fmt.Sprintf("its class %s does not list the kind %s", t.Class, p.Kind.Kind)
		case p.refused(s.Gateway) != "":
			t.Ours, t.Clusters, t.Why = true, s.Gateway.Clusters, p.refused(s.Gateway)
			t.Reason = ReasonRefNotPermitted
		default:
			t.Ours, t.Clusters = true, s.Gateway.Clusters
		}
		targets = append(targets, t)
	}
	return targets
}

func (v *viewer) sets() {
	selected, _, problems := SelectSets(v.Sets, v.NetworkPolicies, v.lookup)
	for _, o := range v.Sets {
		if o.DeletionTimestamp != nil {
			continue
		}
		s := SetView{Name: Name{o.Namespace, o.Name}, Placement: Name{o.Namespace, o.Spec.Placement}, Target: cmp.Or(o.Spec.TargetNamespace, o.Namespace)}
		for i := range problems {
			if problems[i].Source == SetSource(s.Name) {
				s.Report.Problem = &problems[i]
			}
		}
		if at := slices.IndexFunc(selected, func(one *Set) bool { return one.Name == s.Name }); at >= 0 {
			v.set(&s, selected[at], problems)
		}
		v.view.Sets = append(v.view.Sets, s)
	}
	slices.SortFunc(v.view.Sets, func(a, b SetView) int { return a.Compare(b.Name) })
}

func (v *viewer) set(s *SetView, of *Set, problems []Problem) {
	b := SetBundle(of)
	v.view.Bundles = append(v.view.Bundles, b)
	b.Problems = append(b.Problems, problems...)
	s.Report.Clusters, s.Works = of.Clusters, map[Name]map[string][]string{}
	for _, p := range of.Policies {
		name := nameOf(p)
		spoke := Name{of.TargetNamespace, name.Name}
		s.Works[name] = v.carry(b, Key{networkPolicyKind.Group, networkPolicyKind.Resource, spoke}, of.Clusters)
		s.Report.Policies = append(s.Report.Policies, SetPolicy{
			Name:         name,
			States:       v.states(b, networkPolicySource(name), "NetworkPolicy", spoke, of.Clusters),
			Enforcements: v.states(b, networkPolicySource(name), kindEnforcement, spoke, of.Clusters),
		})
	}
}

// Generation is the policy's.
func (p *PolicyView) Generation() int64 { return generationOf(p.Object) }

// Concerns reports whether the policy is one that goes to clusters, or would if nothing were in the way.
func (p *PolicyView) Concerns() bool {
	return p.Problem != nil || slices.ContainsFunc(p.Targets, func(t TargetView) bool { return t.Ours })
}

// Everywhere returns the result of Report, unless something keeps the policy from going with all of its gateways.
func (p *PolicyView) Everywhere() Everywhere {
	e := p.Report.Everywhere()
	if p.Problem != nil {
		e.Status, e.Reason, e.Message = metav1.ConditionFalse, p.Problem.Reason, p.Problem.Message
		return e
	}
	for _, t := range p.Targets {
		if t.Ours && t.Why != "" {
			e.Status, e.Reason, e.Message = metav1.ConditionFalse, cmp.Or(t.Reason, "NotPlaced"), fmt.Sprintf("it does not go with gateway %s: %s", t.Gateway, t.Why)
			return e
		}
	}
	return e
}

// Problems are those with classes, in order of name.
func (v *View) Problems() []string {
	problems := []string{}
	for _, name := range slices.Sorted(maps.Keys(v.Classes)) {
		if errors.Is(v.Classes[name].Err, errUnread) {
			continue
		}
		for _, c := range []metav1.Condition{v.Classes[name].accepted(), v.Classes[name].kindsSynced()} {
			if c.Status == metav1.ConditionFalse {
				problems = append(problems, fmt.Sprintf("GatewayClass %s: %s", name, c.Message))
			}
		}
	}
	return problems
}
