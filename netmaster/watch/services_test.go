package watch

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"
)

func decoded[T any](t *testing.T, text string) *T {
	t.Helper()
	out := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestServicesAreRead(t *testing.T) {
	client := fake.NewClientset(
		decoded[corev1.Service](t, `{metadata: {namespace: shop, name: db}, spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, "fd00::1"], externalIPs: [203.0.113.1, nonsense], internalTrafficPolicy: Local,
			trafficDistribution: PreferClose, sessionAffinity: ClientIP, ports: [{name: sql, port: 3306, targetPort: sql, nodePort: 30006}, {port: 53, targetPort: 5353, protocol: UDP}]},
			status: {loadBalancer: {ingress: [{ip: 203.0.113.2}, {hostname: db.example.com}]}}}`),
		decoded[corev1.Service](t, `{metadata: {namespace: shop, name: bare}, spec: {clusterIP: None}}`),
		decoded[corev1.Service](t, `{metadata: {namespace: shop, name: alias}, spec: {type: ExternalName, externalName: db.example.com}}`),
		decoded[discoveryv1.EndpointSlice](t, `{metadata: {namespace: shop, name: db-1, labels: {kubernetes.io/service-name: db}}, addressType: IPv4, ports: [{name: sql, port: 5432, protocol: TCP}, {name: any}],
			endpoints: [{addresses: [10.0.0.2], nodeName: node1, targetRef: {kind: Pod, name: db-0}}, {addresses: [10.0.0.1], conditions: {ready: false, serving: true, terminating: true}}, {addresses: []}]}`),
		decoded[discoveryv1.EndpointSlice](t, `{metadata: {namespace: shop, name: db-2, labels: {kubernetes.io/service-name: db}}, addressType: IPv4, ports: [{name: sql, port: 5432, protocol: TCP}],
			endpoints: [{addresses: [10.0.0.2], nodeName: node1, targetRef: {kind: Pod, name: db-0}}]}`),
		decoded[discoveryv1.EndpointSlice](t, `{metadata: {namespace: shop, name: db-3, labels: {kubernetes.io/service-name: db}}, addressType: FQDN, endpoints: [{addresses: [db.example.com]}]}`),
		decoded[discoveryv1.EndpointSlice](t, `{metadata: {namespace: shop, name: other, labels: {kubernetes.io/service-name: dbx}}, addressType: IPv4, endpoints: [{addresses: [10.0.0.9]}]}`))
	w, err := New(client, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	svc, there, err := w.Service(t.Context(), "shop", "db")
	want := "{Namespace:shop Name:db Type:ClusterIP Addresses:[10.96.0.1 fd00::1] External:[203.0.113.1 203.0.113.2] Headless:false ExternalName: " +
		"Ports:[{Name:sql Protocol:TCP Port:3306 NodePort:30006 Target:sql} {Name: Protocol:UDP Port:53 NodePort:0 Target:5353}] InternalLocal:true ExternalLocal:false Nearest:true Sticky:true}"
	if got := fmt.Sprintf("%+v", svc); err != nil || !there || got != want {
		t.Errorf("%v, %v:\n got %s\nwant %s", there, err, got, want)
	}
	if svc, there, err := w.Service(t.Context(), "shop", "nothing"); there || err != nil {
		t.Errorf("%+v, %v", svc, err)
	}
	list, err := w.Services(t.Context())
	if err != nil || len(list) != 3 || !slices.ContainsFunc(list, func(s Service) bool { return s.Headless }) || !slices.ContainsFunc(list, func(s Service) bool { return s.ExternalName == "db.example.com" }) {
		t.Errorf("%+v, %v", list, err)
	}
	behind, err := w.Backends(t.Context(), "shop", "db")
	var got []string
	for _, b := range behind {
		got = append(got, fmt.Sprintf("%s %s:%d %s %v %v %v", b.PortName, b.Address, b.Port, b.Pod, b.Ready, b.Serving, b.Terminating))
	}
	if want := []string{"any 10.0.0.1:0  false true true", "any 10.0.0.2:0 shop/db-0 true true false", "sql 10.0.0.1:5432  false true true", "sql 10.0.0.2:5432 shop/db-0 true true false"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v:\n got %q\nwant %q", err, got, want)
	}
}
