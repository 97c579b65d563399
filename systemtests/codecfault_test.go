package systemtests

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// Ports of TestVerifyIndependently_CodecFault: that of the policy, and the one that the switch is sent.
const (
	meantPort = 40711
	sentPort  = 40712
)

// TestVerifyIndependently_CodecFault: the bytes that the switch has differ from what netplugin's decoder shows, as if
// its codec wrote and read one port for another. `netctl verify` shows nothing, `netctl verify --independent` and the
// drift check show both flows.
func TestVerifyIndependently_CodecFault(t *testing.T) {
	w := setup(t)
	w.alone("has a node's flows written with another port")
	ns := threePods(w)
	node := w.pods["b"].Node
	repair := w.faultyCodec(node)
	w.driftChecks(node, "1s")
	w.policy(ns, "one-port", fmt.Sprintf(`{podSelector: {matchLabels: {app: b}},
		ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: %d}]}]}`, meantPort))
	w.settles(w.shut("a", "b", "tcp", 80, "another port than the policy's"))

	text, code := w.verify(node, "--samples", "0")
	if code != 0 || !strings.Contains(text, "fine") {
		t.Errorf("the decoder that has the fault: exit code %d:\n%s", code, text)
	}
	w.awaitVerdict(node, 1, "!!! node "+node, "MISSING", fmt.Sprint("ct_tp_dst=", meantPort), "EXTRA",
		fmt.Sprint("ct_tp_dst=", sentPort), ns+"/one-port ingress[0]", "DIFFERS", "libOpenflow read")

	var status string
	w.must(cluster.Until(w.ctx, settling, func() error {
		found, err := w.Metric(w.ctx, node+"-netplugin", "flowkeep_netplugin_independent_checks_total", `result="differs"`)
		if err == nil && found == 0 {
			err = fmt.Errorf("no drift check has found the fault")
		}
		if err != nil {
			return err
		}
		status, err = w.Netctl(w.ctx, "status")
		if err == nil || !strings.Contains(status, "node "+node+": another decoder reads other flows of the switch") {
			return fmt.Errorf("netctl status (fails: %t):\n%s", err != nil, status)
		}
		return nil
	}))
	t.Logf("netctl status:\n%s", status)

	repair()
	w.awaitVerdict(node, 0, "fine", "libOpenflow read")
}

// awaitVerdict waits until netctl verify --independent of a node has an exit code and prints each of the texts.
func (w *world) awaitVerdict(node string, want int, texts ...string) {
	w.Helper()
	w.must(cluster.Until(w.ctx, settling, func() error {
		text, code := w.verify(node, "--independent", "--samples", "0", "-o", "wide")
		for _, part := range texts {
			if code != want || !strings.Contains(text, part) {
				return fmt.Errorf("exit code %d, want %d, with %q:\n%s", code, want, part, text)
			}
		}
		w.Logf("exit code %d:\n%s", code, text)
		return nil
	}))
}

// faultyCodec gives netplugin's codec on a node a fault, from its next start on: the switch is sent sentPort where
// netplugin means meantPort, and netplugin receives meantPort where the switch has sentPort. The process that reads
// independently is connected to the switch. The returned function repairs the codec; so does the end of the test.
func (w *world) faultyCodec(node string) (repair func()) {
	w.Helper()
	socket := filepath.Join(w.Dir, node, "flowkeep", "ovs", "fk0.mgmt")
	own := strings.TrimSuffix(socket, ".mgmt") + ".real" // of the switch
	w.must(os.Rename(socket, own))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		w.must(os.Rename(own, socket))
		w.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	p := &codecProxy{listener: l, socket: own, conns: map[net.Conn]bool{}}
	p.running.Go(p.serve)
	repair = sync.OnceFunc(func() {
		if err := os.Rename(own, socket); err != nil {
			w.Error(err)
		}
		p.close()
	})
	w.Cleanup(repair)
	return repair
}

// codecProxy is between netplugin and its switch. Connections of all other programs are passed through unchanged.
type codecProxy struct {
	listener *net.UnixListener
	socket   string // of the switch
	running  sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
}

func (p *codecProxy) serve() {
	for {
		client, err := p.listener.AcceptUnix()
		if err != nil {
			return
		}
		server, err := net.Dial("unix", p.socket)
		if err != nil {
			client.Close()
			continue
		}
		if !p.keep(client, server) {
			return
		}
		sent, received := pass, pass
		if isNetplugin(client) {
			sent, received = translate(meantPort, sentPort), translate(sentPort, meantPort)
		}
		p.running.Go(func() { defer client.Close(); defer server.Close(); _ = sent(server, client) })
		p.running.Go(func() { defer client.Close(); defer server.Close(); _ = received(client, server) })
	}
}

// keep notes connections for close; it closes them and returns false if the proxy is closed.
func (p *codecProxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.conns[c] = true; p.closed {
			c.Close()
		}
	}
	return !p.closed
}

func (p *codecProxy) close() {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
}

// isNetplugin reports whether the program at the other end is netplugin, and not its process that reads flows.
func isNetplugin(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var peer *syscall.Ucred
	if raw.Control(func(fd uintptr) {
		peer, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}) != nil || err != nil {
		return false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", peer.Pid))
	args := strings.Split(string(line), "\x00")
	return err == nil && filepath.Base(args[0]) == "netplugin" && (len(args) < 2 || args[1] != "read-flows")
}

func pass(to io.Writer, from io.Reader) error {
	_, err := io.Copy(to, from)
	return err
}

// translate returns a function that passes OpenFlow messages on, with a port replaced by another in all matches.
func translate(port, with uint16) func(to io.Writer, from io.Reader) error {
	match := func(header []byte, port uint16) []byte {
		return binary.BigEndian.AppendUint16(bytes.Clone(header), port)
	}
	headers := [][]byte{
		{0x80, 0x00, 14 << 1, 2},  // OXM_OF_TCP_DST, two bytes
		{0x00, 0x01, 125 << 1, 2}, // NXM_NX_CT_TP_DST
	}
	return func(to io.Writer, from io.Reader) error {
		for {
			message := make([]byte, 8)
			if _, err := io.ReadFull(from, message); err != nil {
				return err
			}
			message = append(message, make([]byte, max(8, int(binary.BigEndian.Uint16(message[2:])))-8)...)
			if _, err := io.ReadFull(from, message[8:]); err != nil {
				return err
			}
			for _, h := range headers {
				message = bytes.ReplaceAll(message, match(h, port), match(h, with))
			}
			if _, err := to.Write(message); err != nil {
				return err
			}
		}
	}
}
