package hostnet

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestNextHops_RepliesOfServices: what pods sent to a Service with an endpoint elsewhere returns with the Service's
// address by the next hop of the second pass, as it came from the bridge.
func TestNextHops_RepliesOfServices(t *testing.T) {
	in(t, host(t), func() error {
		cfg := nodeConfig()
		sockets := serviceHost(t, cfg)
		for pod, c := range map[string]struct{ service, endpoint string }{
			"10.244.1.5": {"10.96.0.1", "198.51.100.7"}, "fd00:244:1::5": {"fd00:96::1", "2001:db8::7"},
		} {
			if err := sendInto(cfg, sockets, Gateway, pod, c.service, "question of "+pod); err != nil {
				return err
			}
			question := frameWith(t, sockets[Gateway], "question of "+pod)
			source := sourceOf(question)
			answer := answerFrame(cfg.GatewayMAC[:], netip.MustParseAddr(c.endpoint), source, "answer to "+pod)
			if _, err := unix.Write(sockets[Gateway], answer); err != nil {
				return err
			}
			frame := frameWith(t, sockets[Gateway], "answer to "+pod)
			if got := sourceOf(frame).String(); got != c.service || [6]byte(frame[:6]) != wellknown.SecondPassMAC {
				t.Errorf("%s gets the answer from %s, by %x", pod, got, frame[:6])
			}
		}
		return nil
	})
}

// TestNextHops_Replies: what pods sent to a node port returns with the node's address by another next hop than the
// node's own, from a pod of the node, from the pod itself and from a pod elsewhere.
func TestNextHops_Replies(t *testing.T) {
	in(t, host(t), func() error {
		cfg := nodeConfig()
		sockets := serviceHost(t, cfg)
		shell(t, `nft -f - <<'X'
insert rule inet nat pre ip saddr 10.244.1.7 ip daddr 192.0.2.11 udp dport 9 dnat ip to 10.244.2.5
insert rule inet nat pre ip saddr != 10.244.1.7 ip daddr 192.0.2.11 udp dport 9 dnat ip to 10.244.1.5
add chain inet nat post { type nat hook postrouting priority srcnat; }
add rule inet nat post ct status dnat masquerade
X`)
		for _, c := range []struct {
			client, server, seen string
			mac                  [6]byte // of the reply
		}{
			{"10.244.1.6", "10.244.1.5", "10.244.1.6", wellknown.SecondPassMAC},
			{"10.244.1.5", "10.244.1.5", "169.254.102.3", wellknown.SecondPassMAC},
			{"10.244.1.7", "10.244.2.5", "10.244.1.7", wellknown.SecondPassMAC},
		} {
			question, answer := "question of "+c.client+".", "answer to "+c.client+"."
			if err := sendInto(cfg, sockets, Out, c.client, "192.0.2.11", question); err != nil {
				return err
			}
			frame := frameWith(t, sockets[Gateway], question)
			if got := sourceOf(frame); got.String() != c.seen || [6]byte(frame[:6]) != wellknown.SecondPassMAC {
				t.Errorf("%s sees %s, by %x", c.server, got, frame[:6])
			}
			reply := answerFrame(cfg.GatewayMAC[:], netip.MustParseAddr(c.server), netip.MustParseAddr(c.seen), answer)
			copy(reply[36:], frame[34:36]) // the port of the client, as the server sees it
			if _, err := unix.Write(sockets[Gateway], reply); err != nil {
				return err
			}
			frame = frameWith(t, sockets[Gateway], answer)
			if got := sourceOf(frame); got.String() != "192.0.2.11" || [6]byte(frame[:6]) != c.mac {
				t.Errorf("%s gets the answer from %s, by %x", c.client, got, frame[:6])
			}
		}
		return nil
	})
}

// TestNextHops_OwnSocketsLookUpAgain: a socket of the node that sent while its rule or route was missing sends as the
// node's own after the repair.
func TestNextHops_OwnSocketsLookUpAgain(t *testing.T) {
	for _, loss := range []string{"ip $f rule del pref 101", "ip $f route flush table 26216"} {
		in(t, host(t), func() error {
			cfg := nodeConfig()
			sockets := serviceHost(t, cfg)
			for _, a := range [][3]string{
				{"-4", "10.244.1.1", "10.244.1.5"}, {"-6", "fd00:244:1::1", "fd00:244:1::5"},
			} {
				own, pod := &net.UDPAddr{IP: net.ParseIP(a[1])}, &net.UDPAddr{IP: net.ParseIP(a[2]), Port: 9}
				conn, err := net.DialUDP("udp", own, pod)
				if err != nil {
					return err
				}
				defer conn.Close()
				sent := func(text string) [6]byte {
					if _, err := conn.Write([]byte(text + a[0])); err != nil {
						t.Error(err)
					}
					return [6]byte(frameWith(t, sockets[Gateway], text+a[0])[:6])
				}
				shell(t, "f="+a[0]+"; "+loss)
				sent("meanwhile ") // by another next hop, if the kernel looks up again after a change of rules
				if err := Setup(cfg); err != nil {
					return err
				}
				if got := sent("after that "); got != wellknown.OwnMAC {
					t.Errorf("%s, repaired: sent by %x, want %x", loss, got, wellknown.OwnMAC)
				}
			}
			return nil
		})
	}
}

// TestNextHops_OwnSocketsAfterAnotherProgram: the same where another program restored the rule or the route, so that
// Setup finds nothing to write.
func TestNextHops_OwnSocketsAfterAnotherProgram(t *testing.T) {
	for _, c := range []struct{ show, loss, restore string }{
		{"true", "ip -6 rule del pref 101",
			"ip -6 rule add pref 101 iif lo to fd00:244:1::/64 lookup 26216 protocol kernel"},
		{"ip -6 route show table 26216", "ip -6 route flush table 26216", "ip -6 route add %s table 26216"},
	} {
		h, cfg := host(t), nodeConfig()
		cfg.Kept = new(Kept)
		watched := func() Watched {
			return Watched{Table: DefaultNumbers.Table, Priority: DefaultNumbers.Priority, Six: true}
		}
		in(t, h, func() error {
			sockets := serviceHost(t, cfg)
			watch(t, h, watched, cfg.Kept, func() {})
			own, pod := &net.UDPAddr{IP: net.ParseIP("fd00:244:1::1")}, &net.UDPAddr{IP: net.ParseIP("fd00:244:1::5"), Port: 9}
			conn, err := net.DialUDP("udp", own, pod)
			if err != nil {
				return err
			}
			defer conn.Close()
			sent := func(text string) [6]byte {
				if _, err := conn.Write([]byte(text)); err != nil {
					t.Error(err)
				}
				return [6]byte(frameWith(t, sockets[Gateway], text)[:6])
			}
			was := strings.TrimSpace(output(t, c.show))
			shell(t, c.loss)
			if got := sent("meanwhile"); got != wellknown.ForwardedMAC {
				t.Errorf("%s: sent by %x, so that nothing is shown", c.loss, got)
			}
			shell(t, strings.Replace(c.restore, "%s", was, 1))
			for end := time.Now().Add(slow.Stretch(5 * time.Second)); !cfg.Kept.ownLost.Load(); {
				if time.Sleep(time.Millisecond); time.Now().After(end) {
					t.Fatalf("%s: Watch did not mark it", c.loss)
				}
			}
			if err := Setup(cfg); err != nil {
				return err
			}
			if got := sent("after that"); got != wellknown.OwnMAC {
				t.Errorf("%s, restored: sent by %x, want %x", c.loss, got, wellknown.OwnMAC)
			}
			return nil
		})
	}
}

// TestAddRules: rules that are missing are added, and none is removed. Setup then writes the routes again of which the
// node's own sockets may have taken others meanwhile.
func TestAddRules(t *testing.T) {
	in(t, host(t), func() error {
		cfg := nodeConfig()
		cfg.Kept = new(Kept)
		if err := Setup(cfg); err != nil {
			return err
		}
		const list = "for f in -4 -6; do ip $f rule; done"
		all := output(t, list)
		shell(t, "for f in -4 -6; do ip $f rule del pref 103; done")
		former := newRule(netlink.FAMILY_V4, 60, cfg.numbers().Table, ipNet(prefixes("10.244.9.0/24")[0]), nil)
		if err := addRule(former); err != nil {
			return err
		}
		if err := AddRules(cfg); err != nil {
			return err
		}
		if !strings.Contains(output(t, "ip rule"), "from 10.244.9.0/24 iif fk-gw") || cfg.Kept.ownLost.Load() {
			t.Error("a rule of an earlier configuration was removed, or routes are to be written again")
		}
		shell(t, "ip rule del pref 60 from 10.244.9.0/24")
		if got := output(t, list); got != all {
			t.Errorf("added:\n%s\nas Setup does:\n%s", got, all)
		}
		shell(t, "for f in -4 -6; do ip $f rule del pref 101; done")
		if err := AddRules(cfg); err != nil || !cfg.Kept.ownLost.Load() {
			t.Errorf("the rule of own packets was missing: %v, routes are to be written again: %v", err, cfg.Kept.ownLost.Load())
		}
		return nil
	})
}

// TestAddRules_OfOtherNumbers: with a lower priority none is added before the routes that they look up. The look-up of
// the table local would come before the one that leads translated packets back into the bridge: only the guard in
// nftables, which drops them, would keep them from the node's programs.
func TestAddRules_OfOtherNumbers(t *testing.T) {
	in(t, host(t), func() error {
		cfg := nodeConfig()
		cfg.Numbers = Numbers{Table: 200, Priority: 1000}
		if err := Setup(cfg); err != nil {
			return err
		}
		const list = "ip route get 192.0.2.11 from 10.244.1.9 iif fk-gw; ip rule; ip -6 rule"
		before := output(t, list)
		cfg.Numbers, cfg.Earlier = Numbers{Table: 300, Priority: 100}, []Numbers{cfg.Numbers}
		if err := AddRules(cfg); err != nil {
			return err
		}
		if after := output(t, list); after != before {
			t.Errorf("the way of a translated packet and the rules were\n%s\nand are\n%s", before, after)
		}
		return nil
	})
}

// TestLookUpAgain_Fails: while a route to the node's pods cannot be written again, each Setup tries it.
func TestLookUpAgain_Fails(t *testing.T) {
	in(t, host(t), func() error {
		cfg := nodeConfig()
		cfg.Kept = new(Kept)
		cfg.Kept.ownLost.Store(true)
		gone := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: 9999}}
		own := []netlink.Route{toPodsRoute(gone, unix.RT_TABLE_MAIN, prefixes("fd00:244:1::/64")[0], &forwardedHop)}
		have := &placed{own: map[place][]netlink.Route{placeOf(&own[0]): own}}
		for range 2 {
			if err := have.lookUpAgain(cfg, own); err == nil || !cfg.Kept.ownLost.Load() {
				t.Errorf("%v; to be done again: %v", err, cfg.Kept.ownLost.Load())
			}
			cfg.ownChanged = false // as Setup begins
		}
		return nil
	})
}

// TestWatch_MessagesLost: after messages were lost, one about a rule of the node's own packets may be among them.
func TestWatch_MessagesLost(t *testing.T) {
	h, kept := host(t), new(Kept)
	blocked, release := make(chan struct{}), make(chan struct{})
	var changes atomic.Int32
	watch(t, h, watchedNode(false), kept, func() {
		if changes.Add(1) == 2 { // the first is before the subscription
			close(blocked)
			<-release
		}
	})
	in(t, h, func() error {
		shell(t, "ip rule add pref 1000 lookup main")
		<-blocked
		rules := strings.Builder{}
		for i := range 2 * watchBuffer / 256 { // a message takes more than 256 bytes of the buffer
			fmt.Fprintf(&rules, "rule add pref %d lookup main\n", 2000+i)
		}
		batch := exec.Command("ip", "-batch", "-")
		batch.Stdin = strings.NewReader(rules.String())
		if out, err := batch.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if kept.ownLost.Load() {
		t.Error("it is marked before messages were lost")
	}
	close(release)
	for end := time.Now().Add(slow.Stretch(10 * time.Second)); !kept.ownLost.Load(); {
		if time.Sleep(time.Millisecond); time.Now().After(end) {
			t.Fatal("messages were lost, and Watch did not mark it")
		}
	}
}

const masqueradedClient = "from outside by a node port, masqueraded"

// intoTheBridge are packets that the node's stack sends into the bridge, and the MAC of the next hop by which it does.
// With guarded, nftables drops them, or has them go by another next hop: they are sent while its table is missing.
var intoTheBridge = []struct {
	name, in, from, to string
	mac                [6]byte
	guarded            bool
}{
	{"the node's own", "", "192.0.2.11", "10.244.1.5", wellknown.OwnMAC, false},
	{"of the gateway's address", "", "10.244.1.1", "10.244.1.5", wellknown.OwnMAC, false},
	{"the node's own, IPv6", "", "fd00:244:1::1", "fd00:244:1::5", wellknown.OwnMAC, false},
	{"second pass", Gateway, "10.244.1.6", "10.96.0.4", wellknown.SecondPassMAC, false},
	{"second pass, IPv6", Gateway, "fd00:244:1::6", "fd00:96::4", wellknown.SecondPassMAC, false},
	{"by a node port", Out, "10.244.1.6", "192.0.2.11", wellknown.SecondPassMAC, false},
	{"a pod to itself by a Service", Gateway, "10.244.1.5", "10.96.0.4", wellknown.SecondPassMAC, false},
	{"from outside", "under", "198.51.100.7", "10.244.1.5", wellknown.ForwardedMAC, false},
	{"from outside, IPv6", "under", "2001:db8::7", "fd00:244:1::5", wellknown.ForwardedMAC, false},
	{"from outside by a node port", "under", "198.51.100.8", "192.0.2.11", wellknown.ForwardedMAC, false},
	{masqueradedClient, "under", "198.51.100.7", "192.0.2.11", wellknown.ForwardedMAC, true},
	{"forged as a pod's", "under", "10.244.1.6", "10.244.1.5", wellknown.ForwardedMAC, true},
	{"forged as a pod's, IPv6", "under", "fd00:244:1::6", "fd00:244:1::5", wellknown.ForwardedMAC, true},
	{"forged as the node's", "under", "192.0.2.11", "10.244.1.5", wellknown.ForwardedMAC, true},
	{"forged as the gateway's, IPv6", "under", "fd00:244:1::1", "fd00:244:1::5", wellknown.ForwardedMAC, true},
	{"forged as a Service's", "under", "10.96.0.1", "10.244.1.5", wellknown.ForwardedMAC, true},
	{"forged as a Service's, IPv6", "under", "fd00:96::1", "fd00:244:1::5", wellknown.ForwardedMAC, true},
}

// TestNextHops: the node's stack sends packets into the bridge by the next hop for their kind. Without the nftables
// table, all that came from elsewhere has the one by which the bridge drops packets with the node's and pods'
// addresses. Without the rule or the table for the node's own packets, these have it too.
func TestNextHops(t *testing.T) {
	for _, loss := range []struct {
		name, command string
		table         bool // the nftables table is missing
		ownLost       bool
	}{
		{"nothing", "true", false, false},
		{"the nftables table", "nft delete table inet flowkeep", true, false},
		{"the rule for own packets", "ip rule del pref 101; ip -6 rule del pref 101", false, true},
		{"the table for own packets", "ip route flush table 26216; ip -6 route flush table 26216", false, true},
	} {
		t.Run(loss.name, func(t *testing.T) {
			in(t, host(t), func() error {
				cfg := nodeConfig()
				sockets := serviceHost(t, cfg)
				shell(t, `nft -f - <<'X'
insert rule inet nat pre iifname != fk-out ip daddr 192.0.2.11 udp dport 9 dnat ip to 10.244.1.5
insert rule inet nat pre iifname fk-out ip daddr 192.0.2.11 udp dport 9 dnat ip to 10.244.1.5
insert rule inet nat pre ip daddr 10.96.0.4 dnat ip to 10.244.1.5
insert rule inet nat pre ip6 daddr fd00:96::4 dnat ip6 to fd00:244:1::5
add chain inet nat post { type nat hook postrouting priority srcnat; }
add rule inet nat post ip saddr { 198.51.100.7, 10.244.1.5 } ct status dnat masquerade
X
`+loss.command)
				for i, p := range intoTheBridge {
					if p.guarded && !loss.table {
						continue
					}
					want, text := p.mac, fmt.Sprintf("packet %d.", i)
					if want == wellknown.OwnMAC && loss.ownLost {
						want = wellknown.ForwardedMAC
					}
					if err := sendInto(cfg, sockets, p.in, p.from, p.to, text); err != nil {
						return err
					}
					frame := frameWith(t, sockets[Gateway], text)
					if [6]byte(frame[:6]) != want {
						t.Errorf("%s: sent to %x, want %x", p.name, frame[:6], want)
					}
					source := netip.MustParseAddr(p.from)
					switch {
					case p.name == masqueradedClient:
						source = GatewayAddrs(cfg.Self)[0]
					case p.in == Gateway && p.from == "10.244.1.5" && loss.table:
						source = GatewayAddrs(cfg.Self)[0] // the bridge drops it
					case p.in == Gateway && p.from == "10.244.1.5":
						source = hairpinFor(true)
					}
					if !bytes.Contains(frame, source.AsSlice()) {
						t.Errorf("%s: not from %s: %x", p.name, source, frame)
					}
				}
				return nil
			})
		})
	}
}

// sendInto has the node send a datagram, or inserts one by a link from a client's port of its own.
func sendInto(cfg *Config, sockets map[string]int, link, from, to, text string) error {
	if link != "" {
		macs := map[string][]byte{Gateway: cfg.GatewayMAC[:], Wire: cfg.WireMAC[:], Out: cfg.OutMAC[:]}
		if macs[link] == nil {
			return inject(sockets, link, from, to, text)
		}
		frame := udpFrame(macs[link], netip.MustParseAddr(from), netip.MustParseAddr(to), text)
		_, err := unix.Write(sockets[link], frame)
		return err
	}
	conn, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(from)}, &net.UDPAddr{IP: net.ParseIP(to), Port: 9})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = bytes.NewBufferString(text).WriteTo(conn)
	return err
}
