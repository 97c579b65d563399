package hostnet

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"golang.org/x/sys/unix"
)

// defaultRoutes gives the node a router, as which the far end of the underlay receives all that has no other route.
const defaultRoutes = `ip route add default via 192.0.2.1 dev under
ip neigh add 192.0.2.1 lladdr 02:00:00:00:00:fe dev under nud permanent
ip -6 route add default via fe80::fe dev under
ip -6 neigh add fe80::fe lladdr 02:00:00:00:00:fe dev under nud permanent`

// singleFamily has nodes with pod CIDRs of both families, and addresses of IPv4 only or none.
func singleFamily() *Config {
	cfg := nodeConfig()
	cfg.Others = []policy.NodeInfo{
		info("node2", "192.0.2.12", "10.244.2.0/24", "fd00:244:2::/64"),
		{Name: "node8", PodCIDRs: prefixes("10.244.8.0/24")},
	}
	return cfg
}

// TestSetup_PodsWithoutARoute sends from a pod to pods of nodes without an address of the family: no packet leaves the
// node. Without the routes that discard them each leaves by the default route.
func TestSetup_PodsWithoutARoute(t *testing.T) {
	h, cfg := host(t), singleFamily()
	ways := map[string][2]string{
		"to IPv6 pods of a Node with IPv4 addresses": {"fd00:244:1::5", "fd00:244:2::5"},
		"to pods of a Node without addresses":        {"10.244.1.5", "10.244.8.5"},
	}
	in(t, h, func() error {
		shell(t, defaultRoutes)
		left := leaves(t, cfg)
		if want := []string{"node2: no_address", "node8: no_address"}; !slices.Equal(left, want) {
			t.Errorf("left out: %q, want %q", left, want)
		}
		uplink, err := packetSocket("under-peer")
		if err != nil {
			return err
		}
		defer unix.Close(uplink)
		wire, err := packetSocket(Wire + "-peer")
		if err != nil {
			return err
		}
		defer unix.Close(wire)
		send := func(name string, want bool, limit time.Duration) {
			packet := udpPacket(netip.MustParseAddr(ways[name][0]), netip.MustParseAddr(ways[name][1]), name)
			if _, err := unix.Write(wire, frameOf(cfg.WireMAC, packet)); err != nil {
				t.Fatal(err)
			}
			if heardWithin(uplink, name, limit) != want {
				t.Errorf("%s: left the node: %v", name, !want)
			}
		}
		for name := range ways {
			send(name, false, 200*time.Millisecond)
		}
		shell(t, "ip route del unreachable 10.244.8.0/24; ip -6 route del unreachable fd00:244:2::/64 dev lo")
		for name := range ways {
			send(name, true, time.Minute)
		}
		return nil
	})
}

// routeGet returns the route that the node's own packets take, or the kernel's error.
func routeGet(t *testing.T, to string) string {
	t.Helper()
	out, _ := exec.Command("ip", "route", "get", to).CombinedOutput()
	return strings.TrimSpace(string(out))
}

// TestSetup_UnreachablePods compares, in each traffic mode, where the node sends packets to pods of a node with a route,
// of nodes without one, of a node that the network has a route to, and of none.
func TestSetup_UnreachablePods(t *testing.T) {
	const none, router = "No route to host", "via 192.0.2.1 "
	routed := map[string]PeerWay{"node2": {Routed: true, Bare: true}, "node9": {Routed: true, Bare: true}}
	for name, c := range map[string]struct {
		tunnelled bool
		ways      map[string]PeerWay
		off       string // to a node in another segment
		want      string // to node2
	}{
		"route":  {false, nil, router, "via 192.0.2.12 "},
		"geneve": {true, nil, "dev " + Gateway, "dev " + Gateway},
		"auto":   {true, routed, none, "via 192.0.2.12 "},
	} {
		t.Run(name, func(t *testing.T) {
			h, cfg := host(t), singleFamily()
			cfg.Tunnelled, cfg.Ways = c.tunnelled, c.ways
			cfg.Others = append(cfg.Others, info("node9", "203.0.113.9", "10.244.9.0/24"),
				info("z-mine", "192.0.2.98", "10.244.0.0/16"))
			want := map[string]string{
				"10.244.2.5": c.want,
				"10.244.8.5": none,
				"10.244.9.5": c.off,
				"10.244.7.5": router, // a pod CIDR that overlaps others is ignored
			}
			in(t, h, func() error {
				shell(t, defaultRoutes)
				for range 2 {
					if err := Setup(cfg); err != nil {
						return err
					}
				}
				for to, want := range want {
					if got := routeGet(t, to); !strings.Contains(got, want) {
						t.Errorf("to %s: %s, want %s", to, got, want)
					}
				}
				cfg.Others = nil
				if err := Setup(cfg); err != nil {
					return err
				}
				if got := routesTo(t, "10.244.8.0/24"); got != "" {
					t.Errorf("the node has gone, and the node has %s", got)
				}
				return nil
			})
		})
	}
}

// TestSetup_RouteOfALinkThatGoesDown shows that packets to pods do not change over to the default route when the kernel
// removes the route to them, nor after the next Setup, nor while the node's address is gone.
func TestSetup_RouteOfALinkThatGoesDown(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	in(t, h, func() error {
		shell(t, `ip link add second type veth peer name second-peer; ip link set second up; ip link set second-peer up
			ip addr add 198.51.100.1/24 dev second; ip route add default via 198.51.100.254 dev second`)
		if err := Setup(cfg); err != nil {
			return err
		}
		for _, change := range []string{"ip link set under down", "ip link set under up", "ip addr flush dev under"} {
			shell(t, change)
			for range 2 {
				got := routeGet(t, "10.244.2.5")
				if !strings.Contains(got, "No route to host") && !strings.Contains(got, "dev under") {
					t.Errorf("%s: to a pod of node2: %s", change, got)
				}
				if err := Setup(cfg); err != nil {
					return err
				}
			}
		}
		if got := routeGet(t, "203.0.113.5"); !strings.Contains(got, "via 198.51.100.254") {
			t.Errorf("to the outside: %s: this test shows nothing", got)
		}
		return nil
	})
}

// TestSetup_NetworkRoutesPodsWithoutARoute: where this node has no route to a pod CIDR, a route of the network applies,
// unless it is a default route.
func TestSetup_NetworkRoutesPodsWithoutARoute(t *testing.T) {
	const discarded, network = "No route to host", "via 192.0.2.254 "
	for _, c := range []struct{ name, route, want string }{
		{"none", "true", discarded},
		{"a wider one", "ip route add 10.244.0.0/16 via 192.0.2.254", network},
		{"the same", "ip route add 10.244.8.0/24 via 192.0.2.254", network},
		{"one to another node", "ip route add 10.244.9.0/24 via 192.0.2.254", discarded},
		{"a half of a default route", "ip route add 0.0.0.0/1 via 192.0.2.254", discarded},
		{"a default route", "ip route replace default via 192.0.2.254", discarded},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, tunnelled := range []bool{false, true} {
				h, cfg := host(t), singleFamily()
				cfg.Tunnelled = tunnelled
				in(t, h, func() error {
					shell(t, defaultRoutes)
					shell(t, c.route)
					for range 2 {
						if err := Setup(cfg); err != nil {
							return err
						}
						if got := routeGet(t, "10.244.8.5"); !strings.Contains(got, c.want) {
							t.Errorf("tunnelled %v: %s, want %s", tunnelled, got, c.want)
						}
					}
					return nil
				})
			}
		})
	}
}
