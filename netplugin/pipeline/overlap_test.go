package pipeline

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
)

// overlaps reports whether a packet can meet both matches.
func overlaps(a, b *ofctl.Match) bool {
	for i := range a.Reg {
		if differ(a.Reg[i].Value, b.Reg[i].Value, a.Reg[i].Mask&b.Reg[i].Mask) {
			return false
		}
	}
	return ofLink(a, b) && ofAddresses(a, b) && ofPorts(a, b) && ofConnection(a, b)
}

func ofLink(a, b *ofctl.Match) bool {
	return either(a.InPort, b.InPort) && either(a.EtherType, b.EtherType) &&
		ofMAC(a.EthSrc, a.EthSrcMask, b.EthSrc, b.EthSrcMask) &&
		ofMAC(a.EthDst, a.EthDstMask, b.EthDst, b.EthDstMask) &&
		either(a.TunSrc, b.TunSrc) && either(a.TunDst, b.TunDst)
}

func ofAddresses(a, b *ofctl.Match) bool {
	return meet(a.NwSrc, b.NwSrc) && meet(a.NwDst, b.NwDst) && either(a.NDTarget, b.NDTarget) &&
		!differ(a.IPFrag.Value, b.IPFrag.Value, a.IPFrag.Mask&b.IPFrag.Mask)
}

func ofPorts(a, b *ofctl.Match) bool {
	return either(a.IPProto, b.IPProto) &&
		!differ(a.ICMPType.Value, b.ICMPType.Value, a.ICMPType.Mask&b.ICMPType.Mask) &&
		!differ(a.TpSrc.Value, b.TpSrc.Value, a.TpSrc.Mask&b.TpSrc.Mask) &&
		!differ(a.TpDst.Value, b.TpDst.Value, a.TpDst.Mask&b.TpDst.Mask) &&
		!differ(a.TCPFlags.Value, b.TCPFlags.Value, a.TCPFlags.Mask&b.TCPFlags.Mask)
}

func ofConnection(a, b *ofctl.Match) bool {
	return either(a.CtZone, b.CtZone) && either(a.CtProto, b.CtProto) && either(a.ConjID, b.ConjID) &&
		meet(a.CtNwSrc, b.CtNwSrc) && meet(a.CtNwDst, b.CtNwDst) &&
		!differ(a.CtState.Value, b.CtState.Value, a.CtState.Mask&b.CtState.Mask) &&
		!differ(a.CtMark.Value, b.CtMark.Value, a.CtMark.Mask&b.CtMark.Mask) &&
		!differ(a.CtTpDst.Value, b.CtTpDst.Value, a.CtTpDst.Mask&b.CtTpDst.Mask)
}

func differ[T uint8 | uint16 | uint32](a, b, mask T) bool { return (a^b)&mask != 0 }

// either reports whether two exact values are equal, or one of them is any.
func either[T comparable](a, b T) bool {
	var whatever T
	return a == whatever || b == whatever || a == b
}

func meet(a, b netip.Prefix) bool { return !a.IsValid() || !b.IsValid() || a.Overlaps(b) }

func ofMAC(a, aMask, b, bMask ofctl.MAC) bool {
	for i := range a {
		if differ(a[i], b[i], maskOf(a, aMask)[i]&maskOf(b, bMask)[i]) {
			return false
		}
	}
	return true
}

// maskOf returns the mask of a MAC in a match: all bits, if it names none, and no bit without a MAC.
func maskOf(mac, mask ofctl.MAC) ofctl.MAC {
	if mask == (ofctl.MAC{}) && mac != (ofctl.MAC{}) {
		return ofctl.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	}
	return mask
}

// TestFlows_DoNotOverlap: no packet meets two flows of one table that have the same priority and other actions. Which
// of them applies is not defined (OpenFlow 1.3.5, 6.4).
func TestFlows_DoNotOverlap(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"routes":               func(cfg *Config) { cfg.Tunnel = Tunnel{} },
		"tunnels":              func(*Config) {},
		"a route and a tunnel": routeToFirst,
		"Services in Open vSwitch": func(cfg *Config) {
			cfg.Services.Translated, cfg.Tunnel = true, Tunnel{}
		},
	} {
		cfg := tunnelConfig(1, 2, 3)
		cfg.NodeAddrs = append(cfg.NodeAddrs, four(1, 250), netip.MustParseAddr("10.244.200.1"))
		change(&cfg)
		flows := staticFlows(&cfg)
		for i, a := range []netip.Addr{four(1, 2), six(1, 2), netip.MustParseAddr("10.99.1.2")} {
			e := LocalEndpoint{ID: fmt.Sprint(i), Port: uint32(20 + i), MAC: podMAC(1, byte(i))}
			e.Addresses = []netip.Addr{a}
			flows = append(flows, endpointFlows(&cfg, &e)...)
		}
		for i := range flows {
			for j := range i {
				a, b := &flows[i], &flows[j]
				same := a.Table == b.Table && a.Priority == b.Priority && fmt.Sprint(a.Actions) != fmt.Sprint(b.Actions)
				if same && overlaps(&a.Match, &b.Match) {
					t.Errorf("%s: table %d, priority %d:\n%s\n%s", name, a.Table, a.Priority, a, b)
				}
			}
		}
	}
}

// routeToFirst has a route to the first peer, which has an address within the cluster's CIDRs.
func routeToFirst(cfg *Config) {
	cfg.Tunnel.ClusterCIDRs = cfg.Pods
	p := &cfg.Tunnel.Peers[0]
	p.Routed, p.Bare, p.Closed = true, true, true
	p.NodeAddrs = append(p.NodeAddrs, netip.MustParseAddr("10.244.200.2"))
}
