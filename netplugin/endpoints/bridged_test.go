package endpoints

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/rtnl/rtnltest"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

// bindBridge does in a pod what KubeVirt's bridge binding does: the pod's end has another name and MAC and is a port of
// a bridge, whose other port tap0 leads to the guest, which has the pod's MAC and address. A link without a port, in
// place of a dummy, has the pod's name.
func bindBridge(t *testing.T, pod *netns.Namespace, e *Endpoint) {
	t.Helper()
	shell(t, fmt.Sprintf(`pod="ip -n %s"
$pod link set eth0 down
$pod link set eth0 name eth0-nic
$pod addr flush dev eth0-nic
$pod link set eth0-nic address 02:7d:00:00:00:01
$pod link add k6t-eth0 type bridge
$pod link set eth0-nic master k6t-eth0
$pod link set eth0-nic up
$pod link set tap0 master k6t-eth0
$pod link set tap0 up
$pod link set k6t-eth0 up
$pod link add eth0 type bridge
$pod addr add %s/32 dev eth0
`, pod.Name(), e.Addresses[0]))
}

func shell(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-exc", "cd /; exec 2>&1\n"+script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// serve connects a pod's link to a bridge, in place of the switch, on which the gateway listens. It returns the source
// addresses of the connections.
func (w *world) serve(t *testing.T, e *Endpoint) <-chan string {
	t.Helper()
	sources := make(chan string, 64)
	w.node.Do(func() {
		shell(t, "ip link add sw type bridge; ip link set "+e.HostIfName+
			" master sw; ip link set sw up; ip addr add 10.9.0.1/24 dev sw")
		l, err := net.Listen("tcp", "10.9.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				source, _, _ := net.SplitHostPort(c.RemoteAddr().String())
				c.Close()
				select {
				case sources <- source:
				default: // nothing waits for it
				}
			}
		}()
	})
	return sources
}

// keepsItsGuest: CHECK finds a pod with a bridge as it was made, and a repeated ADD, a restart, a sweep and another MTU
// leave the guest alone.
func (w *world) keepsItsGuest(t *testing.T, r Request, e *Endpoint, reaches func(when string)) {
	t.Helper()
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
}

// A network namespace in place of a guest on the pod's link keeps its network.
func TestBridgeBinding(t *testing.T) {
	w := newWorld(t)
	pod, guest := netns.NewNamed(t, "pod"), netns.NewNamed(t, "guest")
	r := w.request("vm", pod)
	e := w.mustAdd(r)
	shell(t, fmt.Sprintf(`guest="ip -n %s"
ip -n %s link add tap0 mtu 1400 type veth peer name eth0 netns %[1]s
$guest link set eth0 address %[3]s
$guest link set eth0 up
$guest addr add %[4]s/32 dev eth0
$guest route add 10.9.0.1 dev eth0
$guest route add default via 10.9.0.1
`, guest.Name(), pod.Name(), e.MAC, e.Addresses[0]))
	bindBridge(t, pod, e)
	w.serve(t, e)
	w.keepsItsGuest(t, r, e, func(when string) {
		t.Helper()
		guest.Do(func() {
			c, err := net.DialTimeout("tcp", "10.9.0.1:80", time.Minute)
			if err != nil {
				t.Errorf("%s the guest does not reach its gateway: %v", when, err)
				return
			}
			c.Close()
		})
	})

	// The pod's end without a bridge is no binding.
	shell(t, "ip -n "+pod.Name()+" link set eth0-nic nomaster")
	if err := w.check("c-vm"); err == nil || !strings.Contains(err.Error(), "not the other end") {
		t.Errorf("CHECK of a pod without its link: %v", err)
	}
}

// TestBridgeBinding_VirtualMachine: a virtual machine on the pod's link, with a Linux of its own, keeps its network. It
// connects to its gateway again and again. FLOWKEEP_GUEST is the folder with its kernel: scripts/kernel -guest.
func TestBridgeBinding_VirtualMachine(t *testing.T) {
	folder := os.Getenv("FLOWKEEP_GUEST")
	if folder == "" {
		t.Skip("no kernel for a guest: scripts/kernel -guest has one")
	}
	w := newWorld(t)
	pod := netns.NewNamed(t, "pod")
	r := w.request("vm", pod)
	e := w.mustAdd(r)
	shell(t, "ip -n "+pod.Name()+" tuntap add tap0 mode tap")
	bindBridge(t, pod, e)
	sources := w.serve(t, e)
	console := startGuest(t, folder, pod, e)
	w.keepsItsGuest(t, r, e, func(when string) {
		t.Helper()
		for len(sources) > 0 {
			<-sources
		}
		for range 2 { // the first may have been on its way
			select {
			case source := <-sources:
				if source != e.Addresses[0].String() {
					t.Errorf("%s %s connects, want %s", when, source, e.Addresses[0])
				}
			case <-time.After(5 * time.Minute):
				text, _ := os.ReadFile(console)
				t.Fatalf("%s the guest does not reach its gateway; its console:\n%s", when, text)
			}
		}
	})
}

// guestInitrd makes the files of a guest, whose first program is a shell of busybox: $1 is their folder, $2 that of the
// kernel, $3 the guest's address.
const guestInitrd = `mkdir -p "$1/bin" "$1/proc" "$1/sys" "$1/dev" "$1/modules" "$1/../tree/lib"
cp "$(command -v busybox)" "$1/bin/busybox"
ln -s "$2/modules" "$1/../tree/lib/modules"
for m in virtio_pci virtio_net; do
  modprobe -d "$1/../tree" -S "$(cat "$2/release")" --show-depends $m
done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' >"$1/../modules"
while read -r file; do cp "$file" "$1/modules/"; basename "$file"; done <"$1/../modules" >"$1/order"
cat >"$1/init" <<EOF
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
while read -r m; do insmod /modules/\$m; done </order
ip link set lo up
ip link set eth0 up
ip addr add $3/32 dev eth0
ip route add 10.9.0.1 dev eth0
ip route add default via 10.9.0.1
while :; do echo | nc -w 5 10.9.0.1 80; usleep 200000; done
EOF
chmod 755 "$1/init"
cd "$1" && find . | cpio -o -H newc --quiet >"$1/../initrd"
`

// startGuest starts a virtual machine on tap0 of a pod, with the pod's MAC and address, by emulation. It returns the
// file with what its console prints.
func startGuest(t *testing.T, folder string, pod *netns.Namespace, e *Endpoint) (console string) {
	t.Helper()
	dir := t.TempDir()
	files := filepath.Join(dir, "files")
	out, err := exec.Command("sh", "-ec", guestInitrd, "sh", files, folder, e.Addresses[0].String()).CombinedOutput()
	if err != nil {
		t.Fatalf("the guest's files: %v: %s", err, out)
	}
	console = filepath.Join(dir, "console")
	cmd := exec.Command("timeout", "900", "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-m", "256M", "-nodefaults",
		"-display", "none", "-no-reboot", "-kernel", filepath.Join(folder, "vmlinuz"), "-initrd", filepath.Join(dir, "initrd"),
		"-append", "console=ttyS0 panic=-1 nowatchdog audit=0 mitigations=off", "-serial", "file:"+console,
		"-netdev", "tap,id=pod,ifname=tap0,script=no,downscript=no",
		"-device", "virtio-net-pci,netdev=pod,romfile=,mac="+e.MAC.String())
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	pod.Do(func() {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // timeout passes it on
		_ = cmd.Wait()
	})
	return console
}
