package hostnet

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOpened: the node's stack tracks what pods send to the outside and to Services, also TCP segments of a connection
// that it does not know, which the bridge does not commit. These count for the pod that sent them.
func TestOpened(t *testing.T) {
	const acknowledges = "\x00\x00\x00\x01\x50\x10\x00\x00\x00\x00\x00\x00" // the rest of a TCP header
	in(t, host(t), func() error {
		cfg := nodeConfig()
		sockets := serviceHost(t, cfg)
		shell(t, "echo 0 >/proc/sys/net/netfilter/nf_conntrack_checksum")
		macs := map[string][]byte{Out: cfg.OutMAC[:], Gateway: cfg.GatewayMAC[:], "under": macOf(t, "under")}
		want := map[netip.Addr]uint32{}
		for _, c := range []struct {
			link, from, to, leaves string
			n                      int
			isSegment              bool
		}{
			{Out, "10.244.1.5", "198.51.100.7", "under", 40, false},
			{Out, "10.244.1.6", "198.51.100.7", "under", 30, true},
			{Gateway, "10.244.1.5", "10.96.0.1", Gateway, 20, false},
			{Out, "fd00:244:1::5", "2001:db8::7", "under", 10, false},
			{"under", "198.51.100.7", "10.244.1.5", Gateway, 5, false},
		} {
			text := ""
			for i := range c.n {
				text = fmt.Sprintf("%s %d to %s.", c.from, i, c.to)
				from, to := netip.MustParseAddr(c.from), netip.MustParseAddr(c.to)
				frame := udpFrame(macs[c.link], from, to, acknowledges+text)
				frame[len(frame)-len(text)-len(acknowledges)-8+1] += byte(i) // the port
				if c.isSegment {
					frame[14+9] = unix.IPPROTO_TCP
					frame[14+11] += unix.IPPROTO_UDP - unix.IPPROTO_TCP // the checksum
				}
				if _, err := unix.Write(sockets[c.link], frame); err != nil {
					return err
				}
			}
			heardUntil(t, sockets[c.leaves], text)
			if c.link != "under" {
				want[netip.MustParseAddr(c.from)] += uint32(c.n)
			}
		}
		began := time.Now()
		got, err := Opened(cfg.Self.PodCIDRs)
		if t.Logf("read in %v", time.Since(began)); err != nil || !maps.Equal(got, want) {
			t.Errorf("opened %v, %v; want %v", got, err, want)
		}
		return nil
	})
}

// BenchmarkOpened_Entry is the time for one entry of the table.
func BenchmarkOpened_Entry(b *testing.B) {
	message := []byte{
		unix.AF_INET, 0, 0, 0,
		52, 0, 1, 0x80, // the tuple of the first packet: addresses, protocol and ports
		20, 0, 1, 0x80, 8, 0, 1, 0, 10, 244, 1, 5, 8, 0, 2, 0, 10, 96, 0, 1,
		28, 0, 2, 0x80, 5, 0, 1, 0, 17, 0, 0, 0, 6, 0, 2, 0, 0x9c, 0x40, 0, 0, 6, 0, 3, 0, 0, 9, 0, 0,
		8, 0, 3, 0, 0, 0, 0, 8, // status
		8, 0, 7, 0, 0, 0, 0, 30, // timeout
	}
	for b.Loop() {
		if openerOf(message) != netip.AddrFrom4([4]byte{10, 244, 1, 5}) {
			b.Fatal("not read")
		}
	}
}
