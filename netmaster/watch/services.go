package watch

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/policydb/policy"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Service is what of a Service decides where packets go.
type Service struct {
	Namespace, Name string
	Type            string       // as in the API; ClusterIP where it says nothing
	Addresses       []netip.Addr // ClusterIPs
	External        []netip.Addr // externalIPs, and those of its load balancer
	Headless        bool
	ExternalName    string
	Ports           []ServicePort
	// InternalLocal and ExternalLocal: a node leads packets to its own pods alone.
	InternalLocal, ExternalLocal bool
	// Nearest: of the endpoints a node may prefer those that are near.
	Nearest bool
	// Sticky: a client comes to the same endpoint again.
	Sticky bool
}

// ServicePort is a port of a Service.
type ServicePort struct {
	Name           string
	Protocol       policy.Protocol
	Port, NodePort uint16
	Target         string // a number, or a name of the pods'
}

// Backend is an endpoint behind a Service, at the port of one of its ports.
type Backend struct {
	PortName                    string // of the Service's port
	Protocol                    policy.Protocol
	Address                     netip.Addr
	Port                        uint16 // 0: any
	Pod, Node                   string // Pod is namespace/name; empty: it is no pod
	Ready, Serving, Terminating bool
}

// Service asks the API server for a Service as it is now; false if there is none.
func (w *Watcher) Service(ctx context.Context, namespace, name string) (Service, bool, error) {
	svc, err := w.client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return Service{}, false, nil
	case err != nil:
		return Service{}, false, fmt.Errorf("ask the API server for Service %s/%s: %w", namespace, name, err)
	}
	return serviceOf(svc), true, nil
}

// Services asks the API server for all Services, from its cache: what was made a moment ago may be missing.
func (w *Watcher) Services(ctx context.Context) ([]Service, error) {
	list, err := w.client.CoreV1().Services("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("ask the API server for the Services: %w", err)
	}
	out := make([]Service, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, serviceOf(&list.Items[i]))
	}
	return out, nil
}

// Backends asks the API server for what is behind a Service now, by EndpointSlices, in the order of addresses.
func (w *Watcher) Backends(ctx context.Context, namespace, name string) ([]Backend, error) {
	list, err := w.client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
	if err != nil {
		return nil, fmt.Errorf("ask the API server for the EndpointSlices of Service %s/%s: %w", namespace, name, err)
	}
	var out []Backend
	for i := range list.Items {
		out = append(out, backendsOf(&list.Items[i])...)
	}
	slices.SortFunc(out, func(a, b Backend) int {
		return cmp.Or(cmp.Compare(a.PortName, b.PortName), a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port))
	})
	return slices.Compact(out), nil // an endpoint may be in two slices for a moment
}

func serviceOf(svc *corev1.Service) Service {
	spec := &svc.Spec
	out := Service{Namespace: svc.Namespace, Name: svc.Name, Type: string(cmp.Or(spec.Type, corev1.ServiceTypeClusterIP)), Headless: spec.ClusterIP == corev1.ClusterIPNone, ExternalName: spec.ExternalName,
		InternalLocal: spec.InternalTrafficPolicy != nil && *spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
		ExternalLocal: spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		Nearest:       spec.TrafficDistribution != nil || svc.Annotations[wellknown.AnnotationTopology] != "",
		Sticky:        spec.SessionAffinity == corev1.ServiceAffinityClientIP}
	out.Addresses = parseAddresses(append([]string{spec.ClusterIP}, spec.ClusterIPs...))
	external := slices.Clone(spec.ExternalIPs)
	for _, in := range svc.Status.LoadBalancer.Ingress {
		external = append(external, in.IP)
	}
	out.External = parseAddresses(external)
	for i := range spec.Ports {
		p := &spec.Ports[i]
		out.Ports = append(out.Ports, ServicePort{Name: p.Name, Protocol: protocolOf(&p.Protocol), Port: uint16(p.Port), NodePort: uint16(p.NodePort), Target: p.TargetPort.String()})
	}
	return out
}

// parseAddresses leaves out what is none, and what is there already.
func parseAddresses(texts []string) (out []netip.Addr) {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(out, a.Unmap()) {
			out = append(out, a.Unmap())
		}
	}
	return out
}

func protocolOf(p *corev1.Protocol) policy.Protocol {
	switch {
	case p != nil && *p == corev1.ProtocolUDP:
		return policy.UDP
	case p != nil && *p == corev1.ProtocolSCTP:
		return policy.SCTP
	}
	return policy.TCP
}

func backendsOf(slice *discoveryv1.EndpointSlice) (out []Backend) {
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		b := Backend{Ready: isTrue(e.Conditions.Ready, true), Terminating: isTrue(e.Conditions.Terminating, false)}
		b.Serving = isTrue(e.Conditions.Serving, b.Ready)
		if e.NodeName != nil {
			b.Node = *e.NodeName
		}
		if t := e.TargetRef; t != nil && t.Kind == "Pod" {
			b.Pod = cmp.Or(t.Namespace, slice.Namespace) + "/" + t.Name
		}
		for _, a := range parseAddresses(e.Addresses[:min(1, len(e.Addresses))]) { // the others mean the same
			b.Address = a
			out = append(out, atPorts(b, slice.Ports)...)
		}
	}
	return out
}

func atPorts(b Backend, ports []discoveryv1.EndpointPort) (out []Backend) {
	if len(ports) == 0 { // of a headless Service without ports
		return []Backend{b}
	}
	for i := range ports {
		b.PortName, b.Port, b.Protocol = "", 0, protocolOf(ports[i].Protocol)
		if ports[i].Name != nil {
			b.PortName = *ports[i].Name
		}
		if ports[i].Port != nil {
			b.Port = uint16(*ports[i].Port)
		}
		out = append(out, b)
	}
	return out
}

func isTrue(v *bool, otherwise bool) bool {
	if v == nil {
		return otherwise
	}
	return *v
}
