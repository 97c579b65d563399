package systemtests

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
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
	c.client, err = from.Dial("tcp", to, cluster.Stretch(5*time.Second))
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

func (w *world) hearsNothing(c *conversation, from, to net.Conn, word, why string) {
	w.Helper()
	if got, err := heard(from, to, word, cluster.Stretch(2*time.Second)); err != nil || got != "" {
		w.Errorf("%s: heard %q (%v) %s", c.name, got, err, why)
	}
}

// A connection that was cut stays so when Open vSwitch starts again and, on the userspace datapath, knows no connection: what its server
// still sends, though it may open connections of its own, is not taken for the first of one, and no door for its client. What is allowed
// goes on when its client speaks, and where no policy isolates either, whoever speaks.
func TestWhatWasCutIsNotResumed(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	const port = 9000
	var cut, kept, free []*conversation
	for _, ip := range w.pods["b"].IPs {
		family := 4
		if ip.Is6() {
			family = 6
		}
		cut, kept = append(cut, w.converse("a", "b", family, port)), append(kept, w.converse("c", "b", family, port+1))
		free = append(free, w.converse("a", "c", family, port+2))
	}
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]}`)
	w.settles(w.open("c", "b", "tcp", 80, "allowed"), w.shut("a", "b", "tcp", 80, "isolated"))
	for _, c := range cut {
		w.hearsNothing(c, c.client, c.server, "let me in", "though it was cut")
		w.hearsNothing(c, c.server, c.client, "are you there", "though it was cut")
	}
	w.must(w.Kill(w.ctx, "node1-vswitchd"))
	w.must(w.Start(w.ctx, "node1-vswitchd"))
	w.settles(w.open("c", "b", "tcp", 80, "allowed"), w.shut("a", "b", "tcp", 80, "isolated"))
	for _, c := range cut {
		w.hearsNothing(c, c.server, c.client, "are you there", "though it was cut before the switch was started again")
		w.hearsNothing(c, c.client, c.server, "let me in", "though it was cut before the switch was started again")
	}
	for _, c := range free {
		w.hears(c, c.server, c.client, "here is more")
		w.hears(c, c.client, c.server, "thank you")
	}
	for _, c := range kept {
		w.hears(c, c.client, c.server, "where were we")
		w.hears(c, c.server, c.client, "here")
	}
}
