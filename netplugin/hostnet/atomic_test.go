package hostnet

import (
	"net/netip"
	"os/exec"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The rules are set again and again, also against drift. Meanwhile packets go on, and no one of them may miss the rules: of
// those whose Service is translated already, one that is tracked again gets another source port, and its connection is reset.
func TestNoPacketMissesTheRulesThatAreSetAgain(t *testing.T) {
	const rounds = 50
	h, cfg := host(t), nodeConfig()
	in(t, h, func() error {
		if err := Setup(cfg); err != nil {
			return err
		}
		wire, err := packetSocket(Wire + "-peer")
		if err != nil {
			return err
		}
		defer unix.Close(wire)
		frame := udpFrame(cfg.WireMAC[:], netip.MustParseAddr("10.244.1.5"), cfg.Self.Addresses[0], "second pass")
		copy(frame[6:], cfg.ServiceMAC[:])
		done := make(chan struct{})
		var sending sync.WaitGroup
		sending.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					if _, err := unix.Write(wire, frame); err != nil && err != unix.ENOBUFS {
						t.Error(err)
						return
					}
				}
			}
		})
		for range rounds {
			if err = filters(cfg); err != nil {
				break
			}
		}
		close(done)
		sending.Wait()
		if err != nil {
			return err
		}
		return tracked(t, "10.244.1.5", 0)
	})
}

// tracked compares the number of connections from an address that the kernel tracks.
func tracked(t *testing.T, from string, want int) error {
	t.Helper()
	list, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	if err != nil {
		return err
	}
	n := 0
	for _, c := range list {
		if c.Forward.SrcIP.String() == from {
			n++
		}
	}
	if n != want {
		t.Errorf("%d connections from %s are tracked, not %d", n, from, want)
	}
	return nil
}

// What is not for the cluster is tracked: the test above sees what it looks for.
func TestWhatLeavesTheClusterIsTracked(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	cfg.Self.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.99")}
	in(t, h, func() error {
		if err := Setup(cfg); err != nil {
			return err
		}
		wire, err := packetSocket(Wire + "-peer")
		if err != nil {
			return err
		}
		defer unix.Close(wire)
		frame := udpFrame(cfg.WireMAC[:], netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("192.0.2.11"), "second pass")
		copy(frame[6:], cfg.ServiceMAC[:])
		if _, err := unix.Write(wire, frame); err != nil {
			return err
		}
		return tracked(t, "10.244.1.5", 1)
	})
}

// Chains of other hooks with our names, as another version may have left them, are replaced.
func TestChainsInTheWay(t *testing.T) {
	h := host(t)
	in(t, h, func() error {
		if out, err := exec.Command("nft", "add table inet flowkeep; add chain inet flowkeep raw { type filter hook forward priority 5; }; add set inet flowkeep self-ip { type ether_addr; }").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return Setup(nodeConfig())
	})
	holds(t, picture(t, h), "type filter hook prerouting priority raw")
}
