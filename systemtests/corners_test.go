package systemtests

import (
	"crypto/rand"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/frame"
)

// end is a pod as frames see it.
type end struct {
	cluster.Pod
	ip           netip.Addr
	mac, gateway net.HardwareAddr
}

func (w *world) end(name string, family int) end {
	w.Helper()
	e := end{Pod: w.pods[name]}
	e.ip, _ = e.IP(family)
	var err error
	e.mac, err = w.MAC(w.ctx, e.NetNS, "eth0")
	w.must(err)
	e.gateway, err = w.MAC(w.ctx, w.NodeNS(e.Node), "fk-gw")
	w.must(err)
	return e
}

// to is a packet in a frame to the gateway, as pods send them.
func (e end) to(p frame.IP) []byte {
	return frame.Ether(e.mac, e.gateway, frame.EtherType(p.Src), p.Bytes())
}

func (w *world) send(from end, frames ...[]byte) {
	w.Helper()
	w.must(w.SendFrames(w.ctx, from.NetNS, 0, frames...))
}

// heard returns the frames with the token that come in at a pod's link while send runs, and shortly after.
func (w *world) heard(at cluster.Pod, token []byte, send func()) [][]byte {
	w.Helper()
	return w.heardAll(at, token, send, nil)
}

// heardAll returns frames as heard does, and waits for allowed ones until they are complete; see cluster.Observe.
func (w *world) heardAll(at cluster.Pod, token []byte, send func(), complete func([][]byte) bool) [][]byte {
	w.Helper()
	return w.heardOn(at.NetNS, "eth0", token, send, complete)
}

// heardOn is heardAll for any link.
func (w *world) heardOn(netns, dev string, token []byte, send func(), complete func([][]byte) bool) [][]byte {
	w.Helper()
	hearing, err := w.Hear(w.ctx, netns, dev, token)
	w.must(err)
	send()
	cluster.Observe(w.ctx, cluster.Stretch(300*time.Millisecond), func() bool {
		return complete == nil || complete(hearing.Frames())
	})
	frames, err := hearing.Stop()
	w.must(err)
	return frames
}

// token is 16 bytes that nobody else sends.
func token() []byte { return []byte(rand.Text()[:16]) }

// filled is a payload of a size that holds the token in every 64 bytes.
func filled(size int, token []byte) []byte {
	return slices.Repeat(append(slices.Clone(token), make([]byte, 64-len(token))...), size/64+1)[:size]
}

// Fragments that were held for reassembly, and are given up, must not leave with the packets of other connections: 15 s after
// a flood of halves, connections that are allowed come to the pod that the halves were for.
func TestGivenUpFragmentsGoNowhere(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 20 s by its nature: so long a switch holds fragments")
	}
	w := setup(t)
	ns := threePods(w)
	w.run(ns, "d@node1")
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.settles(w.open("a", "b", "udp", 80, "its rule"), w.shut("d", "b", "udp", 80, "no rule"))
	tok := token()
	hearing, err := w.Hear(w.ctx, w.pods["b"].NetNS, "eth0", tok)
	w.must(err)
	for _, f := range families {
		d, b := w.end("d", f), w.end("b", f)
		p := frame.IP{Src: d.ip, Dst: b.ip, Proto: frame.UDP, Payload: frame.Datagram(d.ip, b.ip, 7777, 80, filled(4000, tok))}
		var frames [][]byte
		for id := range uint32(50) {
			for _, half := range p.Fragments(id, frame.Piece{To: part}, frame.Piece{From: part, To: 2 * part}) {
				frames = append(frames, d.to(half))
			}
		}
		w.send(d, frames...)
	}
	time.Sleep(17 * time.Second)
	for _, f := range families {
		address := netip.AddrPortFrom(w.end("b", f).ip, 80).String()
		_, err := w.RunIn(w.ctx, w.pods["a"].NetNS, w.Bin+"/probe", "connects", "-for", "1s", address)
		w.must(err)
	}
	w.settles(w.open("a", "b", "udp", 80, "its rule"))
	frames, err := hearing.Stop()
	w.must(err)
	if len(frames) > 0 {
		w.leak("%d fragments of a pod without any rights arrived, the first %x", len(frames), frames[0])
	}
}
