package hostnet

import (
	"bytes"
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
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

// TestMasquerade_Load sends from twenty pods to one outside address and port, from the same 500 source ports, on all
// processors at once. The packets leave from as many ports of the node, and the kernel drops next to none of them.
func TestMasquerade_Load(t *testing.T) {
	const pods, ports, senders, most = 20, 500, 4, 10 // lost: a thousandth
	h, cfg := host(t), nodeConfig()
	outside, first := netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("10.244.1.10")
	in(t, h, func() error {
		under := serviceHost(t, cfg)["under"]
		if err := unix.SetsockoptInt(under, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		var frames [senders][][]byte
		for port := range uint16(ports) {
			for i, pod := 0, first; i < pods; i, pod = i+1, pod.Next() {
				frame := udpFrame(cfg.OutMAC[:], pod, outside, "load")
				binary.BigEndian.PutUint16(frame[portAt:], 40000+port)
				frames[i%senders] = append(frames[i%senders], frame)
			}
		}
		var all errgroup.Group
		for _, list := range frames {
			fd, err := packetSocket(Out + "-peer")
			if err != nil {
				return err
			}
			t.Cleanup(func() { unix.Close(fd) })
			all.Go(func() error {
				for _, frame := range list {
					if _, err := unix.Write(fd, frame); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := all.Wait(); err != nil {
			return err
		}
		seen := map[uint16]bool{}
		left := 0
		for frame := range framesWithin(under, time.Second) {
			if bytes.HasSuffix(frame, []byte("load")) {
				left++
				seen[binary.BigEndian.Uint16(frame[portAt:])] = true
			}
		}
		t.Logf("%d packets, %d left the node, from %d ports", pods*ports, left, len(seen))
		if left < pods*ports-most || len(seen) < left {
			t.Errorf("of %d packets %d left the node, from %d ports", pods*ports, left, len(seen))
		}
		return nil
	})
}

// portAt is where a frame of udpFrame for IPv4 has its source port.
const portAt = 14 + 20

// framesWithin yields the frames that arrive, until none does for a time.
func framesWithin(fd int, idle time.Duration) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		buf := make([]byte, 2048)
		for end := time.Now().Add(idle); time.Now().Before(end); {
			n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			if end = time.Now().Add(idle); !yield(buf[:n]) {
				return
			}
		}
	}
}
