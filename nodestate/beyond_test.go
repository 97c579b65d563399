package nodestate

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/vishvananda/netlink"
)

// plug connects two network namespaces, and gives each end its addresses.
func plug(t *testing.T, a, b *netns.Namespace, name string, ofA, ofB []string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	a.Do(func() {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(b.FD())}
		must(netlink.LinkAdd(veth))
	})
	for n, addresses := range map[*netns.Namespace][]string{a: ofA, b: ofB} {
		n.Do(func() {
			l, err := netlink.LinkByName(name)
			must(err)
			must(os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0))
			must(netlink.LinkSetUp(l))
			for _, text := range addresses {
				addr, err := netlink.ParseAddr(text)
				must(err)
				must(netlink.AddrAdd(l, addr))
			}
		})
	}
}

// via adds a route to a family's addresses.
func via(t *testing.T, n *netns.Namespace, destination, gateway string) {
	t.Helper()
	n.Do(func() {
		_, dst, err := net.ParseCIDR(destination)
		if err == nil {
			err = netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: netip.MustParseAddr(gateway).AsSlice()})
		}
		if err != nil {
			t.Fatalf("route to %s: %v", destination, err)
		}
	})
}

func forwarding(t *testing.T, n *netns.Namespace, on string) {
	t.Helper()
	n.Do(func() {
		for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := os.WriteFile("/proc/sys/net/"+key, []byte(on), 0); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestBeyond_NeedsAGatewayThatForwards: the gateway answers all the time.
func TestBeyond_NeedsAGatewayThatForwards(t *testing.T) {
	node, gateway, next := netns.New(t), netns.New(t), netns.New(t)
	plug(t, node, gateway, "in", []string{"10.9.0.2/24", "fd09::2/64"}, []string{"10.9.0.1/24", "fd09::1/64"})
	plug(t, gateway, next, "out", []string{"10.9.1.1/24", "fd09:1::1/64"}, []string{"10.9.1.2/24", "fd09:1::2/64"})
	for _, n := range []*netns.Namespace{gateway, next} {
		forwarding(t, n, "1")
	}
	for destination, hops := range map[string][3]string{
		"0.0.0.0/0": {"10.9.0.1", "10.9.1.2", "10.9.1.1"},
		"::/0":      {"fd09::1", "fd09:1::2", "fd09:1::1"},
	} {
		for n, at := range []*netns.Namespace{node, gateway, next} {
			via(t, at, destination, hops[n])
		}
	}
	state := parse(t, `{routes: {running: [
		{destination: 0.0.0.0/0, next-hop-address: 10.9.0.1, next-hop-interface: in},
		{destination: "::/0", next-hop-address: "fd09::1", next-hop-interface: in}]}}`)
	probes := append(Beyond(), Gateways()...)
	holds := func(p Probe, limit time.Duration) (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		node.Do(func() { err = p.Check(ctx, state) })
		return err
	}
	for _, p := range probes {
		if err := holds(p, time.Minute); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
	forwarding(t, gateway, "0")
	for _, p := range probes[:2] {
		if err := holds(p, time.Second); err == nil || !strings.Contains(err.Error(), "no packet comes back") {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
	for _, p := range probes[2:] {
		if err := holds(p, time.Minute); err != nil {
			t.Errorf("%s does not forward, and answers: %v", p.Name, err)
		}
	}
}

func TestBeyond_IsWaived(t *testing.T) {
	const before = `{routes: {running: [{destination: 0.0.0.0/0, next-hop-address: 10.9.0.1, next-hop-interface: in}]}}`
	more := func(destinations ...string) string {
		text := strings.TrimSuffix(before, "]}}")
		for _, d := range destinations {
			text += fmt.Sprintf(", {destination: %q, next-hop-interface: in}", d)
		}
		return text + "]}}"
	}
	for name, c := range map[string]struct {
		desired, current string
		want             bool
	}{
		"no default route is wanted":   {`{routes: {config: [{state: absent, destination: 0.0.0.0/0}]}}`, `{}`, true},
		"the default route is lost":    {`{}`, `{}`, false},
		"the default route is there":   {`{}`, before, false},
		"one address is on the link":   {`{}`, more("192.0.2.0/24"), false},
		"all addresses have routes":    {`{}`, more("192.0.2.0/24", "198.51.100.0/22", "203.0.0.0/8"), true},
		"and no default route is left": {`{}`, strings.Replace(more("192.0.0.0/2"), "0.0.0.0/0", "10.0.0.0/8", 1), false},
	} {
		if got := Beyond()[0].Waived(parse(t, c.desired), parse(t, before), parse(t, c.current)); got != c.want {
			t.Errorf("%s: waived %v", name, got)
		}
	}
}
