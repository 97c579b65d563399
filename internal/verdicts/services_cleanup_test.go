package verdicts

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// cleanUp is how kube-proxy chooses the UDP connections that it deletes, in every zone of the kernel: the first packet
// went to a frontend, or to a node port of any address, and replies come from no endpoint that serves
// (pkg/proxy/conntrack of Kubernetes 1.36).
type cleanUp struct {
	frontends map[netip.AddrPort]bool
	nodePort  uint16
	serving   map[netip.AddrPort]bool
}

// MatchConntrackFlow implements [netlink.CustomConntrackFilter].
func (c cleanUp) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != uint8(policy.UDP) {
		return false
	}
	to, from := addrPort(f.Forward.DstIP, f.Forward.DstPort), addrPort(f.Reverse.SrcIP, f.Reverse.SrcPort)
	return (c.frontends[to] || to.Port() == c.nodePort) && !c.serving[from]
}

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}

// cleanedUp deletes connections as kube-proxy does when these pods serve, and returns how many it has deleted.
func (s *serviceSwitch) cleanedUp(serving ...int) (n int) {
	s.Helper()
	c := cleanUp{map[netip.AddrPort]bool{}, 30080, map[netip.AddrPort]bool{}}
	for _, f := range serviceFamilies {
		c.frontends[at(vip(f, 7), 80)] = true
		for _, pod := range serving {
			c.serving[at(podIP(f, pod), echoPort)] = true
		}
	}
	for _, family := range []netlink.InetFamily{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		deleted, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, c)
		must(s, err)
		n += int(deleted)
	}
	return n
}

// TestKernelDatapathServicesCleanUp: kube-proxy deletes no connection to an endpoint that serves, in any zone of Open
// vSwitch. Of an endpoint that serves no more it deletes those that netplugin deletes.
func TestKernelDatapathServicesCleanUp(t *testing.T) {
	ovstest.NeedKernelDatapath(t)
	if testing.Short() {
		t.Skip("takes a minute in a virtual machine")
	}
	s := startServices(t)
	s.put(nil, both(1)...)
	var clients []net.Conn
	for _, f := range serviceFamilies {
		for _, to := range []netip.AddrPort{at(vip(f, 7), 80), at(nodeIP(f, 1), 30080), at(nodeIP(f, 2), 30080)} {
			c, err := s.dial(0, "udp", to, serviceWait)
			must(t, err)
			clients = append(clients, c)
		}
		direct, err := s.dial(0, "udp", at(podIP(f, 1), echoPort), serviceWait)
		must(t, err)
		clients = append(clients, direct)
	}
	served := func(by map[bool]int, why string) { // by whether the client has connected directly
		t.Helper()
		for i, c := range clients {
			direct := i%4 == 3
			got, _, err := s.ask(c, []byte("x"), serviceWait)
			if err != nil || got != by[direct] {
				t.Errorf("%s: %v to %v is served by pod %d: %v, want %d", why, c.LocalAddr(), c.RemoteAddr(), got, err, by[direct])
			}
		}
	}
	served(map[bool]int{false: 1, true: 1}, "opened")
	s.put(nil, both(1, 2)...)
	if n := s.cleanedUp(1, 2); n != 0 {
		t.Errorf("%d connections were deleted, and all endpoints serve", n)
	}
	served(map[bool]int{false: 1, true: 1}, "another endpoint")
	s.put(nil, both(2)...)
	if n := s.cleanedUp(2); n != len(clients)-len(serviceFamilies) {
		t.Errorf("%d connections were deleted, want those by the Service of %d", n, len(clients))
	}
	must(t, s.session.ForgetConnections(t.Context(), s.compiler.TakeStale()...))
	served(map[bool]int{false: 2, true: 1}, "the endpoint no longer serves")
}
