package verdicts

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// floodedService is an address that floods send to, in both families.
var floodedService = []netip.Addr{netip.MustParseAddr("10.96.7.7"), netip.MustParseAddr("fd00:10:96::77")}

// translate has a switch translate a Service of two pods of three, and returns the third.
func (s *realSwitch) translate(t testing.TB, policies ...*policy.Policy) pipeline.LocalEndpoint {
	t.Helper()
	return s.translateCapping(t, false, policies...)
}

// translateCapping does the same, and may have the pod open no connections to Services.
func (s *realSwitch) translateCapping(
	t testing.TB, capped bool, policies ...*policy.Policy,
) pipeline.LocalEndpoint {
	t.Helper()
	world := &policy.World{Endpoints: []*policy.Endpoint{pod(0), pod(1), pod(2)}}
	cfg := config
	cfg.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/64")}
	cfg.ServiceCIDRs = append(slices.Clone(cfg.ServiceCIDRs), netip.MustParsePrefix("fd00:10:96::/112"))
	cfg.Services = pipeline.Services{Translated: true, Held: true, Node: "node1", NodeAddrs: cfg.NodeAddrs}
	s.forget(t)
	must(t, s.session.EnsureGroups(t.Context(), pipeline.ServiceGroups()))
	locals := localEndpoints(world)
	if capped {
		cfg.Capped = []string{locals[0].ID}
	}
	compiler := pipeline.New(cfg, nil)
	for _, e := range locals {
		compiler.PutEndpoint(e)
	}
	ch, _ := resolve.New(0).Apply(resolve.Batch{
		Namespaces: []policy.Namespace{{Name: "ns"}},
		Endpoints:  world.Endpoints,
		Policies:   policies,
	})
	compiler.Apply(deltaFor(ch, "node1"))
	svc := &service.Service{
		Namespace:  "ns",
		Name:       "dns",
		ClusterIPs: floodedService,
		Ports: []service.Port{
			{Name: "tcp", Protocol: policy.TCP, Port: 53, NodePort: 30053},
			{Name: "udp", Protocol: policy.UDP, Port: 53, NodePort: 30053},
		},
	}
	slice := &service.Slice{Namespace: "ns", Name: "dns-1", Service: "dns", Ports: []service.SlicePort{
		{Name: "tcp", Protocol: policy.TCP, Port: 5353},
		{Name: "udp", Protocol: policy.UDP, Port: 5353},
	}}
	for _, i := range []int{1, 2} {
		for _, six := range []bool{false, true} {
			e := service.Endpoint{Address: policytest.Address(i, six), Ready: true, Serving: true}
			slice.Endpoints = append(slice.Endpoints, e)
		}
	}
	if problems := compiler.PutService(svc, []*service.Slice{slice}); len(problems) > 0 {
		t.Fatalf("problems: %q", problems)
	}
	mods, _ := compiler.Take()
	s.commit(t, mods)
	s.settle(t)
	return locals[0]
}

// serviceFloods are what a pod can vary of packets to Services.
func serviceFloods(own, own6 netip.Addr, mac ofctl.MAC) []floodCase {
	frame := func(p []byte) []byte {
		etherType := ofctl.EtherIPv4
		if p[0]>>4 == 6 {
			etherType = ofctl.EtherIPv6
		}
		return ethernet(config.Gateway.MAC[:], mac[:], etherType, p)
	}
	four, six, node := floodedService[0], floodedService[1], config.NodeAddrs[0]
	udp := func(src, dst netip.Addr, to uint16) []byte { return frame(ported(src, dst, protoUDP, port16(), to, 0)) }
	return []floodCase{
		{"connections to a Service", 80, func(int) []byte { return udp(own, four, 53) }},
		{"connections to a Service over IPv6", 80, func(int) []byte { return udp(own6, six, 53) }},
		{"TCP connections to a Service", 80, func(int) []byte {
			return frame(ported(own, four, protoTCP, port16(), 53, 2))
		}},
		{"ports of a Service's address", 80, func(int) []byte { return udp(own, four, port16()) }},
		{"ports of a Service's address over IPv6", 80, func(int) []byte { return udp(own6, six, port16()) }},
		{"TCP flags and ports of a Service's address", 80, func(i int) []byte {
			return frame(ported(own, four, protoTCP, port16(), port16(), byte(i)))
		}},
		{"addresses and ports of Services", 80, func(int) []byte {
			b := four.As4()
			copy(b[2:], random(2))
			return udp(own, netip.AddrFrom4(b), port16())
		}},
		{"addresses and ports of Services over IPv6", 80, func(int) []byte {
			b := six.As16()
			copy(b[14:], random(2))
			return udp(own6, netip.AddrFrom16(b), port16())
		}},
		{"node ports", 80, func(int) []byte { return udp(own, node, port16()) }},
		{"datagrams in fragments to a Service", 80, func(i int) []byte {
			if i%2 > 0 { // the last, of as many bytes as the first
				return frame(ipv4Packet(own, four, protoUDP, uint16(i/2), 1208/8, make([]byte, 1208)))
			}
			whole := make([]byte, 2*1208) // without a checksum
			binary.BigEndian.PutUint16(whole, port16())
			binary.BigEndian.PutUint16(whole[2:], 53)
			binary.BigEndian.PutUint16(whole[4:], uint16(len(whole)))
			return frame(ipv4Packet(own, four, protoUDP, uint16(i/2), 1<<13, whole[:1208]))
		}},
		{"connections to a node port", 80, func(int) []byte { return udp(own, node, 30053) }},
	}
}

// TestServices_FloodsCostFewMegaflows: where the switch translates Services, what a pod varies costs as little.
func TestServices_FloodsCostFewMegaflows(t *testing.T) {
	sw := startReal(t, "netdev")
	withPrefixes(t, sw.Switch, "netdev", pipeline.ServicePrefixes())
	sw.AppCtl(t, "dpctl/ipf-set-max-nfrags", "netdev@ovs-netdev", "5000")
	own, own6 := policytest.Address(0, false), policytest.Address(0, true)
	for name, policies := range map[string][]*policy.Policy{
		"nothing is allowed": {silent("0")},
		"other ways are":     {busy("0")},
		"all is allowed":     nil,
	} {
		sw.run(t, name, func(t testing.TB) {
			e := sw.translate(t, policies...)
			f := flood{sw, e.Port}
			for _, c := range slices.Concat(floods(own, own6, e.MAC), serviceFloods(own, own6, e.MAC)) {
				got := f.megaflows(t, c.frame)
				t.Logf("%s: %d megaflows of %d frames", c.name, got, frames)
				if got > c.most {
					t.Errorf("%s: %d megaflows of %d frames, want %d at most", c.name, got, frames, c.most)
				}
			}
		})
	}
}
