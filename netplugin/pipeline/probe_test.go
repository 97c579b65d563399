package pipeline

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// arrivingPacket parses the input port, the MACs and the addresses of the tunnel in Probe.Arriving.
func arrivingPacket(t *testing.T, p policy.Packet, text string) (port uint32, arriving fake.Packet) {
	t.Helper()
	fields := map[string]string{}
	for field := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(field, "=")
		fields[name] = value
	}
	number, err := strconv.ParseUint(fields["in_port"], 10, 32)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	mac := func(name string) ofctl.MAC {
		b, err := net.ParseMAC(fields[name])
		if err != nil {
			t.Fatalf("%s: %s: %v", text, name, err)
		}
		return ofctl.MAC(b)
	}
	arriving = fake.IP(p.From, p.To, uint8(p.Protocol), p.Port)
	arriving.EthSrc, arriving.EthDst = mac("dl_src"), mac("dl_dst")
	if src := fields["tun_src"]; src != "" {
		arriving.TunSrc, arriving.TunDst = netip.MustParseAddr(src), netip.MustParseAddr(fields["tun_dst"])
	}
	return uint32(number), arriving
}

// TestProbe_ArrivesByNextHop: a traced packet to a pod comes by the port and with the destination MAC that packets with
// its addresses have, and reaches the pod.
func TestProbe_ArrivesByNextHop(t *testing.T) {
	outside := netip.MustParseAddr("198.51.100.1")
	for _, tunnel := range []bool{false, true} {
		n := newTunnelNode(t, 1, 2)
		elsewhere, mac := uint32(testTunnel), testConfig.Gateway.MAC
		if !tunnel {
			n.compiler.SetConfig(routedConfig(1))
			n.commit(t)
			elsewhere, mac = testGateway, wellknown.ForwardedMAC
		}
		for _, c := range []struct {
			name     string
			from, to netip.Addr
			port     uint32
			mac      ofctl.MAC
		}{
			{"node", nodeAddr(1), four(1, 2), testGateway, wellknown.OwnMAC},
			{"node, IPv6", nodeAddr6(1), six(1, 2), testGateway, wellknown.OwnMAC},
			{"gateway", four(1, 1), four(1, 2), testGateway, wellknown.OwnMAC},
			{"gateway, IPv6", six(1, 1), six(1, 2), testGateway, wellknown.OwnMAC},
			{"outside", outside, four(1, 2), testGateway, wellknown.ForwardedMAC},
			{"another node", nodeAddr(2), four(1, 2), elsewhere, mac},
			{"a pod elsewhere, IPv6", six(2, 2), six(1, 2), elsewhere, mac},
			{"a pod of the node", four(1, 3), four(1, 2), testPod + 1, testConfig.Gateway.MAC},
		} {
			packet := policy.Packet{From: c.from, To: c.to, Protocol: policy.TCP, Port: 80}
			probe, err := n.compiler.Probe(packet)
			if err != nil {
				t.Fatal(err)
			}
			port, arriving := arrivingPacket(t, packet, probe.Arriving)
			if port != c.port || arriving.EthDst != c.mac {
				t.Errorf("tunnel %v, %s: by port %d to %s, want port %d and %s",
					tunnel, c.name, port, arriving.EthDst, c.port, c.mac)
			}
			if r := n.sw.Inject(port, arriving); len(r.Outputs) != 1 || r.Outputs[0].Port != testPod {
				t.Errorf("tunnel %v, %s: want it at the pod:\n%s", tunnel, c.name, r)
			}
		}
	}
}
