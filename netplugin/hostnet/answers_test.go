package hostnet

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// What a pod elsewhere answers to a connection that went to a Service comes to the bridge as that pod sent it, to be judged, and is translated when it comes back from there. What pods
// of two nodes send each other the node does not track.
func TestServices_RepliesEvaluatedBeforeTranslation(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	in(t, h, func() error {
		if err := Setup(cfg); err != nil {
			return err
		}
		if err := nft("add table ip nat; add chain ip nat pre { type nat hook prerouting priority dstnat; }; add rule ip nat pre ip daddr 10.96.0.9 udp dport 9 dnat to 10.244.2.5"); err != nil {
			return err
		}
		pod, behind, service := netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("10.244.2.5"), netip.MustParseAddr("10.96.0.9")
		if err := SetNeighbours([]Neighbour{{pod, [6]byte{2, 0, 0, 0, 1, 5}}}); err != nil {
			return err
		}
		bridge, err := packetSocket(Gateway + "-peer")
		if err != nil {
			return err
		}
		defer unix.Close(bridge)
		under, err := packetSocket("under-peer")
		if err != nil {
			return err
		}
		defer unix.Close(under)
		toGateway, toUnder := macOf(t, Gateway), macOf(t, "under")
		for _, c := range []struct {
			text     string
			by       int
			frame    []byte
			from, to netip.Addr // as the bridge sees it then
		}{
			{"asks the Service", bridge, udpFrame(toGateway, pod, service, "asks the Service"), pod, behind},
			{"answers as itself", under, answerFrame(toUnder, behind, pod, "answers as itself"), behind, pod},
			{"comes back judged", bridge, answerFrame(toGateway, behind, pod, "comes back judged"), service, pod},
		} {
			if _, err := unix.Write(c.by, c.frame); err != nil {
				return err
			}
			if heard := heardUntil(t, bridge, c.text); !bytes.Contains(heard, append(c.from.AsSlice(), c.to.AsSlice()...)) {
				t.Errorf("%s: not from %s to %s: %x", c.text, c.from, c.to, heard)
			}
		}
		if _, err := unix.Write(under, udpFrame(toUnder, netip.MustParseAddr("10.244.2.7"), pod, "asks the pod itself")); err != nil {
			return err
		}
		heardUntil(t, bridge, "asks the pod itself")
		return tracked(t, "10.244.2.7", 0)
	})
}
