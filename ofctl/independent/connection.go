package independent

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"

	"github.com/contiv/libOpenflow/openflow13"
)

const (
	// headerSize is the size of the header of a message, multipartHeader that of a multipart message up to its body.
	headerSize      = 8
	multipartHeader = 16
	// moreFollows is set in all parts of a multipart reply but the last (OFPMPF_REPLY_MORE).
	moreFollows = 1
	// experimenterHeader is the size of an experimenter message up to its data.
	experimenterHeader = 16
)

// Kinds of messages and multipart requests that change nothing.
var (
	readingMessages = []uint8{
		openflow13.Type_Hello,
		openflow13.Type_EchoRequest,
		openflow13.Type_EchoReply,
		openflow13.Type_FeaturesRequest,
	}
	readingRequests = []uint16{
		openflow13.MultipartType_Flow,
		openflow13.MultipartType_Aggregate,
		openflow13.MultipartType_GroupDesc,
		openflow13.MultipartType_MeterConfig,
	}
)

// connection is a connection to a bridge on which nothing can be changed: it discards every message to the switch that
// is not known to read only. ofnet deletes all groups of a switch that it connects to, and with them the flows that
// name them, and resets the handling of fragments (docs/decisions/028). It also counts the parts of replies, since
// libOpenflow passes them on in any order.
type connection struct {
	net.Conn
	in      *bufio.Reader
	pending []byte // of the message that is being read

	mu    sync.Mutex
	parts map[uint32]int // parts that were read, by transaction
	whole map[uint32]int // the same, once the last part was read
}

func newConnection(conn net.Conn) *connection {
	return &connection{
		Conn:  conn,
		in:    bufio.NewReader(conn),
		parts: map[uint32]int{},
		whole: map[uint32]int{},
	}
}

// Write sends one message, if it reads only. libOpenflow writes each message by one call.
func (c *connection) Write(b []byte) (int, error) {
	if len(b) < headerSize || int(binary.BigEndian.Uint16(b[2:])) != len(b) {
		return 0, fmt.Errorf("%d bytes that are not one OpenFlow message", len(b))
	}
	if !readsOnly(b) {
		return len(b), nil
	}
	n, err := c.Conn.Write(b)
	if err == nil && b[1] == openflow13.Type_Hello {
		_, err = c.Conn.Write(setControllerID)
	}
	return n, err
}

// setControllerID is the message NXT_SET_CONTROLLER_ID (nicira-ext.h) with an ID that no action names. Without it Open
// vSwitch has packets without a flow go to controllers, for as long as it does not know the connection's version.
var setControllerID = []byte{
	openflow13.VERSION, openflow13.Type_Experimenter, 0, 24, 0, 0, 0, 0, // header: version, type, length, transaction
	0x00, 0x00, 0x23, 0x20, 0, 0, 0, 20, // vendor Nicira, subtype
	0, 0, 0, 0, 0, 0, 0xff, 0xfe, // padding, ID
}

// readsOnly reports whether a message changes nothing at the switch.
func readsOnly(b []byte) bool {
	switch kind := b[1]; kind {
	case openflow13.Type_MultiPartRequest:
		return len(b) >= multipartHeader && slices.Contains(readingRequests, binary.BigEndian.Uint16(b[headerSize:]))
	case openflow13.Type_Experimenter:
		return len(b) >= experimenterHeader && binary.BigEndian.Uint32(b[8:]) == openflow13.NxExperimenterID &&
			binary.BigEndian.Uint32(b[12:]) == openflow13.Type_TlvTableRequest
	default:
		return slices.Contains(readingMessages, kind)
	}
}

// Read reads of one message at a time.
func (c *connection) Read(b []byte) (int, error) {
	if len(c.pending) == 0 {
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, c.pending)
	c.pending = c.pending[n:]
	return n, nil
}

// next reads a message, and counts it if it is a part of a reply.
func (c *connection) next() error {
	head, err := c.in.Peek(headerSize)
	if err != nil {
		return err
	}
	size := int(binary.BigEndian.Uint16(head[2:]))
	if size < headerSize {
		return errShort
	}
	message := make([]byte, size)
	if _, err := io.ReadFull(c.in, message); err != nil {
		return err
	}
	c.pending = message
	if message[1] != openflow13.Type_MultiPartReply || size < multipartHeader {
		return nil
	}
	xid := binary.BigEndian.Uint32(message[4:])
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parts[xid]++
	if binary.BigEndian.Uint16(message[10:])&moreFollows == 0 {
		c.whole[xid] = c.parts[xid]
	}
	return nil
}

// size returns the number of parts of a reply; ok is false while the last one has not come.
func (c *connection) size(xid uint32) (n int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok = c.whole[xid]
	return n, ok
}

// forget deletes what is known of a reply.
func (c *connection) forget(xid uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.parts, xid)
	delete(c.whole, xid)
}
