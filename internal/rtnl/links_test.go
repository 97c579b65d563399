package rtnl

import (
	"os/exec"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

// TestReadLinks_Sysctls compares sysctls that the kernel sends with those that were written below /proc.
func TestReadLinks_Sysctls(t *testing.T) {
	const script = `ip link add a.7 type bridge; ip link add br0 type bridge; ip link set br0 addrgenmode none
		ip link set br0 up
		ip addr add 192.0.2.1/24 dev br0; ip addr add 2001:db8::1/64 dev br0 nodad
		echo 1 >/proc/sys/net/ipv4/conf/a.7/forwarding; echo 2 >/proc/sys/net/ipv4/conf/a.7/rp_filter
		echo 8 >/proc/sys/net/ipv4/conf/a.7/arp_ignore; echo 1 >/proc/sys/net/ipv6/conf/a.7/disable_ipv6
		for s in forwarding rp_filter arp_ignore; do echo 0 >/proc/sys/net/ipv4/conf/br0/$s; done`
	netns.New(t).Do(func() {
		if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		links, err := ReadLinks()
		if err != nil {
			t.Error(err)
			return
		}
		for name, want := range map[string][]int{"a.7": {1, 2, 8, 1}, "br0": {0, 0, 0, 0}} {
			l := links.Named(name)
			if l == nil {
				t.Errorf("no link %s", name)
				continue
			}
			for i, s := range []Sysctl{Forwarding, RPFilter, ARPIgnore, DisableIPv6} {
				if value, ok := l.Sysctl(s); value != want[i] || !ok {
					t.Errorf("%s: sysctl %+v is %d (%v), want %d", name, s, value, ok, want[i])
				}
			}
		}
		bridge := links.Named("br0")
		if bridge == nil || links.Named("c") != nil {
			t.Errorf("links %v", links.All)
			return
		}
		if n := len(links.Addresses[bridge.Attrs().Index]); n != 2 {
			t.Errorf("addresses %v of br0, want 2", links.Addresses[bridge.Attrs().Index])
		}
		if _, ok := bridge.Sysctl(Sysctl{RPFilter.family, 1 << 20}); ok {
			t.Error("a value of a sysctl that the kernel does not send")
		}
	})
}
