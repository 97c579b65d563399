package service

import "cmp"

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
