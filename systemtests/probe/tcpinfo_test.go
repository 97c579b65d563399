package main

import (
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fullServer returns the address of a server that drops SYNs until accept is called, and accepts connections from then
// on.
func fullServer(t *testing.T) (address string, accept func()) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "listener")
	defer file.Close()
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for range 9 {
		conn, err := net.DialTimeout("tcp", l.Addr().String(), 100*time.Millisecond)
		if err != nil {
			return l.Addr().String(), func() { go serveStreams(l) }
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Skip("this kernel queues connections beyond a backlog of 0")
	return "", nil
}

func TestDialTCP_NamesTheState(t *testing.T) {
	address, _ := fullServer(t)
	err := attempt("tcp", address, nil, 100*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "SYN_SENT") {
		t.Errorf("no state: %v", err)
	}
}

// TestStream_ALostSYNIsNoLoss: TCP sends it again after a second.
func TestStream_ALostSYNIsNoLoss(t *testing.T) {
	address, accept := fullServer(t)
	stop := make(chan os.Signal, 1)
	time.AfterFunc(500*time.Millisecond, accept)
	time.AfterFunc(1500*time.Millisecond, func() { stop <- syscall.SIGTERM })
	r, err := stream(streamTo{proto: "tcp", address: address}, pace{10 * time.Millisecond, grace, 2 * time.Second}, stop)
	if err != nil || r.Sent == 0 || r.Received != r.Sent || r.Broken != "" || r.TCP != "" {
		t.Errorf("%v: %+v", err, r)
	}
}

// TestStream_NamesTheStateOfALoss: a server that answers nothing.
func TestStream_NamesTheStateOfALoss(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	stop := make(chan os.Signal, 1)
	time.AfterFunc(100*time.Millisecond, func() { stop <- syscall.SIGTERM })
	to := streamTo{proto: "tcp", address: l.Addr().String()}
	r, err := stream(to, pace{time.Millisecond, 10 * time.Millisecond, time.Second}, stop)
	if err != nil || !strings.Contains(r.TCP, "ESTABLISHED, 0 retransmissions") {
		t.Errorf("%v: %+v", err, r)
	}
}
