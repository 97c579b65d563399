package capture

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/frames"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
)

var web, db = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")

func query() *inspect.SightingsQuery {
	return &inspect.SightingsQuery{From: []netip.Addr{web}, To: []netip.Addr{db}, Protocol: frames.UDP, Ports: []uint16{53}, Duration: 20 * time.Second}
}

// looked runs a query until it has seen so much; begun is called when it has begun.
func looked(t *testing.T, c *Captures, q *inspect.SightingsQuery, want int, begun func()) (all []inspect.Sighting) {
	t.Helper()
	enough, first := errors.New("enough"), true
	err := c.Look(t.Context(), q, "node1", func(ifName string) string { return map[string]string{"fkp1": "shop/web"}[ifName] }, func(s *inspect.Sighted) error {
		if all = append(all, s.Sightings...); first {
			first = false
			begun()
		}
		if s.Node != "node1" || s.Packets != uint64(len(all)) {
			t.Errorf("%+v of %d", s.CaptureCounts, len(all))
		}
		if len(all) >= want {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	return all
}

// back is a frame with both ends exchanged.
func back(frame []byte) []byte {
	b := slices.Clone(frame)
	copy(b[26:30], frame[30:34])
	copy(b[30:34], frame[26:30])
	copy(b[34:36], frame[36:38])
	copy(b[36:38], frame[34:36])
	return b
}

// A packet is seen where it is sent and where it is received, in both directions, also inside of a tunnel; others are not.
func TestLook(t *testing.T) {
	netns.New(t).Enter(t)
	near, far := pairOf(t, "fkp1", "fk-gw")
	atNear, atFar := sender(t, near), sender(t, far)
	tunnel := udp(6081, 14+20+8+8)
	copy(tunnel[26:], []byte{192, 0, 2, 1, 192, 0, 2, 2})
	tunnel[44], tunnel[45] = 0x65, 0x58
	tunnel = append(tunnel, udp(53, 60)...)
	tunnel[17] = byte(len(tunnel) - 14)
	all := looked(t, New(), query(), 6, func() {
		other := udp(53, 60)
		other[29] = 9
		atNear(other)
		atNear(udp(54, 60))
		atNear(udp(53, 60))
		atFar(back(udp(53, 60)))
		atNear(tunnel)
	})
	type seen struct {
		ifName string
		place  inspect.Place
		pod    string
		sent   bool
	}
	var got []seen
	for _, s := range all {
		got = append(got, seen{s.Interface, s.Place, s.Pod, s.Sent})
		if s.Identity != all[0].Identity || s.Strong || s.Protocol != frames.UDP || s.Length != 18 || time.Since(s.Time).Abs() > time.Minute || !strings.HasPrefix(s.Text, "IP 10.0.0.") {
			t.Errorf("%+v", s)
		}
	}
	if want := []seen{{"fkp1", inspect.PlacePod, "shop/web", true}, {"fk-gw", inspect.PlaceGateway, "", false}, {"fk-gw", inspect.PlaceGateway, "", true}, {"fkp1", inspect.PlacePod, "shop/web", false},
		{"fkp1", inspect.PlaceTunnel, "shop/web", true}, {"fk-gw", inspect.PlaceTunnel, "", false}}; !slices.Equal(got, want) {
		t.Errorf("seen %+v\nwant %+v", got, want)
	}
	if s := all[2]; s.Src != db || s.Dst != web || s.SrcPort != 53 || s.DstPort != 50000 {
		t.Errorf("the way back: %+v", s.SeenPacket)
	}
}

// TestPlace: the interface of a packet determines its place.
func TestPlace(t *testing.T) {
	netns.New(t).Enter(t)
	l := &looking{
		places: map[int]inspect.Sighting{},
		podAt:  func(ifName string) string { return "pod of " + ifName },
	}
	for name, want := range map[string]inspect.Sighting{
		"fk-gw":          {Place: inspect.PlaceGateway},
		"fk-wire":        {Place: inspect.PlaceWire},
		"fk-out":         {Place: inspect.PlaceWire},
		"genev_sys_6081": {Place: inspect.PlaceTunnel},
		"fkp1":           {Place: inspect.PlacePod, Pod: "pod of fkp1"},
		"eth0":           {Place: inspect.PlaceOther},
	} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, want.Interface = name, name
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			t.Fatal(err)
		}
		link, err := net.InterfaceByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.place(link.Index); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// ICMP errors are seen if they are about a packet that is wanted, whoever sends them.
func TestLookForErrors(t *testing.T) {
	netns.New(t).Enter(t)
	near, _ := pairOf(t, "fkp1", "fk-gw")
	send := sender(t, near)
	about := func(packet []byte) []byte {
		b := append(udp(0, 42), packet[14:42]...)
		b[23], b[17] = frames.ICMP, byte(len(b)-14)
		copy(b[26:], []byte{10, 9, 9, 9, 10, 0, 0, 1})
		copy(b[34:], []byte{3, 3, 0, 0, 0, 0, 0, 0})
		return b
	}
	all := looked(t, New(), query(), 2, func() { send(about(udp(54, 60))); send(about(udp(53, 60))) })
	if s := all[0]; s.About == nil || s.About.DstPort != 53 || s.About.SrcPort != 50000 || s.Src.String() != "10.9.9.9" || !strings.Contains(s.Text, "unreachable") {
		t.Errorf("%+v", s)
	}
}

// Kernels before Linux 6.7 give a socket 20 KiB for its filter: it is a coarse one there, and what is seen the same. A filter that no other can
// stand for is refused with what to do.
func TestLookWhereFiltersMustBeShort(t *testing.T) {
	netns.New(t).Enter(t)
	near, _ := pairOf(t, "fkp1", "fk-gw")
	send := sender(t, near)
	if err := os.WriteFile("/proc/sys/net/core/optmem_max", []byte("20480"), 0); err != nil {
		t.Skip("this kernel has one limit for all network namespaces:", err)
	}
	q := query()
	for i := range byte(4) {
		q.From = append(q.From, netip.AddrFrom16([16]byte{0xfd, 1: i}))
		q.To = append(q.To, netip.AddrFrom16([16]byte{0xfd, 1, 2: i}))
		q.Ports = append(q.Ports, 54321+uint16(i))
	}
	programs, err := programsOf(q)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(0, frames.IdentitySnap, programs[0]); err == nil || !strings.Contains(err.Error(), "raise net.core.optmem_max") {
		t.Errorf("the long one alone: %v", err)
	}
	other := udp(54, 60)
	if all := looked(t, New(), q, 2, func() { send(other); send(udp(53, 60)) }); all[0].DstPort != 53 || all[1].DstPort != 53 {
		t.Errorf("%+v", all)
	}
}

func TestLookEnds(t *testing.T) {
	netns.New(t).Enter(t)
	ctx, cancel := context.WithCancel(t.Context())
	none := func(string) string { return "" }
	c := New()
	if err := c.Look(ctx, query(), "", none, func(*inspect.Sighted) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	q, last := query(), inspect.Sighted{}
	q.Duration = 50 * time.Millisecond
	if err := c.Look(t.Context(), q, "", none, func(s *inspect.Sighted) error { last = *s; return nil }); err != nil || !strings.Contains(last.End, "time") {
		t.Errorf("after its time: %q, %v", last.End, err)
	}
	for range mostLooking {
		c.looking <- struct{}{}
	}
	if err := c.Look(t.Context(), query(), "", none, nil); err == nil || !strings.Contains(err.Error(), "trace packets here already") {
		t.Errorf("one too many: %v", err)
	}
}

func TestLookRefuses(t *testing.T) {
	for _, wrong := range []func(*inspect.SightingsQuery){
		func(q *inspect.SightingsQuery) { q.From = nil }, func(q *inspect.SightingsQuery) { q.To = nil }, func(q *inspect.SightingsQuery) { q.Duration = 0 },
		func(q *inspect.SightingsQuery) { q.From = make([]netip.Addr, inspect.MostSources+1) },
	} {
		q := query()
		wrong(q)
		if err := New().Look(t.Context(), q, "", nil, nil); err == nil {
			t.Errorf("%+v was looked for", q)
		}
	}
}

// Whatever is asked for, the kernel's filter can be made, and takes no packet away that is wanted.
func TestFilterOf(t *testing.T) {
	six := netip.MustParseAddr("2001:db8:1111:2222:3333:4444:5555:6666")
	for _, q := range []*inspect.SightingsQuery{
		{From: slices.Repeat([]netip.Addr{six}, inspect.MostSources), To: slices.Repeat([]netip.Addr{six}, filtered), Protocol: frames.SCTP, Ports: slices.Repeat([]uint16{54321}, filtered), Duration: 1},
		{From: slices.Repeat([]netip.Addr{six}, inspect.MostSources), To: slices.Repeat([]netip.Addr{six}, 1000), Ports: slices.Repeat([]uint16{54321}, 1000), Duration: 1},
		{From: []netip.Addr{web}, To: []netip.Addr{db}, Protocol: frames.ICMPv6, Duration: 1},
		{From: []netip.Addr{web}, To: []netip.Addr{db}, Ports: []uint16{80}, Duration: 1},
		{From: []netip.Addr{web}, To: []netip.Addr{db}, Duration: 1},
	} {
		if _, err := programsOf(q); err != nil {
			t.Errorf("%d and %d addresses, %d ports: %v", len(q.From), len(q.To), len(q.Ports), err)
		}
	}
}

// What is behind IPv6's extension headers is looked for too: a fragment, options.
func TestFilterOfExtensionHeaders(t *testing.T) {
	from, to := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	q := &inspect.SightingsQuery{From: []netip.Addr{from}, To: []netip.Addr{to}, Protocol: frames.UDP, Ports: []uint16{53}, Duration: 1}
	f, err := filterOf(q)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := f.OrTunnelled().Compile(frames.IdentitySnap)
	if err != nil {
		t.Fatal(err)
	}
	code, _ := bpf.Disassemble(raw)
	vm, err := bpf.NewVM(code)
	if err != nil {
		t.Fatal(err)
	}
	datagram := []byte{0xc3, 0x50, 0, 53, 0, 9, 0, 0, 'x'}
	for name, c := range map[string]struct {
		next    byte
		headers []byte
	}{
		"plain": {frames.UDP, nil}, "the first fragment": {frames.Fragment, []byte{frames.UDP, 0, 0, 1, 0, 0, 0, 7}},
		"options": {frames.DestOptions, []byte{frames.UDP, 0, 1, 4, 0, 0, 0, 0}},
	} {
		frame := append(make([]byte, 12), 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(c.headers)+len(datagram)), c.next, 64)
		frame = slices.Concat(frame, from.AsSlice(), to.AsSlice(), c.headers, datagram)
		p := frames.Decode(frame)
		if _, ok := seenOf(&p, q); !ok {
			t.Errorf("%s: not wanted: %s", name, p.String())
		}
		if n, err := vm.Run(frame); n == 0 || err != nil {
			t.Errorf("%s: the kernel leaves it out: %v", name, err)
		}
	}
}
