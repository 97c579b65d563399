package kube

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/policydb/service"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Service returns the fields of a Service that decide where packets go. Without externalIPs those of the specification
// are left out.
func Service(in *corev1.Service, externalIPs bool) *service.Service {
	spec := &in.Spec
	out := &service.Service{
		Namespace: in.Namespace,
		Name:      in.Name,
		UID:       string(in.UID),
		Type:      string(cmp.Or(spec.Type, corev1.ServiceTypeClusterIP)),
		InternalLocal: spec.InternalTrafficPolicy != nil &&
			*spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
		ExternalLocal: spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		Unserved:      unserved(in),
		CreatedAt:     unixSeconds(in.CreationTimestamp.Time),
	}
	if out.Unserved != "" {
		return out
	}
	out.ClusterIPs = ParseAddresses(append([]string{spec.ClusterIP}, spec.ClusterIPs...))
	out.ExternalIPs = ParseAddresses(spec.ExternalIPs)
	if n := len(out.ExternalIPs); n > 0 && !externalIPs {
		out.ExternalIPs = nil
		out.Problems = append(out.Problems, "spec.externalIPs: switched off for all Services (CVE-2020-8554)")
	}
	out.LoadBalancerIPs = loadBalancerIPs(in)
	out.SourceRanges = parseRanges(spec.LoadBalancerSourceRanges)
	out.Affinity = affinity(spec)
	for i := range spec.Ports {
		p := &spec.Ports[i]
		if protocol, ok := protocolOf(&p.Protocol); ok {
			out.Ports = append(out.Ports, service.Port{
				Name:     p.Name,
				Protocol: protocol,
				Port:     uint16(p.Port),
				NodePort: uint16(p.NodePort),
			})
		}
	}
	return out
}

// unserved returns why a Service has no frontends; empty: it has some.
func unserved(in *corev1.Service) string {
	switch {
	case in.Spec.Type == corev1.ServiceTypeExternalName:
		return "type ExternalName: a name in the DNS"
	case in.Spec.ClusterIP == corev1.ClusterIPNone:
		return "headless: the DNS leads to its endpoints"
	case in.Spec.ClusterIP == "":
		return "it has no ClusterIP yet"
	}
	return ""
}

// loadBalancerIPs leaves those of ipMode Proxy out, as kube-proxy does (KEP-1860).
func loadBalancerIPs(in *corev1.Service) []netip.Addr {
	var out []string
	for _, ing := range in.Status.LoadBalancer.Ingress {
		if ing.IPMode == nil || *ing.IPMode == corev1.LoadBalancerIPModeVIP {
			out = append(out, ing.IP)
		}
	}
	return ParseAddresses(out)
}

// affinity returns for how long a client keeps its endpoint: three hours unless the Service has another time.
func affinity(spec *corev1.ServiceSpec) time.Duration {
	if spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	return time.Duration(seconds) * time.Second
}

// EndpointSlice returns the fields of an EndpointSlice that nodes need, its endpoints by address. One without the label
// of a Service, or with names in place of addresses, is of no Service.
func EndpointSlice(in *discoveryv1.EndpointSlice) *service.Slice {
	out := &service.Slice{
		Namespace: in.Namespace,
		Name:      in.Name,
		CreatedAt: unixSeconds(in.CreationTimestamp.Time),
	}
	if in.AddressType == discoveryv1.AddressTypeFQDN {
		return out
	}
	out.Service = in.Labels[discoveryv1.LabelServiceName]
	for i := range in.Ports {
		p := &in.Ports[i]
		protocol, ok := protocolOf(p.Protocol)
		if !ok || p.Port == nil || *p.Port <= 0 { // no port is any port, as headless Services may have
			continue
		}
		port := service.SlicePort{Protocol: protocol, Port: uint16(*p.Port)}
		if p.Name != nil {
			port.Name = *p.Name
		}
		out.Ports = append(out.Ports, port)
	}
	for i := range in.Endpoints {
		if e, ok := endpointOf(in.Namespace, &in.Endpoints[i]); ok {
			out.Endpoints = append(out.Endpoints, e)
		}
	}
	slices.SortStableFunc(out.Endpoints, func(a, b service.Endpoint) int { return a.Address.Compare(b.Address) })
	return out
}

// endpointOf takes the first address: the others mean the same.
func endpointOf(namespace string, in *discoveryv1.Endpoint) (out service.Endpoint, ok bool) {
	if len(in.Addresses) == 0 {
		return out, false
	}
	address := ParseAddresses(in.Addresses[:1])
	if len(address) == 0 {
		return out, false
	}
	isTrue := func(v *bool, otherwise bool) bool { return v == nil && otherwise || v != nil && *v }
	out = service.Endpoint{
		Address:     address[0],
		Ready:       isTrue(in.Conditions.Ready, true),
		Serving:     isTrue(in.Conditions.Serving, true),
		Terminating: isTrue(in.Conditions.Terminating, false),
	}
	if in.NodeName != nil {
		out.Node = *in.NodeName
	}
	if t := in.TargetRef; t != nil && t.Kind == "Pod" && max(len(t.Namespace), len(t.Name)) <= maxName {
		out.Pod = cmp.Or(t.Namespace, namespace) + "/" + t.Name
	}
	if h := in.Hints; h != nil {
		out.ZoneHints = hints(h.ForZones, func(z discoveryv1.ForZone) string { return z.Name })
		out.NodeHints = hints(h.ForNodes, func(n discoveryv1.ForNode) string { return n.Name })
	}
	return out, true
}

// The API server bounds the number of hints and the length of most names, but not that of a targetRef or a hint: all
// nodes are sent them. No pod and no node has a longer name.
const (
	maxName  = 253
	maxHints = 8
)

// hints returns the names of hints, or none where one is longer than a name can be, or where there are too many.
func hints[T any](all []T, name func(T) string) (out []string) {
	for _, h := range all {
		n := name(h)
		if len(n) > maxName || len(out) == maxHints {
			return nil
		}
		out = append(out, n)
	}
	return out
}

// ParseAddresses leaves out what is no address, and repetitions. It takes time in proportion to their number: one
// Service may have 100,000 of them.
func ParseAddresses(texts []string) (out []netip.Addr) {
	seen := make(map[netip.Addr]struct{}, min(len(texts), 16))
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		a = a.Unmap()
		if _, twice := seen[a]; !twice {
			seen[a] = struct{}{}
			out = append(out, a)
		}
	}
	return out
}

func parseRanges(texts []string) (out []netip.Prefix) {
	for _, text := range texts {
		if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

func unixSeconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}
