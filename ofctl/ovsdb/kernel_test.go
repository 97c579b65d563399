package ovsdb_test

import (
	"encoding/hex"
	"net"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// TestKernelDatapathSeparatesPorts runs the tests of fail_mode and tags on the kernel's datapath, whose ports are links.
func TestKernelDatapathSeparatesPorts(t *testing.T) {
	ovstest.NeedKernelDatapath(t)
	if testing.Short() {
		t.Skip("minutes in a virtual machine")
	}
	t.Run("without flows", TestEnsureBridge_SeparatesPorts)
	t.Run("with flows", TestEnsureBridge_FlowsForwardBetweenSeparatePorts)
}

// portLinks are the links by which ports of the kernel's datapath receive frames: a pod's end of a pair of links, or the
// port itself, which is the node's end of an internal port.
type portLinks struct {
	pods    []string
	sockets map[string]int
}

// newPortLinks adds the links of pods, in a network namespace in which the rest of the test runs.
func newPortLinks(t *testing.T, pods []string) *portLinks {
	t.Helper()
	netns.New(t).Enter(t)
	shell(t, "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6") // links send nothing by themselves
	for _, pod := range pods {
		shell(t, "ip link add "+pod+" type veth peer name "+pod+"-end; ip link set "+pod+" up")
	}
	return &portLinks{pods: pods, sockets: map[string]int{}}
}

// swapInternal swaps the counters of internal ports, which the kernel's datapath counts as the node's end does.
func (l *portLinks) swapInternal(numbers map[string]int, received, sent map[int]int) {
	for name, n := range numbers {
		if !slices.Contains(l.pods, name) {
			received[n], sent[n] = sent[n], received[n]
		}
	}
}

// open opens a socket for frames that a port receives.
func (l *portLinks) open(t *testing.T, port string) {
	t.Helper()
	name := port
	if slices.Contains(l.pods, port) {
		name += "-end"
	}
	shell(t, "ip link set "+name+" up")
	var link *net.Interface
	until(t, name+" is operational", func() bool { // before, the kernel drops what is sent by it
		var err error
		if link, err = net.InterfaceByName(name); err != nil {
			t.Fatal(err)
		}
		return link.Flags&net.FlagRunning != 0
	})
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: link.Index}); err != nil {
		t.Fatal(err)
	}
	l.sockets[port] = fd
}

// send sends frames, as hexadecimal digits, into a port.
func (l *portLinks) send(t *testing.T, port string, frames []string) {
	t.Helper()
	for _, f := range frames {
		data, err := hex.DecodeString(f)
		if err == nil {
			_, err = unix.Write(l.sockets[port], data)
		}
		if err != nil {
			t.Fatalf("send a frame into %s: %v", port, err)
		}
	}
}

// shell runs a command line in the test's network namespace.
func shell(t *testing.T, line string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", line).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
}
