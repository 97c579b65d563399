package hostnet

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TestWatch_Fails: when messages of the one kind or the other cannot be received any more, Watch reports a change and
// returns the error. The next Watch has the rules and routes of the node's own packets compared for what it has missed.
func TestWatch_Fails(t *testing.T) {
	for name, family := range map[string]int{"rtnetlink": unix.NETLINK_ROUTE, "nftables": unix.NETLINK_NETFILTER} {
		t.Run(name, func(t *testing.T) {
			h, kept := host(t), new(Kept)
			run := func(changed func()) (changes int32, err error) {
				var n atomic.Int32
				h.Do(func() {
					err = Watch(t.Context(), watchedNode(false), kept, Reports{Changed: func() { n.Add(1); changed() }})
				})
				return n.Load(), err
			}
			var broken *nl.NetlinkSocket
			subscribeTo = func(f int, groups ...uint) (*nl.NetlinkSocket, error) {
				s, err := nl.Subscribe(f, groups...)
				if f == family {
					broken = s
				}
				return s, err
			}
			t.Cleanup(func() { subscribeTo = nl.Subscribe })
			n, err := run(func() { broken.Close() })
			if n < 2 || err == nil {
				t.Errorf("%d changes, %v", n, err)
			}
			kept.ownLost.Store(false)
			if _, err = run(func() { broken.Close() }); !kept.ownLost.Load() {
				t.Errorf("what was missed is not compared; %v", err)
			}
		})
	}
}

// TestReceive_LostMessages checks that a receive buffer that overflowed starts a full comparison.
func TestReceive_LostMessages(t *testing.T) {
	in(t, host(t), func() error {
		s, err := subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_ROUTE)
		if err != nil {
			return err
		}
		defer s.Close()
		if err := s.SetReceiveBufferSize(1, false); err != nil { // the kernel's least
			return err
		}
		shell(t, `for i in $(seq 200); do echo "route add 203.0.113.$i dev under"; done | ip -batch -`)
		ctx, cancel := context.WithCancel(t.Context())
		lost := 0
		concerns := func(*syscall.NetlinkMessage) bool { return false }
		err = receive(ctx, s, concerns, func() {}, func() { lost++; cancel() })
		if lost != 1 {
			t.Errorf("lost messages are reported %d times", lost)
		}
		return err
	})
}
