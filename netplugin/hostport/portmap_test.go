package hostport

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
)

// portmapNode is a node without iptables, a router between two hosts, with a pod.
type portmapNode struct {
	*testing.T
	node, pod, client, server *netns.Namespace
	program, path             string
}

const (
	podAddress    = "10.9.3.2"
	serverAddress = "10.9.2.2"
	nodeAddress   = "10.9.1.1"
	hostPort      = 18080
)

func newPortmapNode(t *testing.T) *portmapNode {
	t.Helper()
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Skip(err)
	}
	n := &portmapNode{
		T:       t,
		node:    netns.NewNamed(t, "node"),
		pod:     netns.NewNamed(t, "pod"),
		client:  netns.NewNamed(t, "client"),
		server:  netns.NewNamed(t, "server"),
		program: filepath.Join(t.TempDir(), "portmap"),
		path:    t.TempDir(),
	}
	n.run("go", "build", "-o", n.program, "github.com/containernetworking/plugins/plugins/meta/portmap")
	if err := os.Symlink(nft, filepath.Join(n.path, "nft")); err != nil {
		t.Fatal(err)
	}
	n.run("ip", "-n", n.node.Name(), "link", "set", "lo", "up")
	for i, far := range []*netns.Namespace{n.client, n.server, n.pod} {
		link := fmt.Sprintf("to%d", i+1)
		n.run("ip", "link", "add", link, "netns", n.node.Name(), "type", "veth", "peer", "name", "eth0", "netns", far.Name())
		n.run("ip", "-n", n.node.Name(), "address", "add", fmt.Sprintf("10.9.%d.1/24", i+1), "dev", link)
		n.run("ip", "-n", n.node.Name(), "link", "set", link, "up")
		n.run("ip", "-n", far.Name(), "address", "add", fmt.Sprintf("10.9.%d.2/24", i+1), "dev", "eth0")
		n.run("ip", "-n", far.Name(), "link", "set", "eth0", "up")
		n.run("ip", "-n", far.Name(), "route", "add", "default", "via", fmt.Sprintf("10.9.%d.1", i+1))
	}
	n.node.Do(func() {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
			t.Error(err)
		}
	})
	n.answer(n.pod, fmt.Sprintf("%s:80", podAddress), "pod")
	n.answer(n.server, fmt.Sprintf("%s:%d", serverAddress, hostPort), "server")
	return n
}

func (n *portmapNode) run(name string, args ...string) {
	n.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		n.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// answer has every connection to an address get a text.
func (n *portmapNode) answer(where *netns.Namespace, at, text string) {
	n.Helper()
	where.Do(func() {
		l, err := net.Listen("tcp", at)
		if err != nil {
			n.Error(err)
			return
		}
		n.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, text)
				c.Close()
			}
		}()
	})
}

// who returns who answers the client at an address and the host port.
func (n *portmapNode) who(address string) (text string) {
	n.client.Do(func() {
		c, err := net.DialTimeout("tcp", fmt.Sprintf("%s:%d", address, hostPort), time.Minute)
		if err != nil {
			text = err.Error()
			return
		}
		defer c.Close()
		b, err := io.ReadAll(c)
		if text = string(b); err != nil {
			text = err.Error()
		}
	})
	return text
}

// portmap runs the plugin as the container runtime does, with options of its entry.
func (n *portmapNode) portmap(command, options string) {
	n.Helper()
	n.node.Do(func() {
		cmd := exec.Command(n.program)
		cmd.Env = []string{
			"PATH=" + n.path, "CNI_COMMAND=" + command, "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0",
			"CNI_NETNS=" + n.pod.Path(), "CNI_PATH=" + n.path,
		}
		cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "flowkeep", "type": "flowkeep-portmap",
			"snat": true, %s "runtimeConfig": {"portMappings": [{"hostPort": %d, "containerPort": 80, "protocol": "tcp"}]},
			"prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": %q}],
			"ips": [{"address": "%s/24", "interface": 0}]}}`, options, hostPort, n.pod.Path(), podAddress))
		if out, err := cmd.CombinedOutput(); err != nil {
			n.Errorf("portmap %s: %v\n%s", command, err, out)
		}
	})
}

// On a node without iptables, the shipped portmap redirects what is for the node's addresses, and nothing that passes the
// node to another host's port of the same number (GHSA-jv3w-x3r3-g6rm).
func TestPortmap_NodeWithoutIptables(t *testing.T) {
	n := newPortmapNode(t)
	if got := n.who(serverAddress); got != "server" {
		t.Fatalf("before: the server's port is answered by %q", got)
	}
	n.portmap("ADD", "")
	if got := n.who(nodeAddress); got != "pod" {
		t.Errorf("the node's port is answered by %q, not by the pod", got)
	}
	if got := n.who(serverAddress); got != "server" {
		t.Errorf("the server's port is answered by %q", got)
	}
	n.portmap("DEL", "")
	if got := n.who(nodeAddress); got == "pod" {
		t.Error("the node's port is answered after DEL")
	}
}

// keep starts a keeper in the node's network namespace, for the pod or for none. It returns channels of its repairs and
// of the repeated DELs.
func (n *portmapNode) keep(hasPod *atomic.Bool) (repaired, deleted chan time.Time) {
	repaired, deleted = make(chan time.Time, 100), make(chan time.Time, 100)
	pod := endpoints.Endpoint{
		Namespace:   "shop",
		Name:        "door",
		ContainerID: "c1",
		IfName:      "eth0",
		NetNS:       n.pod.Path(),
		Addresses:   []netip.Addr{netip.MustParseAddr(podAddress)},
		HostPorts:   []endpoints.PortMapping{{HostPort: hostPort, ContainerPort: 80, Protocol: "tcp"}},
		Realised:    true,
	}
	cfg := Config{
		Program: n.program,
		Pods: func() []endpoints.Endpoint {
			if hasPod.Load() {
				return []endpoints.Endpoint{pod}
			}
			return nil
		},
		Repaired: func(int) { repaired <- time.Now() },
		Logger:   slog.New(slog.NewTextHandler(n.Output(), nil)),
	}
	onNode := &keeper{Config: cfg}
	cfg.list = func(ctx context.Context) (have *byFamily, err error) {
		n.node.Do(func() { have, err = listTables(ctx) })
		return have, err
	}
	cfg.run = func(ctx context.Context, command string, e *endpoints.Endpoint) (err error) {
		n.node.Do(func() { err = onNode.portmap(ctx, command, e) })
		if command == "DEL" && !hasPod.Load() {
			deleted <- time.Now()
		}
		return err
	}
	cfg.watch = func(ctx context.Context, table string, changed func()) (err error) {
		n.node.Do(func() { err = hostnet.WatchTable(ctx, table, changed) })
		return err
	}
	ctx, stop := context.WithCancel(n.Context())
	done := make(chan struct{})
	go func() { defer close(done); Keep(ctx, cfg) }()
	n.Cleanup(func() { stop(); <-done })
	return repaired, deleted
}

// nft runs a command of nft(8) on the node, and returns its output.
func (n *portmapNode) nft(args ...string) (out string) {
	n.Helper()
	n.node.Do(func() {
		text, err := exec.Command("nft", args...).CombinedOutput()
		if out = string(text); err != nil {
			n.Errorf("nft %v: %v\n%s", args, err, text)
		}
	})
	return out
}

// A hostPort works again after a firewall's reload, on a node without iptables, and its pod's end leaves no rules.
func TestKeep_Packets(t *testing.T) {
	n := newPortmapNode(t)
	t.Setenv("PATH", n.path) // nft alone
	n.portmap("ADD", `"backend": "nftables",`)
	if got := n.who(nodeAddress); got != "pod" {
		t.Fatalf("the node's port is answered by %q, not by the pod", got)
	}
	var hasPod atomic.Bool
	hasPod.Store(true)
	repaired, deleted := n.keep(&hasPod)
	before := n.nft("list", "table", "ip", table)
	for _, reload := range [][]string{
		{"delete", "table", "ip", table},
		{"flush", "ruleset"},
		{"flush", "chain", "ip", table, portChain},
		{"flush", "chain", "ip", table, "prerouting"},
	} {
		began := time.Now()
		n.nft(reload...)
		took := n.wait(repaired).Sub(began)
		if got := n.who(nodeAddress); got != "pod" {
			t.Errorf("after %v the node's port is answered by %q", reload, got)
		}
		t.Logf("%v: back after %v", reload, took) // more from the second on: the rate is bounded
	}
	if after := n.nft("list", "table", "ip", table); after != before {
		t.Errorf("the table was\n%s\nand is\n%s", before, after)
	}
	hasPod.Store(false)
	n.wait(deleted)
	if text := n.nft("list", "table", "ip", table); strings.Contains(text, podAddress) {
		t.Errorf("after the pod's end:\n%s", text)
	}
}

func (n *portmapNode) wait(event <-chan time.Time) time.Time {
	n.Helper()
	select {
	case at := <-event:
		return at
	case <-time.After(2 * time.Minute):
		n.Fatal("nothing happened within two minutes")
		return time.Time{}
	}
}
