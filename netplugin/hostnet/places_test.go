package hostnet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// othersToPods puts routes of another program in the places of those to the node's own pods and to node2's.
const othersToPods = `ip route replace 10.244.1.0/24 dev under proto static
ip route replace 10.244.2.0/24 via 192.0.2.99 proto static
ip -6 route replace fd00:244:1::/64 dev under metric 1024 proto static`

// TestSetup_ReplacesRoutesToPods: a route of another program in the place of one to pods of a Node is replaced and
// reported. Left there, it would keep pods of two nodes from each other, and the node from its own pods.
func TestSetup_ReplacesRoutesToPods(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"route":  func(*Config) {},
		"geneve": func(c *Config) { c.Tunnelled = true },
		"auto": func(c *Config) {
			c.Tunnelled, c.Ways = true, map[string]PeerWay{"node2": {Routed: true, Bare: true, Closed: true}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, cfg := host(t), nodeConfig()
			change(cfg)
			list := func() string { return output(t, "ip route; ip -6 route show fd00:244:1::/64") }
			in(t, h, func() error {
				if err := Setup(cfg); err != nil {
					return err
				}
				want := list()
				shell(t, othersToPods)
				if list() == want {
					t.Error("no route was replaced: this test shows nothing")
				}
				var replaced []string
				cfg.Replaced = func(route string) { replaced = append(replaced, route) }
				if left := leaves(t, cfg); len(left) > 0 || list() != want {
					t.Errorf("left out: %q, routes\n%s\nwant\n%s", left, list(), want)
				}
				text := strings.Join(replaced, "\n")
				for _, cidr := range []string{"10.244.1.0/24", "10.244.2.0/24", "fd00:244:1::/64"} {
					if !strings.Contains(text, cidr) {
						t.Errorf("%s is not in %q", cidr, replaced)
					}
				}
				return nil
			})
		})
	}
}

// TestSetPeerRoutes_Refused refuses routes: a claim is reported once, and not while its unicast route is there.
func TestSetPeerRoutes_Refused(t *testing.T) {
	const unicast, unreachable = "unicast", "unreachable"
	for _, c := range []struct {
		name    string
		refused []string
		with    error
		want    []string
	}{
		{"none", nil, nil, nil},
		{"the one behind", []string{unreachable}, unix.ENOMEM, nil},
		{"the first", []string{unicast}, unix.EINVAL, []string{"node2: refused", "node3: refused"}},
		{"both", []string{unicast, unreachable}, unix.ENOMEM, []string{"node2: refused", "node3: refused"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := nodeConfig()
			cfg.Tunnelled = true
			var left []string
			cfg.LeftOut = func(l Left) { left = append(left, l.Node+": "+l.Reason) }
			gw := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: Gateway, Index: 7}}
			others, err := otherRoutes(gw, cfg)
			if err != nil || len(others) != 4 {
				t.Fatalf("routes %v (%v)", others, err)
			}
			setPeerRoutes(cfg, others, func(r *netlink.Route) error {
				kind := unicast
				if isUnreachable(r) {
					kind = unreachable
				}
				if slices.Contains(c.refused, kind) {
					return errors.Join(c.with, errors.New(routeName(r)))
				}
				return nil
			})
			if fmt.Sprint(left) != fmt.Sprint(c.want) {
				t.Errorf("left out: %q, want %q", left, c.want)
			}
		})
	}
}
