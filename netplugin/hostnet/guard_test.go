package hostnet

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// shell runs a command line in the current network namespace.
func shell(t *testing.T, line string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", line).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
}

// serviceHost returns a node with Services that nftables translates to an address outside, to the node's own and to a
// pod elsewhere, and a packet socket on the bridge's side of each port and of the underlay.
func serviceHost(t *testing.T, cfg *Config) map[string]int {
	t.Helper()
	if err := Setup(cfg); err != nil {
		t.Fatal(err)
	}
	shell(t, `nft -f - <<'X'
add table inet nat
add chain inet nat pre { type nat hook prerouting priority dstnat; }
add rule inet nat pre ip daddr 10.96.0.1 dnat ip to 198.51.100.7
add rule inet nat pre ip daddr 10.96.0.2 dnat ip to 192.0.2.11
add rule inet nat pre ip6 daddr fd00:96::1 dnat ip6 to 2001:db8::7
add rule inet nat pre ip daddr 192.0.2.11 udp dport 9 iifname "`+Out+`" dnat ip to 10.244.2.5
X
ip route add 198.51.100.0/24 dev under
ip neigh add 198.51.100.7 lladdr 02:00:00:00:00:12 dev under nud permanent
ip neigh add 192.0.2.12 lladdr 02:00:00:00:00:12 dev under nud permanent
ip -6 route add 2001:db8::/32 dev under
ip -6 neigh add 2001:db8::7 lladdr 02:00:00:00:00:12 dev under nud permanent`)
	sockets := map[string]int{}
	for _, name := range []string{Wire, Out, Gateway, "under"} {
		fd, err := packetSocket(name + "-peer")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		sockets[name] = fd
	}
	return sockets
}

// heardWithin reports whether a frame with the text comes in time.
func heardWithin(fd int, text string, limit time.Duration) bool {
	return len(heardOf(fd, limit, text)) > 0
}

// heardOf returns the texts of which a frame arrives in time. It does not wait for more when it has all.
func heardOf(fd int, limit time.Duration, texts ...string) (heard []string) {
	buf := make([]byte, 2048)
	for end := time.Now().Add(limit); time.Now().Before(end) && len(heard) < len(texts); {
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		for _, text := range texts {
			if bytes.Contains(buf[:n], []byte(text)) && !slices.Contains(heard, text) {
				heard = append(heard, text)
			}
		}
	}
	return heard
}

// foreignRoutes are another program's, in Flowkeep's table: of another destination, of the same with another metric, as a
// second next hop, and a local one.
const foreignRoutes = `ip route add 198.51.100.0/24 dev under table 26214
ip route add default via 192.0.2.12 dev under table 26214 metric 5
ip route add local 192.0.2.11 dev under table 26214
ip -6 route add 2001:db8::/32 dev under table 26214
ip -6 route append default via fe80::99 dev under table 26214 onlink`

// TestService_LostConfiguration removes one layer of the second pass after the other: what a pod sent to a Service, and
// no policy has evaluated, then neither leaves the node nor reaches its programs.
func TestService_LostConfiguration(t *testing.T) {
	pod4, pod6 := netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:244:1::5")
	ways := []struct {
		name     string
		port     string
		from, to netip.Addr
	}{
		{"to the outside", Gateway, pod4, netip.MustParseAddr("10.96.0.1")},
		{"to the outside, IPv6", Gateway, pod6, netip.MustParseAddr("fd00:96::1")},
		{"to the node", Gateway, pod4, netip.MustParseAddr("10.96.0.2")},
		{"by a node port", Out, pod4, netip.MustParseAddr("192.0.2.11")},
	}
	for name, loss := range map[string]string{
		"nothing":              "true",
		"all rules":            "ip rule flush; ip -6 rule flush; for f in -4 -6; do ip $f rule add pref 0 table local; ip $f rule add pref 32766 table main; done",
		"rules of 60 and 61":   "for f in -4 -6; do ip $f rule del pref 60; ip $f rule del pref 61; done",
		"the route":            "ip route flush table 26214; ip -6 route flush table 26214",
		"the table of rule 61": "ip route flush table 26217; ip -6 route flush table 26217",
		"the port went down":   "ip link set " + Gateway + " down; ip link set " + Gateway + " up",
		"the port's addresses": "ip addr flush dev " + Gateway,
		"the nftables table":   "nft delete table inet flowkeep",
		"the nftables table, and the port went down": "nft delete table inet flowkeep; ip link set " + Gateway + " down; ip link set " + Gateway + " up",
		"a rule before the others":                   "ip rule add pref 10 lookup main; ip -6 rule add pref 10 lookup main",
		"a route in the table":                       foreignRoutes,
		"the local rule, and 60":                     "ip rule del pref 100; ip rule del pref 60; ip rule add pref 0 table local",
	} {
		t.Run(name, func(t *testing.T) {
			h, cfg := host(t), nodeConfig()
			in(t, h, func() error {
				sockets := serviceHost(t, cfg)
				receiver, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 11), Port: 9})
				if err != nil {
					return err
				}
				defer receiver.Close()
				shell(t, loss)
				var texts []string
				for _, w := range ways {
					text := w.name + ", without " + name
					mac := cfg.GatewayMAC
					if w.port == Out {
						mac = cfg.OutMAC
					}
					if _, err := unix.Write(sockets[w.port], udpFrame(mac[:], w.from, w.to, text)); err != nil {
						return err
					}
					texts = append(texts, text)
				}
				for _, text := range heardOf(sockets["under"], 200*time.Millisecond, texts...) {
					t.Errorf("%s: left the node", text)
				}
				_ = receiver.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				if n, from, err := receiver.ReadFromUDP(make([]byte, 100)); err == nil {
					t.Errorf("a program of the node got %d bytes from %v", n, from)
				}
				return nil
			})
		})
	}
}

// TestService_TranslatedPacketReturns shows that the guard lets pass what it is not for: a translated packet goes back
// into the bridge, and the node answers its pods by the gateway's address.
func TestService_TranslatedPacketReturns(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	in(t, h, func() error {
		sockets := serviceHost(t, cfg)
		for i, to := range []string{"10.96.0.1", "10.96.0.2", "fd00:96::1"} {
			from, text := netip.MustParseAddr("10.244.1.5"), fmt.Sprintf("question %d", i)
			dst := netip.MustParseAddr(to)
			if dst.Is6() {
				from = netip.MustParseAddr("fd00:244:1::5")
			}
			if _, err := unix.Write(sockets[Gateway], udpFrame(cfg.GatewayMAC[:], from, dst, text)); err != nil {
				return err
			}
			heard := heardUntil(t, sockets[Gateway], text)
			if bytes.Contains(heard, slices16(from, dst)) {
				t.Errorf("to %s: came back without a translation", to)
			}
		}
		receiver, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 244, 1, 1), Port: 9})
		if err != nil {
			return err
		}
		defer receiver.Close()
		frame := udpFrame(cfg.GatewayMAC[:], netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("10.244.1.1"), "to the gateway")
		if _, err := unix.Write(sockets[Gateway], frame); err != nil {
			return err
		}
		_ = receiver.SetReadDeadline(time.Now().Add(time.Minute))
		_, _, err = receiver.ReadFromUDP(make([]byte, 100))
		return err
	})
}

func slices16(from, to netip.Addr) []byte { return append(from.AsSlice(), to.AsSlice()...) }

// TestService_UntranslatedPacketDoesNotCirculate sends the bridge's side of the gateway a packet that the node knows no
// translation of: it is neither sent back, nor tracked.
func TestService_UntranslatedPacketDoesNotCirculate(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	in(t, h, func() error {
		sockets := serviceHost(t, cfg)
		pod := netip.MustParseAddr("10.244.1.5")
		if err := SetNeighbours([]Neighbour{{pod, [6]byte{2, 0, 0, 0, 1, 5}}}); err != nil {
			return err
		}
		packets := map[string][2]netip.Addr{
			"a late answer":        {netip.MustParseAddr("198.51.100.7"), pod},
			"to no Service's port": {pod, netip.MustParseAddr("10.96.0.99")},
		}
		for name, ends := range packets {
			if _, err := unix.Write(sockets[Gateway], udpFrame(cfg.GatewayMAC[:], ends[0], ends[1], name)); err != nil {
				return err
			}
		}
		names := slices.Collect(maps.Keys(packets))
		for _, name := range heardOf(sockets[Gateway], 200*time.Millisecond, names...) {
			t.Errorf("%s: came back", name)
		}
		return tracked(t, "10.244.1.5", 0)
	})
}

// TestSetup_RulesSurviveNetworkd removes what systemd-networkd removes when it starts: rules of another protocol than
// the kernel's.
func TestSetup_RulesSurviveNetworkd(t *testing.T) {
	h := host(t)
	in(t, h, func() error {
		shell(t, "ip rule add pref 100 table local protocol 0; ip rule add pref 60 iif fk-gw from 10.244.1.0/24 table 102 protocol 0") // as older versions made them
		if err := Setup(nodeConfig()); err != nil {
			return err
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			rules, err := netlink.RuleList(family)
			if err != nil {
				return err
			}
			seen := map[int]int{}
			for i := range rules {
				seen[rules[i].Priority]++
				if rules[i].Protocol != unix.RTPROT_KERNEL {
					t.Errorf("rule %d has protocol %d", rules[i].Priority, rules[i].Protocol)
				}
			}
			for _, pref := range []int{prefGatewayLocal, prefService, prefTranslated, prefLocal} {
				if seen[pref] != 1 {
					t.Errorf("%d rules of preference %d in family %d", seen[pref], pref, family)
				}
			}
		}
		return nil
	})
}

// TestSetup_WritesOnlyWhatDiffers counts the writes of a second call: each causes events that lead to another call.
func TestSetup_WritesOnlyWhatDiffers(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	cfg.Kept = &Kept{}
	in(t, h, func() error {
		var wrote []string
		cfg.Changed = func(object, name string) { wrote = append(wrote, object+" "+name) }
		if err := Setup(cfg); err != nil {
			return err
		}
		objects := map[string]bool{}
		for _, w := range wrote {
			object, _, _ := bytes.Cut([]byte(w), []byte(" "))
			objects[string(object)] = true
		}
		for _, o := range Objects {
			if !objects[o] && o != "sysctl" {
				t.Errorf("the first Setup reported no %s", o)
			}
		}
		wrote = nil
		if err := Setup(cfg); err != nil {
			return err
		}
		if len(wrote) > 0 {
			t.Errorf("the second Setup wrote %q", wrote)
		}
		return nil
	})
}

// TestSetup_DropsWhatTheNodeTranslates: where the switch translates Services, what a pod sends and another program
// translates ends here, to pods elsewhere and to the node's programs. What is not translated, and replies, go on.
func TestSetup_DropsWhatTheNodeTranslates(t *testing.T) {
	for _, translated := range []bool{false, true} {
		t.Run(fmt.Sprint("translated by the switch ", translated), func(t *testing.T) {
			h, cfg := host(t), nodeConfig()
			cfg.Translated = translated
			in(t, h, func() error {
				sockets := serviceHost(t, cfg)
				entry := Neighbour{netip.MustParseAddr("10.244.1.5"), [6]byte{2, 0, 0, 0, 1, 5}}
				if err := SetNeighbours([]Neighbour{entry}); err != nil {
					return err
				}
				shell(t, `nft add rule inet nat pre ip daddr 203.0.113.1 udp dport 9 dnat ip to 10.244.1.5
nft add rule inet nat pre ip daddr 192.0.2.11 udp dport 10 iifname "`+Out+`" dnat ip to 192.0.2.11:9`)
				receiver, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 11), Port: 9})
				if err != nil {
					return err
				}
				defer receiver.Close()
				pod, node := netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("192.0.2.11")
				send := func(to netip.Addr, port uint16, text string) {
					t.Helper()
					frame := udpFrame(cfg.OutMAC[:], pod, to, text)
					frame[36], frame[37] = byte(port>>8), byte(port)
					frame[40], frame[41] = 0, 0 // no checksum
					if _, err := unix.Write(sockets[Out], frame); err != nil {
						t.Fatal(err)
					}
				}
				send(netip.MustParseAddr("198.51.100.7"), 9, "not translated")
				if !heardWithin(sockets["under"], "not translated", time.Minute) {
					t.Error("what is not translated did not leave the node")
				}
				limit := 200 * time.Millisecond
				if !translated {
					limit = time.Minute
				}
				send(node, 9, "to a pod elsewhere")
				if heardWithin(sockets[Gateway], "to a pod elsewhere", limit) == translated {
					t.Errorf("to a pod elsewhere: it came through: %v", !translated)
				}
				send(node, 10, "to the node")
				_ = receiver.SetReadDeadline(time.Now().Add(limit))
				if _, _, err := receiver.ReadFromUDP(make([]byte, 100)); (err == nil) == translated {
					t.Errorf("to the node: %v", err)
				}
				client, opened := netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("203.0.113.1")
				frame := udpFrame(macOf(t, "under"), client, opened, "from outside")
				if _, err := unix.Write(sockets["under"], frame); err != nil {
					return err
				}
				if !heardWithin(sockets[Gateway], "from outside", time.Minute) {
					t.Error("what comes from outside did not reach the pod")
				}
				if _, err := unix.Write(sockets[Out], answerFrame(cfg.OutMAC[:], pod, client, "reply")); err != nil {
					return err
				}
				if !heardWithin(sockets["under"], "reply", time.Minute) {
					t.Error("the reply to what comes from outside did not leave the node")
				}
				return nil
			})
		})
	}
}

// TestServiceGuard_RulesOfPodCIDRs: a pod CIDR of another node outside of the cluster's adds one rule to the chains of
// what the node forwards, also with tunnels.
func TestServiceGuard_RulesOfPodCIDRs(t *testing.T) {
	count := func(others int, tunnelled bool) (n int) {
		cfg := nodeConfig()
		cfg.ClusterCIDRs, cfg.Others, cfg.Tunnelled = nil, cfg.Others[:others], tunnelled
		for _, c := range slices.Concat(serviceGuard(cfg), tunnelGuard(cfg)) {
			n += len(c.rules)
		}
		return n
	}
	for _, tunnelled := range []bool{false, true} {
		if one, two := count(1, tunnelled), count(2, tunnelled); two != one+1 {
			t.Errorf("tunnels %v: %d rules with one node, %d with two", tunnelled, one, two)
		}
	}
}

// TestDropToPods: without the cluster's CIDRs the chain drops packets to own and other pods of both families.
func TestDropToPods(t *testing.T) {
	cfg := nodeConfig()
	cfg.ClusterCIDRs = nil
	cfg.Self.PodCIDRs = prefixes("10.244.1.0/24", "fd00:244:1::/64")
	cfg.Others = []policy.NodeInfo{info("node2", "192.0.2.12", "10.244.9.0/24", "fd00:244:9::/64")}
	cfg.Others[0].Addresses = append(cfg.Others[0].Addresses, netip.MustParseAddr("2001:db8::12"))
	want := []string{
		"ip daddr 10.244.1.0/24 drop",
		"ip daddr 10.244.9.0/24 drop",
		"ip6 daddr fd00:244:1::/64 drop",
		"ip6 daddr fd00:244:9::/64 drop",
	}
	if got := slices.Sorted(slices.Values(dropToPods(cfg).rules)); !slices.Equal(got, want) {
		t.Errorf("rules %q, want %q", got, want)
	}
}
