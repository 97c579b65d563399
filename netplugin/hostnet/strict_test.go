package hostnet

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/rtnl/rtnltest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const strictLink = "echo 1 >/proc/sys/net/ipv4/conf/under/rp_filter"

// TestHasStrictLink: links of other programs that are up count, whatever other links have.
func TestHasStrictLink(t *testing.T) {
	const filter = "/proc/sys/net/ipv4/conf/$l/rp_filter; done"
	for command, want := range map[string]bool{
		"true":                                  false,
		strictLink:                              true,
		strictLink + "; ip link set under down": false,
		"for l in under; do echo 2 >" + filter:  false, // it has an address
		"for l in all lo fk-gw fk-wire; do echo 1 >" + filter:                                           false,
		"ip addr flush dev under; for l in under; do echo 2 >" + filter:                                 true,
		"ip link add b.7 type bridge; ip link set b.7 up; for l in b.7; do echo 1 >" + filter:           true,
		"ip link add b7 type bridge; ip link set under master b7; for l in under; do echo 1 >" + filter: false,
		"ip link add fkp1 type bridge; ip link set fkp1 up; for l in fkp1; do echo 1 >" + filter:        false,
	} {
		in(t, host(t), func() error {
			shell(t, command)
			if got := HasStrictLink(rtnltest.ReadLinks(t)); got != want {
				t.Errorf("%s: %v, want %v", command, got, want)
			}
			return nil
		})
	}
}

// TestReturningRule_Recognised: the kernel takes no second rule that differs in the target only.
func TestReturningRule_Recognised(t *testing.T) {
	pods := netip.MustParsePrefix("10.244.1.0/24")
	for name, c := range map[string]struct {
		change func(*netlink.Rule)
		want   bool
	}{
		"as written":   {func(*netlink.Rule) {}, true},
		"other pods":   {func(r *netlink.Rule) { r.Src = ipNet(netip.MustParsePrefix("10.244.7.0/24")) }, true},
		"any source":   {func(r *netlink.Rule) { r.Src = nil }, false},
		"elsewhere":    {func(r *netlink.Rule) { r.Goto = 32766 }, false},
		"a table":      {func(r *netlink.Rule) { r.Goto, r.Table = -1, serviceTable }, false},
		"by any link":  {func(r *netlink.Rule) { r.IifName = "" }, false},
		"another mark": {func(r *netlink.Rule) { r.Mark = wellknown.ArrivalMark }, false},
		"a port":       {func(r *netlink.Rule) { r.Dport = netlink.NewRulePortRange(53, 53) }, false},
	} {
		r := returningRule(DefaultNumbers, pods)
		c.change(r)
		if got := isFlowkeeps(r, DefaultNumbers); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// inbound are packets that come to a pod by the uplink.
var inbound = []struct{ name, from, to string }{
	{"from a pod elsewhere", "10.244.2.5", "10.244.1.5"},
	{"from a node", "192.0.2.12", "10.244.1.5"},
	{"by a node port", "198.51.100.7", "192.0.2.11"},
}

// strictHost returns a strict node with a node port, and packet sockets as serviceHost does.
func strictHost(t *testing.T, cfg *Config) map[string]int {
	t.Helper()
	shell(t, strictLink)
	cfg.Strict = HasStrictLink(rtnltest.ReadLinks(t))
	sockets := serviceHost(t, cfg)
	shell(t, `nft add rule inet nat pre ip saddr 198.51.100.7 ip daddr 192.0.2.11 udp dport 9 dnat ip to 10.244.1.5`)
	return sockets
}

// TestStrictLink_PacketsToPods: packets to pods pass a strict link, as long as Flowkeep's configuration is whole. A
// part that is missing keeps them away, which also shows that the filter is at work.
func TestStrictLink_PacketsToPods(t *testing.T) {
	for name, c := range map[string]struct {
		loss   string
		passes bool
	}{
		"nothing":            {"true", true},
		"the nftables table": {"nft delete table inet flowkeep", false},
		"the rule":           {"ip rule del pref 59", false},
		"the sysctl":         {"echo 0 >/proc/sys/net/ipv4/conf/all/src_valid_mark", false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := nodeConfig()
			in(t, host(t), func() error {
				sockets := strictHost(t, cfg)
				shell(t, c.loss)
				passed := ""
				for _, p := range inbound {
					text := p.name + ", without " + name
					if err := inject(sockets, "under", p.from, p.to, text); err != nil {
						return err
					}
					if c.passes {
						heardUntil(t, sockets[Gateway], text)
						continue
					}
					passed += passedBefore(t, sockets, honest)
				}
				if passed != "" {
					t.Errorf("passed the filter without %s: %q", name, passed)
				}
				return nil
			})
		})
	}
}

// inject sends the node a datagram by one of its links.
func inject(sockets map[string]int, link, from, to, text string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	frame := udpFrame(l.Attrs().HardwareAddr, netip.MustParseAddr(from), netip.MustParseAddr(to), text)
	_, err = unix.Write(sockets[link], frame)
	return err
}

// way is that of a datagram that passes the node: the links by which it comes and leaves, and its addresses.
type way struct{ in, out, from, to string }

// Ways of datagrams that pass each filter of the tests.
var (
	honest    = way{"under", Gateway, "2001:db8::1", "fd00:244:1::5"}
	honestOut = way{Out, "under", "10.244.1.6", "198.51.100.7"}
)

// passedBefore sends a datagram that passes, and returns what left by the same link before it.
func passedBefore(t *testing.T, sockets map[string]int, w way) string {
	t.Helper()
	if err := inject(sockets, w.in, w.from, w.to, "the last"); err != nil {
		t.Fatal(err)
	}
	all := heardUntil(t, sockets[w.out], "the last")
	var texts []string
	for _, text := range [][]byte{[]byte("without"), []byte("forged"), []byte("marked")} {
		if bytes.Contains(all, text) {
			texts = append(texts, string(text))
		}
	}
	return strings.Join(texts, ", ")
}

// TestToPods_OwnAddress: no packet from elsewhere with an address of the node reaches a pod, also where no link is
// strict. Of IPv4 the kernel itself refuses it with a strict link only.
func TestToPods_OwnAddress(t *testing.T) {
	for name, start := range map[string]func(*testing.T, *Config) map[string]int{
		"any link": serviceHost, "a strict link": strictHost,
	} {
		t.Run(name, func(t *testing.T) {
			cfg := nodeConfig()
			in(t, host(t), func() error {
				sockets := start(t, cfg)
				shell(t, `nft add rule inet nat pre ip daddr 192.0.2.11 udp dport 9 iifname under dnat ip to 10.244.1.5
ip addr add 2001:db8:1::11/64 dev under nodad; ip addr add 203.0.113.9/32 dev lo
# the kernel makes an IPv6 address local in a work queue, some time after the command
until ip -6 route show table local | grep -q '^local 2001:db8:1::11 '; do sleep 0.01; done`)
				for _, p := range [][2]string{
					{"192.0.2.11", "10.244.1.5"}, {"203.0.113.9", "10.244.1.5"}, {"10.244.1.1", "10.244.1.5"},
					{"192.0.2.11", "192.0.2.11"}, {"2001:db8:1::11", "fd00:244:1::5"},
				} {
					if err := inject(sockets, "under", p[0], p[1], "forged"); err != nil {
						return err
					}
					for _, last := range []way{honest, {"under", Gateway, "198.51.100.7", "10.244.1.5"}} {
						if passed := passedBefore(t, sockets, last); passed != "" {
							t.Errorf("from %s to %s: passed", p[0], p[1])
						}
					}
				}
				return nil
			})
		})
	}
}

// TestStrictLink_Masqueraded: replies to a pod's packets that left as the node's own pass a strict link.
func TestStrictLink_Masqueraded(t *testing.T) {
	cfg := nodeConfig()
	in(t, host(t), func() error {
		sockets := strictHost(t, cfg)
		pod, outside := netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("198.51.100.8")
		shell(t, "ip neigh add 198.51.100.8 lladdr 02:00:00:00:00:12 dev under nud permanent")
		if _, err := unix.Write(sockets[Out], udpFrame(cfg.OutMAC[:], pod, outside, "question")); err != nil {
			return err
		}
		sent := frameWith(t, sockets["under"], "question")
		reply := udpFrame(macOf(t, "under"), outside, cfg.Self.Addresses[0], "answer")
		copy(reply[34:], []byte{0, 9}) // the source port
		copy(reply[36:], sent[34:36])  // the destination port
		if _, err := unix.Write(sockets["under"], reply); err != nil {
			return err
		}
		heardUntil(t, sockets[Gateway], "answer")
		return nil
	})
}

// TestMarks_OfOtherPrograms: packets of pods that have all bits of marks, as another program set or restored them,
// take the same ways as without: to a Service into the bridge again, elsewhere out of the node.
func TestMarks_OfOtherPrograms(t *testing.T) {
	for name, priority := range map[string]int{"first": -310, "where marks of connections are restored": -150} {
		t.Run(name, func(t *testing.T) {
			cfg := nodeConfig()
			in(t, host(t), func() error {
				sockets := strictHost(t, cfg)
				shell(t, fmt.Sprintf(`nft -f - <<'X'
add table inet marks
add chain inet marks pre { type filter hook prerouting priority %d; }
add rule inet marks pre meta mark set 0xffffffff
X`, priority))
				pod, service := netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("10.96.0.1")
				frame := udpFrame(cfg.GatewayMAC[:], pod, service, "marked")
				if _, err := unix.Write(sockets[Gateway], frame); err != nil {
					return err
				}
				heardUntil(t, sockets[Gateway], "marked")
				if passed := passedBefore(t, sockets, honestOut); passed != "" {
					t.Error("left the node before the second pass")
				}
				return nil
			})
		})
	}
}
