package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Claim is the claim of a Service on an address and port, or on a node port.
type Claim struct {
	Kind      Kind
	CreatedAt int64  // of the Service, in Unix seconds; 0: unknown
	Service   string // namespace/name
}

// Compare orders claims on the same address and port; the first is in force. The API server assigns a ClusterIP and a
// node port to one Service. A controller writes the addresses of load balancers into the status, and a user who may
// edit a Service writes its external IPs. Among claims of one kind that of the oldest Service is first, even if the
// Service was edited to make it after the others.
func (c Claim) Compare(o Claim) int {
	return cmp.Or(
		cmp.Compare(c.Kind.rank(), o.Kind.rank()),
		cmp.Compare(c.CreatedAt, o.CreatedAt),
		cmp.Compare(c.Service, o.Service),
	)
}

func (k Kind) rank() int {
	switch k {
	case ClusterIP:
		return 0
	case NodePort:
		return 1
	case LoadBalancerIP:
		return 2
	}
	return 3
}

// IsExternal reports whether frontends of the kind are at addresses that the API server does not assign.
func (k Kind) IsExternal() bool { return k == ExternalIP || k == LoadBalancerIP }

// AddressUse is what else the cluster uses the address of a frontend for.
type AddressUse struct {
	LocalPods bool // it is in a podCIDR of the node that translates
	Pods      bool // it is in a podCIDR of any node
	Services  bool // it is in a CIDR of ClusterIPs
	Node      bool // it is an address of a node
}

// Refusal returns why a node does not translate a frontend of the Service, for people; empty: it does. The claims are
// the first ones on the frontend, and on the node port with its number; without a Service: there is none.
func (s *Service) Refusal(f *Frontend, use AddressUse, first, nodePort Claim) string {
	isOutside := f.Kind.IsExternal() && !slices.Contains(s.ClusterIPs, f.Address)
	switch {
	case !f.Address.IsValid():
	case use.LocalPods, isOutside && use.Pods:
		return fmt.Sprintf("%s %s is an address of pods: it is not translated", f.Kind, f.Address)
	case !isOutside:
	case use.Services:
		return fmt.Sprintf("%s %s is in a CIDR of ClusterIPs: it is not translated", f.Kind, f.Address)
	case use.Node && s.losesToNodePort(f, nodePort):
		return fmt.Sprintf("%s %s, a node's address: %s %d is the node port of Service %s: it is not translated",
			f.Kind, f.Address, f.Protocol, f.Port, nodePort.Service)
	}
	if first.Service != "" && first.Service != s.ID() {
		return fmt.Sprintf("%s %s: %s %d is of Service %s (%s): it is not translated",
			f.Kind, f.addressText(), f.Protocol, f.Port, first.Service, first.Kind)
	}
	return ""
}

// losesToNodePort reports whether a node port of another Service comes before a frontend with its number, at a node's
// address. A user who may edit a Service chooses its external IPs, and also its node port: the address of an older
// load balancer must not be lost to that.
func (s *Service) losesToNodePort(f *Frontend, first Claim) bool {
	switch {
	case first.Service == "" || first.Service == s.ID():
		return false
	case f.Kind == ExternalIP:
		return true
	}
	return first.Compare(Claim{Kind: first.Kind, CreatedAt: s.CreatedAt, Service: s.ID()}) < 0
}

func (f *Frontend) addressText() string {
	if f.Address.IsValid() {
		return f.Address.String()
	}
	return fmt.Sprintf("of IPv%d", f.Family)
}

// Claim returns the claim of the Service on a frontend.
func (s *Service) Claim(f *Frontend) Claim {
	return Claim{
		Kind:      f.Kind,
		CreatedAt: s.CreatedAt,
		Service:   s.ID(),
	}
}

// At returns the Service and its frontend that a node translates packets at an address to; nil: none. Protocol 0 and
// port 0 stand for any: then the frontend at the address with the first claim is returned.
func At(all []*Service, to netip.Addr, protocol policy.Protocol, port uint16, use AddressUse) (*Service, *Frontend) {
	type candidate struct {
		service  *Service
		frontend Frontend
	}
	var list []candidate
	first := map[Frontend]Claim{} // without kinds and names
	key := func(f Frontend) Frontend {
		f.Kind, f.Name = 0, ""
		return f
	}
	for _, s := range all {
		for _, f := range s.Frontends() {
			isHere := f.Address == to || f.Kind == NodePort && use.Node && f.Family == FamilyOf(to)
			if !isHere || protocol != 0 && f.Protocol != protocol || port != 0 && f.Port != port {
				continue
			}
			list = append(list, candidate{s, f})
			if c, claimed := first[key(f)]; !claimed || s.Claim(&f).Compare(c) < 0 {
				first[key(f)] = s.Claim(&f)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b candidate) int { // a frontend at the address comes before a node port
		return cmp.Or(cmp.Compare(b.frontend.Address.BitLen(), a.frontend.Address.BitLen()),
			a.service.Claim(&a.frontend).Compare(b.service.Claim(&b.frontend)))
	})
	for i := range list {
		c := &list[i]
		nodePort := key(c.frontend)
		nodePort.Address = netip.Addr{}
		if c.service.Refusal(&c.frontend, use, first[key(c.frontend)], first[nodePort]) == "" {
			return c.service, &c.frontend
		}
	}
	return nil, nil
}
