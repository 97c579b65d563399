package systemtests

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/frame"
)

// toPods tells whether a frame holds a packet to one address of the pods'.
func toPods(f []byte) bool {
	return binary.BigEndian.Uint16(f[12:]) == frame.EtherIPv4 && netip.MustParsePrefix("10.244.0.0/16").Contains(netip.AddrFrom4([4]byte(f[30:34])))
}

// asksTheGateway tells whether a frame is ARP or neighbour discovery of a's own address.
func (w *world) asksTheGateway(f []byte) bool {
	switch binary.BigEndian.Uint16(f[12:]) {
	case frame.EtherARP:
		return w.ip("a", 4) == netip.AddrFrom4([4]byte(f[28:32])).String()
	case frame.EtherIPv6:
		return f[20] == frame.ICMPv6 && (f[54] == 135 || f[54] == 136) && w.ip("a", 6) == netip.AddrFrom16([16]byte(f[22:38])).String()
	}
	return false
}

// What a pod sends to everybody reaches nobody, its node as little, and no frame reaches another pod past the verdict, whatever its MAC says.
func TestBroadcastReachesNobody(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress]}`)
	w.settles(w.shut("a", "b", "udp", 80, "isolated"), w.open("a", "c", "udp", 80, "not isolated"))
	everyone := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	many := net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	tok := token()
	var frames [][]byte
	add := func(src, dst net.HardwareAddr, p frame.IP) {
		frames = append(frames, append(frame.Ether(src, dst, frame.EtherType(p.Src), p.Bytes()), tok...))
	}
	udp := func(src netip.Addr, to string, port uint16) frame.IP {
		dst := netip.MustParseAddr(to)
		return frame.IP{Src: src, Dst: dst, Proto: frame.UDP, Payload: frame.Datagram(src, dst, 5555, port, tok)}
	}
	for _, f := range families {
		a, b := w.end("a", f), w.end("b", f)
		for _, mac := range []net.HardwareAddr{everyone, many, b.mac, a.gateway} {
			add(a.mac, mac, udp(a.ip, b.ip.String(), 80))
		}
		if f == 4 {
			for _, to := range []string{"255.255.255.255", "224.0.0.1", "224.0.0.251", "10.244.1.255", "10.244.2.255"} {
				add(a.mac, everyone, udp(a.ip, to, 80))
				add(a.mac, a.gateway, udp(a.ip, to, 80))
			}
			add(a.mac, everyone, udp(netip.IPv4Unspecified(), "255.255.255.255", 67)) // DHCP
			igmp := netip.MustParseAddr("224.0.0.22")
			add(a.mac, everyone, frame.IP{Src: a.ip, Dst: igmp, Proto: frame.IGMP, TTL: 1, Payload: make([]byte, 16)})
			gateway := netip.MustParseAddr("10.244.1.1")
			for _, arp := range [][]byte{frame.ARP(1, a.mac, a.ip, everyone, b.ip), frame.ARP(2, a.mac, gateway, b.mac, b.ip), frame.ARP(2, a.mac, b.ip, everyone, b.ip)} {
				frames = append(frames, append(frame.Ether(a.mac, everyone, frame.EtherARP, arp), tok...))
				frames = append(frames, append(frame.Ether(a.mac, b.mac, frame.EtherARP, arp), tok...))
			}
			continue
		}
		all, gateway := netip.MustParseAddr("ff02::1"), netip.MustParseAddr("fd00:10:244:1::1")
		for _, to := range []string{"ff02::1", "ff02::fb", "ff02::1:2", "ff05::2", "fe80::1"} {
			add(a.mac, many, udp(a.ip, to, 80))
			add(a.mac, a.gateway, udp(a.ip, to, 80))
		}
		mld := frame.IP{Src: a.ip, Dst: netip.MustParseAddr("ff02::16"), TTL: 1, Proto: frame.HopByHop}
		mld.Payload = frame.Options(frame.ICMPv6, frame.Message(a.ip, mld.Dst, 143, 0, 0, nil))
		add(a.mac, many, mld)
		add(a.mac, many, frame.IP{Src: a.ip, Dst: all, TTL: 255, Proto: frame.ICMPv6, Payload: frame.Message(a.ip, all, 134, 0, 0, make([]byte, 8))})
		for _, p := range []frame.IP{frame.Neighbour(136, a.ip, all, a.ip, a.mac), frame.Neighbour(136, a.ip, b.ip, gateway, a.mac), frame.Neighbour(135, a.ip, b.ip, b.ip, a.mac)} {
			add(a.mac, many, p)
			add(a.mac, b.mac, p)
		}
	}
	a, c, seen := w.end("a", 4), w.end("c", 4), token()
	allowed := frame.IP{Src: a.ip, Dst: c.ip, Proto: frame.UDP, Payload: frame.Datagram(a.ip, c.ip, 5555, 80, seen)}
	complete := func(frames [][]byte) bool { return len(frames) > 0 }
	if !complete(w.heardAll(c.Pod, seen, func() { w.send(a, a.to(allowed)) }, complete)) {
		t.Error("c did not hear what it may: nothing is shown")
	}
	hearings := map[string]*cluster.Hearing{}
	for _, pod := range []string{"b", "c"} {
		hearing, err := w.Hear(w.ctx, w.pods[pod].NetNS, "eth0", tok)
		w.must(err)
		hearings[pod] = hearing
	}
	for _, device := range []string{"fk-gw", "fk-wire", "fk-out"} {
		hearing, err := w.Hear(w.ctx, w.NodeNS("node1"), device, tok)
		w.must(err)
		hearings["node1's "+device] = hearing
	}
	w.send(a, frames...)
	cluster.Undisturbed(w.ctx, cluster.Window(500*time.Millisecond))
	for pod, hearing := range hearings {
		heard, err := hearing.Stop()
		if err != nil {
			t.Error(err)
		}
		for _, f := range heard {
			if strings.HasPrefix(pod, "node1") && (toPods(f) || w.asksTheGateway(f)) {
				continue // an address like others, which nobody has; or what a pod may ask the gateway, and it alone
			}
			w.leak("%s got %x", pod, f[:min(len(f), 60)])
		}
	}
	w.settles(w.open("a", "c", "udp", 80, "nothing was spoiled"), w.open("b", "c", "tcp", 80, "nothing was spoiled"))
}
