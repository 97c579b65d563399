package systemtests

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// pushed is what a UDP server sends a client that has asked once and says nothing more: it goes on unasked until the test ends, whatever becomes of it.
type pushed struct {
	name string
	came atomic.Int64 // datagrams, at the client
}

// pushPause is between two of them: less than any tracker of connections waits before it forgets one.
const pushPause = 20 * time.Millisecond

func (w *world) push(client, server string, family, port int) *pushed {
	w.Helper()
	at, err := cluster.EnterNetNS(w.pods[server].NetNS)
	w.must(err)
	defer at.Close()
	from, err := cluster.EnterNetNS(w.pods[client].NetNS)
	w.must(err)
	defer from.Close()
	ip, ok := w.pods[server].IP(family)
	if !ok {
		w.Fatalf("%s has no IPv%d address", server, family)
	}
	to := netip.AddrPortFrom(ip, uint16(port))
	sends, err := at.ListenUDP(to)
	w.must(err)
	w.Cleanup(func() { sends.Close() })
	hears, err := from.Dial("udp", to, 0)
	w.must(err)
	w.Cleanup(func() { hears.Close() })
	_, err = hears.Write([]byte("tell me"))
	w.must(err)
	w.must(sends.SetReadDeadline(time.Now().Add(cluster.Stretch(5 * time.Second))))
	_, asker, err := sends.ReadFromUDPAddrPort(make([]byte, 64))
	w.must(err)
	p := &pushed{name: fmt.Sprintf("what %s sends %s unasked from %v", server, client, to)}
	go p.send(sends, asker)
	go p.hear(hears)
	return p
}

func (p *pushed) send(server *net.UDPConn, client netip.AddrPort) {
	pace := time.NewTicker(pushPause)
	defer pace.Stop()
	for range pace.C {
		if _, err := server.WriteToUDPAddrPort([]byte("news"), client); errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

func (p *pushed) hear(client net.Conn) {
	buf := make([]byte, 64)
	for {
		_, err := client.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			p.came.Add(1)
		}
	}
}

// arrives waits until more of each has come.
func (w *world) arrives(list []*pushed) {
	w.Helper()
	for _, p := range list {
		before := p.came.Load()
		w.must(cluster.Until(w.ctx, settling, func() error {
			if p.came.Load() == before {
				return fmt.Errorf("%s does not arrive", p.name)
			}
			return nil
		}))
	}
}

// A UDP server that goes on sending to a client that was cut is not heard any more a second later, though nothing isolates it against the client: whose packets answer whom is known.
// It is so on one node and between two, and whether the policy is the server's or the client's. Who may go on hears on.
func TestAServerIsNotHeardAfterTheCut(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.run(ns, "d@node1", "e@node2")
	const port = 9100
	var cut, kept []*pushed
	for _, ip := range w.pods["b"].IPs {
		family := 4
		if ip.Is6() {
			family = 6
		}
		cut = append(cut, w.push("a", "b", family, port), w.push("c", "b", family, port+1), w.push("d", "e", family, port), w.push("d", "a", family, port))
		kept = append(kept, w.push("e", "b", family, port+2), w.push("d", "c", family, port))
	}
	w.arrives(cut)
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: e}}}]}]}`)
	w.policy(ns, "d", `{podSelector: {matchLabels: {app: d}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: c}}}]}]}`)
	r := w.revoked(time.Now())
	w.settles(w.shut("a", "b", "udp", 80, "no rule"), w.shut("c", "b", "udp", 80, "no rule"), w.shut("d", "e", "udp", 80, "no rule"), w.shut("d", "a", "udp", 80, "no rule"))
	cluster.Undisturbed(w.ctx, cluster.Stretch(ended))
	w.awaitSilence(r, cluster.Window(time.Second), func(window time.Duration) (alive []string) {
		before := make([]int64, len(cut))
		for i, p := range cut {
			before[i] = p.came.Load()
		}
		cluster.Undisturbed(w.ctx, window)
		for i, p := range cut {
			if more := p.came.Load() - before[i]; more > 0 {
				alive = append(alive, fmt.Sprintf("%s: %d datagrams came after the connection was revoked", p.name, more))
			}
		}
		return alive
	})
	w.arrives(kept)
}
