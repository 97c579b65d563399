package systemtests

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/frame"
)

// isolate lets a speak with c, and be spoken to by nobody; c takes a only.
func (w *world) isolate(ns string) {
	w.Helper()
	w.policy(ns, "a", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Ingress, Egress], egress: [{to: [{podSelector: {matchLabels: {app: c}}}]}]}`)
	w.policy(ns, "c", `{podSelector: {matchLabels: {app: c}}, policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.settles(w.open("a", "c", "tcp", 80, "its rule"), w.shut("c", "a", "tcp", 80, "answers only"), w.shut("b", "a", "icmp", 0, "isolated"))
}

// errorsIn are the ICMP errors among frames.
func errorsIn(frames [][]byte) int { return len(frames) - len(notICMP(frames)) }

// What allowed packets bring back passes both ends' isolation: a port that nobody has, a time to live that has run out. The same
// of packets that were denied, and what a third pod says of an allowed connection, does not.
func TestErrorsOfAllowedConnectionsPass(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.isolate(ns)
	for _, f := range families {
		a, b, c := w.end("a", f), w.end("b", f), w.end("c", f)
		tok := token()
		packet := func(to end, ttl byte) frame.IP {
			return frame.IP{Src: a.ip, Dst: to.ip, Proto: frame.UDP, TTL: ttl, Payload: frame.Datagram(a.ip, to.ip, 5555, 99, filled(64, tok))}
		}
		for _, e := range []struct {
			what string
			p    frame.IP
			want bool
		}{
			{"a port that nobody has", packet(c, 0), true}, {"a time to live that ran out at the node", packet(c, 1), true},
			{"one that ran out at the other node", packet(c, 2), true}, {"a denied pod's port", packet(b, 0), false},
		} {
			send := func() error {
				if got := errorsIn(w.heard(a.Pod, tok, func() { w.send(a, a.to(e.p)) })); got > 0 != e.want {
					return fmt.Errorf("%d errors came back, want any: %v", got, e.want)
				}
				return nil
			}
			err := send()
			if e.want && err != nil { // an answer may be late, or lost at the limit of ICMP errors of a kernel (icmp(7))
				err = cluster.Until(w.ctx, settling, send)
			}
			switch {
			case err != nil && !e.want:
				w.leak("IPv%d, %s: %v", f, e.what, err)
			case err != nil:
				t.Errorf("IPv%d, %s: %v", f, e.what, err)
			}
		}
		w.lies(f, packet(c, 0))
	}
}

// lies are errors about a's packet to c that b sends to a: b is neither c nor a router.
func (w *world) lies(family int, about frame.IP) {
	w.Helper()
	a, b, tok := w.end("a", family), w.end("b", family), token()
	copy(about.Payload[8:], tok)
	proto := byte(frame.ICMP)
	if family == 6 {
		proto = frame.ICMPv6
	}
	lie := frame.IP{Src: b.ip, Dst: a.ip, Proto: proto, Payload: frame.TooBig(b.ip, a.ip, 1280, about.Bytes())}
	for _, opened := range []bool{false, true} {
		if opened {
			w.send(a, a.to(about))
		}
		if got := w.heard(a.Pod, tok, func() { w.send(b, b.to(lie)) }); errorsFrom(got, b.ip) > 0 {
			w.leak("IPv%d, a third pod's error about a connection (opened: %v) arrived", family, opened)
		}
	}
}

func errorsFrom(frames [][]byte, src netip.Addr) (n int) {
	for _, f := range frames {
		if at := map[bool]int{true: 26, false: 22}[src.Is4()]; errorsIn([][]byte{f}) == 1 && string(f[at:at+len(src.AsSlice())]) == string(src.AsSlice()) {
			n++
		}
	}
	return n
}

// bulk sends 200 kB over TCP and takes them back.
func (w *world) bulk(from cluster.Pod, to netip.AddrPort) error {
	_, err := w.RunIn(w.ctx, from.NetNS, w.Bin+"/probe", "bulk", to.String())
	return err
}

// narrowed looks at pods, which know nothing of their ways, while the links between the nodes have a smaller MTU than theirs. Netplugin looks at
// its node's link too, every half minute, and gives pods the MTU that it finds: there was nothing to be seen then, and after their own is back it
// is looked again.
func (w *world) narrowed(mtu int, look func() error) {
	w.Helper()
	w.alone("narrows the links of both nodes")
	const whole = 1500
	set := func(ctx context.Context, mtu int) {
		for _, node := range []string{"node1", "node2"} {
			_, err := w.RunIn(ctx, w.NodeNS(node), "ip", "link", "set", "eth0", "mtu", fmt.Sprint(mtu))
			w.must(err)
		}
	}
	own := func() error {
		for name, pod := range w.pods {
			text, err := w.RunIn(w.ctx, pod.NetNS, "ip", "-o", "link", "show", "eth0")
			if err != nil {
				return err
			}
			if !strings.Contains(text, fmt.Sprintf(" mtu %d ", whole)) {
				return fmt.Errorf("pod %s has not its own MTU: %s", name, text)
			}
		}
		return nil
	}
	w.Cleanup(func() { set(context.Background(), whole) })
	for {
		w.forgetWays()
		set(w.ctx, mtu)
		seen, followed := look(), own()
		set(w.ctx, whole)
		cluster.Undisturbed(w.ctx, 2*time.Second) // netplugin may be at it with the narrow one
		w.must(cluster.Until(w.ctx, time.Minute, own))
		if followed == nil {
			w.must(seen)
			return
		}
		w.Logf("looked again: %v", followed)
	}
}

// forgetWays has pods know nothing of how large packets may be on their ways: who has learnt it tells it the other end of a connection (the kernel's
// MSS is of the path), and the other then has nothing to learn.
func (w *world) forgetWays() {
	w.Helper()
	for _, pod := range w.pods {
		for _, family := range []string{"-4", "-6"} {
			_, err := w.RunIn(w.ctx, pod.NetNS, "ip", family, "route", "flush", "cache")
			w.must(err)
		}
	}
}

// pathMTU is what a pod has learnt of the way to an address; 0: nothing.
func (w *world) pathMTU(from cluster.Pod, to netip.Addr) (mtu int) {
	w.Helper()
	text, err := w.RunIn(w.ctx, from.NetNS, "ip", "route", "get", to.String())
	w.must(err)
	if _, after, ok := strings.Cut(text, " mtu "); ok {
		_, err = fmt.Sscan(after, &mtu)
		w.must(err)
	}
	return mtu
}

// Path MTU discovery works where both ends are isolated, directly and through a Service: the way between the nodes is narrower
// than the pods' links, and the node that finds out says so to the pod.
func TestPathMTU(t *testing.T) {
	if *mode == "geneve" {
		t.Skip("a narrower way between the nodes is not told to what is inside of tunnels (docs/decisions/005); TestGeneve shows their MTU")
	}
	w := setup(t)
	ns := threePods(w)
	c := service(w, ns, "c")
	w.isolate(ns)
	w.settles(through(w, c, "a", true))
	kernel, err := w.KernelDatapath(w.ctx, "node1")
	w.must(err)
	unlearned := translatesInSwitch() && !kernel // over IPv6, by Services: docs/decisions/036, Consequences
	const narrow = 1300
	w.narrowed(narrow, func() error {
		var wrong []error
		for _, f := range families {
			to, _ := w.pods["c"].IP(f)
			if err := w.bulk(w.pods["a"], netip.AddrPortFrom(to, 80)); err != nil {
				wrong = append(wrong, fmt.Errorf("IPv%d: %w", f, err))
			}
			back, _ := w.pods["a"].IP(f)
			for pod, ip := range map[string]netip.Addr{"a": to, "c": back} {
				if mtu := w.pathMTU(w.pods[pod], ip); mtu != narrow {
					wrong = append(wrong, fmt.Errorf("IPv%d: %s believes the path's MTU to be %d: nothing was shown", f, pod, mtu))
				}
			}
		}
		for _, e := range c {
			if e.Proto != "tcp" || unlearned && e.To.Is6() {
				continue
			}
			if err := w.bulk(w.pods["a"], netip.AddrPortFrom(e.To, uint16(e.Port))); err != nil {
				wrong = append(wrong, fmt.Errorf("through the Service %v: %w", e.To, err))
			}
		}
		return errors.Join(wrong...)
	})
	w.settles(w.open("a", "c", "udp", 80, "still"), w.shut("b", "a", "icmp", 0, "still isolated"))
}
