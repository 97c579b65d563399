package endpoints

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/vishvananda/netlink"
)

// node is what a manager works with: ports, rules and addresses, all noted in one diary, and any of them may fail.
type node struct {
	mu     sync.Mutex
	diary  []string
	fails  string // the entry that fails
	taken  map[string]netip.Addr
	next   netip.Addr
	host   *netns.Namespace
	during func() // called while rules are put in force
}

func (n *node) note(entry string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.diary = append(n.diary, entry)
	if n.fails == entry {
		return errors.New("refused: " + entry)
	}
	return nil
}

func (n *node) EnsurePort(_ context.Context, name string, _ *Endpoint) (uint32, error) {
	return 7, n.note("port")
}
func (n *node) DeletePort(context.Context, string, *Endpoint) error { return n.note("no port") }
func (n *node) Realize(context.Context, Endpoint) error {
	if n.during != nil {
		n.during()
	}
	return n.note("rules")
}
func (n *node) Forget(context.Context, Endpoint) error { return n.note("no rules") }

func (n *node) Allocate(container, _ string) ([]netip.Addr, error) {
	err := n.note("address")
	n.mu.Lock()
	defer n.mu.Unlock()
	if a, ok := n.taken[container]; ok {
		return []netip.Addr{a}, err
	}
	n.next = n.next.Next()
	n.taken[container] = n.next
	return []netip.Addr{n.next}, err
}

func (n *node) Release(container, _ string) error {
	n.mu.Lock()
	delete(n.taken, container)
	n.mu.Unlock()
	return n.note("no address")
}

func (n *node) Keep(wanted func(container, ifName string) bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.taken, func(container string, _ netip.Addr) bool { return !wanted(container, "eth0") })
	return nil
}

// told is the diary since the last time.
func (n *node) told() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := strings.Join(n.diary, ", ")
	n.diary = nil
	return out
}

func newNode(t *testing.T) *node {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	return &node{taken: map[string]netip.Addr{}, next: netip.MustParseAddr("10.0.0.1"), host: netns.New(t)}
}

func (n *node) manager(t *testing.T, dir string) *Manager {
	t.Helper()
	m, err := Open(Config{StateDir: dir, Logger: slog.New(slog.DiscardHandler), Switch: n, Realizer: n})
	if err != nil {
		t.Fatal(err)
	}
	m.SetNetwork(Network{MTU: 1400, GatewayMAC: MAC{2, 0, 0, 0, 0, 1}, Gateways: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, n)
	return m
}

func (n *node) add(t *testing.T, m *Manager, container string, pod *netns.Namespace) (r *Result, err error) {
	t.Helper()
	n.host.Do(func() {
		r, err = m.Add(t.Context(), Request{Namespace: "shop", Name: "db", UID: "u1", ContainerID: container, IfName: "eth0", NetNS: pod.Path()})
	})
	return r, err
}

func (n *node) del(t *testing.T, m *Manager, container string) (err error) {
	t.Helper()
	n.host.Do(func() { err = m.Del(t.Context(), container, "eth0") })
	return err
}

func (n *node) check(t *testing.T, m *Manager, container string) (err error) {
	t.Helper()
	n.host.Do(func() { err = m.Check(t.Context(), container, "eth0") })
	return err
}

// links are the names of the interfaces of a namespace, but for lo.
func links(t *testing.T, in *netns.Namespace) (names []string) {
	t.Helper()
	in.Do(func() {
		all, err := rtnl.Dump(netlink.LinkList)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			if l.Attrs().Name != "lo" {
				names = append(names, l.Attrs().Name)
			}
		}
	})
	return names
}

func statesIn(t *testing.T, dir string) []string {
	t.Helper()
	out, err := filepath.Glob(filepath.Join(dir, "endpoints", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAPodIsWiredRulesLast(t *testing.T) {
	n, dir := newNode(t), t.TempDir()
	m, pod := n.manager(t, dir), netns.NewNamed(t, "pod")
	r, err := n.add(t, m, "c1", pod)
	if err != nil {
		t.Fatal(err)
	}
	if got := n.told(); got != "address, port, rules" {
		t.Errorf("done: %s", got)
	}
	if !r.Endpoint.Realised || r.Endpoint.Port != 7 || len(links(t, n.host)) != 1 || !slices.Equal(links(t, pod), []string{"eth0"}) {
		t.Errorf("%+v; links here %v, in the pod %v", r.Endpoint, links(t, n.host), links(t, pod))
	}
	pod.Do(func() {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil || len(addrs) != 1 || addrs[0].IP.String() != "10.0.0.2" {
			t.Errorf("addresses %v (%v)", addrs, err)
		}
		if a := link.Attrs(); a.MTU != 1400 || a.HardwareAddr.String() != r.Endpoint.MAC.String() {
			t.Errorf("MTU %d, MAC %s", a.MTU, a.HardwareAddr)
		}
	})
	if again, err := n.add(t, m, "c1", pod); err != nil || !again.Endpoint.Equal(&r.Endpoint) || n.told() != "port" {
		t.Errorf("asked again: %+v (%v)", again, err)
	}
	if err := n.check(t, m, "c1"); err != nil {
		t.Error(err)
	}
	n.told()
	if err := n.del(t, m, "c1"); err != nil {
		t.Fatal(err)
	}
	if got := n.told(); got != "no rules, no port, no address" {
		t.Errorf("undone: %s", got)
	}
	if left := statesIn(t, dir); len(links(t, n.host))+len(links(t, pod))+len(left)+len(m.List()) > 0 {
		t.Errorf("left: links %v %v, files %v, %v", links(t, n.host), links(t, pod), left, m.List())
	}
	if err := n.del(t, m, "c1"); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// Whatever fails on the way, nothing of it is left, and the next try works.
func TestAFailedAddLeavesNothing(t *testing.T) {
	for _, step := range []string{"address", "port", "rules"} {
		n, dir := newNode(t), t.TempDir()
		m, pod := n.manager(t, dir), netns.NewNamed(t, "pod")
		n.fails = step
		if _, err := n.add(t, m, "c1", pod); err == nil || !strings.Contains(err.Error(), "refused: "+step) {
			t.Errorf("%s: %v", step, err)
		}
		if left := statesIn(t, dir); len(links(t, n.host))+len(links(t, pod))+len(left)+len(n.taken)+len(m.List()) > 0 {
			t.Errorf("%s: left: links %v %v, files %v, addresses %v, %v", step, links(t, n.host), links(t, pod), left, n.taken, m.List())
		}
		n.fails = ""
		if _, err := n.add(t, m, "c1", pod); err != nil {
			t.Errorf("%s: the next try: %v", step, err)
		}
	}
}

// An address is free only when nothing of its last pod can send any more.
func TestAFailedDelKeepsTheAddress(t *testing.T) {
	for _, step := range []string{"no rules", "no port"} {
		n, dir := newNode(t), t.TempDir()
		m, pod := n.manager(t, dir), netns.NewNamed(t, "pod")
		if _, err := n.add(t, m, "c1", pod); err != nil {
			t.Fatal(err)
		}
		n.fails = step
		if err := n.del(t, m, "c1"); err == nil {
			t.Errorf("%s: DEL succeeded", step)
		}
		if len(n.taken) != 1 {
			t.Errorf("%s: the address is free", step)
		}
		n.fails = ""
		if err := n.del(t, m, "c1"); err != nil || len(n.taken) > 0 {
			t.Errorf("%s: the next DEL: %v, addresses %v", step, err, n.taken)
		}
	}
}

func TestDelWithoutTheNetworkNamespace(t *testing.T) {
	n := newNode(t)
	m := n.manager(t, t.TempDir())
	pod := netns.NewNamed(t, "pod")
	if _, err := n.add(t, m, "c1", pod); err != nil {
		t.Fatal(err)
	}
	pod.Delete()
	if err := n.del(t, m, "c1"); err != nil || len(n.taken) > 0 {
		t.Errorf("%v, addresses %v", err, n.taken)
	}
}

func TestCheckSeesWhatIsGone(t *testing.T) {
	n := newNode(t)
	m, pod := n.manager(t, t.TempDir()), netns.NewNamed(t, "pod")
	if err := n.check(t, m, "c1"); err == nil {
		t.Error("a container that was never wired is well")
	}
	if _, err := n.add(t, m, "c1", pod); err != nil {
		t.Fatal(err)
	}
	pod.Do(func() {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			err = netlink.LinkDel(link)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	if err := n.check(t, m, "c1"); err == nil {
		t.Error("a pod without its interface is well")
	}
	n.told()
	if _, err := n.add(t, m, "c1", pod); err != nil || !slices.Equal(links(t, pod), []string{"eth0"}) {
		t.Errorf("wired anew: %v, links %v", err, links(t, pod))
	}
}

// After a crash in the middle of ADD what was begun is undone; what was in force stays.
func TestAfterACrash(t *testing.T) {
	n, dir := newNode(t), t.TempDir()
	whole, half := netns.NewNamed(t, "pod"), netns.NewNamed(t, "pod")
	m := n.manager(t, dir)
	if _, err := n.add(t, m, "whole", whole); err != nil {
		t.Fatal(err)
	}
	crash := errors.New("crash")
	n.during = func() { panic(crash) }
	n.host.Do(func() {
		defer func() { _ = recover() }()
		_, _ = m.Add(t.Context(), Request{Namespace: "shop", Name: "new", ContainerID: "half", IfName: "eth0", NetNS: half.Path()})
	})
	n.during = nil
	if err := os.WriteFile(filepath.Join(dir, "endpoints", "torn-eth0.json"), []byte(`{"namespace": "sh`), 0o600); err != nil {
		t.Fatal(err)
	}
	n.told()
	m = n.manager(t, dir)
	n.host.Do(func() {
		if _, err := m.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if got := n.told(); got != "no rules, no port, no address" {
		t.Errorf("swept: %s", got)
	}
	if list := m.List(); len(list) != 1 || list[0].ContainerID != "whole" || !list[0].Realised {
		t.Errorf("%+v", list)
	}
	if len(links(t, half)) > 0 || len(links(t, whole)) != 1 || len(n.taken) != 1 {
		t.Errorf("links %v and %v, addresses %v", links(t, half), links(t, whole), n.taken)
	}
}

// Two requests for one container come one after the other; a DEL that comes during an ADD undoes it.
func TestOneContainerAtATime(t *testing.T) {
	n := newNode(t)
	m, pod := n.manager(t, t.TempDir()), netns.NewNamed(t, "pod")
	reached, proceed := make(chan struct{}), make(chan struct{})
	n.during = func() { close(reached); <-proceed }
	added := make(chan error, 1)
	go func() { _, err := n.add(t, m, "c1", pod); added <- err }()
	<-reached
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Del(ctx, "c1", "eth0"); err == nil || !strings.Contains(err.Error(), "another request") {
		t.Errorf("DEL in the middle of ADD: %v", err)
	}
	deleted := make(chan error, 1)
	go func() { deleted <- n.del(t, m, "c1") }()
	close(proceed)
	if err := errors.Join(<-added, <-deleted); err != nil {
		t.Fatal(err)
	}
	if len(m.List())+len(n.taken)+len(links(t, pod)) > 0 {
		t.Errorf("left: %v, addresses %v, links %v", m.List(), n.taken, links(t, pod))
	}
}

func TestNotReadyWithoutPodCIDRs(t *testing.T) {
	m, err := Open(Config{StateDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Add(t.Context(), Request{ContainerID: "c1", IfName: "eth0"}); !errors.Is(err, ErrNotReady) || !errors.Is(m.Ready(), ErrNotReady) {
		t.Errorf("%v", err)
	}
}
