package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Kill ends a recorded process (netmaster, memcached, apiserver, node1-netplugin, …) with signal 9.
func (c *Cluster) Kill(ctx context.Context, name string) error {
	_, err := c.script(ctx, fmt.Sprintf(`alive %[1]s || die "%[1]s is not running"
		read -r pid _ <"$RUN/pids/%[1]s"; kill -9 "$pid"; while alive %[1]s; do sleep 0.01; done`, name))
	return err
}

// Stop ends a recorded process as an administrator would: SIGTERM first.
func (c *Cluster) Stop(ctx context.Context, name string) error {
	_, err := c.script(ctx, "stop "+name)
	return err
}

// Start starts a process again with the command it was first started with; one that runs is left alone.
func (c *Cluster) Start(ctx context.Context, name string) error {
	_, err := c.script(ctx, "restart "+name)
	return err
}

// StartInYoungKernel starts a process again where the clock says that the kernel was started a second ago (time_namespaces(7)).
func (c *Cluster) StartInYoungKernel(ctx context.Context, name string) error {
	_, err := c.script(ctx, fmt.Sprintf(`file="$RUN/pids/.%[1]s.command"; read -r command <"$file" || die "nothing called %[1]s was ever started here"
		read -r up _ </proc/uptime; eval "start %[1]s unshare --time --fork --kill-child --monotonic=$((1 - ${up%%.*})) $command"; echo "$command" >"$file"`, name))
	return err
}

// WatchAnew restarts what has watched an API server that was away: Kubernetes' own parts wait up to 30 s before they ask again, some
// of them twice, and what is created by then is seen by nobody.
func (c *Cluster) WatchAnew(ctx context.Context) error {
	_, err := c.script(ctx, `for pids in "$RUN"/pids/{controller-manager,scheduler,node*-proxy,node*-kubelet}; do
		name=${pids##*/}; ! alive "$name" || { stop "$name" && restart "$name"; } || exit 1; done`)
	return err
}

// Signal sends any signal to a recorded process.
func (c *Cluster) Signal(ctx context.Context, name string, sig syscall.Signal) error {
	_, err := c.script(ctx, fmt.Sprintf(`alive %[1]s || die "%[1]s is not running"
		read -r pid _ <"$RUN/pids/%[1]s"; kill -%[2]d "$pid"`, name, int(sig)))
	return err
}

// page is a process's own HTTP server, on the loopback address of its network namespace.
func (c *Cluster) page(ctx context.Context, name, path string) (string, error) {
	netns, port := c.ControlPlaneNS(), 9440
	if node, ok := strings.CutSuffix(name, "-netplugin"); ok {
		netns, port = c.NodeNS(node), 9441
	}
	return output(inNS(ctx, netns, filepath.Join(c.Bin, "probe"), "get", fmt.Sprintf("http://127.0.0.1:%d%s", port, path)))
}

// AwaitReady waits until /readyz of netmaster or of NODE-netplugin answers 200.
func (c *Cluster) AwaitReady(ctx context.Context, name string, limit time.Duration) error {
	return Until(ctx, limit, func() error {
		why, err := c.page(ctx, name, "/readyz")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(why))
		}
		return err
	})
}

// AwaitConnected waits until netmaster has all nodes: a netplugin that is ready enforces what it knows, and may have yet to find
// netmaster.
func (c *Cluster) AwaitConnected(ctx context.Context, limit time.Duration) error {
	return c.awaitNodes(ctx, limit, func(n *nodeStatus) error {
		if !n.Connected {
			return fmt.Errorf("%s is not connected to netmaster", n.Name)
		}
		return nil
	})
}

// AwaitSynced waits until all nodes have in force what netmaster knows: it has sent all, and they have acknowledged it.
func (c *Cluster) AwaitSynced(ctx context.Context, limit time.Duration) error {
	return c.awaitNodes(ctx, limit, func(n *nodeStatus) error {
		if !n.Connected || n.Pending > 0 || n.Realised != n.Sent {
			return fmt.Errorf("netmaster's newest changes are not in force on a node: %+v", *n)
		}
		return nil
	})
}

// nodeStatus is a node in the output of netctl status.
type nodeStatus struct {
	Name           string
	Connected      bool
	Sent, Realised uint64 // revisions
	Pending        int    // changes that are not sent
}

// awaitNodes waits until a condition holds for each node that netmaster knows, and it knows one.
func (c *Cluster) awaitNodes(ctx context.Context, limit time.Duration, ok func(n *nodeStatus) error) error {
	return Until(ctx, limit, func() error {
		text, err := c.Netctl(ctx, "status", "-o", "json")
		if text == "" { // status fails where anything is not well, and prints the status all the same
			return fmt.Errorf("netctl status: %w", err)
		}
		var status struct{ Nodes []nodeStatus }
		if err := json.Unmarshal([]byte(text), &status); err != nil {
			return err
		}
		if len(status.Nodes) == 0 {
			return errors.New("no node has connected to netmaster")
		}
		for i := range status.Nodes {
			if err := ok(&status.Nodes[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// Metric sums the samples of one metric of netmaster or of NODE-netplugin over those of its labels that contain each of
// the texts, as in Metric(ctx, "netmaster", "flowkeep_up", `node="node1"`). It fails when there is no such sample.
func (c *Cluster) Metric(ctx context.Context, process, metric string, labels ...string) (float64, error) {
	text, err := c.page(ctx, process, "/metrics")
	if err != nil {
		return 0, err
	}
	return sumMetric(text, metric, labels...)
}

func sumMetric(text, metric string, labels ...string) (sum float64, err error) {
	found := false
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, metric)
		if !ok || !strings.ContainsAny(rest[:1], " {") || !containsAll(rest, labels) {
			continue
		}
		var value float64
		if _, err := fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &value); err != nil {
			return 0, fmt.Errorf("metric line %q: %w", line, err)
		}
		sum, found = sum+value, true
	}
	if !found {
		return 0, fmt.Errorf("no sample of %s %v", metric, labels)
	}
	return sum, nil
}

func containsAll(s string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}

// StartWith starts a process as Start does, with more flags; the next Start is as before.
func (c *Cluster) StartWith(ctx context.Context, name string, flags ...string) error {
	_, err := c.script(ctx, fmt.Sprintf(`file="$RUN/pids/.%[1]s.command"; read -r command <"$file" || die "nothing called %[1]s was ever started here"
		eval "start %[1]s $command %[2]s"; echo "$command" >"$file"`, name, strings.Join(flags, " ")))
	return err
}
