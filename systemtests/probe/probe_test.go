package main

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

func server1(t *testing.T) *server {
	t.Helper()
	s, err := listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestAttempt(t *testing.T) {
	s := server1(t)
	for _, proto := range []string{"tcp", "udp"} {
		if err := attempt(proto, s.addr(), nil, time.Second); err != nil {
			t.Errorf("%s to a server: %v", proto, err)
		}
	}
	for _, proto := range []string{"tcp", "udp"} {
		if err := attempt(proto, s.addr(), net.IPv4(127, 0, 0, 9), time.Second); err != nil {
			t.Errorf("%s from another address: %v", proto, err)
		}
	}
	addr := s.addr()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, proto := range []string{"tcp", "udp"} {
		if attempt(proto, addr, nil, 300*time.Millisecond) == nil {
			t.Errorf("%s: an answer from nobody", proto)
		}
	}
	if attempt("ipx", addr, nil, time.Second) == nil || attempt("icmp", addr, nil, time.Second) == nil {
		t.Error("a wrong protocol or an address with a port for icmp should be refused")
	}
}

func TestStreamCountsEveryAnswer(t *testing.T) {
	s := server1(t)
	for _, proto := range []string{"tcp", "udp"} {
		r := streamFor(t, proto, s.addr(), 2*time.Second)
		if r.Sent < 20 || r.Received != r.Sent || r.FirstLoss != 0 || r.Broken != "" {
			t.Errorf("%s over loopback: %+v", proto, r)
		}
	}
}

// TestStream_ClosesAtTheFirstAnswer ends a stream when its file is closed, which is after its first answer.
func TestStream_ClosesAtTheFirstAnswer(t *testing.T) {
	s := server1(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	stop := make(chan os.Signal, 1)
	go func() {
		_, _ = io.Copy(io.Discard, read)
		stop <- syscall.SIGTERM
	}()
	heard, err := begin(write)
	if err != nil {
		t.Fatal(err)
	}
	to := streamTo{proto: "udp", address: s.addr(), heard: heard}
	r, err := stream(to, pace{time.Millisecond, grace, redial}, stop)
	if err != nil || r.Received == 0 {
		t.Errorf("%v: %+v", err, r)
	}
}

func TestStreamSeesLoss(t *testing.T) {
	tl := &tally{next: 1, last: time.Unix(100, 0)}
	tl.got(1, time.Unix(101, 0))
	tl.got(2, time.Unix(101, 5e8))
	tl.got(5, time.Unix(104, 0))
	r := &Report{Sent: 6}
	tl.fill(r, time.Unix(105, 0))
	want := Report{Sent: 6, Received: 3, LongestGapMillis: 2500, LongestGapBegan: time.Unix(101, 5e8), LastAnswer: time.Unix(104, 0), FirstLoss: 3}
	if *r != want {
		t.Errorf("got %+v, want %+v", *r, want)
	}
}

// A segment may end in the midst of an answer, and the rest come after the deadline: it is one answer still, and those behind it are whole.
func TestAnswersComeInPieces(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	l := &echoLink{Conn: here, whole: true}
	answers := make([]byte, 2*questionSize)
	answers[7], answers[questionSize+7] = 5, 6
	go func() {
		_, _ = there.Write(answers[:3]) // which ends when they are read
		_ = here.SetReadDeadline(time.Now())
	}()
	if n, err := l.answer(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d, %v", n, err)
	}
	go func() { _, _ = there.Write(answers[3:]) }()
	if err := l.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []uint64{5, 6} {
		if n, err := l.answer(); err != nil || n != want {
			t.Errorf("%d, %v; want %d", n, err, want)
		}
	}
}

// Answers that came in time, to a process that had no processor until the time was over.
func TestAnswersThatWaitAreHeard(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	l, err := dial("tcp", server.Addr().String(), nil, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	there, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	answers := make([]byte, 3*questionSize)
	for i := range 3 {
		answers[i*questionSize+7] = byte(i + 1)
	}
	if _, err := there.Write(answers); err != nil {
		t.Fatal(err)
	}
	tl := &tally{next: 1, last: time.Now()}
	c, err := newConversation(l, tl)
	if err != nil {
		t.Fatal(err)
	}
	if !readable(c.fd, time.Minute) {
		t.Fatal("nothing came over loopback")
	}
	c.rest(4, time.Now().Add(-time.Hour), time.Minute)
	if tl.received != 3 || tl.loss != 0 || tl.broken != nil {
		t.Errorf("%+v, want 3 answers", *tl)
	}
}

// TestRestUntil_LateAnswersAreNotLost: answers that come late, but one after another, are awaited, for a bounded time.
func TestRestUntil_LateAnswersAreNotLost(t *testing.T) {
	end := time.Unix(100, 0)
	for _, c := range []struct{ lastAnswer, until time.Duration }{
		{-3 * time.Second, time.Second},
		{0, time.Second},
		{500 * time.Millisecond, 1500 * time.Millisecond},
		{5 * time.Second, 6 * time.Second},
		{time.Minute, graces * time.Second},
	} {
		if got := restUntil(end, end.Add(c.lastAnswer), time.Second).Sub(end); got != c.until {
			t.Errorf("last answer %v after the last question: waits %v, want %v", c.lastAnswer, got, c.until)
		}
	}
}

func TestStreamToNobodyReceivesNothing(t *testing.T) {
	s := server1(t)
	addr := s.addr()
	_ = s.Close()
	for _, proto := range []string{"tcp", "udp"} {
		r := streamFor(t, proto, addr, 100*time.Millisecond)
		if r.Received != 0 {
			t.Errorf("%s: answers from nobody: %+v", proto, r)
		}
	}
}

// A server that takes nothing in, as behind a connection that is cut: the stream still ends when it is told to.
func TestStreamEndsOnAStuckConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tl, stop := &tally{next: 1, last: time.Now()}, make(chan os.Signal, 1)
	conn, err := dial("tcp", l.Addr().String(), nil, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	time.AfterFunc(2*time.Second, func() { stop <- syscall.SIGTERM })
	c, err := newConversation(conn, tl)
	if err != nil {
		t.Fatal(err)
	}
	if sent := c.ask(100*time.Nanosecond, stop); sent < 1000 {
		t.Errorf("only %d questions: the buffers cannot be full", sent)
	}
}

func streamFor(t *testing.T, proto, addr string, d time.Duration) *Report {
	t.Helper()
	stop := make(chan os.Signal, 1)
	time.AfterFunc(d, func() { stop <- syscall.SIGTERM })
	r, err := stream(streamTo{proto: proto, address: addr}, pace{time.Millisecond, grace, redial}, stop)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEchoMessage(t *testing.T) {
	m := echoMessage(echoReply4, 7, 1<<40+9)
	if checksum(m) != 0 {
		t.Errorf("checksum over the whole message is %#x, want 0", checksum(m))
	}
	if n, err := parseEcho(m, echoReply4, 7); err != nil || n != 1<<40+9 {
		t.Errorf("parse: %d, %v", n, err)
	}
	for _, bad := range [][]byte{nil, m[:15]} {
		if _, err := parseEcho(bad, echoReply4, 7); err == nil {
			t.Errorf("%d bytes parsed", len(bad))
		}
	}
	if _, err := parseEcho(m, echoReply4, 8); err == nil {
		t.Error("another ping's answer was taken")
	}
}

// TestDialFrom: a UDP link sends from the port that it is given.
func TestDialFrom(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	var l link
	source := 10_000
	for ; l == nil && source < 10_100; source++ { // other programs may have some of them
		l, _ = dialFrom("udp", server.LocalAddr().String(), source, time.Minute)
	}
	if l == nil {
		t.Fatal("no port is free")
	}
	defer l.Close()
	if err := l.ask(1); err != nil {
		t.Fatal(err)
	}
	_, from, err := server.ReadFrom(make([]byte, 9))
	if err != nil || from.(*net.UDPAddr).Port != source-1 {
		t.Errorf("from %v (%v), want port %d", from, err, source-1)
	}
}
