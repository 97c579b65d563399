package fleet

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

var (
	clusterNames = []string{"c1", "c2", "c3"}
	hubSpaces    = []string{"shop", "shop-a", "a"}
	gatewayNames = []string{"web", "a-web", "a.web"}
	policyNames  = []string{"limits", "auth", "limits.v2", "quota", "burst"}
)

const limitsCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ratelimitpolicies.kuadrant.io, labels: {gateway.networking.k8s.io/policy: direct}}
spec:
  group: kuadrant.io
  scope: Namespaced
  names: {kind: RateLimitPolicy, plural: ratelimitpolicies}
  versions:
  - {name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {properties: {status: {properties: {conditions: {}}}}}}}
status: {conditions: [{type: Established, status: "True"}]}
`

// randomHub has a bit of everything.
func randomHub(t testing.TB, r random) *hub {
	h := newHub()
	h.most = small
	d, ok := ReadDefinition(tree(t, limitsCRD))
	if !ok {
		t.Fatal("the definition is not read")
	}
	h.definitions = []Definition{d}
	for _, class := range []string{"plain", "moved", "other"} {
		h.classes = append(h.classes, classOf(class))
		data := map[string]string{"downstreamClass": "envoy", "policies": "[{group: kuadrant.io, kind: RateLimitPolicy}]"}
		if class != "plain" {
			data["downstreamNamespace"] = "edge-" + class
		}
		h.parameters[Name{"hub", class}] = &corev1.ConfigMap{Data: data}
	}
	for _, c := range clusterNames {
		h.clusters[c] = map[string]string{"name": c, "region": r.one("east", "west")}
	}
	for _, namespace := range hubSpaces {
		h.placements[Name{namespace, "all"}] = slices.Clone(clusterNames)
		h.placements[Name{namespace, "some"}] = r.some(clusterNames...)
	}
	for _, namespace := range takenSpaces {
		h.placements[Name{namespace, "all"}] = slices.Clone(clusterNames)
		h.placements[Name{namespace, "some"}] = r.some(clusterNames...)
	}
	for range 30 {
		h.change(t, r)
	}
	return h
}

func classOf(name string) *gatewayv1.GatewayClass {
	namespace := gatewayv1.Namespace("hub")
	return &gatewayv1.GatewayClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1},
		Spec: gatewayv1.GatewayClassSpec{
			ControllerName: DefaultController, ParametersRef: &gatewayv1.ParametersReference{Kind: "ConfigMap", Namespace: &namespace, Name: name},
		},
	}
}

// hubMeta is metadata with all that a hub puts into it.
func hubMeta(r random, name Name, more string) string {
	return fmt.Sprintf(`{name: %s, namespace: %s, uid: u%d, resourceVersion: "%d", generation: %d, creationTimestamp: "2026-01-0%dT00:00:00Z", selfLink: /x,
  ownerReferences: [{uid: o}], finalizers: [f/x], managedFields: [{manager: m}], generateName: x-, annotations: {%s: "{}", note: n, %s: old}%s}`,
		name.Name, name.Namespace, r.IntN(99), r.IntN(99), r.IntN(9), 1+r.IntN(9), lastApplied, AnnotationCopy, more)
}

// change does one thing to the hub.
func (h *hub) change(t testing.TB, r random) {
	namespace := r.one(hubSpaces...)
	if r.IntN(10) == 0 {
		h.changeTaken(t, r)
		return
	}
	switch r.IntN(10) {
	case 0, 1:
		h.gateways = put(h.gateways, h.randomGateway(t, r, Name{namespace, r.one(gatewayNames...)}))
	case 2:
		h.gateways = drop(r, h.gateways, 3)
	case 3, 4, 5:
		h.policies["RateLimitPolicy"] = put(h.policies["RateLimitPolicy"], h.randomPolicy(t, r, Name{namespace, r.one(policyNames...)}))
	case 6:
		h.policies["RateLimitPolicy"] = drop(r, h.policies["RateLimitPolicy"], 1)
	case 7:
		h.placements[Name{namespace, r.one("all", "some")}] = r.some(clusterNames...)
	case 8:
		h.changeSets(t, r, namespace)
	case 9:
		h.changeRest(t, r, namespace)
	}
}

// takenSpaces of the hub are those in which the copies of classes lie on spokes.
var takenSpaces = []string{"edge-moved", "edge-other"}

// changeTaken: something of the hub has the name that something else of it has on spokes.
func (h *hub) changeTaken(t testing.TB, r random) {
	class := r.one("moved", "other")
	to := Parameters{Namespace: "edge-" + class}
	web, limits := to.SpokeName(Name{"shop", "web"}), to.SpokeName(Name{"shop", "limits"})
	switch r.IntN(4) {
	case 0, 1:
		for i, name := range []Name{web, {"shop", "web"}} {
			o := h.randomGateway(t, r, name)
			object(o, "spec")["gatewayClassName"] = []string{"plain", class}[i]
			h.gateways = put(h.gateways, o)
		}
	case 2:
		h.policies["RateLimitPolicy"] = put(h.policies["RateLimitPolicy"], tree(t, fmt.Sprintf(
			`{metadata: %s, spec: {targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: %s}, limit: %d}}`, hubMeta(r, limits, ""), web.Name, r.IntN(5))))
	case 3:
		h.gateways = slices.DeleteFunc(slices.Clone(h.gateways), func(o Object) bool { return nameOf(o) == web })
		h.policies["RateLimitPolicy"] = slices.DeleteFunc(slices.Clone(h.policies["RateLimitPolicy"]), func(o Object) bool { return nameOf(o) == limits })
	}
}

func (h *hub) changeSets(t testing.TB, r random, namespace string) {
	switch r.IntN(3) {
	case 0:
		h.networkPolicies = put(h.networkPolicies, tree(t, fmt.Sprintf(`{metadata: %s, spec: {podSelector: {}, ingress: [{ports: [{port: %d}]}]}}`,
			hubMeta(r, Name{namespace, r.one("deny", "allow")}, `, labels: {fleet: "`+r.one("yes", "no")+`"}`), r.IntN(5))))
	case 1:
		name := r.one("base", "more")
		h.sets = slices.DeleteFunc(h.sets, func(s *fleetv1alpha1.NetworkPolicySet) bool { return s.Namespace == namespace && s.Name == name })
		h.sets = append(h.sets, &fleetv1alpha1.NetworkPolicySet{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: fleetv1alpha1.NetworkPolicySetSpec{
				Selector: metav1.LabelSelector{MatchLabels: map[string]string{"fleet": "yes"}}, Placement: r.one("all", "some"), TargetNamespace: r.one("", "apps"),
			},
		})
	case 2:
		h.networkPolicies = drop(r, h.networkPolicies, 1)
	}
}

func (h *hub) changeRest(t testing.TB, r random, namespace string) {
	switch r.IntN(5) {
	case 0:
		h.overrides = append(h.overrides, &fleetv1alpha1.PolicyOverride{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("o", len(h.overrides))},
			Spec: fleetv1alpha1.PolicyOverrideSpec{
				TargetRef: fleetv1alpha1.PolicyTarget{Group: "kuadrant.io", Kind: "RateLimitPolicy", Name: r.one(policyNames...)},
				Clusters:  r.some(clusterNames...), Merge: fleetv1alpha1.Patch{Raw: []byte(r.one(`{"limit": 7}`, `{"limit": null, "x": {"y": 1}}`, `{"targetRef": {}}`))},
			},
		})
	case 1:
		if len(h.overrides) > 0 {
			h.overrides = slices.Delete(h.overrides, 0, 1)
		}
	case 2: // the list of a class loses its kind, or has it again
		data := maps.Clone(h.parameters[Name{"hub", "other"}].Data)
		data["policies"] = r.one("[]", "[{group: kuadrant.io, resource: ratelimitpolicies, version: v1}]")
		h.parameters[Name{"hub", "other"}] = &corev1.ConfigMap{Data: data}
	case 3: // its parameters are broken, or well again
		data := maps.Clone(h.parameters[Name{"hub", "moved"}].Data)
		data["downstreamClass"] = r.one("envoy", "istio", "")
		h.parameters[Name{"hub", "moved"}] = &corev1.ConfigMap{Data: data}
	case 4: // all of its copies get other names
		data := maps.Clone(h.parameters[Name{"hub", "moved"}].Data)
		data["downstreamNamespace"] = r.one("edge-moved", "edge-new", "")
		h.parameters[Name{"hub", "moved"}] = &corev1.ConfigMap{Data: data}
	}
	_ = t
}

func (h *hub) randomGateway(t testing.TB, r random, name Name) Object {
	label := r.one(", labels: {"+LabelPlacement+": all, a: b}", ", labels: {"+LabelPlacement+": some}", ", labels: {"+LabelPlacement+": some}", "")
	return tree(t, fmt.Sprintf(`{metadata: %s, spec: {gatewayClassName: %s, listeners: [{name: http, port: %d}]}, status: {x: y}}`,
		hubMeta(r, name, label), r.one("plain", "moved", "other", "foreign"), 80+r.IntN(3)))
}

func (h *hub) randomPolicy(t testing.TB, r random, name Name) Object {
	ref := func() string {
		namespace := ""
		if r.IntN(4) == 0 {
			namespace = ", namespace: " + r.one(hubSpaces...)
		}
		return fmt.Sprintf(`{group: %s, kind: Gateway, name: %s%s, sectionName: http}`, r.one("gateway.networking.k8s.io", "gateway.networking.k8s.io", "x.io"), r.one(gatewayNames...), namespace)
	}
	refs := "targetRef: " + ref()
	if r.IntN(3) == 0 {
		refs = "targetRefs: [" + ref() + ", " + ref() + ", {group: '', kind: Service, name: s}]"
	}
	return tree(t, fmt.Sprintf(`{metadata: %s, spec: {%s, limit: %d}, status: {conditions: []}}`, hubMeta(r, name, ", labels: {a: b}"), refs, r.IntN(5)))
}

// put replaces the object of the name, or adds it.
func put(all []Object, o Object) []Object {
	all = slices.Clone(all)
	if i := slices.IndexFunc(all, func(x Object) bool { return nameOf(x) == nameOf(o) }); i >= 0 {
		all[i] = o
		return all
	}
	return append(all, o)
}

func drop(r random, all []Object, most int) []Object {
	if len(all) <= most {
		return all
	}
	i := r.IntN(len(all))
	return slices.Delete(slices.Clone(all), i, i+1)
}

var (
	small = limits{bytes: 20_000, manifests: 5, policies: 3}
	// usual are those of Works.
	usual = limits{workBytes, workManifests, workPolicies}
	// former are those of the time when policies were not counted.
	former = limits{workBytes, workManifests, workManifests}
)

// TestHistory: whatever happens on the hub, however works are split by the version that comes next, however late spokes answer, and however few bundles are planned at a time, copies that are
// wanted all the time are there all the time, users' objects stay as they are, and in the end spokes have what is wanted and nothing else.
func TestHistory(t *testing.T) {
	// The last ones had gateways that were not made: of a rival without policies, of a broken override, of a broken class.
	for _, seed := range []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 60, 102, 152} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := random{rand.New(rand.NewPCG(seed, 7))}
			h, s := randomHub(t, r), newSpokes(t)
			s.users(h, r)
			watch := newPresence()
			for range 120 {
				h.step(t, r, s)
				watch.look(t, s, h.bundles())
				if t.Failed() {
					return
				}
			}
			s.end(h.bundles())
		})
	}
}

// users have objects of their own where copies may go.
func (s *spokes) users(h *hub, r random) {
	for _, key := range []Key{
		{"kuadrant.io", "ratelimitpolicies", Name{"shop", "limits"}}, {"networking.k8s.io", "networkpolicies", Name{"apps", "deny"}},
		{gatewayv1.GroupName, "gateways", Name{"a", "web"}}, {"", "namespaces", Name{"", "a"}},
	} {
		s.user(r.one(clusterNames...), key)
	}
	if r.IntN(4) == 0 {
		s.lacking[schema.GroupResource{Group: Group, Resource: fleetv1alpha1.ResourceEnforcement}] = true
	}
}

// user has an object of a spoke's user be there, and its namespace.
func (s *spokes) user(cluster string, key Key) {
	if s.objects[cluster] == nil {
		s.objects[cluster] = map[Key]*spokeObject{}
	}
	if space := namespaceKey(key.Namespace); key.Namespace != "" && s.objects[cluster][space] == nil {
		s.user(cluster, space)
	}
	s.objects[cluster][key] = &spokeObject{json: `{"metadata": {"name": "theirs"}}`, owners: map[string]bool{}, users: true}
}

// team makes a namespace, if there is none, and at once what it wants in it.
func (s *spokes) team(r random) {
	cluster, namespace := r.one(clusterNames...), r.one("apps", "apps", "shop", "shop-a")
	if s.objects[cluster][namespaceKey(namespace)] != nil {
		return
	}
	s.user(cluster, namespaceKey(namespace))
	for _, name := range r.some("deny", "allow") {
		s.user(cluster, Key{"networking.k8s.io", "networkpolicies", Name{namespace, name}})
	}
	for _, name := range r.some("limits", "auth") {
		s.user(cluster, Key{"kuadrant.io", "ratelimitpolicies", Name{namespace, name}})
	}
}

// step: something changes on the hub or on a spoke, some bundles are planned, or an agent looks.
func (h *hub) step(t testing.TB, r random, s *spokes) {
	switch names := s.names(); {
	case r.IntN(12) == 0:
		s.team(r)
	case r.IntN(30) == 0:
		h.most = []limits{small, former, {bytes: 20_000, manifests: 100, policies: 1}}[r.IntN(3)]
	case r.IntN(6) == 0:
		h.change(t, r)
	case r.IntN(2) == 0 || len(names) == 0:
		w := h.bundles()
		plan := w.plan(r, s)
		h.comeLast(t, w, s, plan)
		for i := range plan {
			if r.IntN(8) == 0 { // the write fails, and with it those behind
				break
			}
			s.write(&plan[i])
		}
	default:
		for range 4 {
			switch at := names[r.IntN(len(names))]; {
			case s.works[at] == nil:
			case r.IntN(4) == 0:
				s.late(at)
			default:
				s.agent(at)
			}
		}
	}
}

// comeLast fails if a gateway is written that was not before, and not all of the policies that target it are there as they are wanted.
func (h *hub) comeLast(t testing.TB, w *wanted, s *spokes, plan []Write) {
	t.Helper()
	works := w.works(w.most)
	for i := range plan {
		for _, e := range plan[i].entries {
			if e.copy == nil || e.asked || e.copy.Source != plan[i].Bundle || e.copy.Kind != kindGateway {
				continue
			}
			cluster, name := plan[i].Cluster, e.copy.Source.Name
			if o := s.objects[cluster][e.copy.Key()]; o != nil && o.source() == e.copy.Source.String() || s.sends(cluster, e.copy) {
				continue // it is there
			}
			for _, a := range h.aimedAt(name) {
				if !s.arrived(cluster, a, works) {
					t.Errorf("%v is made in %s before %v", name, cluster, a)
				}
			}
			h.last++
		}
	}
}

// sends reports whether a work has a copy written already.
func (s *spokes) sends(cluster string, c *Copy) bool {
	return slices.ContainsFunc(s.existing(func(Source) bool { return true }), func(e *Existing) bool { return e.Cluster == cluster && !e.Deleting && e.writes(c) })
}

// aimedAt are the copies of policies that target a gateway, as can be seen from the hub's objects.
func (h *hub) aimedAt(gateway Name) (all []Await) {
	classes := h.readClasses()
	at := slices.IndexFunc(h.gateways, func(o Object) bool { return nameOf(o) == gateway })
	class := classes[textOf(object(h.gateways[at], "spec"), "gatewayClassName")]
	for _, k := range class.Kinds {
		for _, o := range h.policies[k.Kind] {
			targets, err := Targets(o)
			if err == nil && slices.Contains(targets, gateway) && (class.Parameters.Namespace == "" || gateway.Namespace == nameOf(o).Namespace) {
				all = append(all, Await{Source{k.Group, k.Kind, nameOf(o)}, Key{k.Group, k.Resource, class.Parameters.SpokeName(nameOf(o))}})
			}
		}
	}
	return all
}

// plan plans a bundle and those that must be planned together with it.
func (w *wanted) plan(r random, s *spokes) []Write {
	sources := slices.SortedFunc(maps.Keys(w.bundles), Source.Compare)
	for _, e := range s.existing(func(Source) bool { return true }) {
		sources = append(sources, e.Bundle)
	}
	slices.SortFunc(sources, Source.Compare)
	if len(sources) == 0 {
		return nil
	}
	together := map[Source]bool{sources[r.IntN(len(sources))]: true}
	in := func(b Source) bool { return together[b] && !w.frozen[b] }
	desired := func() (works []*Work) {
		for b := range together {
			if w.bundles[b] != nil && in(b) {
				works = append(works, w.bundles[b].works(controller, w.most)...)
			}
		}
		return works
	}
	for before := 0; before != len(together); { // here of those found too; the controller takes one step of it
		before = len(together)
		works := desired()
		for b := range maps.Clone(together) {
			if of := w.bundles[b]; of != nil {
				for _, source := range of.Awaited(s.existing(in)) {
					w.holding(source, together)
				}
				for _, gateway := range of.Beside(s.existing(in)) {
					together[gateway] = true
				}
			}
		}
		for _, source := range Strays(works, s.existing(in)) {
			w.holding(source, together)
		}
		for _, e := range s.existing(func(Source) bool { return true }) {
			if slices.ContainsFunc(e.Sent, func(one Sent) bool {
				return slices.ContainsFunc(works, func(d *Work) bool {
					return slices.ContainsFunc(d.Copies, func(c *Copy) bool {
						return !c.Orphan && (c.Source == one.Source || c.Key() == one.Key)
					})
				})
			}) {
				together[e.Bundle] = true
			}
		}
	}
	return Plan(controller, desired(), s.existing(in))
}

// holding marks the bundles that a source is wanted in.
func (w *wanted) holding(source Source, mark map[Source]bool) {
	for name, b := range w.bundles {
		for _, c := range b.Clusters {
			if slices.ContainsFunc(c.Copies, func(c *Copy) bool { return c.Source == source }) {
				mark[name] = true
			}
		}
	}
}

func (s *spokes) end(w *wanted) {
	s.Helper()
	s.settle(w, w.most)
	works := w.works(w.most)
	kept := s.kept(w)
	for _, m := range s.missing(works) {
		if kept[m] {
			continue
		}
		s.Errorf("it is not there, or not as it is to be: %s", m)
	}
	frozen := false
	for _, f := range w.frozen {
		frozen = frozen || f
	}
	held := slices.ContainsFunc(works, func(w *Work) bool { return len(w.Held) > 0 })
	if leaked := s.leaked(works); len(leaked) > 0 && !frozen && !held {
		s.Errorf("it is there still: %s", leaked)
	}
	for at, work := range s.works {
		for _, m := range work.Spec.Workload.Manifests {
			if found := identityIn(s, m.Raw); len(found) > 0 {
				s.Errorf("%v carries the hub's %s: %s", at, found, m.Raw)
			}
		}
	}
	if again := s.settle(w, w.most); again != 0 {
		s.Errorf("%d writes although nothing has changed", again)
	}
}

// kept returns the names that copies of frozen bundles have, in the form of missing. Nothing else gets them.
func (s *spokes) kept(w *wanted) map[string]bool {
	names := map[string]bool{}
	for _, e := range s.existing(func(b Source) bool { return w.frozen[b] }) {
		for _, one := range e.Sent {
			o := s.objects[e.Cluster][one.Key]
			if o != nil && o.owners[e.Name] && o.source() == one.Source.String() {
				names[fmt.Sprintf("%s: %v", e.Cluster, one.Key)] = true
			}
		}
	}
	return names
}

// presence holds which copies have been there since they were wanted, and which sources under whatever names.
type presence struct{ there map[string][]Key }

func newPresence() *presence { return &presence{there: map[string][]Key{}} }

// held reports whether a work that stays has something there. If none has, it is on its way out since before it was
// wanted again.
func (s *spokes) held(cluster string, key Key) bool {
	for owner := range s.objects[cluster][key].owners {
		if w := s.works[Name{cluster, owner}]; w.DeletionTimestamp == nil && slices.ContainsFunc(ReadExisting(w).Sent, func(o Sent) bool {
			return o.Key == key && !o.Asked
		}) {
			return true
		}
	}
	return false
}

// named are where a cluster has something of a source. Of two sets each has its own.
func (s *spokes) named(cluster string, c *Copy) (keys []Key) {
	for key, o := range s.objects[cluster] {
		if o.source() == c.Source.String() && key.Group == c.Resource.Group && key.Resource == c.Resource.Resource && c.Source.Kind != "NetworkPolicy" {
			keys = append(keys, key)
		}
	}
	return keys
}

// look fails if a copy is gone that is wanted now and was before.
func (p *presence) look(t testing.TB, s *spokes, w *wanted) {
	t.Helper()
	now, works := map[string][]Key{}, w.works(w.most)
	wanted := map[string]Source{}
	for _, work := range works {
		for _, c := range work.Copies {
			wanted[work.Cluster+" "+c.Key().String()] = c.Source
		}
	}
	note := func(id, cluster string, c *Copy, is bool, keys ...Key) {
		givenUp := func(k Key) bool { // to another
			by, other := wanted[cluster+" "+k.String()]
			return other && by != c.Source
		}
		before := p.there[id]
		if before != nil && !is && !slices.ContainsFunc(before, givenUp) {
			t.Errorf("a gap: %s", id)
		}
		if is && (before != nil && !slices.ContainsFunc(keys, givenUp) || slices.ContainsFunc(keys, func(k Key) bool { return s.held(cluster, k) })) {
			now[id] = keys
		}
	}
	for _, work := range works {
		for _, c := range work.Copies {
			o := s.objects[work.Cluster][c.Key()]
			note(fmt.Sprint(work.Cluster, " ", c.Source, " ", c.Key()), work.Cluster, c, o != nil && !o.users && o.source() == c.Source.String(), c.Key())
			keys := s.named(work.Cluster, c)
			note(fmt.Sprint(work.Cluster, " ", c.Source, " ", c.Resource.Resource), work.Cluster, c, len(keys) > 0, keys...)
		}
	}
	p.there = now
}

// randomHubOf is a hub with a gateway that goes to all clusters, and no policies.
func randomHubOf(t testing.TB) *hub {
	h := randomHub(t, random{rand.New(rand.NewPCG(1, 1))})
	h.policies, h.overrides, h.sets, h.networkPolicies = map[string][]Object{}, nil, nil, nil
	h.placements[Name{"shop", "all"}] = clusterNames
	h.gateways = []Object{tree(t, "{metadata: {name: web, namespace: shop, labels: {"+LabelPlacement+": all}}, spec: {gatewayClassName: plain}}")}
	return h
}
