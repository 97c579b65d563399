package main

import (
	"errors"
	"net/netip"
	"reflect"
	"syscall"
	"testing"
	"time"
)

func TestParseWays(t *testing.T) {
	got, err := parseWays([]string{"udp", "10.0.0.1", "10.0.0.2:80", "icmp", "fd00::1", "fd00::2"})
	want := []way{{"udp", netip.MustParseAddr("10.0.0.1"), netip.MustParseAddrPort("10.0.0.2:80")}, {"icmp", netip.MustParseAddr("fd00::1"), netip.MustParseAddrPort("[fd00::2]:0")}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range [][]string{nil, {"udp", "10.0.0.1"}, {"udp", "10.0.0.1", "10.0.0.2"}, {"icmp", "10.0.0.1", "10.0.0.2:80"}, {"udp", "x", "10.0.0.2:80"}} {
		if _, err := parseWays(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	for _, bad := range []way{{"gre", want[0].from, want[0].to}, {"udp", want[1].from, want[0].to}} {
		if _, err := bad.filter(); err == nil {
			t.Errorf("a filter for %v", bad)
		}
	}
}

// What goes along a way is counted, once, whether or not anybody takes it; what differs in the protocol, an address or the port is not.
func TestArrivals(t *testing.T) {
	var ways []way
	for _, text := range [][]string{
		{"udp", "127.0.0.1", "127.0.0.2:4711"}, {"tcp", "127.0.0.1", "127.0.0.2:4711"}, {"icmp", "127.0.0.1", "127.0.0.2"},
		{"udp", "::1", "[::1]:4711"}, {"tcp", "::1", "[::1]:4711"}, {"icmp", "::1", "::1"},
		{"sctp", "127.0.0.1", "127.0.0.2:4711"}, {"udp", "127.0.0.3", "127.0.0.2:4711"}, {"udp", "127.0.0.1", "127.0.0.3:4711"}, {"udp", "127.0.0.1", "127.0.0.2:4712"},
		{"udp", "::2", "[::1]:4711"}, {"udp", "::1", "[::2]:4711"}, {"tcp", "::1", "[::1]:4712"}, {"icmp", "127.0.0.1", "127.0.0.3"},
	} {
		more, err := parseWays(text)
		if err != nil {
			t.Fatal(err)
		}
		ways = append(ways, more...)
	}
	const sent = 6 // the first so many are gone along
	stop := make(chan struct{})
	seen, err := arrivals("lo", ways, func() {
		for _, w := range ways[:sent] {
			address := w.to.String()
			if w.proto == "icmp" {
				address = w.to.Addr().String()
			}
			_ = attempt(w.proto, address, nil, 100*time.Millisecond) // nobody serves; that it was sent is enough
		}
		close(stop)
	}, stop)
	if errors.Is(err, syscall.EPERM) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range seen {
		if want := i < sent; (a.Packets == 1) != want || a.First.IsZero() == want || a.First != a.Last {
			t.Errorf("%v: %+v", ways[i], a)
		}
	}
}
