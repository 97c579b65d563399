package hostnet

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// A packet to an address that no pod has gets to the bridge, where it is answered: the node's stack does not wait for a
// neighbour.
func TestSetup_PacketsToAbsentPodsReachTheBridge(t *testing.T) {
	h := host(t)
	in(t, h, func() error { return Setup(nodeConfig()) })
	for _, absent := range prefixes("10.244.1.200/32", "fd00:244:1::200/128") {
		in(t, h, func() error {
			peer, err := net.InterfaceByName(Gateway + "-peer")
			if err != nil {
				return err
			}
			all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: peer.Index}); err != nil {
				return err
			}
			if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
				return err
			}
			c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(absent.Addr(), 80)))
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err := c.Write([]byte("to nobody")); err != nil {
				return err
			}
			for packet := make([]byte, 2048); ; {
				n, _, err := unix.Recvfrom(fd, packet, 0)
				if err != nil {
					return err
				}
				if bytes.HasSuffix(packet[:n], []byte("to nobody")) {
					return nil
				}
			}
		})
	}
}
