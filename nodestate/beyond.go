package nodestate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"golang.org/x/net/icmp"
)

// Beyond returns probes that the default gateway in force forwards packets, one a family. An echo request that may pass
// two routers comes back from the second one as expired, or a name server beyond the gateway answers. Networks in which
// neither is so do not pass the probe before a change, and so it does not count there.
func Beyond() []Probe {
	return []Probe{
		beyond("beyond the default gateway (IPv4)", "0.0.0.0/0"),
		beyond("beyond the default gateway (IPv6)", "::/0"),
	}
}

func beyond(name, everything string) Probe {
	return Probe{
		Name: name,
		Check: func(ctx context.Context, current nmstate.State) error {
			return reachesBeyond(ctx, current, everything)
		},
		Waived: func(desired, before, current nmstate.State) bool {
			if noneWanted(desired, before, current, everything) {
				return true
			}
			return len(gatewaysInForce(current, everything)) > 0 && !distant(current, everything).IsValid()
		},
	}
}

// documentation are addresses that no host has (RFC 5737, RFC 3849, RFC 9637). A request to one of them passes two
// routers at most.
var documentation = []netip.Addr{
	netip.MustParseAddr("192.0.2.1"),
	netip.MustParseAddr("198.51.100.1"),
	netip.MustParseAddr("203.0.113.1"),
	netip.MustParseAddr("2001:db8::1"),
	netip.MustParseAddr("3fff::1"),
}

// distant returns a documentation address to which packets take the default route, none where other routes lead to all
// of them.
func distant(current nmstate.State, everything string) netip.Addr {
	for _, at := range documentation {
		if at.Is6() == (everything == "::/0") && takesDefault(current, at) {
			return at
		}
	}
	return netip.Addr{}
}

// isBeyond reports whether an address is reached by the default route.
func isBeyond(current nmstate.State, at netip.Addr) bool {
	return !at.IsLoopback() && !at.IsLinkLocalUnicast() && takesDefault(current, at)
}

// takesDefault reports whether the main table has no other route to an address than the default one.
func takesDefault(current nmstate.State, at netip.Addr) bool {
	routes, _ := current["routes"].(map[string]any)
	running, _ := routes["running"].([]any)
	for _, entry := range running {
		r, _ := entry.(map[string]any)
		text, _ := r["destination"].(string)
		p, err := netip.ParsePrefix(text)
		if err == nil && p.Bits() > 0 && p.Contains(at) && whole(r["table-id"], mainTable) == mainTable {
			return false
		}
	}
	return true
}

// reachesBeyond sends echo requests and queries at once, and returns nil with the first response.
func reachesBeyond(ctx context.Context, current nmstate.State, everything string) error {
	target := distant(current, everything)
	if !target.IsValid() {
		return errors.New("no default route leads to an address that no host has")
	}
	var checks []func(context.Context) error
	for _, h := range gatewaysInForce(current, everything) {
		conn, err := openEcho(ctx, hop{target, h.link})
		if err != nil {
			return err
		}
		defer conn.Close()
		checks = append(checks, func(ctx context.Context) error { return forwards(ctx, conn, h) })
	}
	for _, at := range nameServers(current) {
		if len(checks) > 0 && at.Is6() == target.Is6() && isBeyond(current, at) {
			checks = append(checks, func(ctx context.Context) error { return resolves(ctx, at, "53") })
		}
	}
	return firstOf(ctx, checks)
}

// forwards waits until a router beyond the gateway reports a request as expired, or the target answers.
func forwards(ctx context.Context, conn *echo, gateway hop) error {
	if err := conn.limitHops(2); err != nil {
		return fmt.Errorf("ping beyond %v: %w", gateway.address, err)
	}
	found, err := conn.until(ctx, func(m *icmp.Message, from netip.Addr) bool {
		return conn.isExpired(m, from) || conn.isReply(m, from)
	})
	if err == nil && !found {
		err = fmt.Errorf("no packet comes back from beyond %v on %s", gateway.address, gateway.link)
	}
	return err
}
