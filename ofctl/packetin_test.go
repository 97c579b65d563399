package ofctl_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// denying tracks IPv4 and IPv6 and hands everything on by meter 3.
func denying() (flows []ofctl.Flow) {
	for _, etherType := range []uint16{ofctl.EtherIPv4, ofctl.EtherIPv6} {
		m := ofctl.Match{EtherType: etherType}
		tracked := ofctl.Match{EtherType: etherType, CtState: ofctl.U32{Value: ofctl.CtTrk, Mask: ofctl.CtTrk | ofctl.CtInv}}
		flows = append(flows,
			ofctl.Flow{Table: 0, Match: m, Actions: []ofctl.Action{{Kind: ofctl.SetReg, Reg: 1, Value: 77}, {Kind: ofctl.Ct, Zone: 9, Table: 33}}},
			ofctl.Flow{Table: 33, Match: tracked, Actions: []ofctl.Action{{Kind: ofctl.GotoTable, Table: 70}}},
			ofctl.Flow{Table: 70, Cookie: 0xf1, Match: m, Actions: []ofctl.Action{{Kind: ofctl.Metered, Value: 3}, {Kind: ofctl.Controller, Value: 128}}})
	}
	return flows
}

// What a switch hands on carries conntrack's tuple and the registers; what is above the meter's rate never comes, and is counted.
func TestPacketsAreHandedOn(t *testing.T) {
	sw := ovstest.Start(t, 2)
	s := connect(t, sw)
	if err := s.EnsureMeters(t.Context(), []ofctl.Meter{{ID: 3, Rate: 1, Burst: 2}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), mods(ofctl.Add, denying())); err != nil {
		t.Fatal(err)
	}
	got := make(chan *ofctl.PacketIn, 100)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ear, err := ofctl.ConnectPacketIns(ctx, sw.Management(), 128, func(p *ofctl.PacketIn) { got <- p })
	if err != nil {
		t.Fatal(err)
	}
	defer ear.Close()
	if err := ear.Barrier(ctx); err != nil {
		t.Fatal(err)
	}
	sw.AppCtl(t, "netdev-dummy/receive", "p1", "in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=6,tos=0,ttl=64,frag=no),tcp(src=4321,dst=80),tcp_flags(syn)")
	sw.AppCtl(t, "netdev-dummy/receive", "p1", "in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x86dd),ipv6(src=fd00::1,dst=fd00::2,label=0,proto=17,tclass=0,hlimit=64,frag=no),udp(src=4321,dst=53)")
	for _, want := range []struct {
		src, dst string
		proto    uint8
		port     uint16
	}{{"10.0.0.1/32", "10.0.0.2/32", 6, 80}, {"fd00::1/128", "fd00::2/128", 17, 53}} {
		select {
		case p := <-got:
			m := &p.Match
			if p.Table != 70 || p.Cookie != 0xf1 || m.InPort != 1 || m.Reg[1].Value != 77 || m.CtNwSrc != netip.MustParsePrefix(want.src) || m.CtNwDst != netip.MustParsePrefix(want.dst) ||
				m.CtProto != want.proto || m.CtTpSrc.Value != 4321 || m.CtTpDst.Value != want.port || len(p.Frame) < 40 {
				t.Errorf("%+v, want %v", p, want)
			}
		case <-ctx.Done():
			t.Fatal("nothing was handed on")
		}
	}
	flood := []string{"netdev-dummy/receive", "p1"}
	for range 20 {
		flood = append(flood, "in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=6,tos=0,ttl=64,frag=no),tcp(src=4321,dst=80),tcp_flags(syn)")
	}
	sw.AppCtl(t, flood...)
	counts, err := s.MeterCounts(ctx)
	for err == nil && len(counts) == 1 && counts[0].Packets < 22 { // the switch takes them when it comes to it
		counts, err = s.MeterCounts(ctx)
	}
	if err != nil || len(counts) != 1 || counts[0].ID != 3 || counts[0].Packets != 22 || counts[0].Dropped < 10 {
		t.Errorf("%+v (%v)", counts, err)
	}
	if n := uint64(len(got)); n > 22-2-counts[0].Dropped {
		t.Errorf("%d came, with %d dropped of 22", n, counts[0].Dropped)
	}
}

// What a meter of the controller's action drops is the copy alone: packets go on, however many. The flow is one that is visited on the way.
func TestAControllersMeterSparesThePacket(t *testing.T) {
	sw := ovstest.Start(t, 2)
	s := connect(t, sw)
	if err := s.EnsureMeters(t.Context(), []ofctl.Meter{{ID: 3, Rate: 1, Burst: 2}}); err != nil {
		t.Fatal(err)
	}
	m := ofctl.Match{EtherType: ofctl.EtherIPv4}
	flows := []ofctl.Flow{
		{Match: m, Actions: []ofctl.Action{{Kind: ofctl.Resubmit, Table: 73}, {Kind: ofctl.GotoTable, Table: 40}}},
		{Table: 73, Match: m, Actions: []ofctl.Action{{Kind: ofctl.Controller, Value: 128, Port: 3}}},
		{Table: 40, Match: m, Actions: []ofctl.Action{{Kind: ofctl.Output, Port: 2}}},
	}
	if err := s.Commit(t.Context(), mods(ofctl.Add, flows)); err != nil {
		t.Fatal(err)
	}
	got := make(chan *ofctl.PacketIn, 5000)
	ear, err := ofctl.ConnectPacketIns(t.Context(), sw.Management(), 128, func(p *ofctl.PacketIn) { got <- p })
	if err != nil {
		t.Fatal(err)
	}
	defer ear.Close()
	if err := ear.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	const packets = 2000
	flood := []string{"netdev-dummy/receive", "p1"}
	for range 100 {
		flood = append(flood, "in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=6,tos=0,ttl=64,frag=no),tcp(src=4321,dst=80),tcp_flags(syn)")
	}
	left := 0
	for deadline := time.Now().Add(time.Minute); left < packets && time.Now().Before(deadline); {
		sw.AppCtl(t, flood...)
		for want := left + 100; left < want && time.Now().Before(deadline); { // the port holds no more than a hundred
			left = sw.Sent(t, 2)
		}
	}
	counts, err := s.MeterCounts(t.Context())
	if err != nil || len(counts) != 1 || counts[0].Packets != packets || counts[0].Dropped < packets*8/10 || left != packets {
		t.Errorf("of %d packets %d left; the meter has counted %+v (%v)", packets, left, counts, err)
	}
	if n := uint64(len(got)); n == 0 || n > packets-counts[0].Dropped {
		t.Errorf("%d copies came, with %d of %d dropped", n, counts[0].Dropped, packets)
	}
}

// Meters become what is wanted, whatever was there; flows of those that stay stay.
func TestMetersAreAsWanted(t *testing.T) {
	sw := ovstest.Start(t, 1)
	s := connect(t, sw)
	sw.OFCtl(t, "add-meter", "meter=7,kbps,band=type=drop,rate=5")
	for _, want := range [][]ofctl.Meter{
		{{ID: 1, Rate: 10, Burst: 5}, {ID: 2, Rate: 20, Burst: 5}},
		{{ID: 1, Rate: 10, Burst: 5}, {ID: 2, Rate: 30, Burst: 6}},
		{{ID: 2, Rate: 30, Burst: 6}, {ID: 3, Rate: 7000, Burst: 900, Kilobits: true}},
		{{ID: 2, Rate: 30, Burst: 6, Kilobits: true}},
		{},
	} {
		if err := s.EnsureMeters(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		counts, err := s.MeterCounts(t.Context())
		if err != nil || len(counts) != len(want) {
			t.Errorf("want %v, there are %v (%v)", want, counts, err)
		}
		if have, err := s.Meters(t.Context()); err != nil || !slices.Equal(have, want) {
			t.Errorf("want %v, there are %v (%v)", want, have, err)
		}
	}
	if err := s.EnsureMeters(t.Context(), []ofctl.Meter{{ID: 1 << 30, Rate: 10, Burst: 5}}); !errors.Is(err, ofctl.ErrNoMeters) {
		t.Errorf("a meter too many: %v", err)
	}
	if err := s.Barrier(t.Context()); err != nil {
		t.Errorf("the session is not usable after a refusal: %v", err)
	}
}

func FuzzPacketIn(f *testing.F) {
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 60, 1, 70, 0, 0, 0, 0, 0, 0, 0, 0xf1, 0, 1, 0, 12, 0x80, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 2, 3})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 60, 1, 70, 0, 0, 0, 0, 0, 0, 0, 0xf1, 0, 1, 0, 9, 0xff, 0xff, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := ofctl.DecodePacketIn(b); err == nil && len(p.Frame) > len(b) {
			t.Errorf("a frame of %d bytes in %d", len(p.Frame), len(b))
		}
	})
}

// TestConnect_TableMiss: while a session is open, a packet without a flow goes to no controller.
func TestConnect_TableMiss(t *testing.T) {
	sw := ovstest.Start(t, 1)
	for name, connect := range map[string]func() (*ofctl.Session, error){
		"commands": func() (*ofctl.Session, error) { return ofctl.Connect(t.Context(), sw.Management()) },
		"packets": func() (*ofctl.Session, error) {
			return ofctl.ConnectPacketIns(t.Context(), sw.Management(), 128, func(*ofctl.PacketIn) {})
		},
		"packets of an ID": func() (*ofctl.Session, error) {
			return ofctl.ConnectController(t.Context(), sw.Management(), 7, 128, func(*ofctl.PacketIn) {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := connect()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.Barrier(t.Context()); err != nil {
				t.Fatal(err)
			}
			if text := sw.AppCtl(t, "ofproto/trace", sw.Bridge, "in_port=1,ip"); !strings.Contains(text, "No match.") {
				t.Error(text)
			}
		})
	}
}

// TestConnect_FragmentHandling: each session has flows see the ports of first fragments, also one for packets that
// flows hand on, and after another program changed it.
func TestConnect_FragmentHandling(t *testing.T) {
	sw := ovstest.Start(t, 0)
	handling := func() string { return strings.TrimSpace(sw.OFCtl(t, "get-frags")) }
	if got := handling(); got != "normal" {
		t.Fatalf("a new switch handles fragments as %q", got)
	}
	for name, connect := range map[string]func() (*ofctl.Session, error){
		"commands": func() (*ofctl.Session, error) { return ofctl.Connect(t.Context(), sw.Management()) },
		"packets": func() (*ofctl.Session, error) {
			return ofctl.ConnectPacketIns(t.Context(), sw.Management(), 128, func(*ofctl.PacketIn) {})
		},
	} {
		sw.OFCtl(t, "set-frags", "normal")
		s, err := connect()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Barrier(t.Context()); err != nil {
			t.Error(err)
		}
		if got := handling(); got != "nx-match" {
			t.Errorf("a session for %s: fragments are handled as %q", name, got)
		}
		s.Close()
	}
}
