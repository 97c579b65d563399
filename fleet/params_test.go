package fleet

import (
	"reflect"
	"strings"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

func TestParseParameters_Options(t *testing.T) {
	kinds := []KindRef{{Group: "kuadrant.io", Version: "v1", Resource: "authpolicies"}}
	synced := map[string]string{"kuadrant.io/policy-synced": "true"}
	const list = `[{"group": "kuadrant.io", "version": "v1", "resource": "authpolicies"}]`
	for _, c := range []struct {
		what string
		data map[string]string
		want Parameters
		err  string
	}{
		{"the RFC's key", map[string]string{"params": `{"downstreamClass": "istio", "policiesToSync": ` + list + `}`}, Parameters{Class: "istio", Kinds: kinds}, ""},
		{"the key since 2024", map[string]string{"params": `{"downstreamClass": "istio", "experimentalPolicySync": ` + list + `}`}, Parameters{Class: "istio", Kinds: kinds}, ""},
		{"both", map[string]string{"params": `{"downstreamClass": "istio", "policiesToSync": ` + list + `, "experimentalPolicySync": ` + list + `}`}, Parameters{}, "two names of one list"},
		{"options with the older form",
			map[string]string{"params": `{"downstreamClass": "istio"}`, "listenerSecrets": "true"},
			Parameters{Class: "istio", Secrets: true}, ""},
		{"annotations", map[string]string{"downstreamClass": "istio", "policyAnnotations": `{kuadrant.io/policy-synced: "true"}`}, Parameters{Class: "istio", PolicyAnnotations: synced}, ""},
		{"an annotation with a URL",
			map[string]string{"downstreamClass": "istio", "policyAnnotations": "a: https://x.example/?b=1&c=2 *d\ne: '&f'\ng: \"*h\"  # &i"},
			Parameters{Class: "istio", PolicyAnnotations: map[string]string{"a": "https://x.example/?b=1&c=2 *d", "e": "&f", "g": "*h"}}, ""},
		{"an anchor", map[string]string{"downstreamClass": "istio", "policyAnnotations": "{a: &b c}"}, Parameters{}, "line 1: anchors"},
		{"an anchor of a key", map[string]string{"downstreamClass": "istio", "policyAnnotations": "a: b\n&c d: e"}, Parameters{}, "line 2: anchors"},
		{"an alias",
			map[string]string{"downstreamClass": "istio", "policies": "- &a {group: x, kind: Y}\n- *a"}, Parameters{}, "line 1: anchors"},
		{"a merged map",
			map[string]string{"downstreamClass": "istio", "policies": "- &a {group: x, kind: Y}\n- {<<: *a}"}, Parameters{}, "line 1: anchors"},
		{"an alias of JSON", map[string]string{"params": `{"downstreamClass": &a "istio"}`}, Parameters{}, "line 1: anchors"},
		{"no YAML", map[string]string{"downstreamClass": "istio", "policyAnnotations": "{a: *b}"}, Parameters{}, "unknown anchor"},
		{"annotations of ours", map[string]string{"downstreamClass": "istio", "policyAnnotations": `{fleet.flowkeep.io/copy: "x"}`}, Parameters{}, "is not sent: it is"},
		{"no annotations", map[string]string{"downstreamClass": "istio", "policyAnnotations": `[a]`}, Parameters{}, "policyAnnotations"},
		{"a bad name", map[string]string{"downstreamClass": "istio", "policyAnnotations": `{a b: c}`}, Parameters{}, "no name of an annotation"},
		{"no Secrets", map[string]string{"downstreamClass": "istio", "listenerSecrets": "false"}, Parameters{Class: "istio"}, ""},
		{"no bool", map[string]string{"downstreamClass": "istio", "listenerSecrets": "some"}, Parameters{}, "true or false"},
	} {
		t.Run(c.what, func(t *testing.T) {
			got, _, err := ParseParameters(c.data)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v %v, want %+v %q", got, err, c.want, c.err)
			}
		})
	}
}

func TestPolicyAnnotations(t *testing.T) {
	policy := tree(t, `{apiVersion: kuadrant.io/v1, kind: AuthPolicy, metadata: {name: p, namespace: shop, annotations: {own: kept, kuadrant.io/policy-synced: "no"}},
		spec: {targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: web}}}`)
	kind := Kind{Resource: "authpolicies"}
	kind.Group, kind.Version, kind.Kind = "kuadrant.io", "v1", "AuthPolicy"
	g := &Gateway{
		Name:       Name{"shop", "web"},
		Object:     secretGateway(t),
		Parameters: Parameters{Class: "istio", PolicyAnnotations: map[string]string{"kuadrant.io/policy-synced": "true"}},
		Clusters:   []string{"c1"},
	}
	b := GatewayBundle(g, []*Aimed{{Policy: &Policy{Kind: kind, Name: Name{"shop", "p"}, Object: policy}, Gateways: []*Gateway{g}}}, nil)
	for _, c := range b.Clusters[0].Copies {
		synced, own := annotationOf(c.Object, "kuadrant.io/policy-synced"), annotationOf(c.Object, "own")
		if c.Kind == "AuthPolicy" && (synced != "true" || own != "kept") || c.Kind == kindGateway && synced != "" {
			t.Errorf("%s has %q and %q", c.Kind, synced, own)
		}
	}
	if annotationOf(policy, "kuadrant.io/policy-synced") != "no" {
		t.Error("the hub's object was changed")
	}
}

func TestClustersAnnotation(t *testing.T) {
	one := answerOf("c1", "Accepted=True")
	one.Answer.Hash, one.Answer.Addresses = "h", nil
	one.Answer.Listeners = []Listener{{Name: "http", AttachedRoutes: 3}, {Name: "gone", AttachedRoutes: 9}}
	two := answerOf("c2", "Accepted=True")
	two.Answer.Hash, two.Answer.Listeners = "h", []Listener{{Name: "http", AttachedRoutes: 1}}
	two.Answer.Addresses = append(two.Answer.Addresses, addressIn("192.0.2.7"))
	r := GatewayReport{Gateway: secretGateway(t), States: []State{one, two, {Cluster: "c3", Phase: Silent}}}
	want := `{"c1":{"addresses":[],"attachedRoutes":{"http":3}},"c2":{"addresses":[{"type":"IPAddress","value":"192.0.2.7"}],"attachedRoutes":{"http":1}}}`
	if got := r.ClustersAnnotation(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	r.Left = Left{"c2": {}}
	if got, want := r.ClustersAnnotation(), strings.Replace(want, `"http":1}`, `"http":1},"leaving":true`, 1); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	r.States = r.States[2:]
	if got := r.ClustersAnnotation(); got != "" {
		t.Error(got)
	}
}

func addressIn(value string) gatewayv1.GatewayStatusAddress {
	kind := gatewayv1.IPAddressType
	return gatewayv1.GatewayStatusAddress{Type: &kind, Value: value}
}
