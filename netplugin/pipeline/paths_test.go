package pipeline

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// place is where a packet may be on its way, with all that flows have told of it by then; headers may be any.
type place struct {
	table     uint8
	inPort    uint32
	etherType uint16
	fragment  uint8     // ip_frag
	ethDst    ofctl.MAC // zero: any
	regs      [ofctl.NumRegs]uint32
	zone      uint16 // of the last visit to conntrack; 0: none
	// tables since that visit; bit n is the table of number n
	since uint64
	// spared judgement, as a connection of the node itself
	spared bool
}

func (p *place) been(tables ...uint8) bool {
	return !slices.ContainsFunc(tables, func(t uint8) bool { return p.since>>t&1 == 0 })
}

// meets tells whether a packet at this place can meet the flow, for all that is known.
func (p *place) meets(f *ofctl.Flow) bool {
	m := &f.Match
	for i, r := range m.Reg {
		if p.regs[i]&r.Mask != r.Value {
			return false
		}
	}
	if p.fragment&m.IPFrag.Mask != m.IPFrag.Value || m.EthDst != (ofctl.MAC{}) && p.ethDst != (ofctl.MAC{}) && m.EthDst != p.ethDst {
		return false
	}
	return f.Table == p.table && (m.InPort == 0 || m.InPort == p.inPort) && (m.EtherType == 0 || m.EtherType == p.etherType) &&
		(m.CtZone == 0 || m.CtZone == p.zone) && (p.zone != 0 || m.CtState.Value&ofctl.CtTrk == 0)
}

// certain tells whether every packet at a place that meets the flow ends its look-up there.
func (p *place) certain(f *ofctl.Flow) bool {
	left := f.Match
	left.IPFrag = ofctl.U8{}
	if p.ethDst != (ofctl.MAC{}) {
		left.EthDst = ofctl.MAC{}
	}
	left.InPort, left.EtherType, left.CtZone, left.Reg = 0, 0, 0, [ofctl.NumRegs]ofctl.U32{}
	return left == ofctl.Match{} && (len(f.Actions) == 0 || f.Actions[0].Kind != ofctl.Conjunction)
}

// after is where the flow's actions lead, and by which ports they let the packet out.
func (p *place) after(f *ofctl.Flow) (next []place, out []uint32) {
	at := *p
	at.spared = at.spared || (f.Table == TableState || f.Table == TableResumed) && f.Match.CtNwSrc.IsValid()
	for _, a := range f.Actions {
		to := at
		switch a.Kind {
		case ofctl.SetReg:
			at.regs[a.Reg] = a.Value
			continue
		case ofctl.SetEthDst:
			at.ethDst = a.MAC
			continue
		case ofctl.Output:
			out = append(out, a.Port)
			continue
		case ofctl.Resubmit: // and comes back
			if a.Table != TableEgressDryRunDenied && a.Table != TableIngressDryRunDenied {
				panic("a packet is judged aside: " + f.String())
			}
			to.table = a.Table
		case ofctl.GotoTable:
			to.table, to.since = a.Table, at.since|1<<a.Table
		case ofctl.Ct:
			to.table, to.zone, to.since, to.spared = a.Table, a.Zone, 1<<a.Table, false
		default:
			continue
		}
		if to.table != ofctl.NoTable {
			next = append(next, to)
		}
	}
	return next, out
}

// exit names the way by which a packet may leave here; empty: it may not.
func exit(cfg *Config, p *place, f *ofctl.Flow, port uint32) string {
	pod := port >= testPod
	m := &f.Match
	switch {
	case (p.table == TableInput || p.table == TableARP4) &&
		(pod && p.inPort == cfg.Gateway.Port || p.inPort >= testPod && port == cfg.Gateway.Port):
		if discovers := m.IPProto == 58 && (m.ICMPType.Value == 135 || m.ICMPType.Value == 136); m.EtherType == ofctl.EtherARP || discovers && m.NwSrc.IsValid() {
			return "address resolution"
		}
	case p.table == TableServiceOut && p.inPort >= testPod && port == cfg.Gateway.Port && slices.Contains(cfg.ServiceCIDRs, m.NwDst):
		return "to a Service"
	case p.table == TableOutput && p.zone == ZoneService && p.inPort == cfg.Gateway.Port && p.been(TableServiceReply) && p.regs[regSource] == 0 && (pod || port == cfg.Tunnel.Port):
		return "from a Service"
	case p.table == TableOutput && p.zone == ZonePolicy && port == cfg.Tunnel.Port && p.inPort == port:
		return "" // never back
	case p.table == TableOutput && p.zone == ZonePolicy && p.spared && p.been(TableState, TableCommit):
		return "of the node"
	case p.table == TableOutput && p.zone == ZonePolicy && p.been(TableState, TableEgress, TableIngress, TableCommit):
		return "judged"
	case p.table == TableOutput && p.zone == ZonePolicy && p.fragment&ofctl.FragLater != 0 &&
		p.been(TableState, TableFragments) && p.ethDst == gatheredMAC:
		return "with an allowed first fragment"
	}
	return ""
}

// busyNode has pods, rules of all kinds and another node.
func busyNode(seed uint64) *Compiler {
	g := policytest.New(seed)
	c := New(tunnelConfig(1, 2), nil)
	for i := range byte(2) {
		c.PutEndpoint(LocalEndpoint{ID: four(1, 2+i).String(), Port: testPod + uint32(i), MAC: podMAC(1, 2+i), Addresses: []netip.Addr{four(1, 2+i), six(1, 2+i)}})
	}
	c.PutEndpoint(LocalEndpoint{ID: four(3, 4).String(), Port: testPod + 2, MAC: podMAC(1, 4), Addresses: []netip.Addr{four(3, 4), six(3, 4)}}) // foreign
	c.Apply(grow(g, map[policy.Key]policy.RuleChange{}))
	for i := range 3 {
		c.Apply(policy.NodeUpdate{Groups: []policy.GroupUpdate{members(key(i), policy.AppliedToGroup, four(1, byte(2+i%2)), six(1, byte(2+i%2)))}})
	}
	return c
}

// walker goes all ways through a node's flows.
type walker struct {
	*testing.T
	cfg   *Config
	flows map[uint8][]ofctl.Flow // by falling priority
	was   map[place]bool         // true: and is still on the way
	ways  map[string]bool        // out, by name
}

func (w *walker) walk(p place) {
	if open, ok := w.was[p]; ok {
		if open {
			w.Fatalf("round for ever: %+v", p)
		}
		return
	}
	w.was[p] = true
	for i := range w.flows[p.table] {
		f := &w.flows[p.table][i]
		if !p.meets(f) {
			continue
		}
		next, out := p.after(f)
		for _, port := range out {
			way := exit(w.cfg, &p, f, port)
			if w.ways[way] = true; way == "" {
				w.Errorf("leaves by port %d unjudged, %+v: %s", port, p, f)
			}
		}
		for _, to := range next {
			w.walk(to)
		}
		if p.certain(f) {
			break
		}
	}
	w.was[p] = false
}

// TestPaths_EveryOutputIsEvaluated walks all ways that flows leave open to a packet, whatever its headers: it leaves only judged after the
// last visit to conntrack, or by one of the few ways that are named, and goes round for ever on none.
func TestPaths_EveryOutputIsEvaluated(t *testing.T) {
	ways := map[string]bool{}
	for seed := range uint64(8) {
		c := busyNode(seed)
		w := &walker{t, &c.config, map[uint8][]ofctl.Flow{}, map[place]bool{}, ways}
		flows := c.Flows()
		SortFlows(flows)
		for _, f := range flows {
			w.flows[f.Table] = append(w.flows[f.Table], f)
		}
		for _, in := range []uint32{testGateway, testWire, testOut, testTunnel, testPod, testPod + 1, testPod + 2, 99} {
			for _, etherType := range []uint16{ofctl.EtherIPv4, ofctl.EtherIPv6, ofctl.EtherARP, 0x88cc} {
				w.walk(place{inPort: in, etherType: etherType})
				if etherType == ofctl.EtherIPv4 || etherType == ofctl.EtherIPv6 {
					w.walk(place{inPort: in, etherType: etherType, fragment: ofctl.FragAny})
					w.walk(place{inPort: in, etherType: etherType, fragment: ofctl.FragAny | ofctl.FragLater})
				}
			}
		}
	}
	if delete(ways, ""); len(ways) != 6 {
		t.Errorf("not all ways were walked: %v", ways)
	}
}
