package systemtests

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// TestOneSourcePort: a pod sends from one port to another pod directly, and by Services in front of that pod.
func TestOneSourcePort(t *testing.T) {
	w := setup(t)
	w.oneSourcePort(threePods(w))
}

// oneSourcePort has pod a send to b and c, by each two ways of a family, in both orders.
func (w *world) oneSourcePort(ns string) {
	w.Helper()
	from, err := cluster.EnterNetNS(w.pods["a"].NetNS)
	w.must(err)
	defer from.Close()
	port := 20000
	for _, app := range []string{"b", "c"} {
		ways := w.waysTo(ns, app)
		for _, first := range ways {
			for _, second := range ways {
				if first != second && first.Addr().Is4() == second.Addr().Is4() {
					port++
					w.inTurns(from, port, first, second)
				}
			}
		}
	}
}

// waysTo returns the addresses at which pod a reaches a pod over UDP: its own, and those of two Services.
func (w *world) waysTo(ns, app string) (ways []netip.AddrPort) {
	w.Helper()
	frontends, ports := service(w, ns, app), w.nodePort(ns, app)
	w.settles(through(w, frontends, "a", true), w.at("node1", ports, w.pods["a"], true, "no policy"),
		w.at("node2", ports, w.pods["a"], true, "no policy"))
	for _, ip := range w.pods[app].IPs {
		ways = append(ways, netip.AddrPortFrom(ip, 80))
	}
	other, err := w.ServiceIPs(w.ctx, ns, "np-"+app)
	w.must(err)
	for _, e := range frontends {
		if e.Proto == "udp" {
			ways = append(ways, netip.AddrPortFrom(e.To, uint16(e.Port)))
		}
	}
	for _, ip := range other {
		ways = append(ways, netip.AddrPortFrom(ip, 8000))
	}
	for _, ip := range slices.Concat(w.nodeIPs("node1"), w.nodeIPs("node2")) {
		ways = append(ways, netip.AddrPortFrom(ip, uint16(ports["udp"])))
	}
	return ways
}

// inTurns has a pod send to two addresses in turns, from one port, and fails the test unless each responds.
func (w *world) inTurns(from *cluster.NetNS, port int, ways ...netip.AddrPort) {
	w.Helper()
	for range 3 {
		for _, to := range ways {
			if err := respondsFrom(from, port, to); err != nil {
				w.Errorf("of %v: %v", ways, err)
				return
			}
		}
	}
}

// respondsFrom sends requests from a port to an address until a response comes: a datagram may be lost.
func respondsFrom(from *cluster.NetNS, port int, to netip.AddrPort) error {
	c, err := from.DialFrom(port, to)
	if err != nil {
		return err
	}
	defer c.Close()
	request, response := []byte("8 bytes."), make([]byte, 64)
	for range 4 {
		if _, err = c.Write(request); err != nil {
			continue
		}
		_ = c.SetReadDeadline(time.Now().Add(cluster.Stretch(time.Second)))
		var n int
		if n, err = c.Read(response); err == nil && !bytes.Equal(response[:n], request) {
			err = fmt.Errorf("%q", response[:n])
		}
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("UDP from port %d to %s: no response to 4 requests: %w", port, to, err)
}
