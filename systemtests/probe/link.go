package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// A question is 8 bytes, its number; the answer is the same 8 bytes.
const questionSize = 8

// link carries questions to one address and answers back.
type link interface {
	ask(n uint64) error
	// answer waits for the next answer until the deadline that was set.
	answer() (uint64, error)
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	Close() error
}

// dial opens a link; for udp and icmp nothing is sent yet. from is the source address; nil leaves it to the kernel.
func dial(proto, address string, from net.IP, timeout time.Duration) (link, error) {
	switch proto {
	case "tcp", "udp":
		dialer := net.Dialer{Timeout: timeout}
		if from != nil && proto == "tcp" {
			dialer.LocalAddr = &net.TCPAddr{IP: from}
		} else if from != nil {
			dialer.LocalAddr = &net.UDPAddr{IP: from}
		}
		var conn net.Conn
		var err error
		if proto == "tcp" {
			conn, err = dialTCP(dialer, address)
		} else {
			conn, err = dialer.Dial(proto, address)
		}
		if err != nil {
			return nil, err
		}
		return &echoLink{Conn: conn, whole: proto == "tcp"}, nil
	case "sctp":
		conn, err := dialSCTP(address, from, timeout)
		if err != nil {
			return nil, err
		}
		return &echoLink{Conn: conn}, nil
	case "icmp":
		return dialICMP(address, from)
	}
	return nil, fmt.Errorf("protocol %q: use tcp, udp, sctp or icmp", proto)
}

// dialFrom is dial with a source port for UDP; 0: the kernel chooses it.
func dialFrom(proto, address string, port int, timeout time.Duration) (link, error) {
	if proto != "udp" || port == 0 {
		return dial(proto, address, nil, timeout)
	}
	dialer := net.Dialer{Timeout: timeout, LocalAddr: &net.UDPAddr{Port: port}}
	conn, err := dialer.Dial(proto, address)
	if err != nil {
		return nil, err
	}
	return &echoLink{Conn: conn}, nil
}

// echoLink speaks to a server of this program over TCP, UDP or SCTP.
type echoLink struct {
	net.Conn
	whole bool   // a stream: an answer may come in pieces
	part  []byte // of an answer whose rest did not come before the deadline
}

// SyscallConn is there of every connection of the package net.
func (l *echoLink) SyscallConn() (syscall.RawConn, error) { return l.Conn.(syscall.Conn).SyscallConn() }

func (l *echoLink) ask(n uint64) error {
	_, err := l.Write(binary.BigEndian.AppendUint64(nil, n))
	return err
}

func (l *echoLink) answer() (uint64, error) {
	buf := make([]byte, questionSize)
	if !l.whole {
		_, err := l.Read(buf)
		return binary.BigEndian.Uint64(buf), err
	}
	for have := copy(buf, l.part); have < questionSize; {
		n, err := l.Read(buf[have:])
		if have += n; err != nil && have < questionSize {
			l.part = buf[:have]
			return 0, err
		}
	}
	l.part = nil
	return binary.BigEndian.Uint64(buf), nil
}

// attempt is one question; nil says it was answered in time.
func attempt(proto, address string, from net.IP, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	l, err := dial(proto, address, from, timeout)
	if err != nil {
		return err
	}
	defer l.Close()
	if proto == "tcp" || proto == "sctp" {
		return nil // connected: the servers of other programs need not echo
	}
	const again = 250 * time.Millisecond // the first datagram of a pair may be lost to address resolution
	for n := uint64(1); ; n++ {
		if err := l.ask(n); err != nil {
			return err
		}
		wait := min(again, time.Until(deadline))
		if wait <= 0 {
			return errors.New("no answer")
		}
		if err := l.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return err
		}
		_, err := l.answer()
		if timeoutError, ok := errors.AsType[net.Error](err); ok && timeoutError.Timeout() {
			continue
		}
		return err
	}
}
