package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unique"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
	"google.golang.org/protobuf/proto"
)

// Prefixes of keys in the keyed set of Services.
const (
	servicePrefix = "service/"
	slicePrefix   = "slice/"
	zonePrefix    = "node/"
)

// ServiceKey returns the key of a Service, by namespace/name, in the keyed set of Services.
func ServiceKey(id string) string { return servicePrefix + id }

// SliceKey returns the key of an EndpointSlice, by namespace/name.
func SliceKey(id string) string { return slicePrefix + id }

// ZoneKey returns the key of a node's zone. The zone's name is the value.
func ZoneKey(node string) string { return zonePrefix + node }

// ServiceValue returns the value of a Service that has frontends.
func ServiceValue(s *service.Service) ([]byte, error) {
	out := &feed.Service{
		ClusterIps:      packAddresses(sorted(s.ClusterIPs)),
		ExternalIps:     packAddresses(sorted(s.ExternalIPs)),
		LoadBalancerIps: packAddresses(sorted(s.LoadBalancerIPs)),
		InternalLocal:   s.InternalLocal,
		ExternalLocal:   s.ExternalLocal,
		AffinitySeconds: uint32(s.Affinity / time.Second),
		CreatedAt:       s.CreatedAt,
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		out.Ports = append(out.Ports, &feed.ServicePort{
			Name:     p.Name,
			Protocol: feed.Protocol(p.Protocol),
			Port:     uint32(p.Port),
			NodePort: uint32(p.NodePort),
		})
	}
	for _, r := range s.SourceRanges {
		if checkPrefix(r) == nil {
			out.SourceRanges = append(out.SourceRanges, packPrefix(r))
		}
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(out)
}

// SliceValue returns the value of an EndpointSlice.
func SliceValue(s *service.Slice) ([]byte, error) {
	out := &feed.EndpointSlice{Service: s.Service}
	for _, p := range s.Ports {
		out.Ports = append(out.Ports, &feed.ServicePort{
			Name:     p.Name,
			Protocol: feed.Protocol(p.Protocol),
			Port:     uint32(p.Port),
		})
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		out.Endpoints = append(out.Endpoints, &feed.ServiceEndpoint{
			Address:     e.Address.AsSlice(),
			Pod:         e.Pod,
			Node:        e.Node,
			ZoneHints:   e.ZoneHints,
			NodeHints:   e.NodeHints,
			Ready:       e.Ready,
			Serving:     e.Serving,
			Terminating: e.Terminating,
		})
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(out)
}

// ServiceEntry is the content of a key of the keyed set of Services: a Service, an EndpointSlice, or the zone of a
// node. Without a value that is gone.
type ServiceEntry struct {
	ServiceID, SliceID, Node string // one of them is set
	Service                  *service.Service
	Slice                    *service.Slice
	Zone                     string
}

// ToServiceEntry returns the entry of a key and its value, which is nil where it is gone. A key of an unknown kind is
// an entry of nothing.
func ToServiceEntry(key string, value []byte) (e ServiceEntry, err error) {
	if id, ok := strings.CutPrefix(key, servicePrefix); ok {
		e.ServiceID = id
		if value != nil {
			e.Service, err = toService(id, value)
		}
	} else if id, ok := strings.CutPrefix(key, slicePrefix); ok {
		e.SliceID = id
		if value != nil {
			e.Slice, err = toSlice(id, value)
		}
	} else if node, ok := strings.CutPrefix(key, zonePrefix); ok {
		e.Node, e.Zone = node, string(value)
	}
	if err != nil {
		return ServiceEntry{}, fmt.Errorf("%s: %w", short(key), err)
	}
	return e, nil
}

var errNoID = errors.New("the key is no namespace and name")

func toService(id string, value []byte) (*service.Service, error) {
	namespace, name, ok := strings.Cut(id, "/")
	if !ok {
		return nil, errNoID
	}
	in := new(feed.Service)
	if err := proto.Unmarshal(value, in); err != nil {
		return nil, err
	}
	out := &service.Service{
		Namespace:     namespace,
		Name:          name,
		InternalLocal: in.InternalLocal,
		ExternalLocal: in.ExternalLocal,
		Affinity:      time.Duration(in.AffinitySeconds) * time.Second,
		CreatedAt:     in.CreatedAt,
	}
	for _, list := range []struct {
		to   *[]netip.Addr
		from *feed.Addresses
	}{
		{&out.ClusterIPs, in.ClusterIps},
		{&out.ExternalIPs, in.ExternalIps},
		{&out.LoadBalancerIPs, in.LoadBalancerIps},
	} {
		var err error
		if *list.to, err = unpackAddresses(list.from); err != nil {
			return nil, err
		}
	}
	for _, p := range in.Ports {
		port, err := toServicePort(p)
		if err != nil {
			return nil, err
		}
		out.Ports = append(out.Ports, port)
	}
	for _, p := range in.SourceRanges {
		prefix, err := unpackPrefix(p)
		if err != nil {
			return nil, err
		}
		out.SourceRanges = append(out.SourceRanges, prefix)
	}
	return out, nil
}

func toServicePort(in *feed.ServicePort) (service.Port, error) {
	switch in.Protocol {
	case feed.Protocol_PROTOCOL_TCP, feed.Protocol_PROTOCOL_UDP, feed.Protocol_PROTOCOL_SCTP:
	default:
		return service.Port{}, fmt.Errorf("protocol %d", in.Protocol)
	}
	const maxPort = 1<<16 - 1
	if in.Port == 0 || in.Port > maxPort || in.NodePort > maxPort {
		return service.Port{}, fmt.Errorf("port %d, node port %d", in.Port, in.NodePort)
	}
	return service.Port{
		Name:     unique.Make(in.Name).Value(),
		Protocol: policy.Protocol(in.Protocol),
		Port:     uint16(in.Port),
		NodePort: uint16(in.NodePort),
	}, nil
}

func toSlice(id string, value []byte) (*service.Slice, error) {
	namespace, name, ok := strings.Cut(id, "/")
	if !ok {
		return nil, errNoID
	}
	in := new(feed.EndpointSlice)
	if err := proto.Unmarshal(value, in); err != nil {
		return nil, err
	}
	out := &service.Slice{Namespace: namespace, Name: name, Service: in.Service}
	for _, p := range in.Ports {
		port, err := toServicePort(p)
		if err != nil {
			return nil, err
		}
		out.Ports = append(out.Ports, service.SlicePort{Name: port.Name, Protocol: port.Protocol, Port: port.Port})
	}
	out.Endpoints = make([]service.Endpoint, 0, len(in.Endpoints))
	for _, e := range in.Endpoints {
		address, ok := netip.AddrFromSlice(e.Address)
		if !ok || address.Is4In6() {
			return nil, fmt.Errorf("%x is no address", e.Address)
		}
		out.Endpoints = append(out.Endpoints, service.Endpoint{
			Address:     address,
			Pod:         e.Pod,
			Node:        unique.Make(e.Node).Value(),
			ZoneHints:   intern(e.ZoneHints),
			NodeHints:   intern(e.NodeHints),
			Ready:       e.Ready,
			Serving:     e.Serving,
			Terminating: e.Terminating,
		})
	}
	return out, nil
}

// intern returns the same names, which share their bytes with equal ones.
func intern(names []string) []string {
	for i := range names {
		names[i] = unique.Make(names[i]).Value()
	}
	return names
}
