package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

// NodeStatePort is where node-state agents tell of themselves, on the loopback address of their network namespace.
const NodeStatePort = 9442

// nearProbes is a shell function that prepares a node, or an end of it, for an agent's probes. Nothing beyond the
// sandbox answers, and before each change an agent waits 10 s for a name server and for a router beyond the gateway.
// So the agent's resolv.conf names no server, and routes that lead to the gateway, but are no default ones, leave the
// probe no address to send to: it fails at once.
const nearProbes = `near_probes() {
	local node=$1 verb=$2 default
	mkdir -p "$RUN/node-state/$node.root/etc"
	touch "$RUN/node-state/$node.root/etc/resolv.conf"
	default=$(in_ns "$node" ip route show default | sed -n '1s/^default//p')
	[ -z "$default" ] || in_ns "$node" ip route "$verb" 128.0.0.0/1 $default
	default=$(in_ns "$node" ip -6 route show default | sed -n '1s/^default//p')
	[ -z "$default" ] || in_ns "$node" ip -6 route "$verb" 2000::/3 $default
}
`

// StartNodeState starts a node-state agent in the network namespace of a node, or in one that MakeBareNode made. As a process it is
// called NODE-node-state.
func (c *Cluster) StartNodeState(ctx context.Context, node, kubeconfig string, flags ...string) error {
	_, err := c.script(ctx, nearProbes+fmt.Sprintf(`near_probes %[1]s replace
		start %[1]s-node-state nsenter --net="$(ns_path %[1]s)" -- "$RUN/flowkeep/bin/netplugin" %[2]s`,
		node, strings.Join(append(c.nodeStateArgs(node, kubeconfig), flags...), " ")))
	return err
}

// NodeStateOnce makes one pass, and returns when it has ended.
func (c *Cluster) NodeStateOnce(ctx context.Context, node, kubeconfig string, flags ...string) (string, error) {
	if _, err := c.script(ctx, nearProbes+fmt.Sprintf("near_probes %s replace", node)); err != nil {
		return "", err
	}
	program := []string{filepath.Join(c.Dir, "flowkeep", "bin", "netplugin")}
	once := slices.Concat(program, c.nodeStateArgs(node, kubeconfig), []string{"--once"}, flags)
	return c.RunIn(ctx, c.NodeNS(node), once...)
}

func (c *Cluster) nodeStateArgs(node, kubeconfig string) []string {
	return []string{
		"node-state", "--node-name", node, "--kubeconfig", kubeconfig, "--state-dir", c.nodeState(node),
		"--node-root", c.nodeState(node) + ".root",
		"--ovsdb", "unix:" + filepath.Join(c.Dir, node, "flowkeep", "ovs", "db.sock"),
	}
}

func (c *Cluster) nodeState(node string) string { return filepath.Join(c.Dir, "node-state", node) }

// EndNodeState stops the agent, and forgets what it kept.
func (c *Cluster) EndNodeState(ctx context.Context, node string) error {
	_, err := c.script(ctx, nearProbes+fmt.Sprintf(`stop %[1]s-node-state 40
		near_probes %[1]s del 2>/dev/null || true
		rm -rf "$RUN/pids/.%[1]s-node-state.command" "$RUN/node-state/%[1]s" "$RUN/node-state/%[1]s.root"`, node))
	return err
}

// NodeStateMetric is Metric of a node's agent.
func (c *Cluster) NodeStateMetric(ctx context.Context, node, metric string, labels ...string) (float64, error) {
	text, err := output(inNS(ctx, c.NodeNS(node), c.probe(), "get", fmt.Sprintf("http://127.0.0.1:%d/metrics", NodeStatePort)))
	if err != nil {
		return 0, err
	}
	return sumMetric(text, metric, labels...)
}

// MakeBareNode creates a network namespace as a node has it, with a link eth0 to the others and nothing else: no
// kubelet, no pods. The name has no dash. host is the last part of its address. EndBareNode removes it.
func (c *Cluster) MakeBareNode(ctx context.Context, name string, host int) error {
	if err := c.addNetNS(name); err != nil {
		return err
	}
	_, err := c.script(ctx, fmt.Sprintf(`lan=fk-$SANDBOX-lan ns=fk-$SANDBOX-%[1]s
		ip -n $lan link add %[1]s type veth peer name eth0 netns $ns
		ip -n $lan link set %[1]s master br0 up
		ip -n $ns link set eth0 up
		ip -n $ns addr add $NET.%[2]d/24 dev eth0
		ip -n $ns -6 addr add $NET6:%[2]d/64 dev eth0 nodad
		ip -n $ns route add default via $NET.1
		ip -n $ns -6 route add default via $NET6:1 dev eth0`, name, host))
	return err
}

// EndBareNode removes it with its links, as far as they are there.
func (c *Cluster) EndBareNode(ctx context.Context, name string) error {
	_, err := c.script(ctx, fmt.Sprintf(`ip -n fk-$SANDBOX-lan link del %[1]s 2>/dev/null || true`, name))
	return errors.Join(err, c.removeNetNS(name))
}

func (c *Cluster) netNSName(node string) string { return filepath.Base(c.NodeNS(node)) }

// addNetNS creates a network namespace of this sandbox, which sandbox/down removes if removeNetNS does not.
func (c *Cluster) addNetNS(name string) error {
	if strings.Contains(name, "-") {
		return fmt.Errorf("a network namespace of a sandbox is called %q: use a name without dashes", name)
	}
	return netns.Add(c.netNSName(name))
}

// removeNetNS removes a network namespace of this sandbox if it is there.
func (c *Cluster) removeNetNS(name string) error {
	if err := netns.Delete(c.netNSName(name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
