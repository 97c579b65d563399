package capture

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/frames"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// pair is a link with both ends here; what one sends the other receives.
func pair(t *testing.T) (near, far *net.Interface) {
	t.Helper()
	return pairOf(t, "near", "far")
}

func pairOf(t *testing.T, a, b string) (near, far *net.Interface) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = a
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: b}); err != nil {
		t.Fatal(err)
	}
	updates, stop := make(chan netlink.LinkUpdate, 64), make(chan struct{})
	if err := netlink.LinkSubscribe(updates, stop); err != nil {
		t.Fatal(err)
	}
	defer close(stop)
	for _, name := range []string{a, b} {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	limit := time.After(time.Minute)
	for down := map[string]bool{a: true, b: true}; len(down) > 0; { // until then the kernel drops what is sent
		select {
		case u, ok := <-updates:
			if !ok {
				t.Fatal("no more updates of links")
			}
			if u.Attrs().OperState == netlink.OperUp {
				delete(down, u.Attrs().Name)
			}
		case <-limit:
			t.Fatalf("not up: %v", down)
		}
	}
	near, err := net.InterfaceByName(a)
	if err != nil {
		t.Fatal(err)
	}
	if far, err = net.InterfaceByName(b); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// sender sends frames by an interface.
func sender(t *testing.T, by *net.Interface) func(frame []byte) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return func(frame []byte) {
		if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: by.Index}); err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.ENETDOWN) && !errors.Is(err, unix.ENXIO) {
			t.Error(err)
		}
	}
}

// udp is a frame to a port, of so many bytes in all.
func udp(port uint16, length int) []byte {
	b := make([]byte, length)
	copy(b, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45})
	binary.BigEndian.PutUint16(b[16:], uint16(length-14))
	b[22], b[23] = 64, frames.UDP
	copy(b[26:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	binary.BigEndian.PutUint16(b[34:], 50000)
	binary.BigEndian.PutUint16(b[36:], port)
	return b
}

// watched runs a capture of "near"; begun is called when it has begun. It gives all that came.
func watched(ctx context.Context, c *Captures, spec inspect.CaptureSpec, begun func()) (all []inspect.Frame, last inspect.Captured, err error) {
	err = c.Run(ctx, &spec, inspect.Captured{Pod: "shop/db", Interface: "near"}, func(got *inspect.Captured) error {
		if all = append(all, got.Frames...); last.Pod == "" {
			defer begun()
		}
		last = *got
		return nil
	})
	return all, last, err
}

func TestCapture(t *testing.T) {
	netns.New(t).Enter(t)
	near, far := pair(t)
	toPod, fromPod := sender(t, near), sender(t, far)
	tagged := append(append(udp(53, 60)[:12:12], 0x81, 0, 0, 5), udp(53, 60)[12:]...)
	all, last, err := watched(t.Context(), New(), inspect.CaptureSpec{Count: 4, Snap: 50}, func() {
		fromPod(udp(53, 60))
		toPod(udp(54, 40))
		fromPod(udp(55, 1000))
		fromPod(tagged)
	})
	if err != nil || len(all) != 4 || last.Packets != 4 || last.Dropped != 0 || !strings.Contains(last.End, "as many") {
		t.Fatalf("%d frames, %+v, %v", len(all), last.CaptureCounts, err)
	}
	for i, want := range []struct {
		fromPod      bool
		port         uint16
		length, kept int
		vlan         bool
	}{{true, 53, 60, 50, false}, {false, 54, 40, 40, false}, {true, 55, 1000, 50, false}, {true, 53, 64, 50, true}} {
		p := frames.Decode(all[i].Data)
		if all[i].FromPod != want.fromPod || p.DstPort != want.port || all[i].Length != want.length || len(all[i].Data) != want.kept || (len(p.VLANs) > 0) != want.vlan || time.Since(all[i].Time).Abs() > time.Minute {
			t.Errorf("frame %d: %+v, %s; want %+v", i, all[i], p.String(), want)
		}
	}
}

// What the filter does not let through is neither told nor counted.
func TestCaptureFilters(t *testing.T) {
	netns.New(t).Enter(t)
	_, far := pair(t)
	send := sender(t, far)
	all, last, err := watched(t.Context(), New(), inspect.CaptureSpec{Count: 1, Filter: "udp dst port 99"}, func() {
		for port := range uint16(100) {
			send(udp(port, 60))
		}
	})
	if err != nil || len(all) != 1 || last.Packets != 1 {
		t.Fatalf("%d frames, %+v, %v", len(all), last.CaptureCounts, err)
	}
	if p := frames.Decode(all[0].Data); p.DstPort != 99 {
		t.Errorf("port %d", p.DstPort)
	}
}

// A flood costs no more than the limit; what is lost is counted, to the packet.
func TestCaptureOfAFlood(t *testing.T) {
	netns.New(t).Enter(t)
	_, far := pair(t)
	send := sender(t, far)
	const packets, limit, wanted = 20_000, 1000, 600
	c := New()
	c.limit = NewLimit(limit, 1<<30)
	var began time.Time // the first frames are taken while others are sent
	all, last, err := watched(t.Context(), c, inspect.CaptureSpec{Count: wanted}, func() {
		began = time.Now()
		for range packets {
			send(udp(1, 500))
		}
	})
	if took, least := time.Since(began), time.Second*wanted/limit-burst; err != nil || len(all) != wanted || took < least {
		t.Errorf("%d frames in %v, at least %v wanted, %v", len(all), took, least, err)
	}
	if last.Packets != wanted || last.Limited == 0 || last.Dropped < packets/2 || last.Dropped+last.Packets > packets {
		t.Errorf("%d packets taken and %d lost of %d, held up for %v", last.Packets, last.Dropped, packets, last.Limited)
	}
}

// Who asks and takes nothing holds nothing but the capture up, and a capture ends with the link, the context, and who asked.
func TestCaptureEnds(t *testing.T) {
	netns.New(t).Enter(t)
	near, _ := pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	if _, _, err := watched(ctx, New(), inspect.CaptureSpec{}, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	gone := errors.New("gone")
	if err := New().Run(t.Context(), &inspect.CaptureSpec{}, inspect.Captured{Interface: "near"}, func(*inspect.Captured) error { return gone }); !errors.Is(err, gone) {
		t.Errorf("the asker went: %v", err)
	}
	_, last, err := watched(t.Context(), New(), inspect.CaptureSpec{}, func() {
		if err := netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: near.Index, Name: "near"}}); err != nil {
			t.Error(err)
		}
	})
	if err != nil || !strings.Contains(last.End, "gone") {
		t.Errorf("the link went: %q, %v", last.End, err)
	}
	if _, _, err := watched(t.Context(), New(), inspect.CaptureSpec{}, func() {}); err == nil || !strings.Contains(err.Error(), "near") {
		t.Errorf("no link: %v", err)
	}
}

func TestCaptureRefuses(t *testing.T) {
	c := New()
	leave, err := c.place("shop/db")
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range []inspect.CaptureSpec{{Snap: -1}, {Snap: inspect.MaxSnap + 1}, {Duration: -1}, {Filter: "host me"}, {}} {
		if err := c.Run(t.Context(), &spec, inspect.Captured{Pod: "shop/db", Interface: "lo"}, nil); err == nil {
			t.Errorf("%+v was captured", spec)
		}
	}
	for i := 1; i < mostCaptures; i++ {
		if _, err := c.place(fmt.Sprint("shop/", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.place("shop/more"); err == nil {
		t.Error("more captures than a node takes")
	}
	leave()
	if _, err := c.place("shop/more"); err != nil {
		t.Error(err)
	}
}

// After a rest there is a little at once, then the limit holds, by packets or by bytes.
func TestLimit(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct{ bytes, most int }{{10, 100}, {1000, 50}} {
		l := NewLimit(100, 50_000)
		taken := 0
		for at := now; at.Before(now.Add(10 * time.Second)); taken++ {
			at = at.Add(l.charge(at, c.bytes))
		}
		if want := float64(c.most) * (10 + burst.Seconds()); float64(taken) < want*0.97 || float64(taken) > want*1.03 {
			t.Errorf("%d packets of %d bytes in 10 s, want %v", taken, c.bytes, want)
		}
	}
}
