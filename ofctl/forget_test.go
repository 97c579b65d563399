package ofctl_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// A real switch forgets the connections of one address, whichever end it is, in one zone, and no others.
func TestForgetIsOfOneAddressAndOneZone(t *testing.T) {
	sw := ovstest.Start(t, 2)
	sw.OFCtl(t, "add-flow", "ip,actions=ct(commit,zone=7),ct(commit,zone=8),output:2")
	sw.OFCtl(t, "add-flow", "ipv6,actions=ct(commit,zone=7),output:2")
	for _, pair := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"10.0.0.2", "10.0.0.3"}, {"10.0.0.3", "10.0.0.1"}, {"fd00::1", "fd00::2"}, {"fd00::2", "fd00::3"}} {
		header := fmt.Sprintf("eth_type(0x0800),ipv4(src=%s,dst=%s,proto=17,tos=0,ttl=64,frag=no)", pair[0], pair[1])
		if strings.Contains(pair[0], ":") {
			header = fmt.Sprintf("eth_type(0x86dd),ipv6(src=%s,dst=%s,label=0,proto=17,tclass=0,hlimit=64,frag=no)", pair[0], pair[1])
		}
		sw.AppCtl(t, "netdev-dummy/receive", "p1", "in_port(1),eth(src=50:54:00:00:00:01,dst=50:54:00:00:00:02),"+header+",udp(src=1000,dst=80)")
	}
	holds := func(zone, want int, text string) {
		t.Helper()
		dump := ""
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); { // packets are forwarded beside
			if dump = sw.AppCtl(t, "dpctl/dump-conntrack", fmt.Sprintf("zone=%d", zone)); strings.Count(dump, text) == want {
				return
			}
		}
		t.Errorf("zone %d: want %d times %q:\n%s", zone, want, text, dump)
	}
	holds(7, 5, "udp,orig=")
	holds(8, 3, "udp,orig=")
	s := connect(t, sw)
	for _, a := range []string{"10.0.0.1", "fd00::3"} {
		if err := s.ForgetConnections(t.Context(), 7, netip.MustParseAddr(a)); err != nil {
			t.Fatal(err)
		}
	}
	holds(7, 2, "udp,orig=")
	holds(7, 1, "orig=(src=10.0.0.2,dst=10.0.0.3")
	holds(7, 1, "orig=(src=fd00::1,dst=fd00::2")
	holds(8, 3, "udp,orig=")
}

// Open vSwitch 3.1 aborts when it is to forget an ICMPv6 connection: it is not asked to.
func TestForgettingDoesNotEndTheSwitch(t *testing.T) {
	sw := ovstest.Start(t, 2)
	sw.OFCtl(t, "add-flow", "ipv6,actions=ct(commit,zone=7),output:2")
	sw.AppCtl(t, "netdev-dummy/receive", "p1", "in_port(1),eth(src=50:54:00:00:00:01,dst=50:54:00:00:00:02),eth_type(0x86dd),ipv6(src=fd00::1,dst=fd00::2,label=0,proto=58,tclass=0,hlimit=64,frag=no),icmpv6(type=128,code=0)")
	for deadline := time.Now().Add(time.Minute); !strings.Contains(sw.AppCtl(t, "dpctl/dump-conntrack"), "icmpv6,orig="); {
		if time.Now().After(deadline) {
			t.Fatal("no ICMPv6 connection: nothing would be shown")
		}
	}
	s := connect(t, sw)
	for _, a := range []string{"fd00::1", "fd00::2"} {
		if err := s.ForgetConnections(t.Context(), 7, netip.MustParseAddr(a)); err != nil {
			t.Fatal(err)
		}
	}
	sw.AppCtl(t, "version")
}

// asked is one message that a slow switch was sent, a barrier or another; answer lets the barrier go.
type asked struct {
	kind   byte
	answer func()
}

// OpenFlow 1.3.5, A.1: types of messages.
const (
	barrierRequest = 20
	barrierReply   = 21
)

// slowSwitch shakes hands and answers a barrier when it is told to.
func slowSwitch(t *testing.T) (s *ofctl.Session, messages chan asked) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mgmt")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	messages = make(chan asked, 100)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for r := bufio.NewReader(conn); ; {
			head := make([]byte, 8)
			if _, err := io.ReadFull(r, head); err != nil {
				return
			}
			if _, err := io.CopyN(io.Discard, r, int64(binary.BigEndian.Uint16(head[2:]))-8); err != nil {
				return
			}
			binary.BigEndian.PutUint16(head[2:], 8)
			if head[1] == 0 { // hello
				_, _ = conn.Write(head) // the session tells
				continue
			}
			kind := head[1]
			head[1] = barrierReply
			messages <- asked{kind, func() { _, _ = conn.Write(head) }}
		}
	}()
	if s, err = ofctl.Connect(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, messages
}

// A switch that is long about forgetting, as one with many connections is, takes other requests meanwhile.
func TestOthersNeedNotWaitForForgetting(t *testing.T) {
	s, messages := slowSwitch(t)
	done := make(chan string, 2)
	failed := make(chan error, 2)
	call := func(name string, f func() error) { failed <- f(); done <- name }
	go call("forget", func() error { return s.ForgetConnections(t.Context(), 7, netip.MustParseAddr("10.0.0.1")) })
	first := []asked{<-messages, <-messages}
	go call("other", func() error { return s.Barrier(t.Context()) })
	time.AfterFunc(50*time.Millisecond, first[1].answer) // the other one waits by then
	go func() {
		for m := range messages {
			if m.kind == barrierRequest {
				time.AfterFunc(20*time.Millisecond, m.answer)
			}
		}
	}()
	for range 2 {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
	if name := <-done; name != "other" {
		t.Errorf("first came %s", name)
	}
}

// A call whose time ends while it waits for its turn does not end the session of those whose turn it is.
func TestACallThatComesTooLateEndsAlone(t *testing.T) {
	s, messages := slowSwitch(t)
	early := make(chan error)
	go func() { early <- s.Barrier(t.Context()) }()
	first := <-messages
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	late := make(chan error)
	go func() { late <- s.Barrier(ctx) }()
	select {
	case err := <-late:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the late call: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the late call waits on")
	}
	first.answer()
	if err := <-early; err != nil {
		t.Errorf("the early call: %v", err)
	}
}
