package watch

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/policydb/kube"
	"github.com/flowkeep/flowkeep/policydb/policy"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Service is the part of a Service that determines where packets go.
type Service struct {
	Namespace, Name string
	Type            string       // ClusterIP if unset
	Addresses       []netip.Addr // ClusterIPs
	External        []netip.Addr // externalIPs and load balancer addresses
	Headless        bool
	ExternalName    string
	Ports           []ServicePort
	// InternalLocal and ExternalLocal restrict a node to its own endpoints (traffic policies).
	InternalLocal, ExternalLocal bool
	// Nearest reports whether nodes may prefer near endpoints (trafficDistribution).
	Nearest bool
	// Sticky reports session affinity by client address.
	Sticky bool
}

// ServicePort is a port of a Service.
type ServicePort struct {
	Name           string
	Protocol       policy.Protocol
	Port, NodePort uint16
	Target         string // a number or a port name of the pods
}

// Backend is an endpoint of a Service for one of its ports.
type Backend struct {
	PortName                    string // of the Service's port
	Protocol                    policy.Protocol
	Address                     netip.Addr
	Port                        uint16 // 0: any
	Pod, Node                   string // Pod is namespace/name; empty if the endpoint is not a pod
	Ready, Serving, Terminating bool
}

// Service reads a Service from the API server; false if there is none.
func (w *Watcher) Service(ctx context.Context, namespace, name string) (Service, bool, error) {
	svc, err := w.client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return Service{}, false, nil
	case err != nil:
		return Service{}, false, fmt.Errorf("read Service %s/%s from the API server: %w", namespace, name, err)
	}
	return serviceOf(svc), true, nil
}

// Services reads all Services from the API server's cache, which may lack recent ones.
func (w *Watcher) Services(ctx context.Context) ([]Service, error) {
	list, err := w.client.CoreV1().Services("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list Services from the API server: %w", err)
	}
	out := make([]Service, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, serviceOf(&list.Items[i]))
	}
	return out, nil
}

// Backends reads the endpoints of a Service from its EndpointSlices, sorted by address.
func (w *Watcher) Backends(ctx context.Context, namespace, name string) ([]Backend, error) {
	list, err := w.client.DiscoveryV1().
		EndpointSlices(namespace).
		List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
	if err != nil {
		return nil, fmt.Errorf("list the EndpointSlices of Service %s/%s: %w", namespace, name, err)
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
	out := Service{
		Namespace:    svc.Namespace,
		Name:         svc.Name,
		Type:         string(cmp.Or(spec.Type, corev1.ServiceTypeClusterIP)),
		Headless:     spec.ClusterIP == corev1.ClusterIPNone,
		ExternalName: spec.ExternalName,
		InternalLocal: spec.InternalTrafficPolicy != nil &&
			*spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
		ExternalLocal: spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		Nearest:       spec.TrafficDistribution != nil || svc.Annotations[wellknown.AnnotationTopology] != "",
		Sticky:        spec.SessionAffinity == corev1.ServiceAffinityClientIP,
	}
	out.Addresses = kube.ParseAddresses(append([]string{spec.ClusterIP}, spec.ClusterIPs...))
	external := slices.Clone(spec.ExternalIPs)
	for _, in := range svc.Status.LoadBalancer.Ingress {
		external = append(external, in.IP)
	}
	out.External = kube.ParseAddresses(external)
	for i := range spec.Ports {
		p := &spec.Ports[i]
		out.Ports = append(out.Ports, ServicePort{
			Name:     p.Name,
			Protocol: protocolOf(&p.Protocol),
			Port:     uint16(p.Port),
			NodePort: uint16(p.NodePort),
			Target:   p.TargetPort.String(),
		})
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
		// further addresses are equivalent
		for _, a := range kube.ParseAddresses(e.Addresses[:min(1, len(e.Addresses))]) {
			b.Address = a
			out = append(out, atPorts(b, slice.Ports)...)
		}
	}
	return out
}

func atPorts(b Backend, ports []discoveryv1.EndpointPort) (out []Backend) {
	if len(ports) == 0 { // a headless Service without ports
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
