package inspect

import (
	"net/netip"
	"regexp"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// AskServices lists the Services that the API server has now, for those who look for a name.
const AskServices = "services"

// ServiceName is one in the answer to AskServices.
type ServiceName struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	Type      string       `json:"type"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

// ServiceWay is the Service through which a packet goes. The node translates it first; policies judge what comes of that
// (docs/decisions/002).
type ServiceWay struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Type      string `json:"type"` // ClusterIP, NodePort or LoadBalancer
	// Addresses are its ClusterIPs; a headless Service has none.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Headless  bool         `json:"headless,omitempty"`
	// Node is whose port was asked for; empty: it was not a node port.
	Node  string        `json:"node,omitempty"`
	Ports []ServicePort `json:"ports"`
	// Notes are sentences: what else decides where a packet goes.
	Notes []string `json:"notes,omitempty"`
	// TranslatedBy is what translates it on the source's node: TranslatedByOVS or TranslatedByKubeProxy; empty: that
	// is not known, or the source is on no node.
	TranslatedBy string `json:"translatedBy,omitempty"`
}

// ID returns "namespace/name".
func (s *ServiceWay) ID() string { return s.Namespace + "/" + s.Name }

// ServicePort is a port of a Service that was asked for, and who answers there.
type ServicePort struct {
	Name     string          `json:"name,omitempty"`
	Protocol policy.Protocol `json:"protocol"`
	Port     uint16          `json:"port"`
	NodePort uint16          `json:"nodePort,omitempty"`
	// Target is targetPort as it is written: a number, or a name of the pods'.
	Target   string    `json:"target,omitempty"`
	Backends []Backend `json:"backends"`
	// Refused is the reason for which packets reach no endpoint, whatever policies say; empty: one responds.
	Refused string `json:"refused,omitempty"`
	// Traces are where Open vSwitch of the source's node leads packets to this port, by address of the Service.
	Traces []ServiceTrace `json:"traces,omitempty"`
}

// QueryServiceTrace requests from a node where its switch leads the first packets of connections to Services
// (NodeQuery.Packets): NodeServiceTraces.
const QueryServiceTrace = "service-trace"

// NodeServiceTraces answers QueryServiceTrace. There are no traces where the switch does not translate Services.
type NodeServiceTraces struct {
	Node         string         `json:"node"`
	TranslatedBy string         `json:"translatedBy"`
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"` // of a switch that translates
	Traces       []ServiceTrace `json:"traces,omitempty"`
}

// Values of ServiceTrace.Outcome.
const (
	ServiceTranslated   = "translated"
	ServiceRejected     = "rejected" // no endpoint serves: it is answered with RST or an ICMP error
	ServiceDropped      = "dropped"
	ServiceUntranslated = "not translated" // its destination is no frontend of a Service
)

// ServiceTrace is where a node's switch leads the first packet of a connection to a Service, before policies.
type ServiceTrace struct {
	Node    string        `json:"node"`
	Packet  policy.Packet `json:"packet"`
	Service string        `json:"service,omitempty"` // namespace/name
	Outcome string        `json:"outcome,omitempty"`
	// Endpoint is where it is led; not valid: a hash of the connection decides among Endpoints.
	Endpoint netip.AddrPort `json:"endpoint,omitzero"`
	// Endpoints are those that new connections are led to.
	Endpoints []SlotShare `json:"endpoints,omitempty"`
	Steps     []TraceStep `json:"steps"`
	// Problem is why there is no trace.
	Problem string `json:"problem,omitempty"`
}

// SlotShare is an endpoint, and how many slots lead to it: its share of new connections.
type SlotShare struct {
	Endpoint netip.AddrPort `json:"endpoint"`
	Pod      string         `json:"pod,omitempty"` // if it is on the same node
	Slots    int            `json:"slots"`
}

// Backend is an endpoint behind a Service's port.
type Backend struct {
	Pod     string     `json:"pod,omitempty"` // namespace/name; empty: it is no pod
	Node    string     `json:"node,omitempty"`
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port"` // after translation: what policies see
	State   string     `json:"state"`
	// Unused is why no packet is translated to it now; empty: it is one of those that are chosen from.
	Unused  string `json:"unused,omitempty"`
	Allowed bool   `json:"allowed"`
	// Way is the place in Explained.Ways of the explanation that holds for it too; -1: it was not explained.
	Way int `json:"way"`
}

// States of Backend.
const (
	BackendReady       = "ready"
	BackendNotReady    = "not ready"
	BackendTerminating = "terminating"
)

var (
	servicePrefix = regexp.MustCompile(`^(?:svc|service|services)/([^/]+)/([^/]+)$`)
	serviceDNS    = regexp.MustCompile(`^([^./]+)\.([^./]+)\.svc(?:\.[a-z0-9.-]+?)?\.?$`)
	// dnsLabel is what a Service's name is (RFC 1035).
	dnsLabel = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
)

// ServiceOf takes the name of a Service apart: svc/NAMESPACE/NAME (or service/…, as kubectl has it), or its name in the DNS,
// NAME.NAMESPACE.svc, with or without the cluster's domain. A node may have such a name too.
func ServiceOf(name string) (namespace, service string, ok bool) {
	if m := servicePrefix.FindStringSubmatch(name); m != nil {
		namespace, service = m[1], m[2]
	} else if m := serviceDNS.FindStringSubmatch(strings.ToLower(name)); m != nil && len(name) <= 253 {
		namespace, service = m[2], m[1]
	}
	return namespace, service, namespaceName.MatchString(namespace) && dnsLabel.MatchString(service)
}
