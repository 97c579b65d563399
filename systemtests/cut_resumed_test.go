package systemtests

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// conversation is a TCP connection of which both ends are held here.
type conversation struct {
	name           string
	client, server net.Conn
}

// converse has a client pod connect to a server pod, and a word go each way.
func (w *world) converse(client, server string, family, port int) *conversation {
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
	listener, err := at.Listen(to)
	w.must(err)
	defer listener.Close()
	c := &conversation{name: fmt.Sprintf("%s → %s at %v", client, server, to)}
	c.client, err = from.Dial("tcp", to, cluster.Stretch(settling))
	w.must(err)
	w.Cleanup(func() { c.client.Close() })
	c.server, err = listener.Accept()
	w.must(err)
	w.Cleanup(func() { c.server.Close() })
	w.hears(c, c.client, c.server, "hello")
	w.hears(c, c.server, c.client, "hello yourself")
	return c
}

// heard sends a word and gives what came of it, and of those that waited before it, in time.
func heard(from, to net.Conn, word string, limit time.Duration) (string, error) {
	if _, err := io.WriteString(from, word); err != nil {
		return "", err
	}
	if err := to.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	buf := make([]byte, 1024)
	n, err := to.Read(buf)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return string(buf[:n]), err
}

func (w *world) hears(c *conversation, from, to net.Conn, word string) {
	w.Helper()
	if got, err := heard(from, to, word, settling); err != nil || got == "" {
		w.Errorf("%s: heard %q of %q (%v)", c.name, got, word, err)
	}
}

// silent sends a word along each of the conversations, from the servers or from the clients, and wants none of them heard.
func (w *world) silent(list []*conversation, fromServers bool, why string) {
	w.Helper()
	for _, c := range list {
		_, err := io.WriteString(c.ends(fromServers).from, "is anybody there")
		w.must(err)
	}
	deadline := time.Now().Add(cluster.Stretch(2 * time.Second))
	for _, c := range list {
		to := c.ends(fromServers).to
		w.must(to.SetReadDeadline(deadline))
		buf := make([]byte, 1024)
		switch n, err := to.Read(buf); {
		case n > 0:
			w.leak("%s, from its server %t: received %q (%v) %s", c.name, fromServers, buf[:n], err, why)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			w.Errorf("%s, from its server %v: %v", c.name, fromServers, err)
		}
	}
}

type direction struct{ from, to net.Conn }

func (c *conversation) ends(fromServer bool) direction {
	if fromServer {
		return direction{c.server, c.client}
	}
	return direction{c.client, c.server}
}

// A connection that was cut stays so when conntrack has lost it: what its server still sends, though it may open connections of its own, is not taken for
// the first of one, and no door for its client. What is allowed goes on when its client speaks, and where no policy isolates either and their nodes have no
// tunnel, whoever speaks. The userspace datapath loses it when ovs-vswitchd starts again; the kernel's does when it is told to forget.
func TestWhatWasCutIsNotResumed(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.run(ns, "d@node2", "e@node1")
	const port = 9000
	var told, cut, kept, near, free []*conversation
	for _, ip := range w.pods["b"].IPs {
		family := 4
		if ip.Is6() {
			family = 6
		}
		told = append(told, w.converse("a", "b", family, port))
		cut = append(cut, w.converse("a", "b", family, port+1), w.converse("d", "b", family, port+2), w.converse("e", "c", family, port+3))
		kept, near = append(kept, w.converse("c", "b", family, port+4)), append(near, w.converse("a", "e", family, port+5))
		free = append(free, w.converse("a", "c", family, port+6))
	}
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]}`)
	w.policy(ns, "e", `{podSelector: {matchLabels: {app: e}}, policyTypes: [Egress]}`)
	inForce := func() {
		w.settles(w.open("c", "b", "tcp", 80, "its rule"), w.shut("a", "b", "tcp", 80, "no rule"), w.shut("d", "b", "tcp", 80, "no rule"), w.shut("e", "c", "tcp", 80, "no rule"))
	}
	inForce()
	w.silent(told, false, "though it was cut")
	w.silent(told, true, "though it was cut")
	// What is said before is said again, later and later: so the others have said nothing yet.
	w.loseConnections("node1")
	inForce()
	w.silent(cut, true, "though it was cut before conntrack lost it")
	w.silent(cut, false, "though it was cut before conntrack lost it")
	w.silent(told, true, "though it was cut, and told so, before conntrack lost it")
	if *mode != "geneve" {
		for _, c := range free {
			w.hears(c, c.server, c.client, "here is more")
		}
	}
	for _, c := range slices.Concat(kept, near, free) {
		w.hears(c, c.client, c.server, "where were we")
		w.hears(c, c.server, c.client, "here")
	}
}

// loseConnections has a node's switch forget all connections: with the userspace datapath by the death of ovs-vswitchd, which the kernel's survives.
func (w *world) loseConnections(node string) {
	w.Helper()
	kernel, err := w.KernelDatapath(w.ctx, node)
	w.must(err)
	if !kernel {
		w.again(node + "-vswitchd")
		w.must(w.Kill(w.ctx, node+"-vswitchd"))
		w.must(w.Start(w.ctx, node+"-vswitchd"))
		return
	}
	loose, err := w.RunIn(w.ctx, w.NodeNS(node), "cat", "/proc/sys/net/netfilter/nf_conntrack_tcp_loose")
	w.must(err)
	if strings.TrimSpace(loose) != "1" {
		w.Fatalf("nf_conntrack_tcp_loose is %q: then the kernel takes up no connection in its middle, and nothing is shown", loose)
	}
	w.must(w.ForgetConnections(w.ctx, node))
}
