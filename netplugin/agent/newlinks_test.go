package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/internal/rtnl/rtnltest"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// attachedPods is a switch that opens each port, and a Realizer whose rules are in force at once.
type attachedPods struct{}

func (attachedPods) EnsurePort(context.Context, string, *endpoints.Endpoint) (uint32, error) {
	return 300, nil
}
func (attachedPods) DeletePort(context.Context, string, *endpoints.Endpoint) error { return nil }
func (attachedPods) Realize(context.Context, endpoints.Endpoint) error             { return nil }
func (attachedPods) Forget(context.Context, endpoints.Endpoint) error              { return nil }

// ageLinks makes the links older than settleTime.
func ageLinks(h *hostKeeper) {
	for index, first := range h.links {
		h.links[index] = first.Add(-settleTime)
	}
}

func filterPath(link string) string {
	return filepath.Join("/proc/sys/net/ipv4/conf", link, "rp_filter")
}

// udev does what systemd-udevd and systemd-sysctl(8) do with net.ipv4.conf.*.rp_filter=2: it sets the sysctl of each
// link of a pod that the kernel reports.
type udev struct {
	wrote atomic.Int64 // time of the last write to a link that was up, which netplugin has sealed; 0: none
}

// run follows the messages of the thread's network namespace until ctx ends.
func (u *udev) run(ctx context.Context, t *testing.T, begun chan<- struct{}) {
	updates := make(chan netlink.LinkUpdate, 100)
	if err := netlink.LinkSubscribe(updates, ctx.Done()); err != nil {
		t.Error(err)
	}
	close(begun)
	for {
		select {
		case <-ctx.Done():
			return
		case m, ok := <-updates:
			if !ok {
				return
			}
			name := m.Attrs().Name
			if m.Header.Type != unix.RTM_NEWLINK || !strings.HasPrefix(name, hostnet.PodPrefix) {
				continue
			}
			if err := os.WriteFile(filterPath(name), []byte("2"), 0); err != nil {
				t.Error(err)
			}
			if m.IfInfomsg.Flags&unix.IFF_UP != 0 {
				u.wrote.Store(time.Now().UnixNano())
			}
		}
	}
}

// keptNode is a node with a hostKeeper that keeps and watches the host's network.
type keptNode struct {
	*hostKeeper
	t         *testing.T
	namespace *netns.Namespace
	infos     []policy.NodeInfo
	log       *process.Ring
}

func newKeptNode(t *testing.T) *keptNode {
	t.Helper()
	n := &keptNode{t: t, namespace: netns.New(t), log: process.NewRing(process.KeptLog)}
	n.hostKeeper, n.infos = keptHost(t, slog.New(slog.NewTextHandler(n.log, nil)))
	n.changed = make(chan struct{}, 1)
	var err error
	n.manager, err = endpoints.Open(endpoints.Config{
		StateDir: t.TempDir(),
		Logger:   n.hostKeeper.log,
		Switch:   attachedPods{},
		Realizer: attachedPods{},
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// prepare makes the node's links, and keeps the host's network until nothing differs and no link is new.
func (n *keptNode) prepare() {
	n.t.Helper()
	n.namespace.Do(func() {
		const noFilter = "/proc/sys/net/ipv4/conf/default/rp_filter" // new namespaces have this machine's
		if err := errors.Join(os.WriteFile(noFilter, []byte("0"), 0), nodeLinks()); err != nil {
			n.t.Fatal(err)
		}
		for range 2 {
			if err := n.keepHost(n.t.Context(), n.infos); err != nil {
				n.t.Fatal(err)
			}
		}
	})
	ageLinks(n.hostKeeper)
}

// keep keeps the host's network while f runs in its namespace, from the end of the first comparison on.
func (n *keptNode) keep(f func(ctx context.Context)) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	ended := make(chan struct{}, 2)
	n.cfg.Health.SetReady("network", starting)
	n.node.infos <- n.infos
	watch := func(ctx context.Context) { n.watchHost(ctx, hostnet.Watch) }
	for _, loop := range []func(context.Context){n.keepNetwork, watch} {
		go n.namespace.Do(func() { loop(ctx); ended <- struct{}{} })
	}
	defer func() { cancel(); <-ended; <-ended }()
	until(n.t, "the first comparison", func() bool { return n.cfg.Health.NotReady() == "" })
	n.namespace.Do(func() { f(ctx) })
}

// isSealed reports whether a link has the reverse path filter of a pod's link.
func (n *keptNode) isSealed(link string) bool {
	text, err := os.ReadFile(filterPath(link))
	if err != nil {
		n.t.Error(err)
	}
	return string(text) == "1\n"
}

// awaitRepair fails the test unless a link is sealed within a second of a change.
func (n *keptNode) awaitRepair(link string, changed func() time.Time) {
	n.t.Helper()
	timers := slow.WatchTimers()
	until(n.t, "the link as before", func() bool { return n.isSealed(link) })
	if took, limit := time.Since(changed()), slow.Stretch(time.Second)+timers.Stop(); took > limit {
		n.t.Errorf("LATE repaired after %v, limit %v", took, limit)
	}
}

// TestKeepNetwork_NewLinks: what udev changes of a new link of a pod is repaired within a second, and is neither
// counted nor logged as a change of another program. The same change of an older link is.
func TestKeepNetwork_NewLinks(t *testing.T) {
	n, pod, u := newKeptNode(t), netns.NewNamed(t, "pod"), new(udev)
	n.prepare()
	wrote := writesOf(t, n.agent, "sysctl")
	var link string
	n.keep(func(ctx context.Context) {
		begun, ended := make(chan struct{}), make(chan struct{})
		follow, cancel := context.WithCancel(ctx)
		go n.namespace.Do(func() { defer close(ended); u.run(follow, t, begun) })
		defer func() { cancel(); <-ended }()
		<-begun
		added, err := n.manager.Add(ctx, endpoints.Request{
			Namespace: "shop", Name: "db", UID: "1", ContainerID: "c1", IfName: "eth0", NetNS: pod.Path(),
		})
		if err != nil {
			t.Error(err)
			return
		}
		link = added.Endpoint.HostIfName
		until(t, "udev's change", func() bool { return u.wrote.Load() != 0 })
		n.awaitRepair(link, func() time.Time { return time.Unix(0, u.wrote.Load()) })
	})
	if t.Failed() {
		return
	}
	if writesOf(t, n.agent, "sysctl") == wrote {
		t.Error("the write after udev's change is not counted")
	}
	if got := repairsOf(t, n.agent, "sysctl"); got != 0 || strings.Contains(n.log.Text(), "another program") {
		t.Errorf("%v repairs counted; log:\n%s", got, n.log.Text())
	}
	ageLinks(n.hostKeeper)
	n.keep(func(context.Context) {
		now := time.Now()
		if err := os.WriteFile(filterPath(link), []byte("2"), 0); err != nil {
			t.Error(err)
		}
		n.awaitRepair(link, func() time.Time { return now })
		until(t, "the count", func() bool { return repairsOf(t, n.agent, "sysctl") == 1 })
	})
	want := "another program changed the host's network; repaired\" object=sysctl names=" + link
	if !strings.Contains(n.log.Text(), want) {
		t.Errorf("%q is not in the log:\n%s", want, n.log.Text())
	}
}

// TestKeepHost_AddressOfANewLink: an address on a new link is another program's.
func TestKeepHost_AddressOfANewLink(t *testing.T) {
	n, pod := newKeptNode(t), netns.NewNamed(t, "pod")
	n.prepare()
	n.namespace.Do(func() {
		added, err := n.manager.Add(t.Context(), endpoints.Request{
			Namespace: "shop", Name: "db", UID: "1", ContainerID: "c1", IfName: "eth0", NetNS: pod.Path(),
		})
		if err != nil {
			t.Error(err)
			return
		}
		n.after("ip addr add 203.0.113.1/24 dev "+added.Endpoint.HostIfName, "sysctl", 1)
	})
}

// after runs a command and a comparison, and fails the test unless the comparison repairs something, counts writes of a
// kind, and counts a number of repairs of that kind.
func (n *keptNode) after(command, kind string, want float64) {
	n.t.Helper()
	if out, err := exec.Command("sh", "-ec", command).CombinedOutput(); err != nil {
		n.t.Errorf("%s: %v: %s", command, err, out)
	}
	before, wrote := repairsOf(n.t, n.agent, kind), writesOf(n.t, n.agent, kind)
	if err := n.keepHost(n.t.Context(), n.infos); err != nil || len(n.repaired) == 0 {
		n.t.Errorf("%s: repaired %v (%v)", command, n.repaired, err)
	}
	if writesOf(n.t, n.agent, kind) == wrote {
		n.t.Errorf("%s: no write of kind %s is counted", command, kind)
	}
	if got := repairsOf(n.t, n.agent, kind) - before; got != want {
		n.t.Errorf("%s: %v of kind %s counted, want %v; repaired %v", command, got, kind, want, n.repaired)
	}
}

// all returns the number of all repairs of the host's network that were counted.
func (n *keptNode) all() (sum float64) {
	for _, kind := range hostnet.Objects {
		sum += repairsOf(n.t, n.agent, kind)
	}
	return sum
}

// TestKeepHost_NewDevices: links of the bridge that are others than before, as after a restart of ovs-vswitchd, are set
// up without a count, and so is what Open vSwitch changes of them in the next seconds. Policy rules do not belong to
// links.
func TestKeepHost_NewDevices(t *testing.T) {
	const (
		recreate = `for l in fk-gw fk-wire fk-out; do ip link del $l; ip link add $l type veth peer name $l-peer
			ip link set $l-peer up; done`
		setMAC  = "ip link set fk-gw down; ip link set fk-gw address 02:00:00:00:00:99; ip link set fk-gw up"
		setUdev = "echo 2 >/proc/sys/net/ipv4/conf/fk-out/rp_filter"
	)
	n := newKeptNode(t)
	n.prepare()
	n.namespace.Do(func() {
		n.after(setUdev, "sysctl", 1)
		n.after(setMAC, "link", 1)
		before := n.all()
		n.after(recreate, "link", 0)
		n.after(setMAC, "link", 0)
		n.after(setUdev, "sysctl", 0)
		if got := n.all() - before; got != 0 {
			t.Errorf("%v repairs counted after new links of the bridge", got)
		}
		n.after("ip rule del pref 60", "rule", 1)
		ageLinks(n.hostKeeper)
		n.after(setUdev, "sysctl", 1)
	})
}

// TestKeepHost_AnotherBasis: what follows from a change of the node's own link is no change of Flowkeep's objects.
func TestKeepHost_AnotherBasis(t *testing.T) {
	for command, kind := range map[string]string{
		"echo 1 >/proc/sys/net/ipv4/conf/eth0/rp_filter": "sysctl",
		"ip link set eth0 mtu 1400":                      "link",
	} {
		t.Run(command, func(t *testing.T) {
			n := newKeptNode(t)
			n.prepare()
			n.namespace.Do(func() { n.after(command, kind, 0) })
			if got := n.all(); got != 0 || len(n.repaired[kind]) == 0 {
				t.Errorf("%v repairs counted of %v", got, n.repaired)
			}
		})
	}
}

// TestBasisOf_Links: the basis has the index of each link of the bridge.
func TestBasisOf_Links(t *testing.T) {
	netns.New(t).Do(func() {
		if err := nodeLinks(); err != nil {
			t.Error(err)
			return
		}
		links := rtnltest.ReadLinks(t)
		index := func(name string) int { return links.Named(name).Attrs().Index }
		want := basis{
			gateway:  index(hostnet.Gateway),
			wire:     index(hostnet.Wire),
			out:      index(hostnet.Out),
			mtu:      1400,
			isStrict: true,
		}
		if got := basisOf(&hostnet.Config{Links: links, MTU: 1400, Strict: true}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}

func TestLinkTimes(t *testing.T) {
	link := func(index int) *rtnl.Link {
		return &rtnl.Link{Link: &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}}
	}
	start := time.Unix(0, 0)
	var times linkTimes
	times = times.updated(&rtnl.Links{All: []*rtnl.Link{link(7), link(8)}}, start)
	times = times.updated(&rtnl.Links{All: []*rtnl.Link{link(7), link(9)}}, start.Add(settleTime-1))
	if len(times) != 2 {
		t.Errorf("%d links are kept, want those that were read last", len(times))
	}
	for _, c := range []struct {
		index int
		after time.Duration
		want  bool
	}{
		{7, settleTime - 1, true},
		{7, settleTime, false},
		{9, settleTime, true},
		{9, 2*settleTime - 1, false},
		{10, settleTime, true},
	} {
		if got := times.isNew(c.index, start.Add(c.after)); got != c.want {
			t.Errorf("link %d after %v: new %v, want %v", c.index, c.after, got, c.want)
		}
	}
}
