package hostnet

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What a pod sent to a node port, and the node translated to a pod, goes back to the bridge once, to be judged on that pod; what it sent to the pod
// itself, and what the bridge has judged, goes on.
func TestWhatTheNodeTranslatedGoesBackToTheBridge(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	in(t, h, func() error {
		if err := Setup(cfg); err != nil {
			return err
		}
		nat := "add table ip nat; add chain ip nat pre { type nat hook prerouting priority dstnat; }; add rule ip nat pre ip daddr 192.0.2.11 udp dport 9 dnat to 10.244.2.5"
		if out, err := exec.Command("nft", nat).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		under, err := netlink.LinkByName("under")
		if err != nil {
			return err
		}
		hop := &netlink.Neigh{LinkIndex: under.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.IPv4(192, 0, 2, 12), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 12}}
		if err := netlink.NeighSet(hop); err != nil {
			return err
		}
		sockets := map[string]int{}
		for _, name := range []string{Wire, Out, Gateway, "under"} {
			fd, err := packetSocket(name + "-peer")
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			sockets[name] = fd
		}
		pod, behind, node := netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("10.244.2.5"), cfg.Self.Addresses[0]
		for _, c := range []struct {
			text   string
			by     string
			to     netip.Addr
			judged bool // by the bridge, once more
			out    string
		}{
			{"to the node port", Out, node, false, Gateway},
			{"and what follows", Out, node, false, Gateway},
			{"and comes back judged", Wire, behind, true, "under"},
			{"to the pod itself", Wire, behind, false, "under"},
		} {
			mac := map[string][6]byte{Wire: cfg.WireMAC, Out: cfg.OutMAC}[c.by]
			frame := udpFrame(mac[:], pod, c.to, c.text)
			if c.judged {
				copy(frame[6:], cfg.ServiceMAC[:])
			}
			if _, err := unix.Write(sockets[c.by], frame); err != nil {
				return err
			}
			heard := heardUntil(t, sockets[c.out], c.text)
			if addrs := append(pod.AsSlice(), behind.AsSlice()...); !bytes.Contains(heard, addrs) {
				t.Errorf("%s: not from %s to %s: %x", c.text, pod, behind, heard)
			}
		}
		return nil
	})
}

// The node's pods see it with an address that the bridge knows for the node's, from whichever of its own it asks.
func TestTheNodeAsksItsPodsWithItsOwnAddress(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	in(t, h, func() error {
		if err := Setup(cfg); err != nil {
			return err
		}
		under, err := netlink.LinkByName("under")
		if err != nil {
			return err
		}
		pod := netip.MustParseAddr("10.244.1.5")
		if err := SetNeighbours([]Neighbour{{pod, [6]byte{2, 0, 0, 0, 1, 5}}}); err != nil {
			return err
		}
		bridge, err := packetSocket(Gateway + "-peer")
		if err != nil {
			return err
		}
		defer unix.Close(bridge)
		for from, seen := range map[string]string{"192.0.2.99": "192.0.2.11", "192.0.2.11": "192.0.2.11", "10.244.1.1": "10.244.1.1"} {
			if from == "192.0.2.99" {
				if err := netlink.AddrAdd(under, &netlink.Addr{IPNet: ipNet24(from + "/24")}); err != nil {
					return err
				}
			}
			conn, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(from)}, &net.UDPAddr{IP: pod.AsSlice(), Port: 9})
			if err != nil {
				return err
			}
			text := "from " + from
			_, err = fmt.Fprint(conn, text)
			conn.Close()
			if err != nil {
				return err
			}
			want := append(netip.MustParseAddr(seen).AsSlice(), pod.AsSlice()...)
			if heard := heardUntil(t, bridge, text); !bytes.Contains(heard, want) {
				t.Errorf("%s: not from %s: %x", text, seen, heard)
			}
		}
		return nil
	})
}

// TestTranslated_OwnAddressInPodCIDRs: an address of the node within the pods' prefixes is no pod's: what a pod sends
// to it by fk-out does not go back into the bridge.
func TestTranslated_OwnAddressInPodCIDRs(t *testing.T) {
	in(t, host(t), func() error {
		cfg := nodeConfig()
		cfg.Self.Addresses = addrs("192.0.2.11", "10.244.200.1")
		shell(t, "ip addr add 10.244.200.1/32 dev under")
		sockets := serviceHost(t, cfg)
		receiver, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 244, 200, 1), Port: 9})
		if err != nil {
			return err
		}
		defer receiver.Close()
		if err := receiver.SetReadDeadline(time.Now().Add(slow.Stretch(5 * time.Second))); err != nil {
			return err
		}
		if err := sendInto(cfg, sockets, Out, "10.244.1.5", "10.244.200.1", "to the node"); err != nil {
			return err
		}
		buf := make([]byte, 100)
		if n, _, err := receiver.ReadFrom(buf); err != nil || !bytes.Contains(buf[:n], []byte("to the node")) {
			t.Errorf("the node received %q (%v)", buf[:n], err)
		}
		return nil
	})
}

// TestSetup_ReplacesTheFormerRule: the rule for marked packets, which versions before had, is removed.
func TestSetup_ReplacesTheFormerRule(t *testing.T) {
	in(t, host(t), func() error {
		shell(t, "ip rule add pref 61 from 10.244.1.0/24 iif fk-wire fwmark 0x1000000/0x1000000 lookup 26214 "+
			"protocol kernel")
		if err := Setup(nodeConfig()); err != nil {
			return err
		}
		got := output(t, "ip rule show pref 61")
		if !strings.Contains(got, "iif fk-out lookup 26217") || strings.Contains(got, "fk-wire") {
			t.Errorf("rules of 61: %s", got)
		}
		return nil
	})
}

// TestTranslated_ByTheWire: what was translated to a pod and came by fk-wire, as with the flows of a version before, is
// dropped; direct packets and second passes are not.
func TestTranslated_ByTheWire(t *testing.T) {
	for _, tunnelled := range []bool{false, true} {
		in(t, host(t), func() error {
			cfg := nodeConfig()
			cfg.Tunnelled = tunnelled
			sockets := serviceHost(t, cfg)
			shell(t, "nft insert rule inet nat pre ip daddr 192.0.2.11 udp dport 9 dnat ip to 10.244.2.5")
			if err := sendInto(cfg, sockets, Wire, "10.244.1.5", "192.0.2.11", "translated"); err != nil {
				return err
			}
			for port, fd := range map[string]int{"under": sockets["under"], Gateway: sockets[Gateway]} {
				if heardWithin(fd, "translated", slow.Window(100*time.Millisecond)) {
					t.Errorf("tunnelled %v: it left by %s", tunnelled, port)
				}
			}
			return nil
		})
	}
}
