package main

import (
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tcpStates are the kernel's names of TCP's states (net/tcp_states.h), from number 1.
var tcpStates = []string{"ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE",
	"CLOSE_WAIT", "LAST_ACK", "LISTEN", "CLOSING"}

// tcpText returns what the kernel knows of a TCP socket (TCP_INFO in tcp(7)), "" of any other.
func tcpText(conn syscall.RawConn) (text string) {
	_ = conn.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		state := fmt.Sprint(info.State)
		if n := int(info.State); n >= 1 && n <= len(tcpStates) {
			state = tcpStates[n-1]
		}
		text = fmt.Sprintf("%s, %d retransmissions of the oldest segment and %d in all, "+
			"%d segments unacknowledged, last data received %d ms ago",
			state, info.Retransmits, info.Total_retrans, info.Unacked, info.Last_data_recv)
	})
	return text
}

// dialTCP connects. The error of a connection that was not answered in time has the socket's state and retransmissions.
func dialTCP(dialer net.Dialer, address string) (net.Conn, error) {
	var text atomic.Value
	dialer.Control = func(_, _ string, conn syscall.RawConn) error {
		time.AfterFunc(dialer.Timeout*9/10, func() { text.Store(tcpText(conn)) })
		return nil
	}
	conn, err := dialer.Dial("tcp", address)
	if last, ok := text.Load().(string); ok && last != "" && err != nil {
		err = fmt.Errorf("%w (%s)", err, last)
	}
	return conn, err
}

// lossText returns how a TCP stream lost answers, "" of other links.
func lossText(l link) string {
	conn, ok := l.(syscall.Conn)
	if !ok {
		return ""
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return ""
	}
	return tcpText(raw)
}
