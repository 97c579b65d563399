package cluster

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

func TestEnterNetNS(t *testing.T) {
	inside, err := EnterNetNS(netns.New(t).Path())
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	address := netip.MustParseAddrPort("127.0.0.1:8080")
	stop, err := inside.Echo([]netip.Addr{address.Addr()}, []int{int(address.Port())})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for _, proto := range []string{"tcp", "udp"} {
		conn, err := inside.Dial(proto, address, 10*time.Second)
		if err != nil {
			t.Fatalf("%s: %v", proto, err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatalf("%s: %v", proto, err)
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Errorf("%s: %v", proto, err)
		}
	}
	outside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	if conn, err := inside.Dial("tcp", netip.MustParseAddrPort(outside.Addr().String()), 10*time.Second); err == nil {
		conn.Close()
		t.Error("a port outside was reached")
	}
}

// TestDialFrom_WhileACopyIsOpen: a port can be used again although a copy of its closed socket is still open, as in a
// process that was forked meanwhile.
func TestDialFrom_WhileACopyIsOpen(t *testing.T) {
	inside, err := EnterNetNS(netns.New(t).Path())
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	for _, to := range []string{"127.0.0.1:80", "127.0.0.2:80", "[::1]:80"} {
		conn, err := inside.DialFrom(20_000, netip.MustParseAddrPort(to))
		if err != nil {
			t.Fatal(err)
		}
		fork, err := conn.(*net.UDPConn).File()
		if err != nil {
			t.Fatal(err)
		}
		defer fork.Close()
		conn.Close()
	}
}
