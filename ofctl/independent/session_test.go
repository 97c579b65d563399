package independent

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"

	"github.com/contiv/libOpenflow/openflow13"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// flowRequest reports whether a message requests a table's flows.
func flowRequest(m []byte, table uint8) bool {
	return m[1] == openflow13.Type_MultiPartRequest && len(m) > multipartHeader && m[multipartHeader] == table &&
		binary.BigEndian.Uint16(m[headerSize:]) == openflow13.MultipartType_Flow
}

// between listens in front of a switch, and calls before each message that it passes on to it.
func between(t *testing.T, sw *ovstest.Switch, before func(message []byte)) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "between")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		here, err := l.Accept()
		if err != nil {
			return
		}
		defer here.Close()
		there, err := net.Dial("unix", sw.Management())
		if err != nil {
			t.Error(err)
			return
		}
		defer there.Close()
		go func() { _, _ = io.Copy(here, there) }()
		head := make([]byte, headerSize)
		for {
			if _, err := io.ReadFull(here, head); err != nil {
				return
			}
			message := append([]byte{}, head...)
			message = append(message, make([]byte, int(binary.BigEndian.Uint16(head[2:]))-headerSize)...)
			if _, err := io.ReadFull(here, message[headerSize:]); err != nil {
				return
			}
			before(message)
			if _, err := there.Write(message); err != nil {
				return
			}
		}
	}()
	return socket
}

// TestSession_TableThatChanges: a table that changes between the requests for its size and for its flows is read again,
// and is named if it changes each time.
func TestSession_TableThatChanges(t *testing.T) {
	const table = 31
	for name, test := range map[string]struct{ changes, reads, flows int }{
		"never":     {0, 1, 1},
		"once":      {1, 2, 2},
		"each time": {maxReads, maxReads, -1},
	} {
		t.Run(name, func(t *testing.T) {
			sw := ovstest.Start(t, 1)
			sw.OFCtl(t, "add-flow", fmt.Sprintf("table=%d,priority=1,actions=drop", table))
			reads := 0
			socket := between(t, sw, func(m []byte) {
				if !flowRequest(m, table) {
					return
				}
				if reads++; reads <= test.changes {
					sw.OFCtl(t, "add-flow", fmt.Sprintf("table=%d,priority=%d,actions=drop", table, 1+reads))
				}
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s, err := connect(ctx, socket)
			if err != nil {
				t.Fatal(err)
			}
			flows, ok, err := s.read(ctx, table)
			if err != nil || reads != test.reads || ok != (test.flows >= 0) || ok && len(flows) != test.flows {
				t.Errorf("%d flows, %v, in %d reads, %v", len(flows), ok, reads, err)
			}
		})
	}
}
