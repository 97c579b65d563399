package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// hostPort is a hostPort of a pod of this node as a Service at the node's own addresses. The switch translates it for
// pods of the node, because nftables drops those of their packets that the node's stack translates.
type hostPort struct {
	service *service.Service
	slices  []*service.Slice
}

var hostPortProtocols = map[string]policy.Protocol{"tcp": policy.TCP, "udp": policy.UDP, "sctp": policy.SCTP}

// hostPortsOf returns the hostPorts of a pod, by the ID of their Services. No Service of the API has such a name.
func hostPortsOf(e *endpoints.Endpoint, own []netip.Addr) map[string]hostPort {
	out := map[string]hostPort{}
	for _, m := range e.HostPorts {
		protocol, known := hostPortProtocols[strings.ToLower(m.Protocol)]
		at := own
		if ip, err := netip.ParseAddr(m.HostIP); err == nil && !ip.IsUnspecified() {
			at = slices.DeleteFunc(slices.Clone(own), func(a netip.Addr) bool { return a != ip.Unmap() })
		}
		if !known || len(at) == 0 {
			continue
		}
		port := service.Port{Protocol: protocol, Port: uint16(m.HostPort)}
		s := &service.Service{
			Namespace:  e.Namespace,
			Name:       fmt.Sprintf("%s:hostPort-%s-%d", e.Name, strings.ToLower(m.Protocol), m.HostPort),
			ClusterIPs: at,
			Ports:      []service.Port{port},
		}
		slice := &service.Slice{
			Namespace: s.Namespace,
			Name:      s.Name,
			Service:   s.Name,
			Ports:     []service.SlicePort{{Protocol: protocol, Port: uint16(m.ContainerPort)}},
		}
		for _, a := range e.Addresses {
			endpoint := service.Endpoint{Address: a, Pod: e.ID(), Ready: true, Serving: true}
			slice.Endpoints = append(slice.Endpoints, endpoint)
		}
		out[s.ID()] = hostPort{s, []*service.Slice{slice}}
	}
	return out
}

// equal reports whether both lead from the same addresses to the same pod's.
func (h *hostPort) equal(o *hostPort) bool {
	addresses := func(h *hostPort) (list []netip.Addr) {
		for i := range h.slices[0].Endpoints {
			list = append(list, h.slices[0].Endpoints[i].Address)
		}
		return list
	}
	return slices.Equal(h.service.ClusterIPs, o.service.ClusterIPs) && slices.Equal(addresses(h), addresses(o)) &&
		slices.Equal(h.slices[0].Ports, o.slices[0].Ports)
}

// compileHostPorts compiles the hostPorts of the node's pods as they are now. The next commit has them.
func (tr *translation) compileHostPorts() {
	if !tr.a.cfg.translates() {
		return
	}
	want := map[string]hostPort{}
	own := tr.a.node.self().Addresses
	for _, p := range tr.a.pods.byID {
		for id, h := range hostPortsOf(&p.endpoint, own) {
			want[id] = h
		}
	}
	for id := range tr.hostPorts {
		if _, still := want[id]; !still {
			tr.a.compiler.RemoveService(id)
		}
	}
	for id, h := range want {
		if have, known := tr.hostPorts[id]; known && have.equal(&h) {
			want[id] = have
			continue
		}
		tr.a.compiler.PutService(h.service, h.slices)
	}
	tr.hostPorts = want
}
