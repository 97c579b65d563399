package kube

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/cputime"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"
)

func addressesOf(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// asValues compares addresses as they are.
var asValues = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func parse[T any](t *testing.T, text string) *T {
	t.Helper()
	out := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), out); err != nil {
		t.Fatal(err)
	}
	return out
}

const loadBalancer = `
metadata: {namespace: shop, name: web, uid: u, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, "fd00:96::10"]
  externalIPs: [192.0.2.1, nonsense]
  loadBalancerSourceRanges: [" 10.0.0.1/8 "]
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
  internalTrafficPolicy: Local
  externalTrafficPolicy: Local
  healthCheckNodePort: 32000
  ports:
  - {name: web, protocol: TCP, port: 80, nodePort: 30080}
  - {name: dns, protocol: UDP, port: 53}
status:
  loadBalancer:
    ingress:
    - {ip: 203.0.113.1}
    - {ip: 203.0.113.2, ipMode: VIP}
    - {ip: 203.0.113.3, ipMode: Proxy}
    - {hostname: lb.example}
`

func TestService(t *testing.T) {
	want := &service.Service{
		Namespace:       "shop",
		Name:            "web",
		UID:             "u",
		Type:            "LoadBalancer",
		CreatedAt:       1767225600,
		ClusterIPs:      addressesOf("10.96.0.10", "fd00:96::10"),
		ExternalIPs:     addressesOf("192.0.2.1"),
		LoadBalancerIPs: addressesOf("203.0.113.1", "203.0.113.2"),
		SourceRanges:    []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		InternalLocal:   true,
		ExternalLocal:   true,
		Affinity:        time.Minute,
		Ports: []service.Port{
			{Name: "web", Protocol: policy.TCP, Port: 80, NodePort: 30080},
			{Name: "dns", Protocol: policy.UDP, Port: 53},
		},
	}
	if d := cmp.Diff(want, Service(parse[corev1.Service](t, loadBalancer), true), asValues); d != "" {
		t.Error(d)
	}
	off := Service(parse[corev1.Service](t, loadBalancer), false)
	if off.ExternalIPs != nil || len(off.Problems) != 1 {
		t.Errorf("externalIPs are switched off: %v, problems %q", off.ExternalIPs, off.Problems)
	}
	for _, f := range off.Frontends() {
		if f.Port == 32000 || f.Kind == service.ExternalIP {
			t.Errorf("frontend %+v", f)
		}
	}
}

// TestService_WithoutFrontends: headless Services and names in the DNS have none, whatever else they have.
func TestService_WithoutFrontends(t *testing.T) {
	for name, spec := range map[string]string{
		"headless":             "spec: {clusterIP: None, ports: [{protocol: TCP, port: 80}], externalIPs: [192.0.2.1]}",
		"ExternalName":         "spec: {type: ExternalName, externalName: a.example, clusterIP: 10.96.0.1}",
		"without an address":   "spec: {ports: [{protocol: TCP, port: 80, nodePort: 30080}]}",
		"unknown to this node": "spec: {}",
	} {
		t.Run(name, func(t *testing.T) {
			s := Service(parse[corev1.Service](t, spec), true)
			if s.Unserved == "" || s.Frontends() != nil {
				t.Errorf("%+v has frontends", s)
			}
		})
	}
	s := Service(parse[corev1.Service](t, "spec: {clusterIP: 10.96.0.1, sessionAffinity: ClientIP}"), true)
	if s.Affinity != 3*time.Hour {
		t.Errorf("affinity lasts %s", s.Affinity)
	}
}

const endpointSlice = `
metadata: {namespace: shop, name: web-abc, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports:
- {name: web, protocol: TCP, port: 8080}
- {name: any, protocol: TCP}
- {name: strange, protocol: ICMP, port: 8}
endpoints:
- addresses: [10.0.0.9, 10.0.0.10]
  nodeName: n1
  hints: {forZones: [{name: a}, {name: b}], forNodes: [{name: n2}]}
  targetRef: {kind: Pod, name: web-1}
- addresses: [10.0.0.2]
  conditions: {ready: false, serving: true, terminating: true}
  targetRef: {kind: Node, name: n3}
- addresses: [10.0.0.3]
  conditions: {ready: false, serving: false}
- {addresses: [nonsense]}
- {addresses: []}
`

func TestEndpointSlice(t *testing.T) {
	want := &service.Slice{
		Namespace: "shop",
		Name:      "web-abc",
		Service:   "web",
		Ports:     []service.SlicePort{{Name: "web", Protocol: policy.TCP, Port: 8080}},
		Endpoints: []service.Endpoint{
			{Address: addressesOf("10.0.0.2")[0], Serving: true, Terminating: true},
			{Address: addressesOf("10.0.0.3")[0]},
			{
				Address:   addressesOf("10.0.0.9")[0],
				Pod:       "shop/web-1",
				Node:      "n1",
				ZoneHints: []string{"a", "b"},
				NodeHints: []string{"n2"},
				Ready:     true,
				Serving:   true,
			},
		},
	}
	if d := cmp.Diff(want, EndpointSlice(parse[discoveryv1.EndpointSlice](t, endpointSlice)), asValues); d != "" {
		t.Error(d)
	}
	names := EndpointSlice(parse[discoveryv1.EndpointSlice](t,
		"{metadata: {labels: {kubernetes.io/service-name: web}}, addressType: FQDN, endpoints: [{addresses: [a.example]}]}"))
	if names.Service != "" || slices.ContainsFunc(names.Endpoints, func(service.Endpoint) bool { return true }) {
		t.Errorf("names are endpoints: %+v", names)
	}
}

// A Service with very many addresses, each another one, takes time in proportion to their number.
func TestParseAddresses_IsLinear(t *testing.T) {
	addresses := func(n int) (list []string) {
		for i := range n {
			list = append(list, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String())
		}
		return list
	}
	parse := func(list []string) time.Duration {
		return fastest(func() {
			if got := ParseAddresses(list); len(got) != len(list) {
				t.Errorf("%d addresses of %d", len(got), len(list))
			}
		})
	}
	const few, times = 2_000, 16
	base, took := parse(addresses(few)), parse(addresses(few*times))
	if limit := times * times / 2 * max(base, time.Millisecond); took > limit { // quadratic: times*times
		t.Errorf("%d times as many addresses take %v, where %d take %v", times, took, few, base)
	}
}

// fastest returns the least processor time that f takes on its thread in three calls.
func fastest(f func()) time.Duration {
	least := time.Duration(math.MaxInt64)
	for range 3 {
		least = min(least, cputime.Of(f))
	}
	return least
}

// Names that no pod and no node can have are left out: every node is sent what is kept.
func TestEndpointSlice_LongNames(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	endpoint := func(pod, zone, node string, hints int) discoveryv1.Endpoint {
		e := discoveryv1.Endpoint{
			Addresses: []string{"10.0.0.1"},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: pod},
			Hints:     &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: node}}},
		}
		for range hints {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: zone})
		}
		return e
	}
	got := EndpointSlice(&discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{
		endpoint("p", "zone", "node", 8),
		endpoint(long, long, long, 1),
		endpoint("p", "zone", "node", 9),
	}}).Endpoints
	if e := got[0]; e.Pod != "ns/p" || len(e.ZoneHints) != 8 || len(e.NodeHints) != 1 {
		t.Errorf("%v", e)
	}
	if e := got[1]; e.Pod != "" || len(e.ZoneHints)+len(e.NodeHints) > 0 {
		t.Error("names that are too long are kept")
	}
	if e := got[2]; e.Pod != "ns/p" || e.ZoneHints != nil {
		t.Errorf("a part of too many hints is kept: %v", e.ZoneHints)
	}
}
