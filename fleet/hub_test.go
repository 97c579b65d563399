package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"testing"

	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clusterv1beta1 "open-cluster-management.io/api/cluster/v1beta1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

// hub is what a hub has of what matters.
type hub struct {
	classes         []*gatewayv1.GatewayClass
	parameters      map[Name]*corev1.ConfigMap
	definitions     []Definition
	gateways        []Object
	placements      map[Name][]string // the clusters that each decides on
	policies        map[string][]Object
	overrides       []*fleetv1alpha1.PolicyOverride
	sets            []*fleetv1alpha1.NetworkPolicySet
	networkPolicies []Object
	clusters        map[string]map[string]string
	namespaces      Namespaces
	most            limits // of works
	last            int    // gateways that have been made where they were not, after their policies
}

func newHub() *hub {
	return &hub{
		parameters: map[Name]*corev1.ConfigMap{}, placements: map[Name][]string{}, policies: map[string][]Object{}, clusters: map[string]map[string]string{},
	}
}

// wanted is what a hub's objects make.
type wanted struct {
	bundles  map[Source]*Bundle
	most     limits
	frozen   map[Source]bool
	problems []Problem
	// beside are policies that target a gateway and do not go in its bundle, and those that perhaps target it.
	beside map[Name][]*Policy
}

// controller is of GatewayClasses in tests.
const controller = string(DefaultController)

// bundles does what the controller does, all at once.
func (h *hub) bundles() *wanted {
	w := &wanted{bundles: map[Source]*Bundle{}, most: h.most, frozen: map[Source]bool{}, beside: map[Name][]*Policy{}}
	classes := h.readClasses()
	for _, c := range classes {
		w.problems = append(w.problems, c.Problems...)
	}
	lookup := h.lookup(classes)
	selections := map[Name]Selection{}
	for _, g := range h.gateways {
		s := SelectGateway(g, lookup)
		selections[nameOf(g)] = s
		if s.Problem != nil {
			w.problems = append(w.problems, *s.Problem)
		}
	}
	along := h.aim(w, classes, selections)
	of := func(cluster string) map[string]string { return h.clusters[cluster] }
	for name, s := range selections {
		if w.frozen[GatewaySource(name)] = s.Frozen; s.Gateway != nil {
			b := GatewayBundle(s.Gateway, along[GatewaySource(name)], of)
			for _, p := range w.beside[name] {
				b.Await(s.Gateway, p)
			}
			w.add(b)
		}
	}
	for bundle, all := range along {
		if bundle != GatewaySource(bundle.Name) {
			w.add(PolicyBundle(all[0], of))
		}
	}
	sets, frozen, problems := SelectSets(h.sets, h.networkPolicies, lookup)
	for _, s := range sets {
		w.add(SetBundle(s))
	}
	for _, name := range frozen {
		w.frozen[SetSource(name)] = true
	}
	w.problems = append(w.problems, problems...)
	return w
}

func (h *hub) readClasses() map[string]*Class {
	classes := map[string]*Class{}
	for _, c := range h.classes {
		if string(c.Spec.ControllerName) == controller {
			name, _ := ParametersRef(c)
			classes[c.Name] = ReadClass(c, h.parameters[name], h.definitions)
		}
	}
	return classes
}

// aim finds the policies of each bundle.
func (h *hub) aim(w *wanted, classes map[string]*Class, selections map[Name]Selection) map[Source][]*Aimed {
	var kinds []Kind
	for _, name := range slices.Sorted(maps.Keys(classes)) {
		kinds = append(kinds, classes[name].Kinds...)
	}
	along := map[Source][]*Aimed{}
	for _, kind := range OneVersion(kinds) {
		for _, o := range h.policies[kind.Kind] {
			p := &Policy{Kind: kind, Name: nameOf(o), Object: o}
			a, problem := Aim(p, func(n Name) Selection { return selections[n] })
			if problem != nil {
				w.problems = append(w.problems, *problem)
				for name, s := range selections {
					if s.Gateway != nil && name.Namespace == p.Namespace && s.Gateway.Lists(kind) {
						w.beside[name] = append(w.beside[name], p)
					}
				}
			}
			if a == nil {
				continue
			}
			for _, v := range h.overrides {
				if read := ReadOverride(v); read.Target == p.Source() {
					a.Overrides = append(a.Overrides, read)
				}
			}
			for _, g := range a.Gateways {
				if a.Bundle() != GatewaySource(g.Name) {
					w.beside[g.Name] = append(w.beside[g.Name], p)
				}
			}
			if a.Frozen {
				w.frozen[a.Bundle()] = true
				continue
			}
			along[a.Bundle()] = append(along[a.Bundle()], a)
		}
	}
	return along
}

func (w *wanted) add(b *Bundle) {
	w.bundles[b.Source] = b
	w.problems = append(w.problems, b.Problems...)
}

// works are those of all bundles.
func (w *wanted) works(most limits) (works []*Work) {
	for _, source := range slices.SortedFunc(maps.Keys(w.bundles), Source.Compare) {
		works = append(works, w.bundles[source].works(controller, most)...)
	}
	return works
}

func (h *hub) lookup(classes map[string]*Class) Lookup {
	return Lookup{
		Class:     func(name string) *Class { return classes[name] },
		Placement: func(n Name) bool { _, has := h.placements[n]; return has },
		Decisions: func(n Name) (decisions []*clusterv1beta1.PlacementDecision) {
			for _, cluster := range h.placements[n] {
				d := &clusterv1beta1.PlacementDecision{}
				d.Status.Decisions = []clusterv1beta1.ClusterDecision{{ClusterName: cluster}}
				decisions = append(decisions, d)
			}
			return decisions
		},
		Namespaces: h.namespaces,
	}
}

// readHub reads YAML documents.
func readHub(t testing.TB, text []byte) *hub {
	t.Helper()
	h := newHub()
	d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var raw json.RawMessage
		err := d.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return h
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(raw) > 0 && string(raw) != "null" {
			h.take(t, raw)
		}
	}
}

func (h *hub) take(t testing.TB, raw []byte) {
	var o Object
	if err := utiljson.Unmarshal(raw, &o); err != nil {
		t.Fatal(err)
	}
	switch kind := textOf(o, "kind"); kind {
	case "GatewayClass":
		h.classes = append(h.classes, as[gatewayv1.GatewayClass](t, raw))
	case "ConfigMap":
		h.parameters[nameOf(o)] = as[corev1.ConfigMap](t, raw)
	case "CustomResourceDefinition":
		if d, ok := ReadDefinition(o); ok {
			h.definitions = append(h.definitions, d)
		}
	case kindGateway:
		h.gateways = append(h.gateways, o)
	case "Placement":
		h.placements[nameOf(o)] = append(h.placements[nameOf(o)], []string{}...)
	case "PlacementDecision":
		p := as[clusterv1beta1.PlacementDecision](t, raw)
		at := Name{p.Namespace, p.Labels[clusterv1beta1.PlacementLabel]}
		h.placements[at] = append(h.placements[at], DecidedClusters([]*clusterv1beta1.PlacementDecision{p})...)
	case "ManagedCluster":
		h.clusters[nameOf(o).Name] = texts(object(o, "metadata", "labels"))
	case fleetv1alpha1.KindOverride:
		h.overrides = append(h.overrides, as[fleetv1alpha1.PolicyOverride](t, raw))
	case fleetv1alpha1.KindSet:
		h.sets = append(h.sets, as[fleetv1alpha1.NetworkPolicySet](t, raw))
	case "NetworkPolicy":
		h.networkPolicies = append(h.networkPolicies, o)
	default:
		h.policies[kind] = append(h.policies[kind], o)
	}
}

func as[T any](t testing.TB, raw []byte) *T {
	t.Helper()
	o := new(T)
	if err := json.Unmarshal(raw, o); err != nil {
		t.Fatal(err)
	}
	return o
}

// tree reads an object as the API server gives it.
func tree(t testing.TB, text string) (o Object) {
	t.Helper()
	h, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := utiljson.Unmarshal(h, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

func jsonOf(t testing.TB, o any) string {
	t.Helper()
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

var now = metav1.Now()
