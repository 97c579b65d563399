package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/flowkeep/flowkeep/internal/rtnl/rtnltest"
	"github.com/flowkeep/flowkeep/internal/testkit/cputime"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dualStackPods returns a manager of some attached pods with two addresses each.
func dualStackPods(t *testing.T, count int) *endpoints.Manager {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "endpoints"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range count {
		container := fmt.Sprintf("%064d", i)
		name := sha256.Sum256([]byte(container + "/eth0"))
		data, err := json.Marshal(endpoints.Endpoint{
			Namespace:   "shop",
			Name:        fmt.Sprint("pod", i),
			UID:         fmt.Sprint(i),
			ContainerID: container,
			IfName:      "eth0",
			NetNS:       "/proc/self/ns/net",
			HostIfName:  hostnet.PodPrefix + hex.EncodeToString(name[:])[:12],
			Port:        uint32(100 + i),
			MAC:         endpoints.MAC{2, 0, 0, 0, 1, byte(i)},
			Addresses: []netip.Addr{
				netip.AddrFrom4([4]byte{10, 244, 1, byte(2 + i)}),
				netip.MustParseAddr(fmt.Sprintf("fd00:244:1::%x", 2+i)),
			},
			Realised: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "endpoints", container+"@eth0.json"), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	manager, err := endpoints.Open(endpoints.Config{StateDir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(manager.List()); got != count {
		t.Fatalf("%d pods, want %d", got, count)
	}
	return manager
}

// processorTime returns the processor time in seconds that the thread has used, and programs that it ran.
func processorTime(t *testing.T) (seconds float64) {
	t.Helper()
	var programs unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &programs); err != nil {
		t.Fatal(err)
	}
	return cputime.Thread().Seconds() + float64(programs.Utime.Nano()+programs.Stime.Nano())/1e9
}

// costOf returns the processor time of one call in seconds.
func costOf(t *testing.T, f func()) float64 {
	t.Helper()
	const calls = 20
	before := processorTime(t)
	for range calls {
		f()
	}
	return (processorTime(t) - before) / calls
}

// TestKeepHost_Cost compares the cost of one comparison on a node with 110 dual-stack pods, on which nothing differs,
// with that of reading its links and addresses once.
func TestKeepHost_Cost(t *testing.T) {
	const pods, maxRatio = 110, 8
	h, infos := keptHost(t, slog.New(slog.DiscardHandler))
	infos[0].PodCIDRs = append(infos[0].PodCIDRs, netip.MustParsePrefix("fd00:244:1::/64"))
	h.manager = dualStackPods(t, pods)
	inside := netns.New(t)
	netns.New(t).Do(func() {
		if err := nodeLinks(); err != nil {
			t.Fatal(err)
		}
		for _, e := range h.manager.List() {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = e.HostIfName
			peerNamespace := netlink.NsFd(inside.FD())
			link := &netlink.Veth{LinkAttrs: attrs, PeerName: "p" + e.UID, PeerNamespace: peerNamespace}
			if err := netlink.LinkAdd(link); err != nil {
				t.Fatal(err)
			}
		}
		compare := func() {
			if err := h.keepHost(t.Context(), infos); err != nil {
				t.Error(err)
			}
		}
		for range 3 {
			compare()
		}
		cost := costOf(t, compare)
		if len(h.repaired) > 0 {
			t.Errorf("repaired %v", h.repaired)
		}
		once := costOf(t, func() { rtnltest.ReadLinks(t) })
		t.Logf("one comparison: %.1f ms, links and addresses: %.1f ms", 1e3*cost, 1e3*once)
		if cost > maxRatio*once {
			t.Errorf("one comparison costs %.1f times as much as reading links and addresses, want at most %d",
				cost/once, maxRatio)
		}
	})
}
