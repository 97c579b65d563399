package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// MacvtapPort is where macvtap agents tell of themselves, on the loopback address of their network namespace.
const MacvtapPort = 9443

// StartMacvtap starts a macvtap agent on a node. As a process it is called NODE-macvtap.
func (c *Cluster) StartMacvtap(ctx context.Context, node, kubeconfig string, flags ...string) error {
	_, err := c.script(ctx, fmt.Sprintf(`start %[1]s-macvtap nsenter --net="$(ns_path %[1]s)" -- "$RUN/flowkeep/bin/netplugin" macvtap --node-name %[1]s --kubeconfig %[2]s \
			--kubelet-dir "$RUN/%[1]s/kubelet/device-plugins" --pod-resources "$RUN/%[1]s/kubelet/pod-resources/kubelet.sock" \
			--state-dir %[3]s %[4]s`,
		node, kubeconfig, c.MacvtapState(node), strings.Join(flags, " ")))
	return err
}

// MacvtapState is the directory of the state of a node's agent, the same as the CNI plugin's (scripts/node-up).
func (c *Cluster) MacvtapState(node string) string {
	return filepath.Join(c.Dir, node, "flowkeep", "macvtap")
}

// EndMacvtap stops the agent, and forgets what it kept.
func (c *Cluster) EndMacvtap(ctx context.Context, node string) error {
	_, err := c.script(ctx, fmt.Sprintf(`stop %[1]s-macvtap 40; rm -rf "$RUN/pids/.%[1]s-macvtap.command" %[2]s`, node, c.MacvtapState(node)))
	return err
}

// MacvtapMetric is Metric of a node's agent.
func (c *Cluster) MacvtapMetric(ctx context.Context, node, metric string, labels ...string) (float64, error) {
	text, err := output(inNS(ctx, c.NodeNS(node), c.probe(), "get", fmt.Sprintf("http://127.0.0.1:%d/metrics", MacvtapPort)))
	if err != nil {
		return 0, err
	}
	return sumMetric(text, metric, labels...)
}
