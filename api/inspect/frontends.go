package inspect

import (
	"net/netip"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// AskFrontends lists the Services as nodes get them: of one (ID) with its frontends and endpoints, and as pods on a
// node (Node) would use them; with FromNode as the node itself holds it. Of one Service, each node, or Node alone,
// reports what it does with it.
const AskFrontends = "frontends"

// QueryService requests from a node a Service that it holds.
const QueryService = "service"

// QueryServiceReport requests from a node what it does with a Service: a ServiceReport.
const QueryServiceReport = "service-report"

// Values of ServiceReport.TranslatedBy: what translates packets of pods to Services.
const (
	TranslatedByKubeProxy = "kube-proxy" // or another program, in the node's network stack
	TranslatedByOVS       = "ovs"        // Open vSwitch
)

// ServiceReport is what a node does with a Service, and what its pods have opened to it.
type ServiceReport struct {
	Node string `json:"node"`
	// TranslatedBy is TranslatedByOVS or TranslatedByKubeProxy; empty if the node gave no report.
	TranslatedBy string `json:"translatedBy,omitempty"`
	// Held reports whether the node holds the Service.
	Held bool `json:"held"`
	// Refused are the parts that Open vSwitch of the node does not translate, and why.
	Refused []string `json:"refused,omitempty"`
	// Opened is the number of packets that opened connections to endpoints, before policies; Unserved of those for
	// which there was no endpoint. Both are counted by Open vSwitch alone, from Since on.
	Opened   uint64    `json:"opened"`
	Unserved uint64    `json:"unserved"`
	Since    time.Time `json:"since,omitzero"`
	// Endpoints has Opened by endpoint.
	Endpoints []OpenedCount `json:"endpoints,omitempty"`
	// Problem is why there is no report, or why not all of it can be relied on.
	Problem string `json:"problem,omitempty"`
}

// OpenedCount is the number of packets that opened connections to an endpoint of a Service.
type OpenedCount struct {
	Address  netip.Addr      `json:"address"`
	Protocol policy.Protocol `json:"protocol"`
	// Port is 0 where the port is not translated.
	Port   uint16 `json:"port"`
	Opened uint64 `json:"opened"`
}

// ServedService is a Service as nodes get it. Frontends and Backends are there only if one was requested by ID.
type ServedService struct {
	Namespace  string       `json:"namespace"`
	Name       string       `json:"name"`
	Type       string       `json:"type,omitempty"` // a node does not hold it
	ClusterIPs []netip.Addr `json:"clusterIPs,omitempty"`
	// InternalLocal and ExternalLocal are internalTrafficPolicy and externalTrafficPolicy: Local.
	InternalLocal bool `json:"internalLocal,omitempty"`
	ExternalLocal bool `json:"externalLocal,omitempty"`
	// AffinitySeconds is how long a client keeps its endpoint; 0: it has no affinity.
	AffinitySeconds int `json:"affinitySeconds,omitempty"`
	// FrontendCount, EndpointCount and ReadyCount are numbers of frontends, endpoints and ready endpoints.
	FrontendCount int              `json:"frontendCount"`
	EndpointCount int              `json:"endpointCount"`
	ReadyCount    int              `json:"readyCount"`
	Frontends     []Frontend       `json:"frontends,omitempty"`
	Endpoints     []ServedEndpoint `json:"endpoints,omitempty"`
	// Unserved is why it has no frontends; empty: it has some.
	Unserved string `json:"unserved,omitempty"`
	// Problems are what is left out, and why.
	Problems []string `json:"problems,omitempty"`
	// At is the place that the outcomes of Frontends are of; nil: none was requested.
	At *ServicePlace `json:"at,omitempty"`
	// Nodes are what nodes report, by name. They are there only if one Service was requested.
	Nodes []ServiceReport `json:"nodes,omitempty"`
}

// ServicePlace is a node, and how much it holds if it was queried itself.
type ServicePlace struct {
	Node string `json:"node"`
	Zone string `json:"zone,omitempty"`
	// Holds is nil if netmaster computed the outcomes.
	Holds *NodeServices `json:"holds,omitempty"`
}

// NodeServices is how much a node holds of Services.
type NodeServices struct {
	Services  int `json:"services"`
	Slices    int `json:"slices"`
	Endpoints int `json:"endpoints"`
	// Problem is why it is not on the node's disk; empty: it is, or will be in a moment.
	Problem string `json:"problem,omitempty"`
}

// NodeService answers QueryService. Without a Service the node does not hold it.
type NodeService struct {
	Service *ServedService `json:"service,omitempty"`
	Holds   NodeServices   `json:"holds"`
}

// Frontend is an address and port of a Service. Outcome, Reason and Backends are those at a place, if one was
// requested.
type Frontend struct {
	Kind     string          `json:"kind"` // ClusterIP, ExternalIP, LoadBalancer or NodePort
	Address  netip.Addr      `json:"address,omitzero"`
	Family   uint8           `json:"family"` // 4 or 6
	Protocol policy.Protocol `json:"protocol"`
	Port     uint16          `json:"port"`
	PortName string          `json:"portName,omitempty"`
	// Sources are the ranges of clients that reach it; none: all do.
	Sources  []netip.Prefix `json:"sources,omitempty"`
	Outcome  string         `json:"outcome,omitempty"` // translated, rejected or dropped
	Reason   string         `json:"reason,omitempty"`
	Backends []Share        `json:"backends,omitempty"`
	// Slots is the number of slots that backends share.
	Slots int `json:"slots,omitempty"`
}

// Share is an endpoint that a frontend leads to, and how many of the slots it has.
type Share struct {
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port"`
	Pod     string     `json:"pod,omitempty"`
	Node    string     `json:"node,omitempty"`
	State   string     `json:"state"`
	Slots   int        `json:"slots"`
}

// ServedEndpoint is an endpoint behind a Service, at a port of it.
type ServedEndpoint struct {
	Address   netip.Addr      `json:"address"`
	Protocol  policy.Protocol `json:"protocol"`
	Port      uint16          `json:"port"`
	PortName  string          `json:"portName,omitempty"`
	Pod       string          `json:"pod,omitempty"`
	Node      string          `json:"node,omitempty"`
	ZoneHints []string        `json:"zoneHints,omitempty"`
	NodeHints []string        `json:"nodeHints,omitempty"`
	State     string          `json:"state"`
	// Opened is the sum of what nodes report (ServiceReport.Endpoints).
	Opened uint64 `json:"opened"`
}

// Brief returns a Service without its frontends and endpoints.
func Brief(s *service.Service, slices []*service.Slice) ServedService {
	out := ServedService{
		Namespace:       s.Namespace,
		Name:            s.Name,
		Type:            s.Type,
		ClusterIPs:      s.ClusterIPs,
		InternalLocal:   s.InternalLocal,
		ExternalLocal:   s.ExternalLocal,
		AffinitySeconds: int(s.Affinity.Seconds()),
		FrontendCount:   len(s.Frontends()),
		Unserved:        s.Unserved,
		Problems:        s.Problems,
	}
	for _, slice := range slices {
		out.EndpointCount += len(slice.Endpoints)
		for i := range slice.Endpoints {
			if slice.Endpoints[i].Ready {
				out.ReadyCount++
			}
		}
	}
	return out
}

// ServedAt returns a Service with its frontends and endpoints, and what pods at a place get; nil: anywhere.
func ServedAt(s *service.Service, slices []*service.Slice, at *service.Place) ServedService {
	out := Brief(s, slices)
	for _, slice := range slices {
		for _, p := range slice.Ports {
			for i := range slice.Endpoints {
				e := &slice.Endpoints[i]
				out.Endpoints = append(out.Endpoints, ServedEndpoint{
					Address:   e.Address,
					Protocol:  p.Protocol,
					Port:      p.Port,
					PortName:  p.Name,
					Pod:       e.Pod,
					Node:      e.Node,
					ZoneHints: e.ZoneHints,
					NodeHints: e.NodeHints,
					State:     e.State(),
				})
			}
		}
	}
	for _, f := range s.Frontends() {
		v := Frontend{
			Kind:     f.Kind.String(),
			Address:  f.Address,
			Family:   uint8(f.Family),
			Protocol: f.Protocol,
			Port:     f.Port,
			PortName: f.Name,
			Sources:  s.SourcesOf(&f),
		}
		if at != nil {
			v.choose(s, &f, slices, *at)
		}
		out.Frontends = append(out.Frontends, v)
	}
	if at != nil {
		out.At = &ServicePlace{Node: at.Node, Zone: at.Zone}
	}
	return out
}

// choose sets what pods at a place get.
func (v *Frontend) choose(s *service.Service, f *service.Frontend, slices []*service.Slice, at service.Place) {
	c := service.Choose(s, f, service.Behind(f, slices), at)
	v.Outcome, v.Reason = c.Outcome.String(), c.Reason
	var addresses []netip.AddrPort
	for i := range c.Backends {
		b := &c.Backends[i]
		addresses = append(addresses, b.AddrPort())
		v.Backends = append(v.Backends, Share{
			Address: b.Address,
			Port:    b.Port,
			Pod:     b.Pod,
			Node:    b.Node,
			State:   b.State(),
		})
	}
	slots := service.Divide(addresses)
	v.Slots = len(slots)
	for _, i := range slots {
		v.Backends[i].Slots++
	}
}
