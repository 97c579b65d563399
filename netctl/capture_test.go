package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var at = time.Date(2026, 11, 21, 12, 0, 0, 123456789, time.UTC)

// ping is what pods say to each other in these tests.
var ping = []byte("\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01\x08\x00\x45\x00\x00\x1c\x00\x01\x00\x00\x40\x01\x00\x00\x0a\x00\x00\x01\x0a\x00\x00\x02\x08\x00\x00\x00\x00\x07\x00\x01")

func captured(packets uint64, end string, list ...inspect.Frame) inspect.Captured {
	return inspect.Captured{Node: "node1", Pod: "shop/db", Interface: "fk0123", Frames: list, CaptureCounts: inspect.CaptureCounts{Packets: packets}, End: end}
}

func sends(list ...inspect.Captured) func(context.Context, func(any) error) error {
	return func(_ context.Context, send func(any) error) error {
		for i := range list {
			if err := send(&list[i]); err != nil {
				return err
			}
		}
		return nil
	}
}

func TestCapturePrints(t *testing.T) {
	b := newBench(t, nil)
	last := captured(2, "the time is over", inspect.Frame{Time: at, Length: 1042, Data: ping})
	last.Dropped, last.Limited = 7, 3*time.Second
	b.stream = sends(captured(0, ""), captured(1, "", inspect.Frame{Time: at, FromPod: true, Length: 42, Data: ping}), last)
	out, errOut, code := b.run("capture", "shop/db", "--filter", "icmp", "-c", "5", "--duration", "3s", "-s", "100")
	stamp := at.Local().Format("15:04:05.000000")
	if want := stamp + " Out IP 10.0.0.1 > 10.0.0.2: ICMP echo request, id 7, seq 1, length 0\n" + stamp + " In  IP 10.0.0.1 > 10.0.0.2: ICMP echo request, id 7, seq 1, length 0\n"; out != want || code != 0 {
		t.Errorf("exit code %d, printed\n%s", code, out)
	}
	for _, want := range []string{"capturing shop/db on node1 (fk0123)", "2 packets: the time is over", "7 packets were more lost", "held the capture up for 3s"} {
		if !strings.Contains(errOut, want) {
			t.Errorf("no %q in\n%s", want, errOut)
		}
	}
	if c := b.asked.Capture; b.asked.ID != "shop/db" || c == nil || *c != (inspect.CaptureSpec{Filter: "icmp", Snap: 100, Count: 5, Duration: 3 * time.Second}) {
		t.Errorf("asked %+v", c)
	}
	out, _, _ = b.run("capture", "shop/db", "-o", "json")
	var line struct {
		inspect.Frame
		Text string
	}
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&line); err != nil || !line.FromPod || !bytes.Equal(line.Data, ping) || !strings.HasPrefix(line.Text, "IP 10.0.0.1") {
		t.Errorf("%s: %v", out, err)
	}
}

func TestCaptureRefusesWrongUsage(t *testing.T) {
	b := newBench(t, nil)
	for _, wrong := range [][]string{{}, {"db"}, {"shop/db", "--filter", "host me"}, {"shop/db", "-s", "-1"}, {"shop/db", "-s", "999999"}, {"shop/db", "--duration", "2h"}, {"shop/db", "-o", "yaml"}, {"shop/db", "-o", "json", "-w", "x"}} {
		if _, errOut, code := b.run(append([]string{"capture"}, wrong...)...); code != exitUsage || errOut == "" {
			t.Errorf("capture %q: exit code %d, %q", wrong, code, errOut)
		}
	}
	if b.asked.Kind != "" {
		t.Errorf("asked %+v", b.asked)
	}
}

// records counts those of a pcap file, which must end with a whole one.
func records(t *testing.T, file string) (n int) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil || len(b) < 24 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	for b = b[24:]; len(b) >= 16 && len(b) >= 16+int(binary.LittleEndian.Uint32(b[8:])); n++ {
		b = b[16+int(binary.LittleEndian.Uint32(b[8:])):]
	}
	if len(b) > 0 {
		t.Fatalf("%d bytes of half a record", len(b))
	}
	return n
}

func TestCaptureWritesAFile(t *testing.T) {
	b := newBench(t, nil)
	file := filepath.Join(t.TempDir(), "db.pcap")
	frame := inspect.Frame{Time: at, Length: 42, Data: ping}
	b.stream = func(_ context.Context, send func(any) error) error {
		if err := sends(captured(0, ""), captured(2, "", frame, frame))(nil, send); err != nil {
			return err
		}
		return status.Error(codes.Unavailable, "the node's connection ended")
	}
	out, errOut, code := b.run("capture", "shop/db", "-w", file)
	if code != exitFailed || out != "" || !strings.Contains(errOut, "netctl: the node's connection ended") || !strings.Contains(errOut, "2 packets") {
		t.Errorf("exit code %d, %s%s", code, out, errOut)
	}
	if n := records(t, file); n != 2 {
		t.Errorf("%d records", n)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: others may read it", st.Mode(), err)
	}
	b.stream = func(context.Context, func(any) error) error {
		return status.Error(codes.NotFound, "there is no pod shop/db")
	}
	if _, _, code := b.run("capture", "shop/db", "-w", file); code != exitFailed || records(t, file) != 2 {
		t.Error("a capture that did not begin has emptied the file")
	}
}

// ^C ends it as it is meant to end: what has come is written, and the exit code is 0.
func TestCaptureIsInterrupted(t *testing.T) {
	b := newBench(t, nil)
	file := filepath.Join(t.TempDir(), "db.pcap")
	left := make(chan struct{})
	b.stream = func(ctx context.Context, send func(any) error) error {
		if err := sends(captured(0, ""), captured(1, "", inspect.Frame{Time: at, Length: 42, Data: ping}))(ctx, send); err != nil {
			return err
		}
		for st, err := os.Stat(file); err != nil || st.Size() < 24+16+int64(len(ping)); st, err = os.Stat(file) { // it has come
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
		<-ctx.Done()
		close(left)
		return ctx.Err()
	}
	_, errOut, code := b.run("capture", "shop/db", "-w", file)
	<-left
	if code != 0 || !strings.Contains(errOut, "1 packet\n") || records(t, file) != 1 {
		t.Errorf("exit code %d, %s", code, errOut)
	}
}

func TestCaptureWaitsForTheFirstAnswerOnly(t *testing.T) {
	silent := newBench(t, nil)
	silent.stream = func(ctx context.Context, _ func(any) error) error { <-ctx.Done(); return ctx.Err() }
	silent.prints(exitUnreachable, "capture shop/db --timeout 50ms", "no answer from")
	b := newBench(t, nil)
	for timeout := 500 * time.Millisecond; ; timeout *= 2 { // until the machine brings the first answer in time
		b.stream = func(ctx context.Context, send func(any) error) error {
			if err := send(captured(0, "")); err != nil {
				return err
			}
			select {
			case <-time.After(timeout + timeout/10):
			case <-ctx.Done():
				return ctx.Err()
			}
			return send(captured(3, "the time is over"))
		}
		out, errOut, code := b.run("capture", "shop/db", "--timeout", timeout.String())
		if code == 0 && strings.Contains(out+errOut, "3 packets: the time is over") {
			return
		}
		if timeout > time.Minute {
			t.Fatalf("exit code %d, %s, %s", code, out, errOut)
		}
	}
}
