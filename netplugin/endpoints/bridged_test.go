package endpoints

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/rtnl/rtnltest"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

// bridgedGuest does in a pod what KubeVirt's bridge binding does: the pod's end has another name and MAC and is a port
// of a bridge, whose other port leads to the guest, which has the pod's MAC and address. A link without a port, in
// place of a dummy, has the pod's name.
func bridgedGuest(t *testing.T, pod, guest *netns.Namespace, e *Endpoint) {
	t.Helper()
	script := fmt.Sprintf(`cd /; exec 2>&1
pod="ip -n %s"; guest="ip -n %s"; mac=%s; address=%s
$pod link set eth0 down
$pod link set eth0 name eth0-nic
$pod addr flush dev eth0-nic
$pod link set eth0-nic address 02:7d:00:00:00:01
$pod link add k6t-eth0 type bridge
$pod link set eth0-nic master k6t-eth0
$pod link set eth0-nic up
$pod link add tap0 mtu 1400 type veth peer name eth0 netns %[2]s
$pod link set tap0 master k6t-eth0
$pod link set tap0 up
$pod link set k6t-eth0 up
$pod link add eth0 type bridge
$pod addr add $address/32 dev eth0
$guest link set eth0 address $mac
$guest link set eth0 up
$guest addr add $address/32 dev eth0
$guest route add 10.9.0.1 dev eth0
$guest route add default via 10.9.0.1
`, pod.Name(), guest.Name(), e.MAC, e.Addresses[0])
	if out, err := exec.Command("sh", "-exc", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// A guest on the pod's link keeps its network: CHECK finds the pod as it was made, and a sweep, a repeated ADD, a
// restart and another MTU leave the guest alone.
func TestBridgeBinding(t *testing.T) {
	w := newWorld(t)
	pod, guest := netns.NewNamed(t, "pod"), netns.NewNamed(t, "guest")
	r := w.request("vm", pod)
	e := w.mustAdd(r)
	bridgedGuest(t, pod, guest, e)
	w.node.Do(func() { // in place of the switch and the gateway
		out, err := exec.Command("sh", "-ec", "ip link add sw type bridge; ip link set "+e.HostIfName+
			" master sw; ip link set sw up; ip addr add 10.9.0.1/24 dev sw").CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
			return
		}
		l, err := net.Listen("tcp", "10.9.0.1:80")
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { l.Close() })
	})
	reaches := func(when string) {
		t.Helper()
		guest.Do(func() {
			c, err := net.DialTimeout("tcp", "10.9.0.1:80", time.Minute)
			if err != nil {
				t.Errorf("%s the guest does not reach its gateway: %v", when, err)
				return
			}
			c.Close()
		})
	}
	reaches("at first")
	if err := w.check("c-vm"); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if again := w.mustAdd(r); again.Port != e.Port || again.MAC != e.MAC {
		t.Errorf("a repeated ADD: %+v, want %+v", again, e)
	}
	w.restart()
	w.know("10.9.0.0/28", "fd09::/120")
	if err := w.sweep(); err != nil {
		t.Error(err)
	}
	network, allocator := w.current()
	network.MTU = 1350
	w.SetNetwork(network, allocator)
	w.node.Do(func() {
		if err := w.FitMTU(rtnltest.ReadLinks(t)); err != nil {
			t.Error(err)
		}
	})
	if err := w.check("c-vm"); err != nil {
		t.Errorf("CHECK after a restart: %v", err)
	}
	reaches("after a restart, a sweep and another MTU")

	// The pod's end without a bridge is no binding.
	out, err := exec.Command("ip", "-n", pod.Name(), "link", "set", "eth0-nic", "nomaster").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := w.check("c-vm"); err == nil || !strings.Contains(err.Error(), "not the other end") {
		t.Errorf("CHECK of a pod without its link: %v", err)
	}
}
