package pipeline

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Led is an endpoint that packets which open connections to a Service are led to, before policies.
type Led struct {
	Service  string // namespace/name
	Protocol policy.Protocol
	// Endpoint is not valid for packets for which there was no endpoint. Its port is 0 where the port is not
	// translated.
	Endpoint netip.AddrPort
}

// LedFilters choose the flows that count packets which open connections to Services. A packet meets one of them that
// Compiler.Led knows.
func LedFilters() (filters []ofctl.Filter) {
	for _, kind := range []struct {
		table uint8
		kind  Kind
	}{
		{TableServiceFrontend, KindFrontend},
		{TableServiceChoice, KindFrontend}, // of a pool with one endpoint
		{TableServiceChoice, KindBackend},  // of clients with affinity
		{TableServiceSlot, KindSlot},
	} {
		filters = append(filters, ofctl.Filter{Table: kind.table, Cookie: cookie(kind.kind, 0), Mask: kindMask})
	}
	return filters
}

// Led returns where a flow of LedFilters leads packets; false: other flows of LedFilters count them.
func (c *Compiler) Led(f *ofctl.Counted) (Led, bool) {
	owners := c.services.owners[flowKey{f.Table, f.Priority, f.Match}]
	if len(owners) == 0 {
		return Led{}, false
	}
	flow := &owners[0].flow
	_, pool := loaded(flow.Actions, regPool)
	switch backend, chosen := loaded(flow.Actions, regBackend); {
	case f.Table == TableServiceFrontend:
		out := Led{Service: owners[0].owner, Protocol: policy.Protocol(f.Match.IPProto)}
		return out, !pool
	case f.Table != TableServiceChoice && f.Table != TableServiceSlot:
	case chosen:
		return c.ledTo(owners[0].owner, f.Match.EtherType, backend)
	case f.Match.Reg[regBackend].Mask != 0:
		return c.ledTo(owners[0].owner, f.Match.EtherType, f.Match.Reg[regBackend].Value)
	}
	return Led{}, false
}

// ledTo returns the endpoint with an id, which is in the flow that gives packets its address.
func (c *Compiler) ledTo(id string, etherType uint16, backend uint32) (Led, bool) {
	m := ofctl.Match{EtherType: etherType}
	m.Reg[regBackend] = exactReg(backend)
	for _, protocol := range []policy.Protocol{policy.TCP, policy.UDP, policy.SCTP} {
		m.IPProto = uint8(protocol)
		if e := c.flows.now[flowKey{TableServiceEndpoint, 50, m}]; e != nil {
			to := destinationOf(e.Actions)
			return Led{Service: id, Protocol: protocol, Endpoint: to}, to.IsValid()
		}
	}
	return Led{}, false
}

// loaded returns what the last of the actions that set a register sets; false: none does.
func loaded(actions []ofctl.Action, reg uint8) (value uint32, found bool) {
	for i := range actions {
		if a := &actions[i]; a.Kind == ofctl.SetReg && a.Reg == reg {
			value, found = a.Value, true
		}
	}
	return value, found
}

// destinationOf returns the destination that actions give a packet.
func destinationOf(actions []ofctl.Action) netip.AddrPort {
	var address netip.Addr
	var port uint16
	for i := range actions {
		switch a := &actions[i]; a.Kind {
		case ofctl.SetNwDst:
			address = a.Addr.Value()
		case ofctl.SetTpDst:
			port = uint16(a.Port)
		}
	}
	return netip.AddrPortFrom(address, port)
}

// leadsTo returns the endpoint that a flow of a Service leads to; not valid: none, or several.
func (c *Compiler) leadsTo(f *ofctl.Flow) netip.AddrPort {
	if f.Table == TableServiceEndpoint {
		return destinationOf(f.Actions)
	}
	led, _ := c.Led(&ofctl.Counted{Table: f.Table, Priority: f.Priority, Match: f.Match})
	return led.Endpoint
}

// EndpointWith returns the endpoint of IPv4, or IPv6, with an id of KindBackend.
func (c *Compiler) EndpointWith(six bool, id uint32) (netip.AddrPort, bool) {
	led, ok := c.ledTo("", etherTypeFor(six), id)
	return led.Endpoint, ok
}

func etherTypeFor(six bool) uint16 {
	if six {
		return ofctl.EtherIPv6
	}
	return ofctl.EtherIPv4
}

// Share is an endpoint of a pool, and how many of its slots lead there.
type Share struct {
	Endpoint netip.AddrPort
	Slots    int
}

// Shares returns the endpoints that new connections to a pool of a Service are led to, by address.
func (c *Compiler) Shares(id string, pool uint32) (out []Share) {
	k := c.services.known[id]
	if k == nil {
		return nil
	}
	for _, key := range k.keys {
		chooses := key.table == TableServiceSlot || key.table == TableServiceChoice
		if !chooses || key.match.Reg[regPool] != exactReg(pool) || key.match.Reg[regBackend].Mask != 0 {
			continue
		}
		led, ok := c.Led(&ofctl.Counted{Table: key.table, Priority: key.priority, Match: key.match})
		if !ok {
			continue
		}
		i := slices.IndexFunc(out, func(s Share) bool { return s.Endpoint == led.Endpoint })
		if i < 0 {
			i, out = len(out), append(out, Share{Endpoint: led.Endpoint})
		}
		out[i].Slots++
	}
	slices.SortFunc(out, func(a, b Share) int { return a.Endpoint.Compare(b.Endpoint) })
	return out
}

// ServiceAt returns the Service with a frontend at a packet's destination; empty: there is none.
func (c *Compiler) ServiceAt(p policy.Packet) string {
	m := ofctl.Match{
		EtherType: etherTypeFor(p.To.Is6()),
		IPProto:   uint8(p.Protocol),
		TpDst:     ofctl.U16{Value: p.Port, Mask: 0xffff},
	}
	byAddress, nodePort := m, m
	byAddress.NwDst, nodePort.Reg[regWay] = single(p.To), exactReg(byNodePort)
	keys := []flowKey{{TableServiceFrontend, 100, byAddress}}
	if slices.Contains(c.config.Services.NodeAddrs, p.To) {
		keys = append(keys, flowKey{TableServiceFrontend, 50, nodePort})
	}
	for _, key := range keys {
		if owners := c.services.owners[key]; len(owners) > 0 {
			return owners[0].owner
		}
	}
	return ""
}

// ProbeService returns the first packet of a connection to a Service, as ofproto/trace takes it. It fails where the
// packet is of no pod of this node, or the switch translates no Services.
func (c *Compiler) ProbeService(p policy.Packet) (string, error) {
	from := c.endpointOf(p.From)
	switch {
	case !c.config.Services.Translated:
		return "", fmt.Errorf("the switch of this node translates no Services")
	case c.config.Gateway.Port == 0:
		return "", fmt.Errorf("the node's bridge is not set up yet")
	case from == nil:
		return "", fmt.Errorf("%s is no pod of this node: its packets are not translated here", p.From)
	case c.config.isForeign(p.From):
		return "", fmt.Errorf("%s is not of this node's podCIDRs: its packets to Services are dropped", p.From)
	case portFields[p.Protocol] == "":
		return "", fmt.Errorf("Services are translated for TCP, UDP and SCTP alone")
	}
	gateway := c.config.Gateway.MAC
	return fmt.Sprintf("in_port=%d,dl_src=%s,dl_dst=%s,%s", from.Port, from.MAC, gateway, packetText(p)), nil
}
