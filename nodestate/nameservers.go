package nodestate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"golang.org/x/net/dns/dnsmessage"
)

// NameServers returns a probe that one of the node's name servers answers. Most of them are beyond the link, and so the
// probe reaches further than the default gateway. A desired state without name servers wants none.
func NameServers() []Probe {
	return []Probe{{
		Name: "the name servers",
		Check: func(ctx context.Context, current nmstate.State) error {
			return anyResolves(ctx, nameServers(current), "53")
		},
		Waived: func(_, _, current nmstate.State) bool { return len(nameServers(current)) == 0 },
	}}
}

// nameServers returns those that the node uses, or else has configured.
func nameServers(current nmstate.State) (list []netip.Addr) {
	dns, _ := current["dns-resolver"].(map[string]any)
	for _, part := range []string{"running", "config"} {
		section, _ := dns[part].(map[string]any)
		servers, _ := section["server"].([]any)
		for _, entry := range servers {
			text, _ := entry.(string)
			if at, err := netip.ParseAddr(text); err == nil {
				list = append(list, at)
			}
		}
		if len(list) > 0 {
			return list
		}
	}
	return nil
}

// anyResolves queries all servers at once, and returns nil with the first response.
func anyResolves(ctx context.Context, servers []netip.Addr, port string) error {
	var checks []func(context.Context) error
	for _, at := range servers {
		checks = append(checks, func(ctx context.Context) error { return resolves(ctx, at, port) })
	}
	return firstOf(ctx, checks)
}

// resolves sends a query for the root's name servers each second until a response comes or ctx ends. A server that
// refuses the query is reachable.
func resolves(ctx context.Context, at netip.Addr, port string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "udp", net.JoinHostPort(at.String(), port))
	if err != nil {
		return fmt.Errorf("query %v: %w", at, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	id := uint16(rand.UintN(1 << 16))
	query, err := rootQuery(id)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		if _, err := conn.Write(query); err != nil {
			return fmt.Errorf("query %v: %w", at, err)
		}
		if responds(ctx, conn, id, time.Now().Add(time.Second)) {
			return nil
		}
	}
	return fmt.Errorf("%v does not answer DNS queries", at)
}

func rootQuery(id uint16) ([]byte, error) {
	m := dnsmessage.Message{
		Header: dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{
			Name:  dnsmessage.MustNewName("."),
			Type:  dnsmessage.TypeNS,
			Class: dnsmessage.ClassINET,
		}},
	}
	return m.Pack()
}

// responds reads until a response to the query, or the time.
func responds(ctx context.Context, conn net.Conn, id uint16, until time.Time) bool {
	if err := conn.SetReadDeadline(until); err != nil || ctx.Err() != nil {
		return false
	}
	buf := make([]byte, 4096)
	for {
		size, err := conn.Read(buf)
		if errors.Is(err, syscall.ECONNREFUSED) { // by ICMP: a server that is starting, perhaps
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(until)):
			}
		}
		if err != nil {
			return false
		}
		if isResponse(buf[:size], id, conn.RemoteAddr()) {
			return true
		}
	}
}

// isResponse reports whether a message is a response to the query. A resolver on the node itself always responds, but
// with a failure where it reaches no other.
func isResponse(message []byte, id uint16, from net.Addr) bool {
	var parser dnsmessage.Parser
	h, err := parser.Start(message)
	if err != nil || h.ID != id || !h.Response {
		return false
	}
	server, ok := from.(*net.UDPAddr)
	return ok && (h.RCode != dnsmessage.RCodeServerFailure || !server.IP.IsLoopback())
}
