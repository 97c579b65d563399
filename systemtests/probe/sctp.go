package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// protocolSCTP is SCTP's number (RFC 9260).
const protocolSCTP = 132

// errNoSCTP is returned where the kernel has no SCTP.
var errNoSCTP = errors.New("this kernel has no SCTP (modprobe sctp)")

// dialSCTP sets up an association of the one-to-one style (RFC 6458), which reads and writes as a TCP connection does.
func dialSCTP(address string, from net.IP, timeout time.Duration) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("sctp wants ADDRESS:PORT: %w", err)
	}
	for deadline := time.Now().Add(timeout); ; {
		fd, err := socketSCTP(to.Addr())
		if err != nil {
			return nil, err
		}
		if err = associate(fd, to, from, time.Until(deadline)); err == nil {
			return fileOf(fd, net.FileConn)
		}
		err = errors.Join(&net.OpError{Op: "dial", Net: "sctp", Err: err}, syscall.Close(fd))
		// A signal of the runtime's ends connect where SO_SNDTIMEO is set (signal(7)).
		if !errors.Is(err, syscall.EINTR) || time.Until(deadline) < time.Millisecond {
			return nil, err
		}
	}
}

// listenSCTP takes associations at an address; at [::] also those of IPv4.
func listenSCTP(at netip.AddrPort) (net.Listener, error) {
	fd, err := socketSCTP(at.Addr())
	if err != nil {
		return nil, err
	}
	const backlog = 128
	err = syscall.Bind(fd, socketAddress(at))
	if err == nil {
		err = syscall.Listen(fd, backlog)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen at sctp %v: %w", at, err), syscall.Close(fd))
	}
	return fileOf(fd, net.FileListener)
}

func socketSCTP(a netip.Addr) (int, error) {
	family := syscall.AF_INET6
	if a.Is4() {
		family = syscall.AF_INET
	}
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, protocolSCTP)
	if errors.Is(err, syscall.EPROTONOSUPPORT) || errors.Is(err, syscall.ESOCKTNOSUPPORT) {
		err = errNoSCTP
	}
	return fd, err
}

// associate waits for the peer's answer, in a system call that is bounded by timeout.
func associate(fd int, to netip.AddrPort, from net.IP, timeout time.Duration) error {
	limit := syscall.NsecToTimeval(timeout.Nanoseconds())
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &limit); err != nil {
		return err
	}
	if source, ok := netip.AddrFromSlice(from); ok {
		if err := syscall.Bind(fd, socketAddress(netip.AddrPortFrom(source.Unmap(), 0))); err != nil {
			return err
		}
	}
	err := syscall.Connect(fd, socketAddress(to))
	if errors.Is(err, syscall.EINPROGRESS) || errors.Is(err, syscall.EAGAIN) {
		err = syscall.ETIMEDOUT
	}
	return err
}

func socketAddress(a netip.AddrPort) syscall.Sockaddr {
	if a.Addr().Is4() {
		return &syscall.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &syscall.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// fileOf hands a socket to the runtime's poller.
func fileOf[T any](fd int, open func(*os.File) (T, error)) (T, error) {
	var none T
	if err := syscall.SetNonblock(fd, true); err != nil {
		return none, errors.Join(err, syscall.Close(fd))
	}
	f := os.NewFile(uintptr(fd), "sctp")
	v, err := open(f) // a duplicate of the socket
	return v, errors.Join(err, f.Close())
}
