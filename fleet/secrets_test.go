package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// secretGateway has a listener with a Secret of its own namespace, one of another, and something that is no Secret.
func secretGateway(t testing.TB) Object {
	return tree(t, `{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: web, namespace: shop}, spec: {gatewayClassName: hub, listeners: [
		{name: http, port: 80, protocol: HTTP},
		{name: https, port: 443, protocol: HTTPS, tls: {mode: Terminate, certificateRefs: [{name: cert}, {kind: Secret, group: "", name: cert, namespace: shop},
			{name: other, namespace: infra}, {kind: ConfigMap, name: map}]}}]}}`)
}

func secretOf(t testing.TB, text string) Object { return SlimSecret(tree(t, text)) }

const goodSecret = `{apiVersion: v1, kind: Secret, type: kubernetes.io/tls, metadata: {name: cert, namespace: shop, uid: u, labels: {a: b},
	annotations: {cert-manager.io/certificate-name: cert}}, data: {tls.crt: Y2VydA==, tls.key: a2V5, other: c2VjcmV0}}`

func TestSecretRefs(t *testing.T) {
	if refs := SecretRefs(secretGateway(t)); !slices.Equal(refs, []Name{{"shop", "cert"}}) {
		t.Errorf("%v", refs)
	}
}

// secretBundle is the gateway's, in c1 and c2 by its Placement, and kept in c3.
func secretBundle(t testing.TB, p Parameters, s Secret) *Bundle {
	g := &Gateway{
		Name:       Name{"shop", "web"},
		Object:     secretGateway(t),
		Parameters: p,
		Clusters:   []string{"c1", "c2", "c3"},
		Kept:       []string{"c3"},
	}
	if p.Secrets {
		g.Secrets = []Secret{s}
	}
	return GatewayBundle(g, nil, nil)
}

func secretIn(b *Bundle, cluster string) *Copy {
	for _, w := range b.Works("x") {
		for _, c := range w.Copies {
			if w.Cluster == cluster && isSecret(c) {
				return c
			}
		}
	}
	return nil
}

func TestSecrets_GoWhereThePlacementSays(t *testing.T) {
	cert := Secret{Name: Name{"shop", "cert"}, Object: secretOf(t, goodSecret)}
	if b := secretBundle(t, Parameters{Class: "istio"}, cert); strings.Contains(fmt.Sprint(b.Works("x")[0].Copies), "Secret") || secretIn(b, "c1") != nil {
		t.Error("a Secret goes that the class has not go along")
	}
	b := secretBundle(t, Parameters{Class: "istio", Secrets: true}, cert)
	for _, cluster := range []string{"c1", "c2"} {
		c := secretIn(b, cluster)
		if c == nil {
			t.Fatalf("%s gets no Secret", cluster)
		}
		text := string(c.JSON)
		for _, lacks := range []string{"c2VjcmV0", "cert-manager", `"uid"`, `"labels"`, `"spec"`} {
			if strings.Contains(text, lacks) {
				t.Errorf("%s has %s", text, lacks)
			}
		}
		for _, has := range []string{"Y2VydA==", "a2V5", "kubernetes.io/tls", "Secret/shop/cert"} {
			if !strings.Contains(text, has) {
				t.Errorf("%s lacks %s", text, has)
			}
		}
	}
	if secretIn(b, "c3") != nil || !b.Clusters[2].Held[SecretSource(cert.Name)] {
		t.Error("a cluster that no decision names gets a Secret, or loses the one that it has")
	}
}

func TestSecrets_RefsFollowTheName(t *testing.T) {
	p := Parameters{Class: "istio", Namespace: "edge", Secrets: true}
	b := secretBundle(t, p, Secret{Name: Name{"shop", "cert"}, Object: secretOf(t, goodSecret)})
	want := p.SpokeName(Name{"shop", "cert"})
	if c := secretIn(b, "c1"); c == nil || c.Name != want {
		t.Fatalf("%v, want %v", c, want)
	}
	for _, c := range b.Clusters[0].Copies {
		if c.Kind == kindGateway {
			refs := fmt.Sprint(object(object(c.Object, "spec")["listeners"].([]any)[1].(map[string]any), "tls")["certificateRefs"])
			expect := fmt.Sprintf("[map[name:%[1]s] map[group: kind:Secret name:%[1]s namespace:edge] map[name:other namespace:infra] map[kind:ConfigMap name:map]]", want.Name)
			if refs != expect {
				t.Errorf("%s, want %s", refs, expect)
			}
		}
	}
}

func TestSecrets_ThatCannotGo(t *testing.T) {
	name := Name{"shop", "cert"}
	big := strings.Repeat("YWFh", maxSecretBytes/4)
	for what, c := range map[string]struct {
		secret Secret
		reason string
		held   bool
	}{
		"absent":     {Secret{Name: name}, ReasonSecretNotFound, false},
		"unreadable": {Secret{Name: name, Err: errors.New("forbidden")}, ReasonSecretUnreadable, true},
		"opaque":     {Secret{Name: name, Object: secretOf(t, strings.Replace(goodSecret, "kubernetes.io/tls", "Opaque", 1))}, ReasonInvalid, true},
		"no key":     {Secret{Name: name, Object: secretOf(t, strings.Replace(goodSecret, "tls.key", "key", 1))}, ReasonInvalid, true},
		"too large":  {Secret{Name: name, Object: secretOf(t, strings.Replace(goodSecret, "Y2VydA==", big, 1))}, ReasonTooLarge, true},
	} {
		t.Run(what, func(t *testing.T) {
			b := secretBundle(t, Parameters{Class: "istio", Secrets: true}, c.secret)
			if secretIn(b, "c1") != nil || b.Clusters[0].Held[SecretSource(name)] != c.held {
				t.Errorf("it goes, or is held: %v", b.Clusters[0].Held)
			}
			if len(b.Problems) != 1 || b.Problems[0].Reason != c.reason {
				t.Errorf("%+v, want %s", b.Problems, c.reason)
			}
		})
	}
}

func TestSlimSecret_CopyIsAbsent(t *testing.T) {
	if o := secretOf(t, strings.Replace(goodSecret, "cert-manager.io/certificate-name", AnnotationSource, 1)); o != nil {
		t.Errorf("%v", o)
	}
}

func TestWithSecrets(t *testing.T) {
	gateway := []State{{Cluster: "c1", Phase: Answered}, {Cluster: "c2", Phase: Answered}, {Cluster: "c3", Phase: Answered}}
	secrets := []SecretStates{{Name{"shop", "cert"}, []State{
		{Cluster: "c1", Phase: Answered}, {Cluster: "c2", Phase: Refused, Reason: "NameTaken", Message: "taken"}, {Cluster: "c3", Phase: NotSent, Reason: "NotSent"},
	}}}
	got := WithSecrets(gateway, secrets, []string{"c3"})
	if got[0].Phase != Answered || got[1].Phase != NotSent || got[1].Reason != "NameTaken" || got[2].Phase != Answered || gateway[1].Phase != Answered {
		t.Errorf("%+v", got)
	}
}
