package endpoints

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netplugin/ipam"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
)

// parts stands for the switch and the owner of the rules, and can be told to fail.
type parts struct {
	mu    sync.Mutex
	fail  map[string]error
	hook  func(step string)
	next  uint32
	ports map[string]uint32
	open  map[string]Endpoint // by container and interface
}

func newParts() *parts {
	return &parts{fail: map[string]error{}, ports: map[string]uint32{}, open: map[string]Endpoint{}}
}

func (p *parts) step(name string) error {
	p.mu.Lock()
	hook, err := p.hook, p.fail[name]
	p.mu.Unlock()
	if hook != nil {
		hook(name)
	}
	return err
}

func (p *parts) EnsurePort(_ context.Context, name string, _ *Endpoint) (uint32, error) {
	if err := p.step("EnsurePort"); err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ports[name] == 0 {
		p.next++
		p.ports[name] = p.next
	}
	return p.ports[name], nil
}

func (p *parts) DeletePort(_ context.Context, name string, _ *Endpoint) error {
	if err := p.step("DeletePort"); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ports, name)
	return nil
}

func (p *parts) Realize(_ context.Context, e Endpoint) error {
	if err := p.step("Realize"); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ports[e.HostIfName] != e.Port {
		return fmt.Errorf("port %d is not %s's", e.Port, e.HostIfName)
	}
	p.open[keyOf(e.ContainerID, e.IfName)] = e
	return nil
}

func (p *parts) Forget(_ context.Context, e Endpoint) error {
	if err := p.step("Forget"); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, keyOf(e.ContainerID, e.IfName))
	return nil
}

// world is a node in a network namespace of its own.
type world struct {
	t     *testing.T
	dir   string
	node  *netns.Namespace
	parts *parts
	*Manager
}

var nodeNetwork = Network{MTU: 1400, GatewayMAC: MAC{2, 0xf0, 1, 2, 3, 4},
	Gateways: []netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fd09::1")}}

func newWorld(t *testing.T) *world {
	w := &world{t: t, dir: t.TempDir(), node: netns.New(t), parts: newParts()}
	w.restart()
	w.know("10.9.0.0/28", "fd09::/120")
	return w
}

// restart forgets all but what is on disk and in the kernel.
func (w *world) restart() {
	w.t.Helper()
	var err error
	w.Manager, err = Open(Config{StateDir: w.dir, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Switch: w.parts, Realizer: w.parts})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) know(cidrs ...string) {
	w.t.Helper()
	var list []netip.Prefix
	for _, c := range cidrs {
		list = append(list, netip.MustParsePrefix(c))
	}
	a, err := ipam.New(w.dir, list)
	if err != nil {
		w.t.Fatal(err)
	}
	w.SetNetwork(nodeNetwork, a)
}

// end deletes a pod's network namespace, and waits until the kernel has removed the pod's link with it.
func (w *world) end(pod *netns.Namespace, hostIfName string) {
	w.t.Helper()
	pod.Delete()
	for limit := time.Now().Add(2 * time.Minute); slices.Contains(w.links(), hostIfName); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			w.t.Fatalf("the link %s outlives its network namespace", hostIfName)
		}
	}
}

func (w *world) add(r Request) (res *Result, err error) {
	w.node.Do(func() { res, err = w.Add(context.Background(), r) })
	return res, err
}

func (w *world) mustAdd(r Request) *Endpoint {
	w.t.Helper()
	res, err := w.add(r)
	if err != nil {
		w.t.Fatalf("ADD %s: %v", r.ContainerID, err)
	}
	return &res.Endpoint
}

func (w *world) del(container, ifName string) (err error) {
	w.node.Do(func() { err = w.Del(context.Background(), container, ifName) })
	return err
}

func (w *world) check(container string) (err error) {
	w.node.Do(func() { err = w.Check(context.Background(), container, "eth0") })
	return err
}

func (w *world) sweep() (err error) {
	w.node.Do(func() { _, err = w.Sweep(context.Background()) })
	return err
}

func (w *world) request(name string, pod *netns.Namespace) Request {
	return Request{Namespace: "shop", Name: name, UID: "u-" + name, ContainerID: "c-" + name, IfName: "eth0", NetNS: pod.Path()}
}

// reserved lists the addresses that are given out.
func (w *world) reserved() (out []string) {
	entries, _ := os.ReadDir(filepath.Join(w.dir, "addresses", "flowkeep"))
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err == nil {
			out = append(out, e.Name())
		}
	}
	return out
}

func (w *world) links() (out []string) {
	w.node.Do(func() {
		list, err := rtnl.Dump(netlink.LinkList)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, l := range list {
			if l.Type() == "veth" {
				out = append(out, l.Attrs().Name)
			}
		}
	})
	return out
}

// empty fails if anything of a pod is left anywhere.
func (w *world) empty(after string) {
	w.t.Helper()
	files, _ := os.ReadDir(filepath.Join(w.dir, "endpoints"))
	if r, l := w.reserved(), w.links(); len(r)+len(l)+len(files)+len(w.parts.ports)+len(w.parts.open)+len(w.List()) > 0 {
		w.t.Errorf("after %s there is left: addresses %v, links %v, files %v, ports %v, open %v, endpoints %v", after, r, l, files, w.parts.ports, w.parts.open, w.List())
	}
}

func TestAddWiresAndDelClears(t *testing.T) {
	w := newWorld(t)
	pod := netns.NewNamed(t, "pod")
	r := w.request("web", pod)
	r.IfName = "fifteen-chars-0"
	e := w.mustAdd(r)
	want := []netip.Addr{netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("fd09::2")}
	if !slices.Equal(e.Addresses, want) || e.MAC != (MAC{2, 0xf1, 10, 9, 0, 2}) || len(e.HostIfName) != 15 || !e.Realised {
		t.Errorf("wired %+v", e)
	}
	if got := w.links(); !slices.Equal(got, []string{e.HostIfName}) || w.parts.open["c-web/fifteen-chars-0"].Port != e.Port {
		t.Errorf("links %v, open %v", got, w.parts.open)
	}
	pod.Do(func() {
		link, err := netlink.LinkByName(r.IfName)
		if err != nil {
			t.Fatal(err)
		}
		if a := link.Attrs(); a.MTU != nodeNetwork.MTU || a.Flags&1 == 0 || MAC(a.HardwareAddr) != e.MAC {
			t.Errorf("the pod's link: %+v", a)
		}
		neighbours, _ := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
		for _, g := range nodeNetwork.Gateways {
			if !slices.ContainsFunc(neighbours, func(n netlink.Neigh) bool {
				return n.IP.String() == g.String() && n.State == netlink.NUD_PERMANENT && n.HardwareAddr.String() == nodeNetwork.GatewayMAC.String()
			}) {
				t.Errorf("the pod would have to ask for its gateway %s: %v", g, neighbours)
			}
		}
	})
	for _, again := range []string{"DEL", "a second DEL"} {
		if err := w.del(r.ContainerID, r.IfName); err != nil {
			t.Errorf("%s: %v", again, err)
		}
		w.empty(again)
	}
}

// The userspace datapath passes on checksums that were left to the device as they are, and nobody would take such packets.
func TestChecksumOffload(t *testing.T) {
	w := newWorld(t)
	for name, on := range map[string]bool{"kernel": true, "userspace": false} {
		network := nodeNetwork
		network.ChecksumOffload = on
		w.SetNetwork(network, w.allocator)
		pod := netns.NewNamed(t, name)
		w.mustAdd(w.request(name, pod))
		pod.Do(func() {
			tool, err := ethtool.NewEthtool()
			if err != nil {
				t.Fatal(err)
			}
			defer tool.Close()
			features, err := tool.Features("eth0")
			if sctp, known := features[featureSCTP]; err != nil || features["tx-checksum-ip-generic"] != on || known && sctp != on {
				t.Errorf("%s datapath: %v, %v", name, features, err)
			}
		})
	}
}

func TestDelOfAPodThatIsGone(t *testing.T) {
	w := newWorld(t)
	pod := netns.NewNamed(t, "pod")
	w.mustAdd(w.request("web", pod))
	pod.Delete()
	if err := w.del("c-web", "eth0"); err != nil {
		t.Error(err)
	}
	if err := w.del("c-never", "eth0"); err != nil {
		t.Error(err)
	}
	w.empty("DEL")
}

// Whatever step of ADD fails, all that was made before it goes.
func TestFailedAddLeavesNothing(t *testing.T) {
	boom := errors.New("boom")
	for name, test := range map[string]struct {
		prepare func(w *world, r *Request, pod *netns.Namespace)
		is      error
	}{
		"no port":        {func(w *world, _ *Request, _ *netns.Namespace) { w.parts.fail["EnsurePort"] = boom }, boom},
		"no rules":       {func(w *world, _ *Request, _ *netns.Namespace) { w.parts.fail["Realize"] = boom }, boom},
		"no namespace":   {func(_ *world, r *Request, _ *netns.Namespace) { r.NetNS += "-gone" }, ErrNetNS},
		"no namespace's": {func(w *world, r *Request, _ *netns.Namespace) { r.NetNS = w.dir }, ErrNetNS},
		"the node's own": {func(w *world, r *Request, _ *netns.Namespace) { r.NetNS = w.node.Path() }, ErrNetNS},
		"no gateway": {func(w *world, _ *Request, _ *netns.Namespace) {
			w.SetNetwork(Network{MTU: 1400}, w.allocator)
		}, nil},
		"no address left": {func(w *world, _ *Request, _ *netns.Namespace) {
			w.know("10.9.0.0/28", "fd09::/126")
			w.exhaust()
		}, nil},
		"name in use": {func(w *world, r *Request, pod *netns.Namespace) {
			pod.Do(func() {
				if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: r.IfName}, PeerName: "peer"}); err != nil {
					t.Fatal(err)
				}
			})
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w, pod := newWorld(t), netns.NewNamed(t, "pod")
			r := w.request("web", pod)
			test.prepare(w, &r, pod)
			_, err := w.add(r)
			if err == nil || test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("ADD says %v, want %v", err, test.is)
			}
			w.release()
			w.empty("a failed ADD")
		})
	}
}

// exhaust takes what is left of the pod CIDRs, until release.
func (w *world) exhaust() {
	for i := range 20 {
		_, _ = w.allocator.Allocate(fmt.Sprint("other-", i), "eth0")
	}
}

func (w *world) release() {
	for i := range 20 {
		_ = w.allocator.Release(fmt.Sprint("other-", i), "eth0")
	}
}

func TestADiskThatFailsWiresNoPod(t *testing.T) {
	w, pod := newWorld(t), netns.NewNamed(t, "pod")
	if err := os.RemoveAll(filepath.Join(w.dir, "endpoints")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.add(w.request("web", pod)); err == nil {
		t.Error("a pod was wired that a restart would not know")
	}
	w.empty("ADD without a disk")
}

func TestAddTwiceAnswersTheSame(t *testing.T) {
	w, pod := newWorld(t), netns.NewNamed(t, "pod")
	r := w.request("web", pod)
	first := w.mustAdd(r)
	index := w.podLink(pod).Attrs().Index
	if again := w.mustAdd(r); !again.Equal(first) || w.podLink(pod).Attrs().Index != index {
		t.Errorf("first %+v, then %+v", first, again)
	}
	// the port is lost: the pod gets another, and its rules there
	w.parts.ports = map[string]uint32{}
	if again := w.mustAdd(r); again.Port == first.Port || w.parts.open["c-web/eth0"].Port != again.Port || w.podLink(pod).Attrs().Index != index {
		t.Errorf("after the port was lost: %+v, open %+v", again, w.parts.open)
	}
	// the pod broke its link: made anew, with the same address
	pod.Do(func() {
		if err := netlink.LinkDel(w.podLink(pod)); err != nil {
			t.Fatal(err)
		}
	})
	if again := w.mustAdd(r); !slices.Equal(again.Addresses, first.Addresses) || again.MAC != first.MAC || len(w.reserved()) != 2 {
		t.Errorf("after the link was lost: %+v, reserved %v", again, w.reserved())
	}
	// another network namespace: wired there
	other := netns.NewNamed(t, "other")
	r.NetNS = other.Path()
	w.mustAdd(r)
	if w.podLink(other) == nil || len(w.links()) != 1 {
		t.Error("an ADD with another network namespace was answered with the old one's wiring")
	}
}

func (w *world) podLink(pod *netns.Namespace) (link netlink.Link) {
	pod.Do(func() { link, _ = netlink.LinkByName("eth0") })
	return link
}

func TestNoPodGetsAnothersContainer(t *testing.T) {
	w, pod := newWorld(t), netns.NewNamed(t, "pod")
	r := w.request("web", pod)
	w.mustAdd(r)
	for _, change := range []func(*Request){func(r *Request) { r.Name = "db" }, func(r *Request) { r.Namespace = "bank" }} {
		evil := r
		change(&evil)
		if res, err := w.add(evil); !errors.Is(err, ErrTaken) {
			t.Errorf("%s/%s was given %+v, %v", evil.Namespace, evil.Name, res, err)
		}
	}
	// in the other's sandbox, under a container ID of its own: nothing of the other's is touched
	evil := r
	evil.Name, evil.ContainerID = "db", "c-db"
	if _, err := w.add(evil); err == nil {
		t.Error("a second pod was wired as eth0 of the first one's sandbox")
	}
	if err := w.check("c-web"); err != nil {
		t.Error(err)
	}
}

func TestCheckSeesWhatChanged(t *testing.T) {
	del := func(f func(netlink.Link) error) func(*world, *netns.Namespace, *Endpoint) {
		return func(w *world, pod *netns.Namespace, _ *Endpoint) {
			pod.Do(func() {
				link, _ := netlink.LinkByName("eth0")
				if err := f(link); err != nil {
					w.t.Fatal(err)
				}
			})
		}
	}
	replace := func(made netlink.Link) func(*world, *netns.Namespace, *Endpoint) {
		return del(func(old netlink.Link) error {
			if err := errors.Join(netlink.LinkSetDown(old), netlink.LinkSetName(old, "hidden")); err != nil {
				return err // renamed, not deleted: the node's end stays
			}
			return netlink.LinkAdd(made)
		})
	}
	for name, change := range map[string]func(*world, *netns.Namespace, *Endpoint){
		"address": del(func(l netlink.Link) error {
			return netlink.AddrDel(l, &netlink.Addr{IPNet: hostNet(netip.MustParseAddr("fd09::2"))})
		}),
		"route": del(func(l netlink.Link) error {
			return netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: prefix("0.0.0.0/0")})
		}),
		"MAC":            del(func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, []byte{2, 0, 0, 0, 0, 9}) }),
		"link":           del(netlink.LinkDel),
		"a twin":         replace(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", HardwareAddr: []byte{2, 0xf1, 10, 9, 0, 2}}, PeerName: "peer"}),
		"not Ethernet":   replace(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, Mode: netlink.TUNTAP_MODE_TUN}),
		"sandbox":        func(w *world, pod *netns.Namespace, _ *Endpoint) { pod.Delete() },
		"the node's end": func(w *world, _ *netns.Namespace, e *Endpoint) { w.node.Do(func() { _ = removeLink(e) }) },
		"no port to be made": func(w *world, _ *netns.Namespace, _ *Endpoint) {
			w.parts.fail["EnsurePort"] = errors.New("no OVS")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, pod := newWorld(t), netns.NewNamed(t, "pod")
			e := w.mustAdd(w.request("web", pod))
			if err := w.check("c-web"); err != nil {
				t.Fatalf("CHECK of what ADD made: %v", err)
			}
			change(w, pod, e)
			if err := w.check("c-web"); err == nil {
				t.Error("CHECK has not seen it")
			}
		})
	}
	w := newWorld(t)
	if err := w.check("c-web"); !errors.Is(err, ErrUnknown) {
		t.Errorf("CHECK without ADD: %v", err)
	}
}

func prefix(text string) *net.IPNet {
	_, n, _ := net.ParseCIDR(text)
	return n
}

// Many pods at once, and for each an ADD twice and a DEL beside it: no address is anyone else's, and nothing is left.
func TestRequestsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.know("10.9.0.0/24", "fd09::/120")
	var all sync.WaitGroup
	const pods = 6
	for i := range pods {
		r := w.request(fmt.Sprint("web-", i), netns.NewNamed(t, fmt.Sprint("pod-", i)))
		for _, f := range []func(){
			func() { _, _ = w.add(r) }, func() { _, _ = w.add(r) }, func() { _ = w.del(r.ContainerID, r.IfName) }, func() { w.List() },
		} {
			all.Go(f)
		}
	}
	all.Wait()
	seen := map[netip.Addr]string{}
	for _, e := range w.List() {
		if !e.Realised || len(e.Addresses) != 2 || w.parts.open[keyOf(e.ContainerID, e.IfName)].Port != e.Port {
			t.Errorf("half wired: %+v", e)
		}
		for _, a := range e.Addresses {
			if other, taken := seen[a]; taken {
				t.Errorf("%s is %s's and %s's", a, other, e.ID())
			}
			seen[a] = e.ID()
		}
	}
	if len(w.reserved()) != len(seen) || len(w.links()) != len(w.List()) {
		t.Errorf("reserved %v, links %v, endpoints %v", w.reserved(), w.links(), w.List())
	}
	for i := range pods {
		if err := w.del(fmt.Sprint("c-web-", i), "eth0"); err != nil {
			t.Error(err)
		}
	}
	w.empty("all DELs")
}

// An ADD whose undoing hangs gives up, and frees the container for DEL.
func TestCancelledAddIsUndone(t *testing.T) {
	w, pod := newWorld(t), netns.NewNamed(t, "pod")
	ctx, cancel := context.WithCancel(context.Background())
	w.parts.hook = func(step string) {
		if step == "Realize" {
			cancel()
		}
	}
	w.parts.fail["Realize"] = context.Canceled
	w.node.Do(func() {
		if _, err := w.Add(ctx, w.request("web", pod)); err == nil {
			t.Error("an ADD that was cancelled has succeeded")
		}
	})
	w.empty("a cancelled ADD")
}
