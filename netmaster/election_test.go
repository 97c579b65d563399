package main

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
)

// A connection to an API server that is gone without a word ends before the Lease of a leader that went with it has run out.
func TestConnectionsOfCandidatesEndSoon(t *testing.T) {
	for _, elect := range []bool{true, false} {
		api := &rest.Config{}
		(&electionFlags{elect: elect}).connect(api)
		if (api.Dial != nil) != elect {
			t.Fatalf("with --leader-elect=%v: %v", elect, api.Dial != nil)
		}
		if !elect {
			continue
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		conn, err := api.Dial(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		err = raw.Control(func(fd uintptr) {
			for option, want := range map[int]int{unix.TCP_USER_TIMEOUT: 3000, unix.TCP_KEEPIDLE: 1, unix.TCP_KEEPINTVL: 1, unix.TCP_KEEPCNT: 3} {
				if got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); err != nil || got != want {
					t.Errorf("option %d is %d (%v), want %d", option, got, err, want)
				}
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
}
