package hostnet

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A pod's packet to the outside has the node's address, and its own where the network is exempted. The list of
// exemptions may change.
func TestMasquerade_ExemptedNetworks(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	node, outside := netip.MustParseAddr("192.0.2.11"), netip.MustParseAddr("198.51.100.7")
	pod := netip.MustParseAddr("10.244.1.5")
	in(t, h, func() error {
		sockets := serviceHost(t, cfg)
		for i, step := range []struct {
			exempted []netip.Prefix
			masked   bool
		}{
			{nil, true},
			{prefixes("198.51.100.0/24", "2001:db8::/32"), false},
			{prefixes("203.0.113.0/24"), true},
		} {
			cfg.Exempted = step.exempted
			if err := Setup(cfg); err != nil {
				return err
			}
			pod = pod.Next() // each step is a new connection
			text := string(rune('a'+i)) + " packet"
			if _, err := unix.Write(sockets[Out], udpFrame(cfg.OutMAC[:], pod, outside, text)); err != nil {
				return err
			}
			source := pod
			if step.masked {
				source = node
			}
			want := slices.Concat(source.AsSlice(), outside.AsSlice())
			if got := heardUntil(t, sockets["under"], text); !bytes.Contains(got, want) {
				t.Errorf("with %v exempted the packet is not from %v: %x", step.exempted, source, got)
			}
		}
		return nil
	})
}
