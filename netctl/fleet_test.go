package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/fleet"
	"github.com/flowkeep/flowkeep/netctl/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
	"sigs.k8s.io/yaml"
)

// hubObjects are what a hub has: gateways of a class of ours, of one with bad parameters, and of another's; policies of two kinds; and a set.
const hubObjects = `
/apis/gateway.networking.k8s.io/v1/gatewayclasses:
- metadata: {name: hub}
  spec: {controllerName: flowkeep.io/gateway-sync, parametersRef: {group: "", kind: ConfigMap, namespace: infra, name: hub}}
- metadata: {name: broken}
  spec: {controllerName: flowkeep.io/gateway-sync}
- metadata: {name: others}
  spec: {controllerName: example.com/another}
/apis/apiextensions.k8s.io/v1/customresourcedefinitions:
- &crd
  metadata: {name: ratelimitpolicies.kuadrant.io}
  spec:
    group: kuadrant.io
    scope: Namespaced
    names: {kind: RateLimitPolicy, plural: ratelimitpolicies}
    versions:
    - {name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {properties: {spec: {properties: {targetRef: {}}}, status: {properties: {conditions: {}}}}}}}
  status: {conditions: [{type: Established, status: "True"}]}
- metadata: {name: securitypolicies.gateway.envoyproxy.io}
  spec:
    group: gateway.envoyproxy.io
    scope: Namespaced
    names: {kind: SecurityPolicy, plural: securitypolicies}
    versions:
    - {name: v1alpha1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {properties: {spec: {properties: {targetRefs: {}}}, status: {properties: {ancestors: {}}}}}}}
  status: {conditions: [{type: Established, status: "True"}]}
/api/v1/namespaces/infra/configmaps:
- metadata: {name: hub, namespace: infra}
  data: {downstreamClass: eg, downstreamNamespace: edge, policies: "[{group: kuadrant.io, kind: RateLimitPolicy}, {group: gateway.envoyproxy.io, resource: securitypolicies}, {group: kuadrant.io, kind: DNSPolicy}]"}
/apis/cluster.open-cluster-management.io/v1beta1/placements:
- metadata: {name: eu, namespace: shop}
- metadata: {name: none, namespace: shop}
/apis/cluster.open-cluster-management.io/v1beta1/placementdecisions:
- metadata: {name: eu-1, namespace: shop, labels: {cluster.open-cluster-management.io/placement: eu}}
  status: {decisions: [{clusterName: c1, reason: ""}, {clusterName: c2, reason: ""}, {clusterName: c3, reason: ""}]}
/apis/cluster.open-cluster-management.io/v1/managedclusters:
- {metadata: {name: c1, labels: {size: small}}, status: {conditions: [{type: ManagedClusterConditionAvailable, status: "True"}]}}
- {metadata: {name: c2, labels: {size: large}}, status: {conditions: [{type: ManagedClusterConditionAvailable, status: "True"}]}}
- {metadata: {name: c3}, status: {conditions: [{type: ManagedClusterConditionAvailable, status: "Unknown"}]}}
/apis/gateway.networking.k8s.io/v1/gateways:
- metadata: {name: web, namespace: shop, labels: {cluster.open-cluster-management.io/placement: eu}}
  spec: {gatewayClassName: hub, listeners: [{name: http, port: 80, protocol: HTTP}]}
- metadata: {name: idle, namespace: shop, labels: {cluster.open-cluster-management.io/placement: none}}
  spec: {gatewayClassName: hub}
- metadata: {name: homeless, namespace: shop}
  spec: {gatewayClassName: hub}
- metadata: {name: stuck, namespace: shop, labels: {cluster.open-cluster-management.io/placement: eu}}
  spec: {gatewayClassName: broken}
- metadata: {name: local, namespace: shop}
  spec: {gatewayClassName: others}
/apis/kuadrant.io/v1/ratelimitpolicies:
- metadata: {name: limit, namespace: shop, generation: 4}
  spec: {targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: web}, limit: 10}
- metadata: {name: waits, namespace: shop, generation: 1}
  spec: {targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: homeless}}
- metadata: {name: local, namespace: shop, generation: 1}
  spec: {targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: local}}
- metadata: {name: aimless, namespace: shop, generation: 1}
  spec: {targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: absent}}
/apis/gateway.envoyproxy.io/v1alpha1/securitypolicies:
- metadata: {name: limit, namespace: shop, generation: 2}
  spec: {targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: web, sectionName: http}]}
/apis/fleet.flowkeep.io/v1alpha1/policyoverrides:
- metadata: {name: more-for-c2, namespace: shop}
  spec: {targetRef: {group: kuadrant.io, kind: RateLimitPolicy, name: limit}, clusterSelector: {matchLabels: {size: large}}, merge: {limit: 50}}
/apis/fleet.flowkeep.io/v1alpha1/networkpolicysets:
- metadata: {name: base, namespace: shop}
  spec: {selector: {matchLabels: {base: "yes"}}, placement: eu, targetNamespace: shop}
- metadata: {name: astray, namespace: shop}
  spec: {selector: {}, placement: missing}
/apis/networking.k8s.io/v1/networkpolicies:
- metadata: {name: deny, namespace: shop, labels: {base: "yes"}}
  spec: {podSelector: {}, policyTypes: [Ingress]}
- metadata: {name: other, namespace: shop}
  spec: {podSelector: {}}
/apis/work.open-cluster-management.io/v1/manifestworks: []
`

// says is what clusters say of a copy, beside what it is.
func says(cluster string, c *fleet.Copy) map[string]any {
	said := map[string]any{}
	condition := func(about, typ, status, reason, message string) {
		said[about+"."+typ+".status"], said[about+"."+typ+".reason"], said[about+"."+typ+".message"] = status, reason, message
	}
	switch c.Kind {
	case "Gateway":
		condition("top", "Accepted", "True", "Accepted", "")
		condition("top", "Programmed", "True", "Programmed", "")
		said["address.0.type"], said["address.0.value"] = "IPAddress", "192.0.2."+cluster[1:]
	case "RateLimitPolicy":
		condition("top", "Accepted", "True", "Accepted", "")
		condition("top", "Enforced", "True", "Enforced", "")
		if cluster == "c2" {
			condition("top", "Enforced", "False", "Overridden", "overridden by RateLimitPolicy shop/of-the-route")
		}
	case "SecurityPolicy":
		said["ancestor.0.name"] = "web-3d04e017"
		condition("ancestor.0", "Accepted", "True", "Accepted", "")
		if cluster == "c2" {
			said["copy"] = "the one before"
		}
	case "NetworkPolicyEnforcement":
		condition("top", "Enforced", "True", "InForce", "on 2 of 2 nodes")
	}
	return said
}

// hubCluster is a hub whose clusters have answered.
func hubCluster(t *testing.T) (*bench, *apiServer, *[]string) {
	t.Helper()
	b, _ := nodeCluster(t, hubObjects)
	client, err := apiserver.New(apiserver.Options{Kubeconfig: b.flags[1]})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	h, err := readHub(t.Context(), client, fleet.DefaultController, true)
	if err != nil {
		t.Fatal(err)
	}
	var works []*workv1.ManifestWork
	hashes := map[string]string{}
	for _, bundle := range h.View().Bundles {
		for _, w := range bundle.Works(string(fleet.DefaultController)) {
			for _, c := range w.Copies {
				hashes[w.Cluster+c.Kind+c.Name.String()] = c.Hash
			}
			works = append(works, answeredWork(w, hashes))
		}
	}
	var kinds map[string]any
	if err := yaml.Unmarshal([]byte(hubObjects), &kinds); err != nil {
		t.Fatal(err)
	}
	kinds["/apis/work.open-cluster-management.io/v1/manifestworks"] = works
	raw, err := json.Marshal(kinds)
	if err != nil {
		t.Fatal(err)
	}
	b, s := nodeCluster(t, string(raw))
	selectors, plain := &[]string{}, s.refuse
	s.refuse = func(w http.ResponseWriter, r *http.Request) bool {
		if by := r.URL.Query().Get("labelSelector"); by != "" {
			*selectors = append(*selectors, by)
		}
		return plain(w, r)
	}
	return b, s, selectors
}

func answeredWork(w *fleet.Work, hashes map[string]string) *workv1.ManifestWork {
	o := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Namespace: w.Cluster, Name: w.Name, Generation: 1}}
	o.Status.Conditions = []metav1.Condition{{Type: workv1.WorkApplied, Status: "True", ObservedGeneration: 1}}
	for i, c := range w.Copies {
		m := workv1.ManifestCondition{ResourceMeta: workv1.ManifestResourceMeta{
			Ordinal: int32(i), Group: c.Resource.Group, Version: c.Resource.Version, Kind: c.Kind, Resource: c.Resource.Resource, Namespace: c.Namespace, Name: c.Name.Name,
		}, Conditions: []metav1.Condition{{Type: workv1.ManifestApplied, Status: "True"}, {Type: workv1.ManifestAvailable, Status: "True"}}}
		if c.Kind == "NetworkPolicyEnforcement" && w.Cluster == "c2" {
			m.ResourceMeta.Resource, m.Conditions = "", []metav1.Condition{{Type: workv1.ManifestApplied, Status: "False", Reason: "AppliedManifestFailed",
				Message: `Failed to apply manifest: the server doesn't have a resource type "NetworkPolicyEnforcement"`, LastTransitionTime: metav1.Unix(1000, 0)}}
		}
		said := map[string]any{"source": c.Source.String(), "copy": c.Hash, "generation": 7, "policyGeneration": 7, "policyCopy": hashes[w.Cluster+"NetworkPolicy"+c.Name.String()]}
		for name, v := range says(w.Cluster, c) {
			said[name] = v
		}
		if m.ResourceMeta.Resource == "" {
			said = nil
		}
		for name, v := range said {
			value := workv1.FeedbackValue{Name: name}
			switch v := v.(type) {
			case string:
				value.Value = workv1.FieldValue{Type: workv1.String, String: &v}
			case int:
				n := int64(v)
				value.Value = workv1.FieldValue{Type: workv1.Integer, Integer: &n}
			}
			m.StatusFeedbacks.Values = append(m.StatusFeedbacks.Values, value)
		}
		slices.SortFunc(m.StatusFeedbacks.Values, func(a, b workv1.FeedbackValue) int { return strings.Compare(a.Name, b.Name) })
		o.Status.ResourceStatus.Manifests = append(o.Status.ResourceStatus.Manifests, m)
	}
	return o
}

func TestFleetOutputs(t *testing.T) {
	b, _, _ := hubCluster(t)
	var all strings.Builder
	for _, command := range []string{"status", "gateways", "gateways shop/web", "policies", "policies shop/limit", "policies shop/deny",
		"explain ratelimitpolicy shop/limit", "explain RateLimitPolicy shop/limit --cluster c2", "explain securitypolicies.gateway.envoyproxy.io shop/limit", "explain RateLimitPolicy shop/waits",
		"explain RateLimitPolicy shop/local", "explain RateLimitPolicy shop/aimless", "explain NetworkPolicy shop/deny", "explain gateway shop/web --cluster c1", "explain gateway shop/stuck", "explain gateway shop/idle"} {
		for _, form := range outputs {
			if strings.Contains(command, "shop/") && form != "table" && (form != "wide" || !strings.HasPrefix(command, "explain")) && command != "explain RateLimitPolicy shop/limit --cluster c2" {
				continue
			}
			out, errOut, code := b.run(append(strings.Fields("fleet "+command), "-o", form)...)
			fmt.Fprintf(&all, "$ netctl fleet %s -o %s\n%s%s(exit code %d)\n\n", command, form, out, errOut, code)
		}
	}
	golden(t, "testdata/fleet.txt", all.String())
}

// A fleet in which all is in force is so.
func TestFleetStatusOfAFineFleet(t *testing.T) {
	var kinds map[string]any
	if err := yaml.Unmarshal([]byte(hubObjects), &kinds); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/apis/gateway.networking.k8s.io/v1/gateways", "/apis/fleet.flowkeep.io/v1alpha1/networkpolicysets"} {
		kinds[path] = []any{}
	}
	kinds["/apis/gateway.networking.k8s.io/v1/gatewayclasses"] = kinds["/apis/gateway.networking.k8s.io/v1/gatewayclasses"].([]any)[2:]
	raw, err := json.Marshal(kinds)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := nodeCluster(t, string(raw))
	b.prints(0, "fleet status", "in force everywhere: True (0 of 0)")
	b.prints(0, "fleet gateways", "no Gateway of a class that is handled")
	b.prints(0, "fleet policies", "no policies of kinds that classes list")
}

// Explain reads no more works than it needs, the others those of the controller.
func TestFleetReadsWorksBySelector(t *testing.T) {
	b, _, selectors := hubCluster(t)
	b.prints(0, "fleet explain networkpolicy shop/deny", "NetworkPolicy shop/deny")
	want := "fleet.flowkeep.io/controller=" + fleet.ControllerLabel("flowkeep.io/gateway-sync") + ",fleet.flowkeep.io/bundle in (" +
		fleet.BundleLabel(fleet.SetSource(fleet.Name{Namespace: "shop", Name: "base"})) + ")"
	b.prints(0, "fleet policies --controller-name example.com/another --network-policy-sets", "set shop/base")
	b.prints(0, "fleet policies --controller-name example.com/another", "no policies of kinds that classes list")
	if other := "fleet.flowkeep.io/controller=" + fleet.ControllerLabel("example.com/another"); !slices.Equal(slices.Compact(*selectors), []string{want, other}) {
		t.Errorf("%q", *selectors)
	}
}

func TestFleetErrors(t *testing.T) {
	b, s, _ := hubCluster(t)
	b.prints(exitUsage, "fleet explan", `has no command "explan"; is it explain?`)
	b.prints(exitUsage, "fleet explain gateway", "takes [KIND NAMESPACE/NAME]")
	b.prints(exitUsage, "fleet explain gateway web", `"web": say which namespace too`)
	b.prints(exitUsage, "fleet gateways web", `"web": say which namespace too`)
	b.prints(exitFailed, "fleet gateways shop/none", "the hub has no Gateway shop/none of a class of flowkeep.io/gateway-sync")
	b.prints(exitFailed, "fleet policies shop/none", "nothing of the name shop/none")
	b.prints(exitFailed, "fleet explain DNSPolicy shop/limit", "the hub has no DNSPolicy shop/limit")
	b.prints(exitFailed, "fleet explain gateway shop/local", "the hub has no gateway shop/local")
	b.prints(exitFailed, "fleet explain ratelimitpolicy shop/limit --cluster c9", "does not go to a cluster c9")
	s.refuse = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind": "Status", "message": "User \"jane\" cannot list"}`)
		return true
	}
	b.prints(exitTrouble, "fleet status", `403 Forbidden`, `User "jane" cannot list`, "flowkeep-fleet-view")
	b, _ = nodeCluster(t, "{}")
	b.prints(exitTrouble, "fleet status", "knows no gatewayclasses.gateway.networking.k8s.io", "it is no hub of policy-sync")
	t.Setenv("FLOWKEEP_SERVER", "127.0.0.1:1")
	b.flags = nil
	b.prints(exitUsage, "fleet status", "reads the API server's objects")
}

func TestFleetCompletion(t *testing.T) {
	b, _, _ := hubCluster(t)
	flags := b.flags
	b.flags = nil
	for args, want := range map[string]string{
		"gateways ": "shop/homeless\nshop/idle\nshop/stuck\nshop/web\n:4", "policies ": "shop/astray\nshop/deny\nshop/limit\nshop/waits\n:4",
		"explain ": "Gateway\nNetworkPolicy\nNetworkPolicySet\nRateLimitPolicy\nSecurityPolicy\n:4", "explain networkpolicy ": "shop/deny\n:4", "explain x y ": ":4",
		"explain gateway shop/web --cluster ": "c1\nc2\nc3\n:4",
	} {
		words := strings.Split("__complete fleet "+args, " ")
		words = append(append(append([]string{}, words[:3]...), flags...), words[3:]...)
		if out, _, _ := b.run(words...); !strings.HasPrefix(out, want) {
			t.Errorf("fleet %s completes to %q", args, out)
		}
	}
}

// What docs/netctl/fleet.md shows of a fleet is what netctl prints.
func TestFleetGuide(t *testing.T) {
	guide, err := os.ReadFile("../docs/netctl/fleet.md")
	if err != nil {
		t.Fatal(err)
	}
	outputs, err := os.ReadFile("testdata/fleet.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"status", "gateways shop/web", "explain RateLimitPolicy shop/limit --cluster c2"} {
		_, shown, _ := strings.Cut(string(guide), "    $ netctl fleet "+command+"\n")
		var lines []string
		for line := range strings.SplitSeq(shown, "\n") {
			if line != "" && !strings.HasPrefix(line, "    ") {
				break
			}
			lines = append(lines, strings.TrimPrefix(line, "    "))
		}
		shown = strings.TrimSpace(strings.Join(lines, "\n"))
		_, printed, _ := strings.Cut(string(outputs), "$ netctl fleet "+command+" -o table\n")
		if rest, ok := strings.CutPrefix(printed, shown+"\n"); len(shown) < 100 || !ok || !strings.HasPrefix(rest, "(exit") && !strings.HasPrefix(rest, "netctl:") {
			t.Errorf("netctl prints something else than\n%s", shown)
		}
	}
}
