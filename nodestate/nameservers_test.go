package nodestate

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer responds with rcode until the test ends, and returns its port.
func nameServer(t *testing.T, rcode dnsmessage.RCode) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 512)
		for {
			size, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:size]) != nil {
				continue
			}
			m.Response, m.RCode = true, rcode
			if out, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(out, from)
			}
		}
	}()
	_, port, _ := net.SplitHostPort(conn.LocalAddr().String())
	return port
}

func TestNameServersAnswer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	servers := []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.1")}
	if err := anyResolves(ctx, servers, nameServer(t, dnsmessage.RCodeRefused)); err != nil {
		t.Errorf("one of two answers: %v", err)
	}
	brief, end := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer end()
	if err := anyResolves(brief, servers, nameServer(t, dnsmessage.RCodeServerFailure)); err == nil {
		t.Error("a local resolver that reaches no other was taken for one that answers")
	}
	if err := anyResolves(ctx, nil, "53"); err == nil {
		t.Error("a node without name servers has one that answers")
	}
}

func TestNameServersOfAState(t *testing.T) {
	s := parse(t, `{dns-resolver: {running: {server: [192.0.2.53, "fe80::1%eth0"]}, config: {server: [192.0.2.54]}}}`)
	want := []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("fe80::1%eth0")}
	if got := nameServers(s); len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%v", got)
	}
	waived, none := NameServers()[0].Waived, parse(t, `{dns-resolver: {config: {server: []}}}`)
	if waived(nil, nil, s) || !waived(nil, nil, none) {
		t.Error("waived where servers are left, or not where none are")
	}
}

// TestIsResponse: an echo of the query and the response to another query are none.
func TestIsResponse(t *testing.T) {
	message := func(id uint16, response bool, rcode dnsmessage.RCode) []byte {
		m := dnsmessage.Message{Header: dnsmessage.Header{ID: id, Response: response, RCode: rcode}}
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	local, remote := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 53)}
	for name, c := range map[string]struct {
		message []byte
		from    *net.UDPAddr
		want    bool
	}{
		"a response":             {message(7, true, dnsmessage.RCodeSuccess), local, true},
		"a refusal":              {message(7, true, dnsmessage.RCodeRefused), local, true},
		"an echo of the query":   {message(7, false, dnsmessage.RCodeSuccess), remote, false},
		"of another query":       {message(8, true, dnsmessage.RCodeSuccess), remote, false},
		"no message of DNS":      {[]byte("x"), remote, false},
		"a failure of a server":  {message(7, true, dnsmessage.RCodeServerFailure), remote, true},
		"a failure on this node": {message(7, true, dnsmessage.RCodeServerFailure), local, false},
	} {
		if got := isResponse(c.message, 7, c.from); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
