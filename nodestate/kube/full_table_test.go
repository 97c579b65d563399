package kube

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/native"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
)

// daemonRoutes: 300000 is the size of the Internet's table in a few years' time.
var daemonRoutes = flag.Int("daemon-routes", 10_000, "routes of a routing daemon in TestFullRoutingTable")

// ip runs a batch of ip(8) in a network namespace.
func ip(t *testing.T, ns *netns.Namespace, batch io.Reader) (out []byte) {
	t.Helper()
	ns.Do(func() {
		cmd := exec.Command("ip", "-force", "-batch", "-")
		cmd.Stdin = batch
		var err error
		if out, err = cmd.CombinedOutput(); err != nil {
			t.Errorf("ip: %v: %s", err, out)
		}
	})
	return out
}

// daemonRoute is a route of BIRD.
func daemonRoute(i int) string {
	return fmt.Sprintf("blackhole 10.%d.%d.%d/32 proto bird\n", i>>16, i>>8&255, i&255)
}

// flap has ip(8) change routes of the daemon 100 times a second until the context ends.
func flap(ctx context.Context, w io.WriteCloser) {
	defer w.Close()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		verb := []string{"replace", "del", "add"}[i%3]
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			fmt.Fprint(w, "route ", verb, " ", daemonRoute(100+i/3%1000))
		}
	}
}

// TestFullRoutingTable (U07): a routing daemon has many routes and changes 100 a second. The agent does not read the
// node for these, holds none of them, and applies a wish within 5 s. What the daemon does to a desired route is
// repaired.
func TestFullRoutingTable(t *testing.T) {
	ns := netns.New(t)
	c := newCluster(t, "node2")
	var table strings.Builder
	table.WriteString("link add up0 type veth peer name up1\nlink set up0 addrgenmode none\n" +
		"link set up1 addrgenmode none\nlink set up0 up\nlink set up1 up\n" +
		"addr add 192.0.2.1/24 dev up0\nroute add default via 192.0.2.254 proto bird\n")
	for i := range *daemonRoutes {
		table.WriteString("route add " + daemonRoute(i))
	}
	ip(t, ns, strings.NewReader(table.String()))
	uid := c.makeNode()
	a := c.agent(ns)
	c.becomes(uid, v1.ReasonInSync)
	reads := a.settledReads()

	changes, ended := make(chan netlink.RouteUpdate, 100), make(chan struct{})
	defer close(ended)
	handle := vnetns.NsHandle(ns.FD())
	c.must(netlink.RouteSubscribeWithOptions(changes, ended, netlink.RouteSubscribeOptions{Namespace: &handle}))
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	go flap(ctx, w)
	flapped := make(chan struct{})
	go func() {
		defer close(flapped)
		ip(t, ns, r)
	}()
	defer func() { cancel(); <-flapped }()
	for range 300 {
		<-changes
	}
	go func() {
		for range changes {
		}
	}()
	if n := a.reads.Load() - reads; n > 0 {
		t.Errorf("%d readings of the node for changes of the daemon's routes", n)
	}

	began := time.Now()
	c.patch(strings.Replace(wish, `]}}}`, `], "routes": {"config": [
		{"destination": "10.0.0.1/32", "next-hop-interface": "up0", "next-hop-address": "192.0.2.9"}]}}}}`, 1))
	desired := func() (bool, any) {
		out := string(ip(t, ns, strings.NewReader("route show 10.0.0.1\n")))
		return hasAddress(ns) && strings.Contains(out, "via 192.0.2.9 dev up0 proto static"), out
	}
	c.until("the wish is applied", desired)
	took := time.Since(began)
	if took > slow.Stretch(5*time.Second) {
		t.Errorf("the wish was applied after %v", took)
	}
	c.becomes(uid, v1.ReasonInSync)
	ip(t, ns, strings.NewReader("route replace "+daemonRoute(1)))
	c.until("the desired route is repaired", desired)
	reads = a.reads.Load()
	ip(t, ns, strings.NewReader("route add blackhole 198.18.0.0/15 proto static\n"))
	c.until("an administrator's route is noticed", func() (bool, any) { return a.reads.Load() > reads, nil })
	costs(t, ns, took)
}

// settledReads returns the number of readings of the node's network once there has been none for a second: changes of
// the setup have been read then.
func (a *agent) settledReads() int32 {
	reads, since := a.reads.Load(), time.Now()
	for time.Since(since) < slow.Stretch(time.Second) {
		time.Sleep(10 * time.Millisecond)
		if n := a.reads.Load(); n != reads {
			reads, since = n, time.Now()
		}
	}
	return reads
}

// costs checks what one reading of the node's network takes. The memory is the process's, since its start.
func costs(t *testing.T, ns *netns.Namespace, wish time.Duration) {
	t.Helper()
	const limit = 256 << 20 // of deploy/chart/values.yaml
	backend := native.New(native.Config{Bridge: "fk0"})
	defer backend.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	ns.Do(func() {
		if _, err := backend.Show(t.Context()); err != nil {
			t.Error(err)
		}
	})
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	each := int(after.TotalAlloc-before.TotalAlloc) / *daemonRoutes
	t.Logf("%d routes: a wish in %v, a reading in %v and %d bytes a route; %d MiB of memory",
		*daemonRoutes, wish, took, each, after.Sys>>20)
	if each > 1000 || after.Sys > limit {
		t.Errorf("a reading takes %d bytes a route; the process has %d MiB", each, after.Sys>>20)
	}
}
