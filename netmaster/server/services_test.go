package server

import (
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/wire"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func clusterIP(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP:   "10.96.0.1",
			ExternalIPs: []string{"192.0.2.1"},
			Ports:       []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

func endpointSlice(name, of string, addresses ...string) *discoveryv1.EndpointSlice {
	port := int32(8080)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns",
			Name:      name,
			Labels:    map[string]string{discoveryv1.LabelServiceName: of},
		},
		Ports: []discoveryv1.EndpointPort{{Port: &port}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

// leads reports whether a node holds a slice with these endpoints.
func (n *node) leads(slice string, want ...string) func() bool {
	return n.is(func() bool {
		value, there := n.services.Get(wire.SliceKey("ns/" + slice))
		e, err := wire.ToServiceEntry(wire.SliceKey("ns/"+slice), value)
		if err != nil {
			n.Error(err)
		}
		if !there || e.Slice == nil || len(e.Slice.Endpoints) != len(want) {
			return false
		}
		for i, text := range want {
			if e.Slice.Endpoints[i].Address != netip.MustParseAddr(text) {
				return false
			}
		}
		return true
	})
}

// TestServicesReachNodes: Services and their changes, also those while netmaster is away; a restart sends nothing again.
func TestServicesReachNodes(t *testing.T) {
	w := newWorld(t, append(shop(t), clusterIP("web"), endpointSlice("web-1", "web", "10.0.2.1"))...)
	m := w.start()
	n := w.node("node1")
	n.connect(m)
	until(t, "the node holds the endpoint", n.leads("web-1", "10.0.2.1"))
	m.ready()
	until(t, "the metric", func() bool { return m.metric("netmaster_services_connected") == 1 })
	slices := w.client.DiscoveryV1().EndpointSlices("ns")
	update := func(addresses ...string) {
		t.Helper()
		changed := endpointSlice("web-1", "web", addresses...)
		if _, err := slices.Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.watching()
	update("10.0.2.1", "10.0.2.2")
	until(t, "the node holds both", n.leads("web-1", "10.0.2.1", "10.0.2.2"))
	m.stop()
	n.end()
	update("10.0.2.2")
	if !n.leads("web-1", "10.0.2.1", "10.0.2.2")() {
		t.Error("the node has lost what it held")
	}
	m = w.start()
	n.connect(m)
	until(t, "the node holds what changed meanwhile", n.leads("web-1", "10.0.2.2"))
	var list []inspect.ServedService
	m.ask(func(conn grpc.ClientConnInterface) (err error) {
		list, err = inspect.Ask[[]inspect.ServedService](t.Context(), conn, inspect.Question{Kind: inspect.AskFrontends})
		return err
	})
	if len(list) != 1 || list[0].FrontendCount != 2 || list[0].EndpointCount != 1 {
		t.Errorf("netctl gets %+v", list)
	}
	if err := w.client.CoreV1().Services("ns").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the node has dropped it", n.is(func() bool { return n.services.Len() == 0 }))
}

// TestServices_LeaderChange: a change that comes while no netmaster leads is with nodes before the next leader has sent
// anything else.
func TestServices_LeaderChange(t *testing.T) {
	w := newWorld(t, append(shop(t), clusterIP("web"), endpointSlice("web-1", "web", "10.0.2.1"))...)
	e := &election{terms: make(chan *played)}
	m := w.start(func(cfg *Config) { cfg.Election = e })
	m.ready()
	w.watching()
	n := w.node("node1")
	slices := w.client.DiscoveryV1().EndpointSlices("ns")
	for epoch := range uint64(5) {
		term := e.begin(epoch + 1)
		until(t, "it leads", m.leads(epoch+1))
		n.connect(m)
		address := netip.AddrFrom4([4]byte{10, 0, 2, byte(epoch + 1)}).String()
		until(t, "the node holds the endpoint", n.leads("web-1", address))
		if err := term.end(); err != nil {
			t.Fatal(err)
		}
		until(t, "the node's stream has ended", n.is(func() bool { return n.ended != nil }))
		n.end()
		n.ended = nil
		next := netip.AddrFrom4([4]byte{10, 0, 2, byte(epoch + 2)}).String()
		changed := endpointSlice("web-1", "web", next)
		if _, err := slices.Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
