package systemtests

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// answerTime is how long a client may wait for the error after a pod was deleted.
const answerTime = time.Second

// absentClient is a connection of a client to a pod that is about to end.
type absentClient struct {
	name string
	conn net.Conn
	want syscall.Errno // for what is sent when the pod is gone
}

// TestClientsOfAnAbsentPodSeeErrors: the clients of a pod that ends without a word, on its node, on another one and by a
// Service, see an error within a second, as do those that connect then. One that policies deny the address sees nothing, and
// a flood is answered at a bounded rate.
func TestClientsOfAnAbsentPodSeeErrors(t *testing.T) {
	w := setup(t)
	w.absentPods(w.namespace("absent", nil))
}

// absent runs the same where nodes have tunnels.
func (w *tunnelled) absent() { w.absentPods(w.namespace("absent", nil)) }

func (w *world) absentPods(ns string) {
	w.Helper()
	w.run(ns, "server@node2", "near@node2", "far@node1", "denied@node2")
	w.policy(ns, "denied", `{podSelector: {matchLabels: {app: denied}}, policyTypes: [Egress]}`)
	svc := service(w, ns, "server")
	w.pods["far-node"] = cluster.Pod{Name: "far-node", Node: "node1", NetNS: w.NodeNS("node1")}
	w.pods["near-node"] = cluster.Pod{Name: "near-node", Node: "node2", NetNS: w.NodeNS("node2")}
	w.settles(everyProto(w, "near", "server", true, "no policy"), everyProto(w, "far", "server", true, "no policy"),
		w.shut("denied", "server", "tcp", 80, "isolated"), through(w, svc, "far", true), through(w, svc, "near", true))
	server := w.pods["server"]
	var clients []absentClient
	for _, from := range []string{"near", "far"} {
		for _, to := range server.IPs {
			clients = append(clients, w.absentClient(from, "tcp", to, 80), w.absentClient(from, "udp", to, 80))
		}
		for _, e := range svc {
			if e.Proto == "tcp" { // kube-proxy deletes the entries of UDP clients
				clients = append(clients, w.absentClient(from, "tcp", e.To, uint16(e.Port)))
			}
		}
	}
	w.vanish(ns, "server")
	for _, c := range clients {
		w.wantsError(&c)
	}
	for _, from := range []string{"near", "far", "near-node", "far-node"} {
		for _, to := range server.IPs {
			w.wantsRefusal(from, to)
		}
	}
	for _, to := range server.IPs {
		if _, err := w.connects("denied", to, answerTime); !errors.Is(err, os.ErrDeadlineExceeded) {
			w.Errorf("a denied pod connects to %v: %v, want no answer", to, err)
		}
	}
	w.floodsAbsent(server.IPs[0])
}

// absentClient connects, and exchanges a message: the connection is established.
func (w *world) absentClient(from, proto string, to netip.Addr, port uint16) absentClient {
	w.Helper()
	c := absentClient{name: fmt.Sprintf("%s over %s to %v, port %d", from, proto, to, port), want: syscall.ECONNRESET}
	if proto == "udp" {
		c.want = syscall.ECONNREFUSED
	}
	ns, err := cluster.EnterNetNS(w.pods[from].NetNS)
	w.must(err)
	defer ns.Close()
	c.conn, err = ns.Dial(proto, netip.AddrPortFrom(to, port), settling)
	w.must(err)
	w.Cleanup(func() { _ = c.conn.Close() })
	w.must(c.conn.SetDeadline(time.Now().Add(settling)))
	_, err = c.conn.Write([]byte("ping"))
	w.must(err)
	if _, err := c.conn.Read(make([]byte, 9)); err != nil {
		w.Fatalf("%s: %v", c.name, err)
	}
	return c
}

// vanish ends a pod so that its clients hear nothing of its end.
func (w *world) vanish(ns, name string) {
	w.Helper()
	pod := w.pods[name]
	_, err := w.RunIn(w.ctx, pod.NetNS, "ip", "link", "set", "eth0", "down")
	w.must(err)
	w.must(w.DeletePod(w.ctx, ns, name))
	for _, ip := range pod.IPs {
		w.awaitFree(pod.Node, ip)
	}
}

// wantsRefusal connects from a pod, and fails the test unless that is refused within answerTime.
func (w *world) wantsRefusal(from string, to netip.Addr) {
	w.Helper()
	began := time.Now()
	took, err := w.connects(from, to, settling)
	if !errors.Is(err, syscall.ECONNREFUSED) {
		w.Errorf("%s connects to %v: %v after %v, want it refused", from, to, err, took)
		return
	}
	w.within(answerTime, took, began, "%s connects to %v: refused", from, to)
}

// wantsError sends by a connection, and waits for the error that comes of it.
func (w *world) wantsError(c *absentClient) {
	w.Helper()
	began := time.Now()
	w.must(c.conn.SetDeadline(began.Add(settling)))
	_, err := c.conn.Write([]byte("ping"))
	if err == nil {
		_, err = c.conn.Read(make([]byte, 9))
	}
	took := time.Since(began)
	if !errors.Is(err, c.want) {
		w.Errorf("%s: %v after %v, want %v", c.name, err, took, c.want)
		return
	}
	w.within(answerTime, took, began, "%s: %v", c.name, c.want)
}

func (w *world) connects(from string, to netip.Addr, limit time.Duration) (took time.Duration, err error) {
	w.Helper()
	ns, err := cluster.EnterNetNS(w.pods[from].NetNS)
	w.must(err)
	defer ns.Close()
	began := time.Now()
	conn, err := ns.Dial("tcp", netip.AddrPortFrom(to, 80), limit)
	if err == nil {
		_ = conn.Close()
	}
	return time.Since(began), err
}

// floodsAbsent has near send more than is answered. Another client is answered meanwhile.
func (w *world) floodsAbsent(to netip.Addr) {
	w.Helper()
	const perSecond, burst, datagrams = 50, 50, 20000 // of a port's meter
	counted := func(name string, labels ...string) float64 {
		n, err := w.Metric(w.ctx, "node2-netplugin", name, labels...)
		w.must(err)
		return n
	}
	const answers, suppressed = "flowkeep_netplugin_answers_total", "flowkeep_netplugin_answers_suppressed_total"
	before, began := counted(answers), time.Now()
	byMeter := counted(suppressed, `reason="meter"`)
	ns, err := cluster.EnterNetNS(w.pods["near"].NetNS)
	w.must(err)
	defer ns.Close()
	conn, err := ns.Dial("udp", netip.AddrPortFrom(to, 80), settling)
	w.must(err)
	defer conn.Close()
	for range datagrams {
		_, _ = conn.Write([]byte("flood")) // some fail with the error about an earlier one
	}
	w.wantsRefusal("far", to) // during the flood
	w.must(cluster.Until(w.ctx, settling, func() error {
		if counted(suppressed, `reason="meter"`) == byMeter {
			return errors.New("no meter has suppressed anything")
		}
		return nil
	}))
	took, got := time.Since(began), counted(answers)-before
	w.Logf("of %d datagrams in a row %v packets were answered in %v", datagrams, got, took)
	if limit := burst + perSecond*took.Seconds() + 20; got > limit {
		w.Errorf("%v answers in %v, want at most %v", got, took, limit)
	}
}
