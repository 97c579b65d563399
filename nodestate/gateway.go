package nodestate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"golang.org/x/sys/unix"
)

// Gateways are probes that the default gateway in force answers pings, one a family. The state at the time names it: a
// change may be to another. A desired state that has all default routes of a family absent, by their destination, wants
// none.
func Gateways() []Probe {
	return []Probe{gateway("the default gateway (IPv4)", "0.0.0.0/0"), gateway("the default gateway (IPv6)", "::/0")}
}

func gateway(name, everything string) Probe {
	return Probe{
		Name: name,
		Check: func(ctx context.Context, current nmstate.State) error {
			return anyAnswers(ctx, gatewaysInForce(current, everything))
		},
		Waived: func(desired, before, current nmstate.State) bool {
			return noneWanted(desired, before, current, everything)
		},
	}
}

// noneWanted reports whether the desired state withdraws the default routes that there were, and none is left.
func noneWanted(desired, before, current nmstate.State, everything string) bool {
	kept := slices.ContainsFunc(defaultRoutes(before, everything), func(r map[string]any) bool {
		return !desired.Withdraws(r)
	})
	return len(defaultRoutes(current, everything)) == 0 && !kept
}

// hop is a gateway and the interface that packets to it leave by.
type hop struct {
	address netip.Addr
	link    string
}

// mainTable has the routes that packets take which no rule sends elsewhere.
const mainTable = 254

// defaultRoutes are those of a family's main table that lead to a gateway.
func defaultRoutes(current nmstate.State, everything string) (list []map[string]any) {
	routes, _ := current["routes"].(map[string]any)
	running, _ := routes["running"].([]any)
	for _, entry := range running {
		r, _ := entry.(map[string]any)
		address, _ := r["next-hop-address"].(string)
		at, err := netip.ParseAddr(address)
		main := whole(r["table-id"], mainTable) == mainTable
		if main && r["destination"] == everything && err == nil && !at.IsUnspecified() {
			list = append(list, r)
		}
	}
	return list
}

// whole reads a number as JSON decodes it.
func whole(v any, otherwise int64) int64 {
	switch n := v.(type) {
	case int64:
		return n
	case float64:
		return int64(n)
	}
	return otherwise
}

// gatewaysInForce returns the next hops of the default routes with the lowest metric: the kernel uses no others.
func gatewaysInForce(current nmstate.State, everything string) (list []hop) {
	routes := defaultRoutes(current, everything)
	lowest := int64(math.MaxInt64)
	for _, r := range routes {
		lowest = min(lowest, whole(r["metric"], 0))
	}
	for _, r := range routes {
		address, _ := r["next-hop-address"].(string)
		at, err := netip.ParseAddr(address)
		if err != nil || whole(r["metric"], 0) != lowest {
			continue
		}
		link, _ := r["next-hop-interface"].(string)
		if at.IsLinkLocalUnicast() && at.Is6() {
			at = at.WithZone(link)
		}
		list = append(list, hop{at, link})
	}
	return list
}

// anyAnswers returns nil with the first gateway that answers.
func anyAnswers(ctx context.Context, gateways []hop) error {
	var checks []func(context.Context) error
	for _, h := range gateways {
		conn, err := openEcho(ctx, h)
		if err != nil {
			return err
		}
		defer conn.Close()
		checks = append(checks, func(ctx context.Context) error {
			found, err := conn.until(ctx, conn.isReply)
			if err == nil && !found {
				err = fmt.Errorf("%v does not answer on %s", h.address, h.link)
			}
			return err
		})
	}
	return firstOf(ctx, checks)
}

// boundTo makes sockets send and receive by one interface alone, whatever the routes; "" by any.
func boundTo(link string) *net.ListenConfig {
	if link == "" {
		return &net.ListenConfig{}
	}
	return &net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.BindToDevice(int(fd), link) })
		return errors.Join(err, failed)
	}}
}
