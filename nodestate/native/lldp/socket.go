package lldp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// groups are the addresses to which neighbours send: the nearest bridge, the nearest that is no two-port relay, the nearest customer bridge.
var groups = [][6]byte{{0x01, 0x80, 0xc2, 0, 0, 0x0e}, {0x01, 0x80, 0xc2, 0, 0, 0x03}, {0x01, 0x80, 0xc2, 0, 0, 0x00}}

// socket hears LLDP on all interfaces of a network namespace that have joined the groups. One goroutine reads, others may do the rest.
type socket struct {
	file *os.File
	raw  interface {
		Control(func(fd uintptr)) error
		Read(func(fd uintptr) bool) error
	}
	buf [headerLength + mostUnit + 1]byte
}

// openSocket does so in the network namespace of the thread.
func openSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0) // protocol 0: nothing yet
	if err != nil {
		return nil, fmt.Errorf("open a packet socket for LLDP: %w", err)
	}
	if err := prepare(fd); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open a packet socket for LLDP: %w", err)
	}
	s := &socket{file: os.NewFile(uintptr(fd), "lldp")}
	if s.raw, err = s.file.SyscallConn(); err != nil {
		s.file.Close()
		return nil, fmt.Errorf("open a packet socket for LLDP: %w", err)
	}
	return s, nil
}

func prepare(fd int) error {
	program, err := bpf.Assemble(filter())
	if err != nil {
		return err
	}
	code := make([]unix.SockFilter, len(program))
	for i, p := range program {
		code[i] = unix.SockFilter{Code: p.Op, Jt: p.Jt, Jf: p.Jf, K: p.K}
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}); err != nil {
		return fmt.Errorf("attach the filter: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_ORIGDEV, 1); err != nil { // a bond's port, and not the bond
		return fmt.Errorf("ask for the port: %w", err)
	}
	wire := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, etherType))
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: wire}); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return nil
}

// filter lets through what is sent to one of the groups as LLDP.
func filter() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: etherType, SkipTrue: 7},
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0x0180c200, SkipTrue: 5},
		bpf.LoadAbsolute{Off: 4, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0x000e, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0x0003, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0x0000, SkipTrue: 1},
		bpf.RetConstant{Val: headerLength + mostUnit + 1},
		bpf.RetConstant{Val: 0},
	}
}

// member joins the groups on an interface, or leaves them.
func (s *socket) member(index int, join bool) (err error) {
	option := unix.PACKET_DROP_MEMBERSHIP
	if join {
		option = unix.PACKET_ADD_MEMBERSHIP
	}
	failed := s.raw.Control(func(fd uintptr) {
		for _, g := range groups {
			m := unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(g))}
			copy(m.Address[:], g[:])
			err = errors.Join(err, unix.SetsockoptPacketMreq(int(fd), unix.SOL_PACKET, option, &m))
		}
	})
	return errors.Join(failed, err)
}

// read waits for a frame. It fails with os.ErrDeadlineExceeded when the deadline that is set passes, and os.ErrClosed once closed.
func (s *socket) read() (index int, frame []byte, err error) {
	var n int
	var from unix.Sockaddr
	var failed error
	err = s.raw.Read(func(fd uintptr) bool {
		n, from, failed = unix.Recvfrom(int(fd), s.buf[:], 0)
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
	})
	if err = errors.Join(err, failed); err != nil {
		return 0, nil, err
	}
	link, ok := from.(*unix.SockaddrLinklayer)
	if !ok || link.Pkttype == unix.PACKET_OUTGOING || link.Pkttype == unix.PACKET_OTHERHOST {
		return 0, s.buf[:n], nil
	}
	return link.Ifindex, s.buf[:n], nil
}

func (s *socket) wakeAt(t time.Time) { _ = s.file.SetReadDeadline(t) }

func (s *socket) close() { s.file.Close() }
