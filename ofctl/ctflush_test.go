package ofctl_test

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// everything are all connections of an address that a switch may be asked to forget in a zone of its own tracker.
func everything(zone uint16, addr string) (all []ofctl.Connections) {
	a := netip.MustParseAddr(addr)
	for protocol := range ofctl.Forgettable(false) {
		all = append(all, ofctl.Connections{Zone: zone, Protocol: protocol, Addr: a, From: true}, ofctl.Connections{Zone: zone, Protocol: protocol, Addr: a})
	}
	return all
}

// The kernel's tracker loses fewer protocols, and only those that every version removes are counted on; nobody asks for those of ICMP.
func TestWhatASwitchForgets(t *testing.T) {
	for kernel, want := range map[bool]map[uint8]bool{
		false: {4: true, 6: true, 17: true, 41: true, 47: true, 50: true, 51: true, 132: true, 136: true},
		true:  {6: true, 17: true, 132: false},
	} {
		if got := ofctl.Forgettable(kernel); !maps.Equal(got, want) {
			t.Errorf("kernel %v: %v, want %v", kernel, got, want)
		}
	}
}

// A real switch forgets the connections of one address, whichever end it is, in one zone, and no others.
func TestForgetIsOfOneAddressAndOneZone(t *testing.T) {
	sw := ovstest.Start(t, 2)
	sw.OFCtl(t, "add-flow", "ip,actions=ct(commit,zone=7),ct(commit,zone=8),output:2")
	sw.OFCtl(t, "add-flow", "ipv6,actions=ct(commit,zone=7),output:2")
	for _, pair := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"10.0.0.2", "10.0.0.3"}, {"10.0.0.3", "10.0.0.1"}, {"fd00::1", "fd00::2"}, {"fd00::2", "fd00::3"}} {
		header := fmt.Sprintf("eth_type(0x0800),ipv4(src=%s,dst=%s,proto=17,tos=0,ttl=64,frag=no)", pair[0], pair[1])
		if strings.Contains(pair[0], ":") {
			header = fmt.Sprintf("eth_type(0x86dd),ipv6(src=%s,dst=%s,label=0,proto=17,tclass=0,hlimit=64,frag=no)", pair[0], pair[1])
		}
		sw.AppCtl(t, "netdev-dummy/receive", "p1", "in_port(1),eth(src=50:54:00:00:00:01,dst=50:54:00:00:00:02),"+header+",udp(src=1000,dst=80)")
	}
	holds := func(zone, want int, text string) {
		t.Helper()
		dump := ""
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); { // forwarding is asynchronous
			if dump = sw.AppCtl(t, "dpctl/dump-conntrack", fmt.Sprintf("zone=%d", zone)); strings.Count(dump, text) == want {
				return
			}
		}
		t.Errorf("zone %d: want %d times %q:\n%s", zone, want, text, dump)
	}
	holds(7, 5, "udp,orig=")
	holds(8, 3, "udp,orig=")
	s := connect(t, sw)
	for _, a := range []string{"10.0.0.1", "fd00::3"} {
		if err := s.ForgetConnections(t.Context(), everything(7, a)...); err != nil {
			t.Fatal(err)
		}
	}
	holds(7, 2, "udp,orig=")
	holds(7, 1, "orig=(src=10.0.0.2,dst=10.0.0.3")
	holds(7, 1, "orig=(src=fd00::1,dst=fd00::2")
	holds(8, 3, "udp,orig=")
}

// So does it those of tunnels and of other protocols without ports, which a rule without ports lets through as well: by an entry that is left, the other end
// could still send to whoever has the address next.
func TestForgetIsOfTunnelsToo(t *testing.T) {
	sw := ovstest.Start(t, 2)
	sw.OFCtl(t, "add-flow", "ip,actions=ct(commit,zone=7),output:2")
	sw.OFCtl(t, "add-flow", "ipv6,actions=ct(commit,zone=7),output:2")
	protocols := []int{4, 41, 47, 50, 132, 136} // and 51, which in IPv6 is a header before the transport's
	for _, protocol := range protocols {
		for _, header := range []string{
			fmt.Sprintf("eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=%d,tos=0,ttl=64,frag=no)", protocol),
			fmt.Sprintf("eth_type(0x0800),ipv4(src=10.0.0.2,dst=10.0.0.3,proto=%d,tos=0,ttl=64,frag=no)", protocol),
			fmt.Sprintf("eth_type(0x86dd),ipv6(src=fd00::1,dst=fd00::2,label=0,proto=%d,tclass=0,hlimit=64,frag=no)", protocol),
		} {
			sw.AppCtl(t, "netdev-dummy/receive", "p1", "in_port(1),eth(src=50:54:00:00:00:01,dst=50:54:00:00:00:02),"+header)
		}
	}
	tracked := func(text string) (n int, dump string) {
		dump = sw.AppCtl(t, "dpctl/dump-conntrack", "zone=7")
		return strings.Count(dump, text), dump
	}
	for deadline := time.Now().Add(2 * time.Minute); ; { // forwarding is asynchronous
		n, dump := tracked("orig=")
		if n == 3*len(protocols) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d protocols: nothing would be shown:\n%s", n, len(protocols), dump)
		}
	}
	s := connect(t, sw)
	for _, a := range []string{"10.0.0.1", "fd00::2"} {
		if err := s.ForgetConnections(t.Context(), everything(7, a)...); err != nil {
			t.Fatal(err)
		}
	}
	others, _ := tracked("orig=(src=10.0.0.2,dst=10.0.0.3")
	if n, dump := tracked("orig="); n != len(protocols) || others != n { // at once: what is left ends by itself, in a minute
		t.Errorf("%d are left, of them %d of other addresses, want %d:\n%s", n, others, len(protocols), dump)
	}
}

// Open vSwitch 3.1 aborts when it is to forget an ICMPv6 connection: it is not asked to.
func TestForgettingDoesNotEndTheSwitch(t *testing.T) {
	sw := ovstest.Start(t, 2)
	sw.OFCtl(t, "add-flow", "ipv6,actions=ct(commit,zone=7),output:2")
	sw.AppCtl(t, "netdev-dummy/receive", "p1", "in_port(1),eth(src=50:54:00:00:00:01,dst=50:54:00:00:00:02),eth_type(0x86dd),ipv6(src=fd00::1,dst=fd00::2,label=0,proto=58,tclass=0,hlimit=64,frag=no),icmpv6(type=128,code=0)")
	for deadline := time.Now().Add(time.Minute); !strings.Contains(sw.AppCtl(t, "dpctl/dump-conntrack"), "icmpv6,orig="); {
		if time.Now().After(deadline) {
			t.Fatal("no ICMPv6 connection: nothing would be shown")
		}
	}
	s := connect(t, sw)
	for _, a := range []string{"fd00::1", "fd00::2"} {
		if err := s.ForgetConnections(t.Context(), everything(7, a)...); err != nil {
			t.Fatal(err)
		}
	}
	sw.AppCtl(t, "version")
}
