package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// Captured is what passed an interface; see the probe's.
type Captured struct {
	Geneve int    `json:"geneve"`
	Bare   int    `json:"bare"`
	First  string `json:"first"`
	Large  int    `json:"large"`
}

// Capture counts, until the function that it returns is called, what passes an interface of a network namespace.
func (c *Cluster) Capture(ctx context.Context, netns, device string, networks ...string) (stop func() (Captured, error), err error) {
	cmd := inNS(ctx, netns, append([]string{c.probe(), "capture", device}, networks...)...)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	out := bufio.NewReader(pipe)
	if line, err := out.ReadString('\n'); err != nil {
		_ = cmd.Wait()
		return nil, fmt.Errorf("capture on %s: %q: %w", device, line, err)
	}
	return func() (seen Captured, err error) {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return seen, err
		}
		if err := json.NewDecoder(out).Decode(&seen); err != nil {
			return seen, err
		}
		return seen, cmd.Wait()
	}, nil
}

// Size sends UDP in an IP packet of so many bytes that nobody may fragment: "open", "shut", or "large MTU".
func (c *Cluster) Size(ctx context.Context, netns string, to netip.AddrPort, bytes int) (string, error) {
	text, err := output(inNS(ctx, netns, c.probe(), "size", "-timeout", "30s", to.String(), strconv.Itoa(bytes)))
	return strings.TrimSpace(text), err
}

// Ports lists the ports of a node's bridge.
func (c *Cluster) Ports(ctx context.Context, node string) ([]string, error) {
	text, err := c.script(ctx, fmt.Sprintf(`ovs-vsctl --db="unix:$RUN/%s/flowkeep/ovs/db.sock" list-ports fk0`, node))
	return strings.Fields(text), err
}

// ForgetTunnelNeighbours lets a node's switch ask for the other nodes' MACs anew: the userspace datapath believes whatever Geneve
// packet came last. It learns from those alone that it looks at closely, so its cache of decisions goes too.
func (c *Cluster) ForgetTunnelNeighbours(ctx context.Context, node string) error {
	_, err := c.script(ctx, fmt.Sprintf(`for what in tnl/neigh/flush revalidator/purge; do ovs-appctl -t "$RUN/%s/flowkeep/ovs/vswitchd.ctl" $what || exit; done`, node))
	return err
}

// Rearm changes the command by which a process is started from now on.
func (c *Cluster) Rearm(ctx context.Context, name, was, is string) error {
	file := c.Dir + "/pids/." + name + ".command"
	return exec.CommandContext(ctx, "sed", "-i", "s/"+was+"/"+is+"/", file).Run()
}
