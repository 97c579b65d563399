package cluster

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestParseUDPDrops(t *testing.T) {
	const text = `Ip: Forwarding DefaultTTL
Ip: 1 64
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors
Udp: 58973 1360 0 60344 7 100 0
UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors
UdpLite: 0 0 0 0 50 0 0
Udp6InDatagrams                 	9
Udp6RcvbufErrors                	4
UdpLite6RcvbufErrors            	60
`
	if got := parseUDPDrops(text); got != 11 {
		t.Errorf("%d dropped, want 11", got)
	}
	if got := parseUDPDrops(""); got != 0 {
		t.Errorf("no text: %d", got)
	}
}

// queued returns how many datagrams are in a socket's queue, and takes them out.
func queued(t *testing.T, conn *net.UDPConn) (n uint64) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		for buf := make([]byte, 100); ; n++ {
			if _, _, err := syscall.Recvfrom(int(fd), buf, syscall.MSG_DONTWAIT); err != nil {
				return
			}
		}
	})
	return n
}

// TestCountDrops_OfAFullSocket: datagrams for which a socket's queue had no room are subtracted from the missing
// answers, and nothing else is. The socket is in this process's network namespace.
func TestCountDrops_OfAFullSocket(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("nsenter needs root")
	}
	server, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := server.SetReadBuffer(1); err != nil { // the kernel's minimum
		t.Fatal(err)
	}
	client, err := net.Dial("udp", server.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	count, report := new(Cluster).CountDrops(t.Context(), []string{"/proc/self/ns/net"}), Report{Sent: 200}
	for range report.Sent {
		if _, err := client.Write(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	var dropped uint64
	err = Until(t.Context(), time.Minute, func() error {
		report.Received += queued(t, server)
		if dropped = count(); report.Received+dropped < report.Sent {
			return fmt.Errorf("%d of %d came, %d were dropped", report.Received, report.Sent, dropped)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	e, lost := Expectation{Open: true, Proto: "udp"}, report.Sent-report.Received
	if lost == 0 {
		t.Fatal("all came: nothing is shown")
	}
	if subtracted, err := e.Judge(report, dropped); err != nil || subtracted != lost {
		t.Errorf("%d of %d lost answers subtracted, %v", subtracted, lost, err)
	}
	if _, err := e.Judge(report, lost-1); err == nil || !strings.HasPrefix(err.Error(), Lost+" ") {
		t.Errorf("one answer is missing that the kernel did not drop: %v, want %s", err, Lost)
	}
}
