package service

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Service is a Kubernetes Service as far as it decides where a pod's packet to it goes.
type Service struct {
	Namespace, Name string
	// ClusterIPs are empty for a Service without frontends: headless, or of type ExternalName.
	ClusterIPs []netip.Addr
	// ExternalIPs are spec.externalIPs, unless they are switched off (CVE-2020-8554).
	ExternalIPs []netip.Addr
	// LoadBalancerIPs are those of the status, without addresses of ipMode Proxy: packets to these pass the load
	// balancer (KEP-1860).
	LoadBalancerIPs []netip.Addr
	// Ports do not have the health check's node port: kube-proxy itself responds there.
	Ports []Port
	// SourceRanges are loadBalancerSourceRanges. They hold for LoadBalancerIPs alone.
	SourceRanges []netip.Prefix
	// InternalLocal is internalTrafficPolicy: Local (KEP-2086).
	InternalLocal bool
	// ExternalLocal is externalTrafficPolicy: Local. It changes nothing for packets of pods: see Choose.
	ExternalLocal bool
	// Affinity is how long a client keeps its endpoint; 0: it has none.
	Affinity time.Duration

	UID       string // of the object; nodes do not receive it
	Type      string // as in the API, for people
	CreatedAt int64  // Unix seconds
	// Unserved is why a Service has no frontends; empty: it has some.
	Unserved string
	// Problems are what was left out, and why.
	Problems []string
}

// Port is a port of a Service.
type Port struct {
	Name           string
	Protocol       policy.Protocol
	Port, NodePort uint16 // NodePort 0: none
}

// ID returns namespace/name.
func (s *Service) ID() string { return s.Namespace + "/" + s.Name }

// Kind is a kind of Frontend.
type Kind uint8

// Kinds of Frontend.
const (
	ClusterIP Kind = iota + 1
	ExternalIP
	LoadBalancerIP
	NodePort
)

var kindNames = map[Kind]string{
	ClusterIP:      "ClusterIP",
	ExternalIP:     "ExternalIP",
	LoadBalancerIP: "LoadBalancer",
	NodePort:       "NodePort",
}

// String returns the API's word where it has one.
func (k Kind) String() string { return cmp.Or(kindNames[k], "unknown") }

// Frontend is an address and a port at which pods reach a Service.
type Frontend struct {
	Kind Kind
	// Address is not valid for a NodePort: that is at every address of Family of every node.
	Address  netip.Addr
	Family   Family
	Protocol policy.Protocol
	Port     uint16
	Name     string // of the Service's port
}

// Family is an IP family.
type Family uint8

// Families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Families returns the families of a Service, which are those of its ClusterIPs. kube-proxy translates nothing of
// another.
func (s *Service) Families() (out []Family) {
	for _, a := range s.ClusterIPs {
		if f := FamilyOf(a); !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	slices.Sort(out)
	return out
}

// Frontends returns all frontends, by kind, address and port.
func (s *Service) Frontends() (out []Frontend) {
	families := s.Families()
	add := func(kind Kind, addresses []netip.Addr) {
		for _, a := range addresses {
			if !slices.Contains(families, FamilyOf(a)) {
				continue
			}
			for i := range s.Ports {
				p := &s.Ports[i]
				out = append(out, Frontend{
					Kind:     kind,
					Address:  a,
					Family:   FamilyOf(a),
					Protocol: p.Protocol,
					Port:     p.Port,
					Name:     p.Name,
				})
			}
		}
	}
	add(ClusterIP, s.ClusterIPs)
	add(ExternalIP, s.ExternalIPs)
	add(LoadBalancerIP, s.LoadBalancerIPs)
	for i := range s.Ports {
		p := &s.Ports[i]
		for _, f := range families {
			if p.NodePort > 0 {
				out = append(out, Frontend{
					Kind:     NodePort,
					Family:   f,
					Protocol: p.Protocol,
					Port:     p.NodePort,
					Name:     p.Name,
				})
			}
		}
	}
	return out
}

// SourcesOf returns the ranges of clients that reach a frontend; none: all do. Ranges are of the frontend's family. One
// of length 0 lifts the others, as in kube-proxy.
func (s *Service) SourcesOf(f *Frontend) (out []netip.Prefix) {
	if f.Kind != LoadBalancerIP {
		return nil
	}
	for _, p := range s.SourceRanges {
		switch {
		case FamilyOf(p.Addr()) != f.Family:
		case p.Bits() == 0:
			return nil
		default:
			out = append(out, p)
		}
	}
	return out
}
