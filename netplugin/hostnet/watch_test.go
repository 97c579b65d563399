package hostnet

import (
	"context"
	"log/slog"
	"testing"
	"time"
)

// TestWatch_ReportsChanges makes each change that Setup repairs, and some of other parts of the network.
func TestWatch_ReportsChanges(t *testing.T) {
	if sysctlInterval > time.Second/2 { // the promise of a second, without the speed of this machine
		t.Errorf("sysctls are read every %s", sysctlInterval)
	}
	for name, test := range map[string]struct {
		command string
		ours    bool
	}{
		"rule":                   {"ip rule del pref 60", true},
		"IPv6 rule":              {"ip -6 rule del pref 100", true},
		"route":                  {"ip route del 10.244.2.0/24", true},
		"route replaced":         {"ip route replace 10.244.2.0/24 via 192.0.2.99 proto static", true},
		"Services' table":        {"ip route flush table 102", true},
		"address":                {"ip addr flush dev " + Gateway, true},
		"link down":              {"ip link set " + Gateway + " down", true},
		"MTU":                    {"ip link set " + Wire + " mtu 1280", true},
		"neighbour":              {"ip neigh del 169.254.102.1 dev " + Gateway, true},
		"flush":                  {"nft flush ruleset", true},
		"nftables rule":          {"nft flush chain inet flowkeep raw", true},
		"forwarding":             {"echo 0 >/proc/sys/net/ipv4/conf/" + Wire + "/forwarding", true},
		"sysctl":                 {"echo 1 >/proc/sys/net/ipv6/conf/" + Gateway + "/accept_ra", true},
		"FORWARD drops":          {"iptables-nft -P FORWARD DROP", true},
		"FORWARD flushed":        {"iptables-nft -A FORWARD -j ACCEPT; iptables-nft -F FORWARD", true},
		"another chain":          {"iptables-nft -N OTHER; iptables-nft -A OTHER -j ACCEPT", false},
		"a pod's link, filter":   {"echo 0 >/proc/sys/net/ipv4/conf/fkp1/rp_filter", true},
		"a pod's link, IPv6":     {"echo 0 >/proc/sys/net/ipv6/conf/fkp1/disable_ipv6", true},
		"a pod's link, down":     {"ip link set fkp1 down", true},
		"another link's address": {"ip addr add 192.0.2.77/24 dev under", false},
		"another route":          {"ip route add 198.51.100.0/24 dev under", false},
		"another nftables table": {"nft add table inet other", false},
		"another link":           {"ip link add other type bridge", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, cfg := host(t), nodeConfig()
			in(t, h, func() error {
				shell(t, `ip link add fkp1 type veth peer name podend; echo 1 >/proc/sys/net/ipv6/conf/fkp1/disable_ipv6
					echo 3 >/proc/sys/net/ipv6/conf/fkp1/dad_transmits
					echo 1 >/proc/sys/net/ipv4/conf/fkp1/rp_filter; ip link set fkp1 up; ip link set podend up`)
				return Setup(cfg)
			})
			ctx, cancel := context.WithCancel(t.Context())
			changed, ended := make(chan struct{}, 100), make(chan error, 1)
			go h.Do(func() {
				ended <- Watch(ctx, func() bool { return true }, func() { changed <- struct{}{} }, slog.New(slog.DiscardHandler))
			})
			<-changed                     // it has subscribed
			drain(changed, 3*time.Second) // messages about the links that were made
			in(t, h, func() error { shell(t, test.command); return nil })
			if test.ours {
				select {
				case <-changed: // the kernel's message, or the next read of the sysctls
				case <-time.After(time.Minute):
					t.Error("not reported")
				}
			} else {
				select {
				case <-changed:
					t.Error("reported, though nothing of Flowkeep's changed")
				case <-time.After(2 * sysctlInterval / 3):
				}
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// drain empties a channel until nothing comes for a while.
func drain(c <-chan struct{}, quiet time.Duration) {
	for {
		select {
		case <-c:
		case <-time.After(quiet):
			return
		}
	}
}
