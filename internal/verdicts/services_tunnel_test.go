package verdicts

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// The nodes' ends of the tunnel, the switch's port, and the MTU that the tunnel leaves of 1500 bytes.
const (
	tunnelFrom, tunnelTo = "192.0.2.1", "192.0.2.2"
	serviceTunnel        = 20
	tunnelledMTU         = 1450
)

// addPeer adds another node, whose pods are behind a tunnel of the kernel's, and has the switch send to them by it.
func (s *serviceSwitch) addPeer() *netns.Namespace {
	s.Helper()
	peer := netns.NewNamed(s, "peer")
	s.ip("link", "add", "under", "type", "veth", "peer", "name", "eth0", "netns", peer.Name())
	s.ip("link", "set", "under", "up")
	s.ip("address", "add", tunnelFrom+"/24", "dev", "under")
	peer.Do(func() {
		s.ip("link", "set", "eth0", "up")
		s.ip("address", "add", tunnelTo+"/24", "dev", "eth0")
		s.ip("link", "add", "gnv", "type", "geneve", "id", "241", "remote", tunnelFrom)
		s.ip("link", "set", "gnv", "up", "mtu", fmt.Sprint(tunnelledMTU))
		// The packets have one MAC as source and destination. The device would drop them if it were its own.
		s.command("tc", "qdisc", "add", "dev", "gnv", "clsact")
		s.command("tc", "filter", "add", "dev", "gnv", "ingress", "matchall", "action", "skbedit", "ptype", "host")
		for i, f := range serviceFamilies {
			s.ip("address", "add", fmt.Sprintf("%s/%d", elsewhere(f), elsewhere(f).BitLen()), "dev", "gnv", "nodad")
			s.ip("route", "add", s.cfg.PodCIDRs[i].String(), "dev", "gnv")
			for pod := range servicePods {
				s.ip("neighbour", "replace", podIP(f, pod).String(), "lladdr", "02:f1:00:00:00:99", "dev", "gnv")
			}
		}
	})
	for _, pod := range s.pods {
		pod.Do(func() { s.ip("link", "set", "eth0", "mtu", fmt.Sprint(tunnelledMTU)) })
	}
	s.sw.VSCtl(s, "add-port", s.sw.Bridge, "tun", "--", "set", "interface", "tun", "type=geneve",
		"options:remote_ip=flow", "options:local_ip=flow", "options:key=241", fmt.Sprint("ofport_request=", serviceTunnel))
	far := pipeline.Peer{
		Address:   netip.MustParseAddr(tunnelTo),
		NodeAddrs: []netip.Addr{netip.MustParseAddr(tunnelTo)},
	}
	for i, f := range serviceFamilies {
		cidr := netip.PrefixFrom(elsewhere(f), s.cfg.PodCIDRs[i].Bits()).Masked()
		far.PodCIDRs = append(far.PodCIDRs, cidr)
	}
	s.cfg.Tunnel = pipeline.Tunnel{
		Port:         serviceTunnel,
		Address:      netip.MustParseAddr(tunnelFrom),
		Peers:        []pipeline.Peer{far},
		ClusterCIDRs: slices.Concat(far.PodCIDRs, s.cfg.PodCIDRs),
	}
	s.compiler.SetConfig(s.cfg)
	s.commit()
	return peer
}

// TestKernelDatapathServicesByTunnel: an endpoint is behind a tunnel. The client sees the Service, the endpoint the
// client; policies, errors, streams and fragments are as on one node.
func TestKernelDatapathServicesByTunnel(t *testing.T) {
	ovstest.NeedKernelDatapath(t)
	if testing.Short() {
		t.Skip("takes a minute in a virtual machine")
	}
	s := startServices(t)
	peer := s.addPeer()
	endpoint := []netip.Addr{elsewhere(service.IPv4), elsewhere(service.IPv6)}
	s.serveIn(peer.Do, -1, endpoint)
	s.put(nil, endpoint...)
	for _, f := range serviceFamilies {
		s.reaches(0, -1, at(elsewhere(f), echoPort), "no Service")
		for _, to := range []netip.AddrPort{at(vip(f, 7), 80), at(nodeIP(f, 1), 30080), at(nodeIP(f, 2), 30080)} {
			s.reaches(0, -1, to, "behind the tunnel")
		}
		c, err := s.dial(0, "udp", at(vip(f, 7), 80), serviceWait)
		must(t, err)
		for range 3 {
			if _, _, err := s.ask(c, bytes.Repeat([]byte("x"), 4000), serviceWait); err != nil {
				t.Errorf("IPv%d, in fragments: %v", f, err)
			}
		}
	}
	s.policies(allow(policy.Egress, 0, 2))
	before := s.sentBy("tun")
	for _, f := range serviceFamilies {
		s.blocked(0, at(vip(f, 7), 80), "egress does not allow the endpoint")
	}
	if after := s.sentBy("tun"); after != before {
		t.Errorf("LEAK packets sent by the tunnel that policies deny: %s, before %s", after, before)
	}
	s.compiler.Apply(policy.NodeUpdate{Rules: []policy.RuleChange{{Key: allow(policy.Egress, 0, 2).Key}}})
	s.putAt(9, nil, endpoint...)
	for _, f := range serviceFamilies {
		for _, network := range []string{"tcp", "udp"} {
			_, _, err := s.get(0, network, at(vip(f, 7), 80), serviceWait)
			if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("IPv%d, %s, no such port: %v", f, network, err)
			}
		}
	}
	s.digest(peer)
	s.putAt(digestPort, nil, endpoint...)
	for _, f := range serviceFamilies {
		s.arrivesWhole(at(vip(f, 7), 80), "behind the tunnel")
	}
}
