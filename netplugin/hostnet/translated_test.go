package hostnet

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"testing"

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
		for _, name := range []string{Wire, Gateway, "under"} {
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
			to     netip.Addr
			judged bool // by the bridge, once more
			out    string
		}{
			{"to the node port", node, false, Gateway},
			{"and what follows", node, false, Gateway},
			{"and comes back judged", behind, true, "under"},
			{"to the pod itself", behind, false, "under"},
		} {
			frame := udpFrame(cfg.WireMAC[:], pod, c.to, c.text)
			if c.judged {
				copy(frame[6:], cfg.ServiceMAC[:])
			}
			if _, err := unix.Write(sockets[Wire], frame); err != nil {
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
