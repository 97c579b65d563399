package verdicts

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
	"golang.org/x/sys/unix"
)

// dialFrom opens a connection of a pod's with a source port, which other connections may have too.
func (s *serviceSwitch) dialFrom(pod int, network string, port int, to netip.AddrPort) net.Conn {
	s.Helper()
	d := net.Dialer{Timeout: serviceWait, Control: shareAddress}
	if d.LocalAddr = (&net.TCPAddr{Port: port}); network == "udp" {
		d.LocalAddr = &net.UDPAddr{Port: port}
	}
	var c net.Conn
	s.pods[pod].Do(func() {
		var err error
		for began := time.Now(); ; runtime.Gosched() {
			c, err = d.DialContext(s.Context(), network, to.String())
			// A process that was forked meanwhile keeps the socket of a former connection until it calls exec.
			if !errors.Is(err, unix.EADDRNOTAVAIL) || time.Since(began) > serviceWait {
				break
			}
		}
		must(s, err)
		s.Cleanup(func() { c.Close() })
	})
	return c
}

// responds fails the test unless a pod responds by a connection.
func (s *serviceSwitch) responds(c net.Conn, want int) {
	s.Helper()
	if got, _, err := s.ask(c, []byte("x"), serviceWait); err != nil || got != want {
		s.Errorf("%s %s → %s: pod %d responds: %v", c.LocalAddr().Network(), c.LocalAddr(), c.RemoteAddr(), got, err)
	}
}

// ways calls test for each order of two ways from pod 0 to pod 1: directly and by a frontend of a Service.
func (s *serviceSwitch) ways(test func(t *testing.T, port int, ways []netip.AddrPort)) {
	port := 41000
	for _, f := range serviceFamilies {
		direct := at(podIP(f, 1), echoPort)
		for _, frontend := range []netip.AddrPort{at(vip(f, 7), 80), at(nodeIP(f, 2), 30080)} {
			for _, ways := range [][]netip.AddrPort{{frontend, direct}, {direct, frontend}} {
				port++
				s.Run(fmt.Sprint(ways), func(t *testing.T) { test(t, port, ways) })
			}
		}
	}
}

// TestServices_OneSourcePortDirectlyAndByService: over UDP both ways work in turns, and over TCP one after the other.
func TestServices_OneSourcePortDirectlyAndByService(t *testing.T) {
	s := startServices(t)
	s.put(nil, both(1)...)
	s.ways(func(t *testing.T, port int, ways []netip.AddrPort) {
		inner := *s
		inner.T = t
		var clients []net.Conn
		for _, to := range ways {
			clients = append(clients, inner.dialFrom(0, "udp", port, to))
		}
		for range 3 {
			for _, c := range clients {
				inner.responds(c, 1)
			}
		}
		for range 2 {
			for _, to := range ways {
				c := inner.dialFrom(0, "tcp", port, to)
				inner.responds(c, 1)
				must(t, c.(*net.TCPConn).SetLinger(0)) // a reset: the port is free at once
				must(t, c.Close())
			}
		}
	})
}

// TestServices_OneSourcePortAfterTimeWait: a connection of TCP to a Service that both ends close, then one to the pod
// itself. The reverse is a known limit (netplugin/pipeline/README.md).
func TestServices_OneSourcePortAfterTimeWait(t *testing.T) {
	s := startServices(t)
	s.put(nil, both(1)...)
	s.ways(func(t *testing.T, port int, ways []netip.AddrPort) {
		if ways[0].Port() == echoPort {
			return
		}
		inner := *s
		inner.T = t
		for _, to := range ways {
			c := inner.dialFrom(0, "tcp", port, to)
			inner.responds(c, 1)
			must(t, c.Close())
		}
	})
}

// TestServices_SYNIsRepeated: the endpoint does not respond to the first SYN, but to a later one.
func TestServices_SYNIsRepeated(t *testing.T) {
	s := startServices(t)
	s.put(nil, both(1)...)
	for _, f := range serviceFamilies {
		discard := []string{"route", "add", "blackhole", podIP(f, 0).String()}
		s.pods[1].Do(func() { s.ip(discard...) })
		dialed := make(chan error)
		go func() {
			c, err := s.dial(0, "tcp", at(vip(f, 7), 80), serviceWait)
			if err == nil {
				_, _, err = s.ask(c, []byte("x"), serviceWait)
			}
			dialed <- err
		}()
		isSent := func(entry string) bool { return strings.Contains(entry, "dst="+vip(f, 7).String()+",") }
		for !slices.ContainsFunc(s.tracked(pipeline.ZoneTranslation), isSent) {
			runtime.Gosched()
		}
		discard[1] = "del"
		s.pods[1].Do(func() { s.ip(discard...) })
		if err := <-dialed; err != nil {
			t.Errorf("IPv%d: %v", f, err)
		}
	}
}

// TestServices_OneSourcePortObeysPolicies: neither way is open to a pod without permission.
func TestServices_OneSourcePortObeysPolicies(t *testing.T) {
	s := startServices(t)
	s.put(nil, both(1)...)
	f := service.IPv4
	direct, byService := at(podIP(f, 1), echoPort), at(vip(f, 7), 80)
	var clients []net.Conn
	for _, to := range []netip.AddrPort{byService, direct} {
		c := s.dialFrom(0, "udp", 41000, to)
		s.responds(c, 1)
		clients = append(clients, c)
	}
	s.policies(allow(policy.Ingress, 1, 2))
	for i := range 4 {
		c := clients[i%2]
		if got, _, err := s.ask(c, []byte("x"), noService); err == nil {
			t.Errorf("LEAK pod %d responds to %s", got, c.RemoteAddr())
		}
	}
}
