package endpoints

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/vishvananda/netlink"
)

// elsewhere runs f as a netplugin in another network namespace than the node's, where no link of a pod is seen.
func (w *world) elsewhere(f func()) {
	w.t.Helper()
	netns.New(w.t).Do(f)
}

// kept sweeps and returns the pods that are kept.
func (w *world) kept() (kept Kept, err error) {
	kept, err = w.Sweep(context.Background())
	return kept, err
}

// TestSweep_TakesNothingApartOutsideTheNodesNamespace sweeps where no link is seen: with the pods' namespaces in sight,
// and without them where the node's own links are missing too.
func TestSweep_TakesNothingApartOutsideTheNodesNamespace(t *testing.T) {
	for name, unseen := range map[string]bool{"namespaces are seen": false, "namespaces are not seen": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, pod := range []string{"web", "db", "api"} {
				w.mustAdd(w.request(pod, netns.NewNamed(t, pod)))
			}
			if unseen {
				w.cfg.InHost = func() error { return errors.New("fk-gw is missing") }
				for key, e := range w.endpoints {
					moved := *e
					moved.NetNS += "-elsewhere"
					w.endpoints[key] = &moved
				}
			}
			var living int
			w.elsewhere(func() {
				kept, err := w.kept()
				if err != nil || len(kept[KeptLinkUnseen]) != 3 {
					t.Errorf("kept %v: %v", kept, err)
				}
				living = len(w.Living())
			})
			whole := len(w.List()) == 3 && len(w.parts.ports) == 3 && len(w.parts.open) == 3
			if !whole || len(w.reserved()) != 6 || living != 3 {
				t.Errorf("%d endpoints, %d living, ports %v, open %d, addresses %v",
					len(w.List()), living, w.parts.ports, len(w.parts.open), w.reserved())
			}
			w.cfg.InHost = nil
			w.node.Do(func() {
				if kept, err := w.kept(); err != nil || len(kept[KeptLinkUnseen]) > 0 {
					t.Errorf("in the node's namespace: kept %v: %v", kept, err)
				}
			})
		})
	}
}

// TestSweep_AfterAReboot takes all pods apart: neither links nor namespaces are there.
func TestSweep_AfterAReboot(t *testing.T) {
	w := newWorld(t)
	w.cfg.InHost = func() error { return nil }
	for _, name := range []string{"web", "db", "api"} {
		pod := netns.NewNamed(t, name)
		w.end(pod, w.mustAdd(w.request(name, pod)).HostIfName)
	}
	w.node.Do(func() {
		if kept, err := w.kept(); err != nil || len(kept) > 0 || len(w.Living()) > 0 {
			t.Errorf("kept %v: %v", kept, err)
		}
	})
	w.empty("a reboot")
}

// TestSweep_LinkDeleted: a pod without both ends of its link is detached, whether a program of the node or, with
// NET_ADMIN, the pod itself deleted the link. Its address is given to another pod only after all others.
func TestSweep_LinkDeleted(t *testing.T) {
	for name, inPod := range map[string]bool{"on the node": false, "in the pod": true} {
		t.Run(name, func(t *testing.T) {
			w, pod := newWorld(t), netns.NewNamed(t, "pod")
			e := w.mustAdd(w.request("web", pod))
			where, link := w.node, e.HostIfName
			if inPod {
				where, link = pod, e.IfName
			}
			where.Do(func() {
				l, err := netlink.LinkByName(link)
				if err == nil {
					err = netlink.LinkDel(l)
				}
				if err != nil {
					t.Fatal(err)
				}
			})
			if err := w.sweep(); err != nil {
				t.Error(err)
			}
			w.empty("the link was deleted")
			if err := w.check("c-web"); !errors.Is(err, ErrUnknown) {
				t.Errorf("CHECK: %v", err)
			}
			next := w.mustAdd(w.request("db", netns.NewNamed(t, "next")))
			if next.Addresses[0] == e.Addresses[0] || next.Addresses[1] == e.Addresses[1] {
				t.Errorf("the next pod has %v, as the one before", next.Addresses)
			}
		})
	}
}

// TestSweep_KeepsPodsWithUnreadFiles starts while the disk returns errors for pods' files. The pods are kept with their
// addresses, and opened when the files are read.
func TestSweep_KeepsPodsWithUnreadFiles(t *testing.T) {
	w := newWorld(t)
	e := w.mustAdd(w.request("web", netns.NewNamed(t, "pod")))
	fails := true
	w.Manager.cfg.InHost = func() error { return nil }
	reads := func(path string) ([]byte, error) {
		if fails {
			return nil, &os.PathError{Op: "read", Path: path, Err: syscall.EIO}
		}
		return os.ReadFile(path)
	}
	w.Manager = &Manager{
		cfg:       w.cfg,
		files:     files{w.files.dir, nil, reads},
		endpoints: map[string]*Endpoint{},
	}
	clear(w.parts.open)
	if err := (reader{w.Manager}).load(); err != nil {
		t.Fatal(err)
	}
	w.know("10.9.0.0/28", "fd09::/120")
	w.node.Do(func() {
		kept, err := w.kept()
		if err != nil || !slices.Equal(kept[KeptUnread], []string{"container c-web"}) {
			t.Errorf("kept %v: %v", kept, err)
		}
	})
	if l := w.links(); !slices.Contains(l, e.HostIfName) || w.parts.ports[e.HostIfName] == 0 || len(w.reserved()) != 2 {
		t.Errorf("links %v, ports %v, addresses %v", l, w.parts.ports, w.reserved())
	}
	fails = false
	w.node.Do(func() {
		if kept, err := w.kept(); err != nil || len(kept) > 0 {
			t.Errorf("the disk is well: kept %v: %v", kept, err)
		}
	})
	if open, ok := w.parts.open["c-web/eth0"]; !ok || !open.Equal(e) {
		t.Errorf("the pod is %+v, want %+v", open, e)
	}
	if err := w.del("c-web", "eth0"); err != nil {
		t.Error(err)
	}
	w.empty("DEL")
}

// TestAdd_OtherPodCIDRs gives the node other podCIDRs, as where its Node is registered again: a running pod keeps its
// link, port, rules and address, also over a restart, and new pods get addresses of the new podCIDRs.
func TestAdd_OtherPodCIDRs(t *testing.T) {
	w := newWorld(t)
	before := w.mustAdd(w.request("web", netns.NewNamed(t, "web")))
	w.restart()
	w.know("10.9.1.0/28", "fd09:1::/120")
	after := w.mustAdd(w.request("db", netns.NewNamed(t, "db")))
	if got := fmt.Sprint(before.Addresses, after.Addresses); got != "[10.9.0.2 fd09::2] [10.9.1.2 fd09:1::2]" {
		t.Errorf("addresses %s", got)
	}
	if err := w.sweep(); err != nil || w.attached() != "db web" || !w.get("c-web/eth0").Equal(before) {
		t.Errorf("swept: %v, attached: %s", err, w.attached())
	}
	if err := errors.Join(w.del("c-web", "eth0"), w.del("c-db", "eth0")); err != nil {
		t.Error(err)
	}
	w.empty("DEL")
}

// TestAdd_OneInterfaceOfASandboxAtATime adds two interfaces of one sandbox at once: one is attached.
func TestAdd_OneInterfaceOfASandboxAtATime(t *testing.T) {
	w, pod := newWorld(t), netns.NewNamed(t, "pod")
	first, second := w.request("web", pod), w.request("web", pod)
	second.IfName = "net1"
	reached, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.parts.hook = func(step string) {
		if step == "EnsurePort" {
			once.Do(func() { close(reached); <-proceed })
		}
	}
	errs := make(chan error, 2)
	go func() { _, err := w.add(first); errs <- err }()
	<-reached
	w.parts.mu.Lock()
	w.parts.hook = nil
	w.parts.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	w.node.Do(func() { // it cannot pass while the first is under way
		if _, err := w.Add(ctx, second); !errors.Is(err, context.Canceled) {
			t.Errorf("the second while the first is under way: %v", err)
		}
	})
	go func() { _, err := w.add(second); errs <- err }()
	close(proceed)
	one, two := <-errs, <-errs
	if one != nil {
		one, two = two, one
	}
	if one != nil || !errors.Is(two, ErrSecondInterface) {
		t.Errorf("%v, %v", one, two)
	}
	if len(w.List()) != 1 || len(w.parts.ports) != 1 {
		t.Errorf("%d endpoints, ports %v", len(w.List()), w.parts.ports)
	}
}

// TestAdd_RepeatsWithAPairOfAnOlderVersion: that version attached two interfaces to a sandbox.
func TestAdd_RepeatsWithAPairOfAnOlderVersion(t *testing.T) {
	w, pod := newWorld(t), netns.NewNamed(t, "pod")
	first := w.mustAdd(w.request("web", pod))
	pair := *first
	pair.IfName, pair.HostIfName, pair.Order = "net1", hostIfName(first.ContainerID, "net1"), first.Order+1
	if err := w.keep(&pair); err != nil {
		t.Fatal(err)
	}
	if again := w.mustAdd(w.request("web", pod)); !again.Equal(first) {
		t.Errorf("repeated: %+v", again)
	}
}

// TestEnsurePorts_DoesNotWaitForARequest: a request that hangs holds up the port of its own container alone.
func TestEnsurePorts_DoesNotWaitForARequest(t *testing.T) {
	w := newWorld(t)
	web := w.mustAdd(w.request("web", netns.NewNamed(t, "web")))
	db := w.mustAdd(w.request("db", netns.NewNamed(t, "db")))
	clear(w.parts.ports)
	unlock, err := w.locks.lock(context.Background(), web.ContainerID)
	if err != nil {
		t.Fatal(err)
	}
	w.node.Do(func() {
		created, busy, err := w.EnsurePorts(context.Background(), map[string]bool{})
		webIsBusy := slices.Equal(busy, []string{web.HostIfName})
		if !slices.Equal(created, []string{db.HostIfName}) || !webIsBusy || err != nil {
			t.Errorf("created %v, busy %v: %v", created, busy, err)
		}
	})
	unlock()
	w.node.Do(func() {
		created, busy, err := w.EnsurePorts(context.Background(), map[string]bool{db.HostIfName: true})
		if !slices.Equal(created, []string{web.HostIfName}) || len(busy) > 0 || err != nil {
			t.Errorf("created %v, busy %v: %v", created, busy, err)
		}
	})
}

// TestEnsurePorts_DoesNotWaitForAPort: a port that the switch does not open holds up no other pod's.
func TestEnsurePorts_DoesNotWaitForAPort(t *testing.T) {
	w := newWorld(t)
	var names []string
	for _, name := range []string{"web", "db", "api"} {
		names = append(names, w.mustAdd(w.request(name, netns.NewNamed(t, name))).HostIfName)
	}
	clear(w.parts.ports)
	opened := make(chan struct{})
	var first sync.Once
	w.parts.hook = func(string) {
		hangs := false
		first.Do(func() { hangs = true })
		if hangs {
			<-opened
		}
	}
	done := make(chan []string)
	go w.node.Do(func() {
		created, _, _ := w.EnsurePorts(context.Background(), map[string]bool{})
		done <- created
	})
	for {
		w.parts.mu.Lock()
		n := len(w.parts.ports)
		w.parts.mu.Unlock()
		if n == 2 {
			break
		}
		runtime.Gosched()
	}
	close(opened)
	if created := <-done; len(created) != len(names) {
		t.Errorf("created %v of %v", created, names)
	}
}
