package hostnet

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// TestKernelDatapathGuards runs tests of guards on the kernel's datapath, where fk-gw, fk-wire and fk-out are internal
// ports of a bridge. With -short it runs the first of them.
func TestKernelDatapathGuards(t *testing.T) {
	ovstest.NeedKernelDatapath(t)
	for i, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"invalid packets", TestService_InvalidPacketDoesNotCirculate},
		{"ICMP errors", TestService_ICMPErrorReturns},
		{"strict link", TestStrictLink_PacketsToPods},
		{"strict link, masqueraded", TestStrictLink_Masqueraded},
		{"marks of other programs", TestMarks_OfOtherPrograms},
		{"firewall for IPv6", TestArrivals_Filter},
		{"firewall for IPv6, forged", TestArrivals_Forged},
		{"next hops", TestNextHops},
		{"next hops of replies", TestNextHops_Replies},
		{"next hops of own sockets", TestNextHops_OwnSocketsLookUpAgain},
		{"own address", TestToPods_OwnAddress},
		{"forged as a pod", TestSpoof_OutsiderWithAddressOfLocalPod},
		{"masqueraded connections", TestDeleteMasqueraded},
		{"translated packets", TestWhatTheNodeTranslatedGoesBackToTheBridge},
		{"translated packets to an own address", TestTranslated_OwnAddressInPodCIDRs},
		{"translated packets by fk-wire", TestTranslated_ByTheWire},
		{"packets of tunnels", TestGeneve_OfPods},
	} {
		if i == 0 || !testing.Short() {
			t.Run(c.name, c.test)
		}
	}
}

// switchPorts are the ports that Open vSwitch makes, in the order of their OpenFlow numbers.
var switchPorts = []string{Gateway, Wire, Out}

// behind ends the name of the bridge's port that leads to a port's peer.
const behind = "-behind"

// firstInternal is the OpenFlow number of the first internal port; the first one that leads to a peer has 1.
const firstInternal = 11

// startSwitch starts a bridge of the kernel's datapath with internal ports. IP packets pass its conntrack, as they pass
// that of a node's bridge, in a zone without entries.
func startSwitch(t *testing.T) *ovstest.Switch {
	t.Helper()
	var peers, internal, flows, up []string
	for i, name := range switchPorts {
		peers = append(peers, name+behind)
		here, there := firstInternal+i, 1+i
		internal = append(internal, "--", "add-port", "br0", name, "--", "set", "interface", name, "type=internal",
			fmt.Sprintf("ofport_request=%d", here))
		for _, way := range [][2]int{{here, there}, {there, here}} {
			for _, kind := range []string{"ip", "ipv6"} {
				flows = append(flows, fmt.Sprintf("priority=2,in_port=%d,%s,actions=ct(table=1,zone=1)", way[0], kind))
			}
			for table := range 2 {
				flows = append(flows, fmt.Sprintf("table=%d,priority=1,in_port=%d,actions=output:%d", table, way[0], way[1]))
			}
		}
		up = append(up, "ip link set "+name+" up")
	}
	sw := ovstest.StartOn(t, "system", peers)
	sw.VSCtl(t, append(internal, "--", "set", "Open_vSwitch", ".", "other_config:max-idle=3600000")[1:]...)
	addFlows(t, sw, flows)
	shell(t, strings.Join(up, "\n"))
	for _, name := range switchPorts {
		fillDatapath(t, name)
	}
	return sw
}

// fillDatapath sends a packet of each family through a port, in both directions. From then on the datapath has flows
// for all of them, and keeps packets in order: one for which it has no flow would be forwarded later.
func fillDatapath(t *testing.T, port string) {
	t.Helper()
	var ends [2]int
	for i, name := range []string{port, port + "-peer"} {
		fd, err := packetSocket(name)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		ends[i] = fd
	}
	for i, fd := range ends {
		for _, addr := range addrs("192.0.2.1", "2001:db8::1") {
			text := fmt.Sprintf("by end %d from %s.", i, addr)
			frame := udpFrame(net.HardwareAddr{2, 0, 0, 0, 0, 0xfe}, addr, addr, text) // to no link
			if _, err := unix.Write(fd, frame); err != nil {
				t.Fatal(err)
			}
			heardUntil(t, ends[1-i], text)
		}
	}
}

// addFlows adds flows, one of them a line.
func addFlows(t *testing.T, sw *ovstest.Switch, flows []string) {
	t.Helper()
	file := filepath.Join(sw.Dir, "flows")
	if err := os.WriteFile(file, []byte(strings.Join(flows, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sw.OFCtl(t, "add-flows", file)
}

// returnAll has the bridge return to the node's stack what comes out of it by the gateway, as a bridge does with a
// packet that it takes for the first pass or for a reply of a Service. A copy goes to the peer.
func returnAll(t *testing.T, sw *ovstest.Switch, gateway [6]byte) {
	t.Helper()
	var flows []string
	for _, kind := range []string{"ip", "ipv6"} {
		flows = append(flows, fmt.Sprintf("table=1,priority=2,in_port=%d,%s,actions=output:1,mod_dl_dst:%s,in_port",
			firstInternal, kind, net.HardwareAddr(gateway[:])))
	}
	addFlows(t, sw, flows)
}
