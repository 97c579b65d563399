package nodestate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/internal/nmstate"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// Gateways are probes that the default gateway answers pings, one a family. Which one that is, the state at the time tells: a change may
// be to another. A desire that has all default routes of a family absent, by their destination, wants none.
func Gateways() []Probe {
	return []Probe{gateway("the default gateway (IPv4)", "0.0.0.0/0"), gateway("the default gateway (IPv6)", "::/0")}
}

func gateway(name, everything string) Probe {
	return Probe{
		Name: name,
		Check: func(ctx context.Context, current nmstate.State) error {
			return anyAnswers(ctx, defaultGateways(current, everything))
		},
		Waived: func(desired, before, current nmstate.State) bool {
			return len(defaultGateways(current, everything)) == 0 && !slices.ContainsFunc(defaultRoutes(before, everything), func(r map[string]any) bool {
				return !desired.Withdraws(r)
			})
		},
	}
}

// defaultRoutes are a family's that lead to a gateway.
func defaultRoutes(current nmstate.State, everything string) (list []map[string]any) {
	routes, _ := current["routes"].(map[string]any)
	running, _ := routes["running"].([]any)
	for _, entry := range running {
		r, _ := entry.(map[string]any)
		hop, _ := r["next-hop-address"].(string)
		if at, err := netip.ParseAddr(hop); r["destination"] == everything && err == nil && !at.IsUnspecified() {
			list = append(list, r)
		}
	}
	return list
}

// defaultGateways are the next hops of a family's default routes; those of a link only have their link as zone.
func defaultGateways(current nmstate.State, everything string) (list []netip.Addr) {
	for _, r := range defaultRoutes(current, everything) {
		hop, _ := r["next-hop-address"].(string)
		at, err := netip.ParseAddr(hop)
		if err != nil {
			continue
		}
		if dev, _ := r["next-hop-interface"].(string); at.IsLinkLocalUnicast() && at.Is6() {
			at = at.WithZone(dev)
		}
		list = append(list, at)
	}
	return list
}

func anyAnswers(ctx context.Context, gateways []netip.Addr) error {
	if len(gateways) == 0 {
		return errors.New("there is none")
	}
	var failures []error
	for _, at := range gateways {
		err := Ping(ctx, at)
		if err == nil {
			return nil
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

// Ping asks an address by ICMP until it answers or ctx ends, twice a second.
func Ping(ctx context.Context, at netip.Addr) error {
	network, listen, kind, proto := "ip4:icmp", "0.0.0.0", icmp.Type(ipv4.ICMPTypeEcho), 1
	if at.Is6() {
		network, listen, kind, proto = "ip6:ipv6-icmp", "::", ipv6.ICMPTypeEchoRequest, 58
	}
	conn, err := icmp.ListenPacket(network, listen)
	if err != nil {
		return fmt.Errorf("ping %v: %w", at, err)
	}
	defer conn.Close()
	id := os.Getpid() & 0xffff
	for seq := 1; ; seq++ {
		message := icmp.Message{Type: kind, Body: &icmp.Echo{ID: id, Seq: seq}}
		text, err := message.Marshal(nil)
		if err != nil {
			return err
		}
		if _, err := conn.WriteTo(text, &net.IPAddr{IP: at.AsSlice(), Zone: at.Zone()}); err != nil {
			return fmt.Errorf("ping %v: %w", at, err)
		}
		if answered(conn, at, proto, id, time.Now().Add(500*time.Millisecond)) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%v does not answer", at)
		}
	}
}

// answered reads until the address's echo reply, or the time.
func answered(conn *icmp.PacketConn, at netip.Addr, proto, id int, until time.Time) bool {
	if err := conn.SetReadDeadline(until); err != nil {
		return false
	}
	buf := make([]byte, 1500)
	for {
		size, from, err := conn.ReadFrom(buf)
		if err != nil {
			return false
		}
		addr, _ := netip.AddrFromSlice(addressOf(from))
		message, err := icmp.ParseMessage(proto, buf[:size])
		if err != nil || addr.Unmap() != at.WithZone("").Unmap() {
			continue
		}
		echo, ok := message.Body.(*icmp.Echo)
		if reply := message.Type == ipv4.ICMPTypeEchoReply || message.Type == ipv6.ICMPTypeEchoReply; ok && reply && echo.ID == id {
			return true
		}
	}
}

func addressOf(a net.Addr) net.IP {
	if ip, ok := a.(*net.IPAddr); ok {
		return ip.IP
	}
	return nil
}
