package hostnet

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// fibFilter is the reverse path filter that firewalld writes for IPv6.
const fibFilter = `nft -f - <<'X'
add table inet filtering
add chain inet filtering pre { type filter hook prerouting priority filter + 10; }
add rule inet filtering pre icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
add rule inet filtering pre meta nfproto ipv6 fib saddr . mark . iif oif missing drop
X`

// serviceOfPod fails the test unless a Service whose pod is on another node answers over IPv6: what the pod sent, and
// the reply that the bridge has evaluated, both come back by the gateway.
func serviceOfPod(t *testing.T, cfg *Config, sockets map[string]int) {
	t.Helper()
	shell(t, "nft add rule inet nat pre ip6 daddr fd00:96::2 dnat ip6 to fd00:244:2::5")
	pod, behind := netip.MustParseAddr("fd00:244:1::5"), netip.MustParseAddr("fd00:244:2::5")
	send := func(frame []byte) {
		if _, err := unix.Write(sockets[Gateway], frame); err != nil {
			t.Fatal(err)
		}
	}
	send(udpFrame(cfg.GatewayMAC[:], pod, netip.MustParseAddr("fd00:96::2"), "to the Service"))
	if got := frameWith(t, sockets[Gateway], "to the Service"); !bytes.Contains(got, slices16(pod, behind)) {
		t.Errorf("came back without a translation: %x", got)
	}
	send(answerFrame(cfg.GatewayMAC[:], behind, pod, "from the Service"))
	want := slices16(netip.MustParseAddr("fd00:96::2"), pod)
	if got := frameWith(t, sockets[Gateway], "from the Service"); !bytes.Contains(got, want) {
		t.Errorf("the reply came back without a translation: %x", got)
	}
}

// TestArrivals_Filter: pods' IPv6 packets pass a firewall that looks up the way back to their sources. Each part of
// Flowkeep's configuration is necessary for that, which also shows that the firewall is at work.
func TestArrivals_Filter(t *testing.T) {
	for name, c := range map[string]struct {
		loss   string
		passes bool
	}{
		"nothing":            {"true", true},
		"the nftables table": {"nft delete table inet flowkeep", false},
		"the rules":          {"ip -6 rule del pref 62; ip -6 rule del pref 63", false},
		"the routes":         {"ip -6 route flush table 26215; ip -6 route flush table 26218", false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := nodeConfig()
			in(t, host(t), func() error {
				sockets := serviceHost(t, cfg)
				shell(t, fibFilter)
				shell(t, c.loss)
				for _, port := range []string{Wire, Out} {
					text := "by " + port + " without " + name
					if err := inject(sockets, port, "fd00:244:1::5", "2001:db8::7", text); err != nil {
						return err
					}
					if c.passes {
						heardUntil(t, sockets["under"], text)
					} else if passed := passedBefore(t, sockets, honestOut); passed != "" {
						t.Errorf("passed the firewall by %s", port)
					}
				}
				if c.passes {
					serviceOfPod(t, cfg, sockets)
				}
				return nil
			})
		})
	}
}

// TestArrivals_Replies: the node's own reply to a pod leaves by the gateway, also where it has the mark of the request.
func TestArrivals_Replies(t *testing.T) {
	cfg := nodeConfig()
	in(t, host(t), func() error {
		sockets := serviceHost(t, cfg)
		shell(t, fibFilter+"\necho 1 >/proc/sys/net/ipv6/fwmark_reflect")
		if err := inject(sockets, Out, "fd00:244:1::5", "2001:db8:9::9", "to nowhere"); err != nil {
			return err
		}
		heardUntil(t, sockets[Gateway], "to nowhere") // within an ICMP error: no host there has the address
		return nil
	})
}

// TestArrivals_MarksOfOthers: pods' packets pass the firewall also where another program sets all marks before it.
func TestArrivals_MarksOfOthers(t *testing.T) {
	cfg := nodeConfig()
	in(t, host(t), func() error {
		sockets := serviceHost(t, cfg)
		shell(t, fibFilter+"\n"+`nft -f - <<'X'
add table inet marks
add chain inet marks pre { type filter hook prerouting priority mangle; }
add rule inet marks pre meta l4proto udp meta mark set ct mark
X`)
		if err := inject(sockets, Out, "fd00:244:1::5", "2001:db8::7", "out"); err != nil {
			return err
		}
		heardUntil(t, sockets["under"], "out")
		serviceOfPod(t, cfg, sockets)
		return nil
	})
}

// TestArrivals_Forged: the firewall still drops a packet by the uplink with the address of a pod elsewhere, to which
// the route leads by another link, and one of fk-wire or fk-out whose source is no pod of the node.
func TestArrivals_Forged(t *testing.T) {
	for name, filter := range map[string]string{"no firewall": "true", "a firewall": fibFilter} {
		t.Run(name, func(t *testing.T) {
			in(t, host(t), func() error {
				sockets := serviceHost(t, nodeConfig())
				shell(t, filter+`
ip link add other type veth peer name other-peer; ip link set other up; ip link set other-peer up
ip -6 route add fd00:244:3::/64 dev other`)
				for port, from := range map[string]string{
					"under": "fd00:244:3::5", Wire: "fd00:244:2::5", Out: "fd00:244:2::5",
				} {
					if err := inject(sockets, port, from, "fd00:244:1::5", "forged"); err != nil {
						return err
					}
					last := way{port, Gateway, "198.51.100.7", "10.244.1.5"}
					if passed := passedBefore(t, sockets, last); (passed == "") != (filter == fibFilter) {
						t.Errorf("by %s: passed: %q", port, passed)
					}
				}
				return nil
			})
		})
	}
}
