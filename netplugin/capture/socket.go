package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// receiveBuffer is what the kernel keeps of a socket's packets until they are read, in bytes.
const receiveBuffer = 1 << 20

// Received is a frame as the kernel gives it. Data is valid until the next Read.
type Received struct {
	Time      time.Time
	Interface int  // index
	Sent      bool // by this node by that interface; else it was received
	Length    int
	Data      []byte
}

// Socket sees the frames that a filter lets through, of one interface or of all. One goroutine may read, others close.
type Socket struct {
	file *os.File
	raw  interface {
		Read(func(fd uintptr) bool) error
	}
	buf     []byte
	control []byte
	dropped uint64
}

// Open opens a socket on the interface of an index; 0: on all of this network namespace. snap is the most bytes of a frame. No frame is
// ever seen that the program does not let through: the first of these that is short enough for what the kernel gives a socket
// (net.core.optmem_max: 20 KiB before Linux 6.7, of which an instruction takes up to a hundred bytes).
func Open(index, snap int, programs ...[]bpf.RawInstruction) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0) // protocol 0: nothing yet
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	if err := prepare(fd, index, programs); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "packets")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("read packets: %w", err)
	}
	return &Socket{file: file, raw: raw, buf: make([]byte, snap), control: make([]byte, 256)}, nil
}

func attach(fd int, programs [][]bpf.RawInstruction) (err error) {
	for _, program := range programs {
		filter := make([]unix.SockFilter, len(program))
		for i, p := range program {
			filter[i] = unix.SockFilter{Code: p.Op, Jt: p.Jt, Jf: p.Jf, K: p.K}
		}
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
		if !errors.Is(err, unix.ENOMEM) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("the filter is longer than this node's kernel allows: make it shorter, or raise net.core.optmem_max (%w)", err)
	case err != nil:
		return fmt.Errorf("attach the filter: %w", err)
	}
	return nil
}

func prepare(fd, index int, programs [][]bpf.RawInstruction) error {
	if err := attach(fd, programs); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer); err != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer) // what the system lets anybody have
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return fmt.Errorf("have packets' times: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
		return fmt.Errorf("have packets' VLANs: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ALL), Ifindex: index}); err != nil {
		return fmt.Errorf("see the packets of interface %d: %w", index, err)
	}
	return nil
}

func bigEndian(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// Close ends a Read that is under way.
func (s *Socket) Close() error { return s.file.Close() }

// ErrGone is returned when the interface is there no longer, or down.
var ErrGone = errors.New("the interface is gone")

// Read waits for a frame, until a deadline: os.ErrDeadlineExceeded. It fails with os.ErrClosed after Close.
func (s *Socket) Read(deadline time.Time) (Received, error) {
	if err := s.file.SetReadDeadline(deadline); err != nil {
		return Received{}, err
	}
	var n, controlLen int
	var from unix.Sockaddr
	var failed error
	err := s.raw.Read(func(fd uintptr) bool {
		n, controlLen, _, from, failed = unix.Recvmsg(int(fd), s.buf, s.control, unix.MSG_TRUNC)
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
	})
	switch {
	case err != nil:
		return Received{}, err
	case errors.Is(failed, unix.ENETDOWN), errors.Is(failed, unix.ENODEV), errors.Is(failed, unix.ENXIO):
		return Received{}, ErrGone
	case failed != nil:
		return Received{}, fmt.Errorf("read packets: %w", failed)
	}
	r := Received{Length: n, Data: s.buf[:min(n, len(s.buf))]}
	if link, ok := from.(*unix.SockaddrLinklayer); ok {
		r.Interface, r.Sent = link.Ifindex, link.Pkttype == unix.PACKET_OUTGOING
	}
	r.ancillary(s.control[:controlLen])
	r.Data = r.Data[:min(len(r.Data), len(s.buf))]
	return r, nil
}

// auxdata are the offsets in Linux's struct tpacket_auxdata of what is read, and the bits of its status.
const (
	auxLength  = 20
	auxLen     = 4
	auxTCI     = 16
	auxTPID    = 18
	vlanValid  = 1 << 4
	tpidValid  = 1 << 6
	macsLength = 12
)

// ancillary reads when the frame came, and puts the VLAN tag back that the kernel has taken out of it.
func (r *Received) ancillary(control []byte) {
	r.Time = time.Now()
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16:
			r.Time = time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		case m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= auxLength:
			r.auxiliary(m.Data)
		}
	}
}

func (r *Received) auxiliary(aux []byte) {
	status := binary.NativeEndian.Uint32(aux)
	r.Length = max(int(binary.NativeEndian.Uint32(aux[auxLen:])), len(r.Data))
	if status&vlanValid == 0 || len(r.Data) < macsLength {
		return
	}
	tpid := uint16(unix.ETH_P_8021Q)
	if status&tpidValid != 0 {
		tpid = binary.NativeEndian.Uint16(aux[auxTPID:])
	}
	tag := binary.BigEndian.AppendUint16(nil, tpid)
	tag = binary.BigEndian.AppendUint16(tag, binary.NativeEndian.Uint16(aux[auxTCI:]))
	r.Data = slices.Concat(r.Data[:macsLength], tag, r.Data[macsLength:])
	r.Length += len(tag)
}

// Dropped returns the number of frames that were lost since the socket was opened.
func (s *Socket) Dropped() uint64 {
	conn, err := s.file.SyscallConn()
	if err != nil {
		return s.dropped
	}
	_ = conn.Control(func(fd uintptr) {
		if st, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			s.dropped += uint64(st.Drops)
		}
	})
	return s.dropped
}

// indexOf returns the index of an interface.
func indexOf(name string) (int, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return 0, fmt.Errorf("find the interface %s: %w", name, err)
	}
	return link.Index, nil
}
