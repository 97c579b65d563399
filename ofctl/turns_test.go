package ofctl

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// asked is one message that a slow switch was sent, a barrier or another; answer lets the barrier go.
type asked struct {
	kind   byte
	answer func()
}

// slowSwitch shakes hands and answers a barrier when it is told to.
func slowSwitch(t *testing.T) (s *Session, messages chan asked) {
	t.Helper()
	here, conn := net.Pipe()
	messages = make(chan asked, 100)
	go func() {
		defer close(messages)
		defer conn.Close()
		for r := bufio.NewReader(conn); ; {
			head := make([]byte, 8)
			if _, err := io.ReadFull(r, head); err != nil {
				return
			}
			body := make([]byte, binary.BigEndian.Uint16(head[2:])-8)
			if _, err := io.ReadFull(r, body); err != nil {
				return
			}
			binary.BigEndian.PutUint16(head[2:], 8)
			if head[1] == typeHello {
				_, _ = conn.Write(head) // the session tells
				continue
			}
			setsID := head[1] == typeExperimenter && binary.BigEndian.Uint32(body[4:]) == niciraSetControllerID
			if head[1] == typeSetConfig || setsID { // the handshake's, which have no reply
				continue
			}
			kind := head[1]
			head[1] = typeBarrierRep
			messages <- asked{kind, func() { _, _ = conn.Write(head) }}
		}
	}()
	s, err := newSession(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, messages
}

// A switch that is long about forgetting, as one with many connections is, takes other requests meanwhile.
func TestOthersNeedNotWaitForForgetting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, messages := slowSwitch(t)
		done := make(chan string, 2)
		failed := make(chan error, 2)
		call := func(name string, f func() error) { failed <- f(); done <- name }
		go call("forget", func() error {
			a := netip.MustParseAddr("10.0.0.1")
			tcp, udp := Connections{Zone: 7, Protocol: 6, Addr: a}, Connections{Zone: 7, Protocol: 17, Addr: a, From: true}
			from := tcp
			from.From = true
			return s.ForgetConnections(t.Context(), from, tcp, udp)
		})
		first := []asked{<-messages, <-messages}
		go call("other", func() error { return s.Barrier(t.Context()) })
		synctest.Wait() // it waits for its turn
		first[1].answer()
		go func() {
			for m := range messages {
				if m.kind == typeBarrierReq {
					time.Sleep(20 * time.Millisecond)
					m.answer()
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
	})
}

// A call whose time ends while it waits for its turn does not end the session of those whose turn it is.
func TestACallThatComesTooLateEndsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, messages := slowSwitch(t)
		early := make(chan error)
		go func() { early <- s.Barrier(t.Context()) }()
		first := <-messages
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := s.Barrier(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the late call: %v", err)
		}
		first.answer()
		if err := <-early; err != nil {
			t.Errorf("the early call: %v", err)
		}
	})
}
