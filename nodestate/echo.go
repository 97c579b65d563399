package nodestate

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// echoInterval is the time between two echo requests.
const echoInterval = 500 * time.Millisecond

// echo is a socket that sends echo requests to a hop, and reads what comes back.
type echo struct {
	net.PacketConn
	to    hop
	id    int
	kind  icmp.Type // of a request
	proto int
}

func openEcho(ctx context.Context, to hop) (*echo, error) {
	e := &echo{to: to, id: os.Getpid() & 0xffff, kind: ipv4.ICMPTypeEcho, proto: 1}
	network, listen := "ip4:icmp", "0.0.0.0"
	if to.address.Is6() {
		network, listen, e.kind, e.proto = "ip6:ipv6-icmp", "::", ipv6.ICMPTypeEchoRequest, 58
	}
	conn, err := boundTo(to.link).ListenPacket(ctx, network, listen)
	if err != nil {
		return nil, fmt.Errorf("ping %v by %s: %w", to.address, to.link, err)
	}
	e.PacketConn = conn
	return e, nil
}

// limitHops sets after how many hops routers discard the requests.
func (e *echo) limitHops(hops int) error {
	if e.to.address.Is6() {
		return ipv6.NewPacketConn(e.PacketConn).SetHopLimit(hops)
	}
	return ipv4.NewPacketConn(e.PacketConn).SetTTL(hops)
}

// until sends requests until a message is accepted, and reports false where ctx ends before.
func (e *echo) until(ctx context.Context, accepts func(m *icmp.Message, from netip.Addr) bool) (bool, error) {
	for seq := 1; ctx.Err() == nil; seq++ {
		text, err := (&icmp.Message{Type: e.kind, Body: &icmp.Echo{ID: e.id, Seq: seq}}).Marshal(nil)
		if err != nil {
			return false, err
		}
		at := &net.IPAddr{IP: e.to.address.AsSlice(), Zone: e.to.address.Zone()}
		if _, err := e.WriteTo(text, at); err != nil {
			return false, fmt.Errorf("ping %v by %s: %w", e.to.address, e.to.link, err)
		}
		if e.receives(time.Now().Add(echoInterval), accepts) {
			return true, nil
		}
	}
	return false, nil
}

// receives reads until a message is accepted, or the time.
func (e *echo) receives(until time.Time, accepts func(m *icmp.Message, from netip.Addr) bool) bool {
	if err := e.SetReadDeadline(until); err != nil {
		return false
	}
	buf := make([]byte, 1500)
	for {
		size, from, err := e.ReadFrom(buf)
		if err != nil {
			return false
		}
		ip, _ := from.(*net.IPAddr)
		message, err := icmp.ParseMessage(e.proto, buf[:size])
		if err != nil || ip == nil {
			continue
		}
		if at, ok := netip.AddrFromSlice(ip.IP); ok && accepts(message, at.Unmap()) {
			return true
		}
	}
}

// isReply reports whether a message is the hop's reply.
func (e *echo) isReply(m *icmp.Message, from netip.Addr) bool {
	body, ok := m.Body.(*icmp.Echo)
	reply := m.Type == ipv4.ICMPTypeEchoReply || m.Type == ipv6.ICMPTypeEchoReply
	return ok && reply && body.ID == e.id && from == e.to.address.WithZone("").Unmap()
}

// isExpired reports whether a router discarded one of the requests because its hops were used up.
func (e *echo) isExpired(m *icmp.Message, _ netip.Addr) bool {
	body, ok := m.Body.(*icmp.TimeExceeded)
	if !ok {
		return false
	}
	header := ipv6.HeaderLen
	if e.proto == 1 && len(body.Data) > 0 {
		header = int(body.Data[0]&0xf) * 4
	}
	if len(body.Data) < header+8 {
		return false
	}
	request := body.Data[header:]
	return request[0] == typeNumber(e.kind) && int(request[4])<<8|int(request[5]) == e.id
}

func typeNumber(t icmp.Type) byte {
	switch t := t.(type) {
	case ipv4.ICMPType:
		return byte(t)
	case ipv6.ICMPType:
		return byte(t)
	}
	return 0
}
