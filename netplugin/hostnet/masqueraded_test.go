package hostnet

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
)

// kubeProxy has a node port that leads to a pod of the node and masquerades all clients, as kube-proxy does.
const kubeProxy = `nft -f - <<'X'
add rule inet nat pre ip daddr 192.0.2.11 udp dport 9 iifname under dnat ip to 10.244.1.5
add rule inet nat pre ip6 daddr 2001:db8:1::11 udp dport 9 iifname under dnat ip6 to fd00:244:1::5
add chain inet nat post { type nat hook postrouting priority srcnat; }
add rule inet nat post oifname fk-gw masquerade
X
ip addr add 2001:db8:1::11/64 dev under nodad`

// TestDeleteMasqueraded: a client that opened a connection while the nftables tables were missing was the node to its
// pod. After the repair it is itself, also in that connection.
func TestDeleteMasqueraded(t *testing.T) {
	cfg := nodeConfig()
	cfg.Self.Addresses = append(cfg.Self.Addresses, netip.MustParseAddr("2001:db8:1::11"))
	in(t, host(t), func() error {
		sockets := serviceHost(t, cfg)
		shell(t, kubeProxy+"; nft delete table inet flowkeep")
		clients := []struct{ client, node, pod, gateway string }{
			{"198.51.100.7", "192.0.2.11", "10.244.1.5", "10.244.1.1"},
			{"2001:db8::9", "2001:db8:1::11", "fd00:244:1::5", "fd00:244:1::1"},
		}
		source := func(client, node, text string) netip.Addr {
			if err := inject(sockets, "under", client, node, text); err != nil {
				t.Fatal(err)
			}
			return sourceOf(frameWith(t, sockets[Gateway], text))
		}
		for _, c := range clients {
			if got := source(c.client, c.node, "opened meanwhile by "+c.client); got.String() != c.gateway {
				t.Errorf("the pod sees %s without the tables: nothing is shown", got)
			}
		}
		if err := Setup(cfg); err != nil {
			return err
		}
		if got := source(clients[0].client, clients[0].node, "before the deletion"); got.String() != "10.244.1.1" {
			t.Errorf("the pod sees %s before the deletion: nothing is shown", got)
		}
		if n, err := DeleteMasqueraded(cfg); n != len(clients) || err != nil {
			t.Errorf("deleted %d connections (%v), want %d", n, err, len(clients))
		}
		for _, c := range clients {
			if got := source(c.client, c.node, "after the deletion by "+c.client); got.String() != c.client {
				t.Errorf("the pod sees %s, want %s", got, c.client)
			}
		}
		if n, err := DeleteMasqueraded(cfg); n != 0 || err != nil {
			t.Errorf("deleted %d connections (%v) that have their own source", n, err)
		}
		return nil
	})
}

// sourceOf returns the source address of a frame with an IP packet.
func sourceOf(frame []byte) netip.Addr {
	const ethernet, source4, source6 = 14, 12, 8
	at, size := ethernet+source4, 4
	if bytes.Equal(frame[12:14], []byte{0x86, 0xdd}) {
		at, size = ethernet+source6, 16
	}
	a, _ := netip.AddrFromSlice(frame[at : at+size])
	return a
}

// TestMasqueraded_Match: only connections from elsewhere to pods of the node with its source are matched.
func TestMasqueraded_Match(t *testing.T) {
	filter := &masqueraded{
		pods:    prefixes("10.244.1.0/24"),
		cluster: prefixes("10.244.0.0/16"),
		own:     []netip.Addr{netip.MustParseAddr("192.0.2.11"), netip.MustParseAddr("10.244.1.1")},
		local:   prefixes("127.0.0.0/8", "192.0.2.11/32", "10.244.1.1/32", "203.0.113.0/24"),
	}
	for _, c := range []struct {
		name, client, pod, source string
		zone                      uint16
		want                      bool
	}{
		{"a client outside", "198.51.100.7", "10.244.1.5", "10.244.1.1", 0, true},
		{"by the node's address", "198.51.100.7", "10.244.1.5", "192.0.2.11", 0, true},
		{"a pod of the node", "10.244.1.6", "10.244.1.5", "10.244.1.1", 0, true},
		{"not masqueraded", "198.51.100.7", "10.244.1.5", "198.51.100.7", 0, false},
		{"a pod with itself, by the gateway", "10.244.1.5", "10.244.1.5", "10.244.1.1", 0, true},
		{"a pod with itself", "10.244.1.5", "10.244.1.5", "169.254.102.3", 0, false},
		{"the node itself", "203.0.113.7", "10.244.1.5", "192.0.2.11", 0, false},
		{"the node's loopback", "127.0.0.1", "10.244.1.5", "10.244.1.1", 0, false},
		{"a pod of the node to a pod elsewhere", "10.244.1.5", "10.244.2.5", "10.244.1.1", 0, true},
		{"a client outside to a pod elsewhere", "198.51.100.7", "10.244.2.5", "192.0.2.11", 0, false},
		{"to the gateway", "198.51.100.7", "10.244.1.1", "192.0.2.11", 0, false},
		{"a pod to the outside", "10.244.1.5", "198.51.100.7", "192.0.2.11", 0, false},
		{"in a zone of the bridge", "198.51.100.7", "10.244.1.5", "10.244.1.1", 65520, false},
	} {
		flow := &netlink.ConntrackFlow{Zone: c.zone}
		flow.Forward.SrcIP, flow.Reverse.SrcIP = net.ParseIP(c.client), net.ParseIP(c.pod)
		flow.Reverse.DstIP = net.ParseIP(c.source)
		if got := filter.MatchConntrackFlow(flow); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
