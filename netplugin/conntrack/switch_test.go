package conntrack_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/conntrack"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/appctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// realSwitch is Open vSwitch's own connection tracker.
type realSwitch struct {
	socket  string
	session *ofctl.Session
}

func (r *realSwitch) Settled(context.Context) error { return nil }

func (r *realSwitch) Dump(ctx context.Context, zone uint16) (string, error) {
	return appctl.Call(ctx, r.socket, "dpctl/dump-conntrack", "dummy@ovs-dummy", fmt.Sprintf("zone=%d", zone))
}

func (r *realSwitch) Forget(ctx context.Context, those []ofctl.Connections) error {
	return r.session.ForgetConnections(ctx, those...)
}

func realTracker(t *testing.T, sw *ovstest.Switch) *realSwitch {
	t.Helper()
	session, err := ofctl.Connect(t.Context(), sw.Management())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	socket, err := appctl.Socket(sw.Dir)
	if err != nil {
		t.Fatal(err)
	}
	return &realSwitch{socket, session}
}

// A real switch lists the two zones apart, is made to forget what a pod that is gone has there, and keeps what is of others, in these zones and in others. In zone 0 is
// what names none.
func TestARealSwitchForgetsADeadPodsConnections(t *testing.T) {
	sw := ovstest.Start(t, 2)
	sw.OFCtl(t, "add-flow", "ip,actions=ct(commit),ct(commit,zone=7),ct(commit,zone=65521),ct(commit,zone=65522),output:2")
	for _, way := range [][3]string{{"10.0.0.1", "10.0.0.2", "proto=17,tos=0,ttl=64,frag=no),udp(src=1000,dst=80)"}, {"10.0.0.3", "10.0.0.1", "proto=47,tos=0,ttl=64,frag=no)"},
		{"10.0.0.2", "10.0.0.3", "proto=17,tos=0,ttl=64,frag=no),udp(src=1000,dst=80)"}} {
		sw.AppCtl(t, "netdev-dummy/receive", "p1", fmt.Sprintf("in_port(1),eth(src=50:54:00:00:00:01,dst=50:54:00:00:00:02),eth_type(0x0800),ipv4(src=%s,dst=%s,%s", way[0], way[1], way[2]))
	}
	ct := realTracker(t, sw)
	holds := func(zone uint16) (n int, text string) {
		t.Helper()
		text, err := ct.Dump(t.Context(), zone)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(text, "orig="), text
	}
	for deadline := time.Now().Add(2 * time.Minute); ; { // forwarding is asynchronous
		if n, text := holds(65522); n == 3 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("nothing would be shown:\n%s", text)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	ran := make(chan struct{})
	defer func() { cancel(); <-ran }()
	c := conntrack.New(conntrack.Config{Conntrack: ct, Zones: []uint16{65521, 65522}, Forgettable: ofctl.Forgettable(false), Logger: slog.New(slog.DiscardHandler)})
	go func() { defer close(ran); c.Run(ctx) }()
	gone := []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	c.Gone(ctx, "shop/gone", gone)
	if err := c.Free(ctx, gone); err != nil {
		t.Error(err)
	}
	for zone, want := range map[uint16]int{65521: 1, 65522: 1, 7: 3, 0: 3} {
		if n, text := holds(zone); n != want {
			t.Errorf("zone %d: %d connections, want %d:\n%s", zone, n, want, text)
		}
	}
}
