package endpoints

import (
	"context"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/rtnl/rtnltest"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/vishvananda/netlink"
)

func (w *world) mtu(where *netns.Namespace, name string) (mtu int) {
	w.t.Helper()
	where.Do(func() {
		link, err := netlink.LinkByName(name)
		if err != nil {
			w.t.Fatal(err)
		}
		mtu = link.Attrs().MTU
	})
	return mtu
}

func (w *world) fit(mtu int) {
	w.t.Helper()
	network, allocator := w.current()
	network.MTU = mtu
	w.SetNetwork(network, allocator)
	w.node.Do(func() {
		if err := w.FitMTU(rtnltest.ReadLinks(w.t)); err != nil {
			w.t.Error(err)
		}
	})
}

func (w *world) hasMTU(e *Endpoint, pod *netns.Namespace, host, inside int) {
	w.t.Helper()
	if a, b := w.mtu(w.node, e.HostIfName), w.mtu(pod, "eth0"); a != host || b != inside {
		w.t.Errorf("the node's end has %d, the pod's %d; want %d and %d", a, b, host, inside)
	}
}

// Pods that were wired before the MTU changed follow it, up and down; their addresses and routes stay.
func TestWiredPodsFollowTheMTU(t *testing.T) {
	w := newWorld(t)
	pod := netns.NewNamed(t, "pod")
	e := w.mustAdd(w.request("web", pod))
	w.restart()
	w.know("10.9.0.0/28", "fd09::/120")
	for _, mtu := range []int{1350, 1450} {
		w.fit(mtu)
		w.hasMTU(e, pod, mtu, mtu)
	}
	if err := w.check("c-web"); err != nil {
		t.Errorf("after it: %v", err)
	}
	pod.Do(func() { // the pod's own wish
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			err = netlink.LinkSetMTU(link, 1300)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	w.fit(1450)
	w.hasMTU(e, pod, 1450, 1300)
}

// A pod that went, or hid its link, keeps no other from following.
func TestTheMTUOfPodsThatAreGone(t *testing.T) {
	w := newWorld(t)
	gone, pod := netns.NewNamed(t, "gone"), netns.NewNamed(t, "pod")
	w.mustAdd(w.request("gone", gone))
	e := w.mustAdd(w.request("web", pod))
	hidden := netns.NewNamed(t, "hidden")
	w.mustAdd(w.request("hidden", hidden))
	hidden.Do(func() {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			err = netlink.LinkSetName(link, "mine")
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	w.end(gone, hostIfName("c-gone", "eth0"))
	w.fit(1350)
	w.hasMTU(e, pod, 1350, 1350)
}

// TestFitMTU_DoesNotWaitForARequest: a request that hangs holds up the MTU of its own pod alone, until the next call.
func TestFitMTU_DoesNotWaitForARequest(t *testing.T) {
	w := newWorld(t)
	busyPod, pod := netns.NewNamed(t, "busy"), netns.NewNamed(t, "pod")
	busy, e := w.mustAdd(w.request("busy", busyPod)), w.mustAdd(w.request("web", pod))
	unlock, err := w.locks.lock(context.Background(), busy.ContainerID)
	if err != nil {
		t.Fatal(err)
	}
	fitted := make(chan struct{})
	go func() { defer close(fitted); w.fit(1350) }()
	select {
	case <-fitted:
	case <-time.After(time.Minute):
		t.Error("it waits for the request")
	}
	w.hasMTU(busy, busyPod, nodeNetwork.MTU, nodeNetwork.MTU)
	unlock()
	<-fitted
	w.hasMTU(e, pod, 1350, 1350)
	w.fit(1350)
	w.hasMTU(busy, busyPod, 1350, 1350)
}
