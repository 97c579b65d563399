package systemtests

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// pushing is a UDP client of a Service, and the server behind it, of which both ends are held here.
type pushing struct {
	client  net.Conn
	server  net.PacketConn
	to      net.Addr // the client, as the server sees it
	service netip.AddrPort
}

// sendsUnasked sends a word from the server, unasked.
func (w *world) sendsUnasked(p *pushing, word []byte) {
	w.Helper()
	_, err := p.server.WriteTo(word, p.to)
	w.must(err)
}

// pushers are a client and a server for each family, of a Service of port 8001 in front of a pod on another node.
func (w *world) pushers(ns, client, server string) (list []*pushing) {
	w.Helper()
	w.apply(ns, fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: push}, spec: {ipFamilyPolicy: PreferDualStack, selector: {app: %s}, ports: [{port: 8001, targetPort: 9100, protocol: UDP}]}}`, server))
	services, err := w.ServiceIPs(w.ctx, ns, "push")
	w.must(err)
	at, err := cluster.EnterNetNS(w.pods[server].NetNS)
	w.must(err)
	defer at.Close()
	from, err := cluster.EnterNetNS(w.pods[client].NetNS)
	w.must(err)
	defer from.Close()
	for _, ip := range services {
		p := &pushing{service: netip.AddrPortFrom(ip, 8001)}
		family := 4
		if ip.Is6() {
			family = 6
		}
		here, _ := w.pods[server].IP(family)
		p.server, err = at.ListenUDP(netip.AddrPortFrom(here, 9100))
		w.must(err)
		w.Cleanup(func() { p.server.Close() })
		p.client, err = from.Dial("udp", p.service, settling)
		w.must(err)
		w.Cleanup(func() { p.client.Close() })
		list = append(list, p)
	}
	return list
}

// meet has the client ask until the server has heard it, and the server answer until the client has.
func (w *world) meet(p *pushing) {
	w.Helper()
	w.must(cluster.Until(w.ctx, settling, func() error {
		if _, err := p.client.Write([]byte("hello")); err != nil {
			return err
		}
		buf := make([]byte, 64)
		err := p.server.SetReadDeadline(time.Now().Add(time.Second))
		if err == nil {
			_, p.to, err = p.server.ReadFrom(buf)
		}
		if err == nil {
			_, err = p.server.WriteTo([]byte("hello yourself"), p.to)
		}
		if err == nil {
			err = p.client.SetReadDeadline(time.Now().Add(time.Second))
		}
		if err == nil {
			_, err = p.client.Read(buf)
		}
		if err != nil {
			err = fmt.Errorf("through %v: %w", p.service, err)
		}
		return err
	}))
}

// notHeard has the server push for a while, and wants nothing of it at the client's link.
func (w *world) notHeard(p *pushing, client, why string) {
	w.Helper()
	word := token()
	frames := w.heard(w.pods[client], word, func() {
		for range 20 {
			w.sendsUnasked(p, word)
		}
	})
	if len(frames) > 0 {
		w.leak("through %v: %d of 20 datagrams reached %s, %s", p.service, len(frames), client, why)
	}
}

// What a server on another node goes on to send by a Service, unasked, ends with the client's permission, and comes back with it. A Service that the client may not
// reach is no way back for the server either.
func TestWhatServicesPushIsCut(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	list := w.pushers(ns, "a", "c")
	for _, p := range list {
		w.meet(p)
	}
	w.policy(ns, "a", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress]}`)
	w.settles(w.shut("a", "c", "udp", 80, "no egress"))
	for _, p := range list {
		w.notHeard(p, "a", "whose egress was taken away")
	}
	w.deletePolicy(ns, "a")
	w.settles(w.open("a", "c", "udp", 80, "no policy"))
	for _, p := range list {
		w.meet(p)
	}
	w.policy(ns, "a", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Ingress, Egress]}`)
	w.settles(w.shut("a", "c", "udp", 80, "no egress"), w.shut("c", "a", "udp", 80, "no ingress"))
	for _, p := range list {
		port := p.client.LocalAddr().(*net.UDPAddr).Port + 1
		asked := w.fresh("a", p.service, port)
		_, err := asked.Write([]byte("is anybody there"))
		w.must(err)
		unasked := *p
		unasked.to = &net.UDPAddr{IP: p.to.(*net.UDPAddr).IP, Port: port}
		w.notHeard(&unasked, "a", "which had asked in vain, and lets nobody in")
	}
}

// fresh is a UDP socket of a pod on a port of its own.
func (w *world) fresh(pod string, to netip.AddrPort, port int) net.Conn {
	w.Helper()
	from, err := cluster.EnterNetNS(w.pods[pod].NetNS)
	w.must(err)
	defer from.Close()
	conn, err := from.DialFrom(port, to)
	w.must(err)
	w.Cleanup(func() { conn.Close() })
	return conn
}
