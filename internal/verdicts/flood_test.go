package verdicts

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/appctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// flood sends frames of a pod and returns how many megaflows the datapath has for them.
type flood struct {
	*realSwitch
	port uint32
}

// frames is how many a flood has.
const frames = 1000

func (f *flood) megaflows(t testing.TB, frame func(i int) []byte) int {
	t.Helper()
	f.empty(t)
	before := f.lookups(t)
	for i := range frames {
		must(t, unix.Send(f.ends[f.port], frame(i), 0))
		if i%50 == 49 { // no faster than the port is read: what its socket has no room for is lost
			f.await(t, before+i+1)
		}
	}
	return f.cached(t)
}

// cached returns the number of megaflows of the datapath.
func (f *flood) cached(t testing.TB) int {
	t.Helper()
	return strings.Count(f.AppCtl(t, "dpctl/dump-flows", "netdev@ovs-netdev"), "\n")
}

// empty purges the datapath's cache until nothing is left. One purge leaves out what a revalidator has locked, and on a
// busy machine that is much: the megaflows of the flood before would count for the next.
func (f *flood) empty(t testing.TB) {
	t.Helper()
	for deadline := time.Now().Add(comes); ; {
		f.AppCtl(t, "revalidator/purge")
		left := f.cached(t)
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d megaflows are left after a purge", left)
		}
	}
}

// await waits until the datapath has looked packets up as often, in all.
func (f *flood) await(t testing.TB, want int) {
	t.Helper()
	for deadline := time.Now().Add(comes); f.lookups(t) < want; {
		f.drain()
		if time.Now().After(deadline) {
			t.Fatalf("the datapath has looked up %d of %d packets", f.lookups(t), want)
		}
	}
}

// drain forgets what has come out: no single frame is followed here.
func (f *flood) drain() {
	for len(f.arrived) > 0 {
		<-f.arrived
	}
}

// lookups is how many packets the datapath has looked up.
func (f *flood) lookups(t testing.TB) (n int) {
	t.Helper()
	for _, line := range strings.Split(f.ask(t, "dpctl/show", f.datapathName()), "\n") {
		if _, counts, ok := strings.Cut(line, "lookups:"); ok {
			for _, field := range strings.Fields(counts) {
				name, count, _ := strings.Cut(field, ":")
				if v, err := strconv.Atoi(count); err == nil && name != "lost" {
					n += v
				}
			}
		}
	}
	return n
}

// ask has ovs-vswitchd do a command, without a program of its own for it.
func (s *realSwitch) ask(t testing.TB, command string, args ...string) string {
	t.Helper()
	answer, err := appctl.Call(t.Context(), s.control(t), command, args...)
	must(t, err)
	return answer
}

// datapathName returns the name that dpctl takes (ovs-vswitchd(8)).
func (s *realSwitch) datapathName() string { return s.datapath + "@ovs-" + s.datapath }

// control is ovs-vswitchd's control socket.
func (s *realSwitch) control(t testing.TB) string {
	t.Helper()
	sockets, err := filepath.Glob(filepath.Join(s.Dir, "ovs-vswitchd.*.ctl"))
	must(t, err)
	if len(sockets) != 1 {
		t.Fatalf("control sockets: %v", sockets)
	}
	return sockets[0]
}

func random(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

func randomMAC() []byte { return append([]byte{2}, random(5)...) }

// random4 is an address that no pod, no node and no Service has.
func random4() netip.Addr {
	return netip.AddrFrom4([4]byte(append([]byte{byte(100 + rand.IntN(60))}, random(3)...)))
}

func random6() netip.Addr {
	return netip.AddrFrom16([16]byte(append([]byte{0x20, 0x01}, random(14)...)))
}

func ethernet(dst, src []byte, etherType uint16, payload []byte) []byte {
	return slices.Concat(dst, src, binary.BigEndian.AppendUint16(nil, etherType), payload)
}

// ipPacket is an IP packet.
func ipPacket(src, dst netip.Addr, proto uint8, payload []byte) []byte {
	if src.Is6() {
		h := make([]byte, 8)
		h[0], h[6], h[7] = 0x60, proto, 255
		binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
		return slices.Concat(h, src.AsSlice(), dst.AsSlice(), payload)
	}
	return ipv4Packet(src, dst, proto, 0, 0, payload)
}

func ipv4Packet(src, dst netip.Addr, proto uint8, id, offset uint16, payload []byte) []byte {
	h := make([]byte, 20)
	h[0], h[8], h[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(h[2:], uint16(20+len(payload)))
	binary.BigEndian.PutUint16(h[4:], id)
	binary.BigEndian.PutUint16(h[6:], offset)
	copy(h[12:], src.AsSlice())
	copy(h[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return append(h, payload...)
}

// pseudo is the header that checksums take in.
func pseudo(src, dst netip.Addr, proto uint8, size int) []byte {
	return slices.Concat(src.AsSlice(), dst.AsSlice(), []byte{0, proto, byte(size >> 8), byte(size)})
}

// ported is a UDP, TCP or SCTP packet.
func ported(src, dst netip.Addr, proto uint8, from, to uint16, flags byte) []byte {
	b := make([]byte, 32)
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	sum := 6
	switch proto {
	case protoTCP:
		b[12], b[13], sum = 5<<4, flags, 16
		binary.BigEndian.PutUint16(b[14:], 65000)
	case protoUDP:
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	}
	binary.BigEndian.PutUint16(b[sum:], checksum(append(pseudo(src, dst, proto, len(b)), b...)))
	return ipPacket(src, dst, proto, b)
}

func neighbour(src, dst netip.Addr, kind byte, target netip.Addr) []byte {
	b := make([]byte, 8)
	b[0] = kind
	b = append(b, target.AsSlice()...)
	binary.BigEndian.PutUint16(b[2:], checksum(append(pseudo(src, dst, protoICMPv6, len(b)), b...)))
	return ipPacket(src, dst, protoICMPv6, b)
}

func arp(op uint16, sha []byte, spa netip.Addr, tha []byte, tpa netip.Addr) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0, 1, 8, 0, 6, 4}, op)
	return slices.Concat(b, sha, spa.AsSlice(), tha, tpa.AsSlice())
}

type floodCase struct {
	name  string
	most  int // megaflows
	frame func(i int) []byte
}

func port16() uint16 { return uint16(1 + rand.IntN(65535)) }

// floods are all that a pod can make up of a frame.
func floods(own, own6 netip.Addr, mac ofctl.MAC) []floodCase {
	gw, world := config.Gateway.MAC[:], netip.MustParseAddr("198.51.100.7")
	gateway6, world6, service := gatewayAddrs[1], netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("10.96.7.7")
	own4 := func(payload []byte) []byte { return ethernet(gw, mac[:], ofctl.EtherIPv4, payload) }
	ownV6 := func(payload []byte) []byte { return ethernet(gw, mac[:], ofctl.EtherIPv6, payload) }
	udp := func(src, dst netip.Addr, from, to uint16) []byte { return ported(src, dst, protoUDP, from, to, 0) }
	some := udp(own, world, 1000, 99)
	return []floodCase{
		{"source MACs", 300, func(int) []byte { return ethernet(gw, randomMAC(), ofctl.EtherIPv4, some) }},
		{"source MACs to Services", 300, func(int) []byte {
			return ethernet(gw, randomMAC(), ofctl.EtherIPv4, udp(own, service, 1000, 53))
		}},
		{"destination MACs", 60, func(int) []byte { return ethernet(randomMAC(), mac[:], ofctl.EtherIPv4, some) }},
		{"destination MACs to Services", 60, func(int) []byte {
			return ethernet(randomMAC(), mac[:], ofctl.EtherIPv4, udp(own, service, 1000, 53))
		}},
		{"VLANs", 4, func(int) []byte {
			return ethernet(gw, mac[:], 0x8100, slices.Concat(random(2), []byte{8, 0}, some))
		}},
		{"VLANs in VLANs", 4, func(int) []byte {
			tags := slices.Concat(random(2), []byte{0x81, 0}, random(2), []byte{8, 0})
			return ethernet(gw, mac[:], 0x88a8, append(tags, some...))
		}},
		{"sources", 40, func(int) []byte { return own4(udp(random4(), world, 1000, 99)) }},
		{"IPv6 sources", 140, func(int) []byte { return ownV6(udp(random6(), world6, 1000, 99)) }},
		{"destinations", 80, func(int) []byte { return own4(udp(own, random4(), 1000, 99)) }},
		{"IPv6 destinations", 140, func(int) []byte { return ownV6(udp(own6, random6(), 1000, 99)) }},
		{"addresses of Services", 40, func(int) []byte {
			return own4(udp(own, netip.AddrFrom4([4]byte{10, 96, byte(rand.Uint32()), byte(rand.Uint32())}), 1000, 53))
		}},
		{"addresses that no pod has", 80, func(int) []byte {
			b := own.As4()
			copy(b[2:], random(2))
			return own4(udp(own, netip.AddrFrom4(b), 1000, 99))
		}},
		{"addresses that no pod has over IPv6", 140, func(int) []byte {
			b := own6.As16()
			copy(b[8:], random(8))
			return ownV6(udp(own6, netip.AddrFrom16(b), 1000, 99))
		}},
		{"UDP ports", 40, func(int) []byte { return own4(udp(own, world, port16(), port16())) }},
		{"UDP ports over IPv6", 40, func(int) []byte { return ownV6(udp(own6, world6, port16(), port16())) }},
		{"TCP ports", 40, func(int) []byte { return own4(ported(own, world, protoTCP, port16(), port16(), 2)) }},
		{"TCP flags and ports", 80, func(i int) []byte {
			return own4(ported(own, world, protoTCP, port16(), port16(), byte(i)))
		}},
		{"TCP segments in the middle", 80, func(int) []byte {
			return own4(ported(own, random4(), protoTCP, port16(), port16(), 16))
		}},
		{"TCP segments in the middle over IPv6", 200, func(int) []byte {
			return ownV6(ported(own6, random6(), protoTCP, port16(), port16(), 16))
		}},
		{"SCTP ports", 40, func(int) []byte { return own4(ported(own, world, 132, port16(), port16(), 0)) }},
		{"ICMP", 40, func(i int) []byte {
			return own4(ipPacket(own, world, protoICMP, append([]byte{byte(i), byte(i / 256)}, random(30)...)))
		}},
		{"protocols", 600, func(i int) []byte { return own4(ipPacket(own, world, uint8(i), random(40))) }},
		{"ports of whole datagrams in fragments", 80, func(i int) []byte {
			if i%2 > 0 { // the last, of as many bytes as the first
				return own4(ipv4Packet(own, world, protoUDP, uint16(i/2), 1208/8, make([]byte, 1208)))
			}
			whole := make([]byte, 2*1208) // without a checksum
			binary.BigEndian.PutUint16(whole, port16())
			binary.BigEndian.PutUint16(whole[2:], port16())
			binary.BigEndian.PutUint16(whole[4:], uint16(len(whole)))
			return own4(ipv4Packet(own, world, protoUDP, uint16(i/2), 1<<13, whole[:1208]))
		}},
		// these are held for 15 s
		{"fragments", 20, func(i int) []byte {
			first := ipv4Packet(own, world, protoUDP, uint16(i), 1<<13, random(1208))
			return ethernet(randomMAC(), randomMAC(), ofctl.EtherIPv4, first)
		}},
		{"ARP", 4, func(int) []byte {
			packet := arp(uint16(1+rand.IntN(2)), randomMAC(), own, randomMAC(), random4())
			return ethernet(randomMAC(), randomMAC(), ofctl.EtherARP, packet)
		}},
		{"ARP of others", 1025, func(int) []byte {
			packet := arp(2, randomMAC(), random4(), randomMAC(), random4())
			return ethernet(randomMAC(), randomMAC(), ofctl.EtherARP, packet)
		}},
		{"neighbour solicitations", 8, func(int) []byte { return ownV6(neighbour(own6, gateway6, 135, random6())) }},
		{"neighbour advertisements", 8, func(int) []byte { return ownV6(neighbour(own6, gateway6, 136, random6())) }},
		{"neighbour advertisements to all", 200, func(int) []byte {
			return ownV6(neighbour(own6, random6(), 136, random6()))
		}},
		// Open vSwitch always matches these
		{"Ethernet types", 1100, func(i int) []byte {
			return ethernet(gw, mac[:], uint16(0x9000+i), random(46))
		}},
	}
}

// busy isolates a pod for egress, and lets it reach a group, a block of addresses and some ports.
func busy(pod string) *policy.Policy {
	block := policy.Peer{Block: &policy.IPBlock{
		CIDR:   netip.MustParsePrefix("10.11.0.0/16"),
		Except: []netip.Prefix{netip.MustParsePrefix("10.11.12.0/24")},
	}}
	block6 := policy.Peer{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix("fd00:77::/48")}}
	ports := []policy.PolicyPort{
		{Protocol: policy.UDP, First: 53, Last: 53},
		{Protocol: policy.TCP, First: 8000, Last: 8100},
		{Protocol: policy.TCP, First: 443, Last: 443},
	}
	return &policy.Policy{Namespace: "ns", Name: "busy", AppliedTo: *labelled(pod), IsolatesEgress: true,
		Egress: []policy.PolicyRule{{Peers: []policy.Peer{{Pods: labelled("1")}, block, block6}, Ports: ports}}}
}

// TestFloodsCostFewMegaflows: whatever a pod whose packets policies deny makes up of its frames, they meet a few
// entries of the datapath's cache. An entry for each would be an upcall for each.
func TestFloodsCostFewMegaflows(t *testing.T) {
	sw := startReal(t, "netdev")
	sw.AppCtl(t, "dpctl/ipf-set-max-nfrags", "netdev@ovs-netdev", "5000") // as netplugin does
	for name, policies := range map[string][]*policy.Policy{
		"nothing is allowed": {silent("0")},
		"other ways are":     {busy("0")},
		"all is allowed":     nil,
	} {
		sw.run(t, name, func(t testing.TB) {
			b := three(t, policies...)
			sw.settle(t)
			f := flood{sw, b.locals[0].Port}
			for _, c := range floods(policytest.Address(0, false), policytest.Address(0, true), b.locals[0].MAC) {
				got := f.megaflows(t, c.frame)
				t.Logf("%s: %d megaflows of %d frames", c.name, got, frames)
				if got > c.most {
					t.Errorf("%s: %d megaflows of %d frames, want %d at most", c.name, got, frames, c.most)
				}
			}
		})
	}
}

// TestNewConnectionsToServicesAreBounded: what a pod sends to Services is tracked before any policy can deny it. So
// a pod that may send nothing opens no more than its meter lets through.
func TestNewConnectionsToServicesAreBounded(t *testing.T) {
	sw := startReal(t, "netdev")
	sw.run(t, "nothing is allowed", func(t testing.TB) {
		b := three(t, silent("0"))
		sw.settle(t)
		f := flood{sw, b.locals[0].Port}
		own, mac := policytest.Address(0, false), b.locals[0].MAC
		const sent = 8000
		began, before := time.Now(), f.lookups(t)
		for i := range sent {
			p := ported(own, netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), protoUDP, uint16(1024+i), 53, 0)
			must(t, unix.Send(f.ends[f.port], ethernet(config.Gateway.MAC[:], mac[:], ofctl.EtherIPv4, p), 0))
			if i%200 == 199 {
				f.await(t, before+i+1)
			}
		}
		most := (2 + int(time.Since(began).Seconds()+1)) * pipeline.MaxOpeningRate
		text := strings.TrimSpace(sw.AppCtl(t, "dpctl/ct-get-nconns", "netdev@ovs-netdev"))
		tracked, err := strconv.Atoi(text)
		must(t, err)
		t.Logf("%d of %d are tracked, %d at most", tracked, sent, most)
		if tracked > most || tracked < 100 {
			t.Errorf("%d connections of %d are tracked, want %d at most, and some", tracked, sent, most)
		}
	})
}
