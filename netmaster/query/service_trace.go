package query

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// translate adds to which endpoints the source node's switch translates the explained Service, and how these differ
// from the Service's endpoints.
func (x *explanation) translate(ctx context.Context) {
	svc := x.out.Service
	if svc == nil || svc.Headless || x.from.node == "" {
		return
	}
	packets := x.toFrontends(svc)
	if n := len(packets); n > inspect.MostTraces {
		x.note("node %s is queried for %d of the %d frontends", x.from.node, inspect.MostTraces, n)
		packets = packets[:inspect.MostTraces]
	}
	by, err := x.s.serviceTraces(ctx, x.from.node, packets)
	if err != nil {
		x.note("Service translation on node %s is unknown: %v", x.from.node, err)
		return
	}
	if svc.TranslatedBy = by.TranslatedBy; svc.TranslatedBy != inspect.TranslatedByOVS {
		return
	}
	for _, t := range by.Traces {
		i := slices.IndexFunc(svc.Ports, func(p inspect.ServicePort) bool {
			isNodePort := svc.Node != "" && p.NodePort == t.Packet.Port
			return p.Protocol == t.Packet.Protocol && (p.Port == t.Packet.Port || isNodePort)
		})
		if i < 0 {
			continue
		}
		p := &svc.Ports[i]
		p.Traces = append(p.Traces, t)
		for _, text := range differsFrom(p, &t, svc.ID()) {
			x.note("%s", text)
		}
	}
}

// translator returns what translates packets of the source node's pods to Services, node ports and external addresses.
// A node that does not respond is assumed to use kube-proxy.
func (x *explanation) translator(ctx context.Context) (out inspect.NodeServiceTraces) {
	if x.from.node == "" || x.past != nil {
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, servicesTimeout)
	defer cancel()
	out, _ = x.s.serviceTraces(ctx, x.from.node, nil)
	return out
}

// toFrontends returns a packet to each address and port of the explained Service, of families that the source has.
func (x *explanation) toFrontends(svc *inspect.ServiceWay) (out []policy.Packet) {
	addresses := svc.Addresses
	if len(x.to.addresses) > 0 {
		addresses = x.to.addresses
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for _, pair := range pairs(x.from.addresses, addresses) {
			packet := policy.Packet{From: pair[0], To: pair[1], Protocol: p.Protocol, Port: p.Port}
			if svc.Node != "" {
				packet.Port = p.NodePort
			}
			out = append(out, packet)
		}
	}
	return out
}

// serviceTraces queries a node for what translates Services, and for the endpoints that packets are translated to.
func (s *sources) serviceTraces(ctx context.Context, node string, packets []policy.Packet) (
	out inspect.NodeServiceTraces, err error) {
	body, err := s.queryNode(ctx, node, inspect.NodeQuery{Kind: inspect.QueryServiceTrace, Packets: packets})
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return inspect.NodeServiceTraces{}, fmt.Errorf("its response cannot be read: %w", err)
	}
	for i := range out.Traces {
		out.Traces[i].Node = node
	}
	return out, nil
}

// differsFrom describes how a switch's translation differs from the Service's usable endpoints.
func differsFrom(p *inspect.ServicePort, t *inspect.ServiceTrace, id string) (out []string) {
	switch {
	case t.Problem != "":
		return nil
	case t.Outcome != inspect.ServiceTranslated && p.Refused == "":
		return []string{fmt.Sprintf("Open vSwitch of node %s leads packets to %s nowhere (%s), though endpoints "+
			"serve: a change may be on its way; netctl service show %s has what the node reports",
			t.Node, atPort(t), t.Outcome, id)}
	case t.Outcome == inspect.ServiceTranslated && t.Service != id:
		return []string{fmt.Sprintf("Open vSwitch of node %s leads packets to %s to Service %s, which has it too",
			t.Node, atPort(t), t.Service)}
	}
	candidates := map[netip.AddrPort]bool{}
	for i := range p.Backends {
		if b := &p.Backends[i]; b.Unused == "" && b.Address.Is6() == t.Packet.To.Is6() {
			candidates[netip.AddrPortFrom(b.Address, b.Port)] = true
		}
	}
	others := 0
	for i := range t.Endpoints {
		if e := t.Endpoints[i].Endpoint; !candidates[e] && e.Port() != 0 {
			others++
		}
	}
	if others > 0 {
		out = append(out, fmt.Sprintf("Open vSwitch of node %s leads packets to %s to %d endpoints that may not be "+
			"chosen: a change may be on its way", t.Node, atPort(t), others))
	}
	if n := len(candidates); len(t.Endpoints) > 0 && len(t.Endpoints)-others < n {
		out = append(out, fmt.Sprintf("Open vSwitch of node %s leads packets to %s to %d of %d endpoints: hints of "+
			"zones or nodes, or a bound of the node; netctl service show %s --node %s has the reason",
			t.Node, atPort(t), len(t.Endpoints)-others, n, id, t.Node))
	}
	return out
}

func atPort(t *inspect.ServiceTrace) netip.AddrPort {
	return netip.AddrPortFrom(t.Packet.To, t.Packet.Port)
}
