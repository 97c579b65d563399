package service

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Slice is an EndpointSlice: endpoints that have the same ports.
type Slice struct {
	Namespace, Name string
	Service         string // name of the Service
	Ports           []SlicePort
	Endpoints       []Endpoint
	CreatedAt       int64 // Unix seconds
}

// SlicePort is a port of the endpoints of a Slice.
type SlicePort struct {
	Name     string // of the Service's port
	Protocol policy.Protocol
	Port     uint16
}

// Endpoint is a pod, a node or another host behind a Service.
type Endpoint struct {
	Address netip.Addr
	Pod     string // namespace/name; empty: it is no pod
	Node    string
	// ZoneHints and NodeHints are the zones and nodes that the EndpointSlice controller assigns the endpoint to
	// (KEP-2433, KEP-4444).
	ZoneHints, NodeHints []string
	// Serving and Terminating: the endpoint terminates, and still responds (KEP-1669). Ready: it does not terminate and
	// responds, or the Service publishes endpoints that are not ready.
	Ready, Serving, Terminating bool
}

// ID returns namespace/name.
func (s *Slice) ID() string { return s.Namespace + "/" + s.Name }

// ServiceID returns namespace/name of the Service.
func (s *Slice) ServiceID() string { return s.Namespace + "/" + s.Service }

// Backend is an endpoint at a port: what an address is translated to.
type Backend struct {
	*Endpoint
	Port uint16
}

// AddrPort returns the address and port.
func (b *Backend) AddrPort() netip.AddrPort { return netip.AddrPortFrom(b.Address, b.Port) }

// Behind returns the endpoints behind a frontend by address and port, each once. Where two are at one address, as when
// a new pod has the address of one that terminates, it is the one that does not terminate.
func Behind(f *Frontend, all []*Slice) (out []Backend) {
	for _, s := range all {
		for _, p := range s.Ports {
			if p.Name != f.Name || p.Protocol != f.Protocol {
				continue
			}
			for i := range s.Endpoints {
				if e := &s.Endpoints[i]; FamilyOf(e.Address) == f.Family {
					out = append(out, Backend{e, p.Port})
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Backend) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port), a.rank()-b.rank())
	})
	return slices.CompactFunc(out, func(a, b Backend) bool { return a.AddrPort() == b.AddrPort() })
}

func (e *Endpoint) rank() int {
	switch {
	case e.Ready:
		return 0
	case !e.Terminating:
		return 1
	case e.Serving:
		return 2
	}
	return 3
}

// State returns the state of an endpoint in a word.
func (e *Endpoint) State() string {
	switch {
	case e.Ready:
		return "ready"
	case e.Terminating && e.Serving:
		return "terminating, serving"
	case e.Terminating:
		return "terminating"
	}
	return "not ready"
}
