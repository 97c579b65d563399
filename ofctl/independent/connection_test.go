package independent

import (
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/contiv/libOpenflow/openflow13"
	"github.com/contiv/libOpenflow/util"
)

// message returns an OpenFlow message of a type, with a body.
func message(kind uint8, body ...byte) []byte {
	b := []byte{openflow13.VERSION, kind, 0, 0, 0, 0, 0, 7}
	b = append(b, body...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	return b
}

func multipart(request uint16) []byte {
	return message(openflow13.Type_MultiPartRequest, byte(request>>8), byte(request), 0, 0, 0, 0, 0, 0)
}

func marshal(t *testing.T, m util.Message) []byte {
	t.Helper()
	b, err := m.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sentThrough returns the bytes that a connection passes on of messages.
func sentThrough(t *testing.T, messages ...[]byte) []byte {
	t.Helper()
	here, there := net.Pipe()
	c := newConnection(here)
	got := make(chan []byte)
	go func() {
		b, _ := io.ReadAll(there)
		got <- b
	}()
	for _, m := range messages {
		if n, err := c.Write(m); err != nil || n != len(m) {
			t.Errorf("%x: %d, %v", m, n, err)
		}
	}
	here.Close()
	return <-got
}

// TestConnection_ReadsOnly: of all types of messages only those pass that change nothing at a switch.
func TestConnection_ReadsOnly(t *testing.T) {
	passes := map[uint8]bool{
		openflow13.Type_Hello:           true,
		openflow13.Type_EchoRequest:     true,
		openflow13.Type_EchoReply:       true,
		openflow13.Type_FeaturesRequest: true,
	}
	for kind := range uint8(64) {
		m := message(kind, make([]byte, 32)...)
		if kind == openflow13.Type_MultiPartRequest {
			continue
		}
		if got := sentThrough(t, m); len(got) > 0 != passes[kind] {
			t.Errorf("a message of type %d: %d bytes pass", kind, len(got))
		}
	}
	reads := map[uint16]bool{
		openflow13.MultipartType_Flow:        true,
		openflow13.MultipartType_Aggregate:   true,
		openflow13.MultipartType_GroupDesc:   true,
		openflow13.MultipartType_MeterConfig: true,
	}
	for kind := range uint16(20) { // 12 are the features of tables, which a request changes
		if got := sentThrough(t, multipart(kind)); len(got) > 0 != reads[kind] {
			t.Errorf("a multipart request of type %d: %d bytes pass", kind, len(got))
		}
	}
	for name, m := range map[string]util.Message{
		"SET_CONTROLLER_ID": openflow13.NewSetControllerID(1),
		"TLV_TABLE_MOD":     openflow13.NewTLVTableModMessage(openflow13.NewTLVTableMod(openflow13.NXTTMC_CLEAR, nil)),
		"FLOW_MOD":          openflow13.NewFlowMod(),
		"GROUP_MOD":         openflow13.NewGroupMod(),
		"SET_CONFIG":        openflow13.NewSetConfig(),
	} {
		if got := sentThrough(t, marshal(t, m)); len(got) > 0 {
			t.Errorf("%s passes", name)
		}
	}
	if got := sentThrough(t, marshal(t, openflow13.NewTLVTableRequest())); len(got) == 0 {
		t.Error("TLV_TABLE_REQUEST, for which ofnet waits, does not pass")
	}
	c := newConnection(nil)
	two := append(message(openflow13.Type_EchoRequest), message(openflow13.Type_GroupMod)...)
	for _, b := range [][]byte{two, two[:4], nil} {
		if _, err := c.Write(b); err == nil {
			t.Errorf("%x is written", b)
		}
	}
}

// TestConnection_CountsParts: the size of a reply is known with its last part.
func TestConnection_CountsParts(t *testing.T) {
	here, there := net.Pipe()
	part := func(xid, flags byte) []byte {
		b := message(openflow13.Type_MultiPartReply, 0, 1, 0, flags, 0, 0, 0, 0)
		b[7] = xid
		return b
	}
	go func() {
		for _, b := range [][]byte{part(1, 1), message(openflow13.Type_EchoReply), part(2, 0), part(1, 1), part(1, 0)} {
			_, _ = there.Write(b)
		}
		there.Close()
	}()
	c := newConnection(here)
	for _, want := range []int{0, 0, 0, 0, 3} {
		b := make([]byte, 5) // less than a message
		for n := 0; n < headerSize; {
			k, err := c.Read(b)
			if n += k; err != nil {
				t.Fatal(err)
			}
			if len(c.pending) == 0 {
				break
			}
		}
		for len(c.pending) > 0 {
			if _, err := c.Read(b); err != nil {
				t.Fatal(err)
			}
		}
		if got, ok := c.size(1); got != want || ok != (want > 0) {
			t.Errorf("%d parts, %v, want %d", got, ok, want)
		}
	}
	if got, ok := c.size(2); got != 1 || !ok {
		t.Errorf("the other reply has %d parts, %v", got, ok)
	}
	if c.forget(1); len(c.whole) != 1 || len(c.parts) != 1 {
		t.Errorf("after the reply: %v, %v", c.whole, c.parts)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the end of the connection is no error")
	}
}
