package systemtests

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/frame"
)

// part is how much of a payload a fragment holds here: by tunnels it fits too, and it is not below the least size (IPv6: 1280).
const part = 1376

// cuts are ways to cut a payload, by name; whole tells which a receiver is to get in full where the packet is allowed.
var cuts = []struct {
	name   string
	whole  bool
	size   int
	pieces []frame.Piece
}{
	{"in order", true, 2 * part, []frame.Piece{{To: part}, {From: part, To: 2 * part}}},
	{"out of order", true, 2 * part, []frame.Piece{{From: part, To: 2 * part}, {To: part}}},
	{"in three", true, 4000, []frame.Piece{{To: part}, {From: 2 * part, To: 4000}, {From: part, To: 2 * part}}},
	{"5000 bytes", true, 5000, []frame.Piece{{To: part}, {From: part, To: 2 * part}, {From: 2 * part, To: 3 * part}, {From: 3 * part, To: 5000}}},
	{"5000 bytes, the first last", true, 5000, []frame.Piece{{From: part, To: 2 * part}, {From: 2 * part, To: 3 * part}, {From: 3 * part, To: 5000}, {To: part}}},
	{"5000 bytes, the last first", true, 5000, []frame.Piece{{From: 3 * part, To: 5000}, {From: 2 * part, To: 3 * part}, {From: part, To: 2 * part}, {To: part}}},
	{"without the first", false, 2 * part, []frame.Piece{{From: part, To: 2 * part}}},
	{"without the last", false, 2 * part, []frame.Piece{{To: part}}},
	{"without the middle", false, 4000, []frame.Piece{{To: part}, {From: 2 * part, To: 4000}}},
	{"overlapping", false, 2704, []frame.Piece{{To: part}, {From: 1328, To: 2704}}},
	{"overlapping, the last first", false, 2704, []frame.Piece{{From: 1328, To: 2704}, {To: part}}},
	{"the header in tiny pieces", false, 1360, []frame.Piece{{To: 8}, {From: 8, To: 1360}}},
	{"the first twice, the second time without a header's worth", false, 2 * part, []frame.Piece{{To: part}, {To: 8}, {From: part, To: 2 * part}}},
}

// Fragments are judged like the first of them: what carries no port passes where the port would, whole and in any order, and
// nowhere else. b lets a and c, which is on another node, in on one port, and e on all.
func TestFragmentsAreJudgedLikeTheFirst(t *testing.T) {
	w, _ := fragmentsWorld(t)
	id := uint32(time.Now().UnixNano())
	for _, f := range families {
		b, senders := w.end("b", f), map[string]end{}
		for _, name := range []string{"a", "c", "d", "e"} {
			senders[name] = w.end(name, f)
		}
		for _, c := range cuts {
			tok := token()
			sent := map[string][][]byte{} // by the token of one way, which begins with tok
			send := func() {
				for i, s := range fragmentWays {
					from, own := senders[s.from], append(slices.Clone(tok), byte(i))
					id++
					p := frame.IP{Src: from.ip, Dst: b.ip, Proto: frame.UDP, Payload: frame.Datagram(from.ip, b.ip, 5555, s.port, filled(c.size-8, own))}
					sent[string(own)] = from.inPieces(p, id, c.pieces)
					w.send(from, sent[string(own)]...)
				}
			}
			sizes := func(i int, frames [][]byte) (got, all int) {
				own := append(slices.Clone(tok), byte(i))
				return bytesHolding(notICMP(frames), own), bytesHolding(sent[string(own)], own)
			}
			arrived := w.heardAll(b.Pod, tok, send, func(frames [][]byte) bool {
				for i, s := range fragmentWays {
					if got, all := sizes(i, frames); s.open && c.whole && got < all {
						return false
					}
				}
				return true
			})
			for i, s := range fragmentWays {
				got, all := sizes(i, arrived)
				way := fmt.Sprintf("IPv%d, %s to port %d, %s", f, s.from, s.port, c.name)
				switch {
				case !s.open && got > 0:
					w.leak("%s: denied, and %d of %d bytes arrived", way, got, all)
				case s.open && c.whole && got != all:
					t.Errorf("%s %s: allowed, and %d of %d bytes arrived", cluster.Lost, way, got, all)
				}
			}
		}
	}
}

// fragmentWays are ways to b in fragmentsWorld.
var fragmentWays = []struct {
	from string
	port uint16
	open bool
}{{"a", 80, false}, {"c", 80, false}, {"d", 81, false}, {"e", 80, true}, {"a", 81, true}, {"c", 81, true}}

// bytesHolding returns how many bytes of payload the frames have that a token is in. Frames are not counted: where the
// path is narrower than the pods' links, a node makes more fragments of an allowed datagram.
func bytesHolding(frames [][]byte, token []byte) (n int) {
	for _, f := range frames {
		if bytes.Contains(f, token) {
			n += frame.PayloadSize(f)
		}
	}
	return n
}

func fragmentsWorld(t *testing.T) (w *world, ns string) {
	w = setup(t)
	ns = threePods(w)
	w.run(ns, "d@node1", "e@node1")
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [
		{from: [{podSelector: {matchLabels: {app: a}}}, {podSelector: {matchLabels: {app: c}}}], ports: [{port: 81, protocol: UDP}]},
		{from: [{podSelector: {matchLabels: {app: e}}}]}]}`)
	w.settles(w.open("a", "b", "udp", 81, "the port"), w.shut("a", "b", "udp", 80, "another port"), w.open("c", "b", "udp", 81, "the port"),
		w.shut("c", "b", "udp", 80, "another port"), w.shut("d", "b", "udp", 81, "a stranger"), w.open("e", "b", "udp", 80, "any port"))
	return w, ns
}

// inPieces are a packet's fragments in frames to the gateway.
func (e end) inPieces(p frame.IP, id uint32, pieces []frame.Piece) (frames [][]byte) {
	for _, piece := range p.Fragments(id, pieces...) {
		frames = append(frames, e.to(piece))
	}
	return frames
}

// Answers in fragments come back, of new connections and of established ones, through a Service, and so do those to a long ICMP echo.
func TestAnswersInFragments(t *testing.T) {
	w, ns := fragmentsWorld(t)
	services := map[bool]netip.Addr{} // by family: IPv4
	for _, e := range service(w, ns, "b") {
		services[e.To.Is4()] = e.To
		w.settles(through(w, []cluster.Expectation{e}, "e", true))
	}
	id := uint32(time.Now().UnixNano())
	ask := func(what, from string, to netip.Addr, proto byte, message func(from, to netip.Addr, tok []byte) []byte) {
		t.Helper()
		f := map[bool]int{true: 4, false: 6}[to.Is4()]
		sender, tok := w.end(from, f), token()
		p := frame.IP{Src: sender.ip, Dst: to, Proto: proto, Payload: message(sender.ip, to, tok)}
		var pieces []frame.Piece
		for at := 0; at < len(p.Payload); at += part {
			pieces = append(pieces, frame.Piece{From: at, To: min(at+part, len(p.Payload))})
		}
		id++
		frames := sender.inPieces(p, id, pieces)
		want := len(p.Payload)
		answer := w.heardAll(sender.Pod, tok, func() { w.send(sender, frames...) }, func(frames [][]byte) bool {
			return bytesHolding(frames, tok) >= want
		})
		if got := bytesHolding(answer, tok); got != want {
			t.Errorf("%s IPv%d, %s, from %s: %d bytes of the answer came in fragments, want %d",
				cluster.Lost, f, what, from, got, want)
		}
	}
	udp := func(port uint16) func(src, dst netip.Addr, tok []byte) []byte {
		return func(src, dst netip.Addr, tok []byte) []byte {
			return frame.Datagram(src, dst, 6666, port, filled(4992, tok))
		}
	}
	for _, f := range families {
		b, ok := w.pods["b"].IP(f)
		if !ok {
			continue
		}
		for _, state := range []string{"a new connection", "an established one", "once more"} {
			ask(state, "a", b, frame.UDP, udp(81))
			ask(state, "c", b, frame.UDP, udp(81))
			ask(state+" to a Service", "e", services[f == 4], frame.UDP, udp(8000))
		}
		proto, kind := byte(frame.ICMP), byte(8)
		if f == 6 {
			proto, kind = frame.ICMPv6, 128
		}
		ask("echo", "e", b, proto, func(src, dst netip.Addr, tok []byte) []byte {
			return frame.Message(src, dst, kind, 0, 0x77770001, filled(4000, tok))
		})
	}
}

// notICMP leaves out errors, which hold a part of what they speak of.
func notICMP(frames [][]byte) (out [][]byte) {
	for _, f := range frames {
		if six := bytes.Equal(f[12:14], []byte{0x86, 0xdd}); six && f[20] != frame.ICMPv6 || !six && f[23] != frame.ICMP {
			out = append(out, f)
		}
	}
	return out
}

// Extension headers before the transport's do not lead around a port rule, in one piece or with the port in a later fragment.
func TestExtensionHeadersDoNotHideThePort(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 81, protocol: UDP}, {port: 81}]}]}`)
	w.settles(w.open("a", "b", "udp", 81, "the port"), w.shut("a", "b", "tcp", 80, "another port"))
	if _, ok := w.pods["a"].IP(6); !ok {
		t.Skip("IPv6 alone has extension headers")
	}
	a, b := w.end("a", 6), w.end("b", 6)
	id := uint32(time.Now().UnixNano())
	for _, transport := range []struct {
		proto   byte
		segment func(port uint16, tok []byte) []byte
	}{
		{frame.UDP, func(port uint16, tok []byte) []byte { return frame.Datagram(a.ip, b.ip, 5555, port, filled(1400, tok)) }},
		{frame.TCP, func(port uint16, tok []byte) []byte { return frame.SYN(a.ip, b.ip, 5555, port, filled(1400, tok)) }},
	} {
		for name, wrap := range map[string]func(frame.IP) frame.IP{
			"hop-by-hop": func(p frame.IP) frame.IP {
				p.Proto, p.Payload = frame.HopByHop, frame.Options(p.Proto, p.Payload)
				return p
			},
			"destination options": func(p frame.IP) frame.IP {
				p.Proto, p.Payload = frame.DestOptions, frame.Options(p.Proto, p.Payload)
				return p
			},
			"both": func(p frame.IP) frame.IP {
				p.Proto, p.Payload = frame.HopByHop, frame.Options(frame.DestOptions, frame.Options(p.Proto, p.Payload))
				return p
			},
			"many": func(p frame.IP) frame.IP { // 1304 bytes: the first fragment ends before the transport's header
				for range 163 {
					p.Proto, p.Payload = frame.DestOptions, frame.Options(p.Proto, p.Payload)
				}
				return p
			},
		} {
			for _, port := range []uint16{80, 81} {
				tok := token()
				p := wrap(frame.IP{Src: a.ip, Dst: b.ip, Proto: transport.proto, Payload: transport.segment(port, tok)})
				id++
				frames := a.inPieces(p, id, []frame.Piece{{To: 1304}, {From: 1304, To: len(p.Payload)}})
				if got := notICMP(w.heard(b.Pod, tok, func() { w.send(a, frames...) })); port == 80 && len(got) > 0 {
					w.leak("protocol %d to port %d behind %s, in fragments: %d arrived", transport.proto, port, name, len(got))
				}
				if name == "many" {
					continue // does not fit in one
				}
				whole := p
				whole.Payload = wrap(frame.IP{Src: a.ip, Dst: b.ip, Proto: transport.proto, Payload: transport.segment(port, tok)[:0]}).Payload
				small := map[byte][]byte{frame.UDP: frame.Datagram(a.ip, b.ip, 5555, port, filled(64, tok)), frame.TCP: frame.SYN(a.ip, b.ip, 5555, port, filled(64, tok))}
				whole.Payload = append(whole.Payload, small[transport.proto]...)
				complete := func(frames [][]byte) bool { return port == 80 || len(notICMP(frames)) > 0 }
				got := len(notICMP(w.heardAll(b.Pod, tok, func() { w.send(a, a.to(whole)) }, complete)))
				switch {
				case port == 80 && got > 0:
					w.leak("protocol %d to port %d behind %s: %d arrived", transport.proto, port, name, got)
				case port == 81 && got != 1:
					t.Errorf("%s protocol %d to port %d behind %s: %d arrived, want 1", cluster.Lost, transport.proto, port, name, got)
				}
			}
		}
	}
}
