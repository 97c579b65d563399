package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Flow is a flow of a node's switch, as ovs-ofctl prints it without counters and ages.
type Flow struct {
	Text string
	Age  time.Duration // since it was added or replaced
}

var (
	ageField = regexp.MustCompile(`duration=([0-9.]+)s, `)
	counters = regexp.MustCompile(`(duration|n_packets|n_bytes|idle_age|hard_age)=[0-9.]+s?, ?`)
)

// Flows dumps the bridge of a node.
func (c *Cluster) Flows(ctx context.Context, node string) ([]Flow, error) {
	socket := filepath.Join(c.Dir, node, "flowkeep", "ovs", "fk0.mgmt")
	if _, err := os.Stat(socket); err != nil { // installed by its manifests
		socket = filepath.Join(c.Dir, node, "host", "run", "openvswitch", "fk0.mgmt")
	}
	text, err := output(exec.CommandContext(ctx, "ovs-ofctl", "-O", "OpenFlow13", "dump-flows", "unix:"+socket))
	if err != nil {
		return nil, err
	}
	return parseFlows(text)
}

// Conntrack dumps the connections that a node's switch knows, of all its zones; on the kernel's datapath zone 0 is the node's own.
func (c *Cluster) Conntrack(ctx context.Context, node string) (string, error) {
	return c.script(ctx, fmt.Sprintf(`ovs-appctl -t "$RUN/%s/flowkeep/ovs/vswitchd.ctl" dpctl/dump-conntrack | sed -n /zone=/p`, node))
}

// ConntrackIDs dumps the same with the kernel's id of each connection, which another of the same addresses does not have.
func (c *Cluster) ConntrackIDs(ctx context.Context, node string) (string, error) {
	return c.script(ctx, fmt.Sprintf(
		`ovs-appctl -t "$RUN/%s/flowkeep/ovs/vswitchd.ctl" dpctl/dump-conntrack -m | sed -n /zone=/p`, node))
}

// KernelDatapath tells whether a node's switch uses the kernel's datapath, not that of ovs-vswitchd.
func (c *Cluster) KernelDatapath(ctx context.Context, node string) (bool, error) {
	text, err := c.script(ctx, fmt.Sprintf(`ovs-appctl -t "$RUN/%s/flowkeep/ovs/vswitchd.ctl" dpctl/dump-dps`, node))
	return strings.Contains(text, "system@"), err
}

// AwaitStatistics waits until a node's switch has added to its flows what its datapath has counted by now. The pass of
// the revalidators that runs at the moment may have passed by what came last.
func (c *Cluster) AwaitStatistics(ctx context.Context, node string) error {
	_, err := c.script(ctx, fmt.Sprintf(
		`for pass in 1 2; do ovs-appctl -t "$RUN/%s/flowkeep/ovs/vswitchd.ctl" revalidator/wait; done`, node))
	return err
}

// ForgetConnections has a node's switch forget the connections that it knows, of all its zones.
func (c *Cluster) ForgetConnections(ctx context.Context, node string) error {
	_, err := c.script(ctx, fmt.Sprintf(`ovs-appctl -t "$RUN/%s/flowkeep/ovs/vswitchd.ctl" dpctl/flush-conntrack`, node))
	return err
}

// DeleteGroups deletes all groups of a node's bridge, as another program may.
func (c *Cluster) DeleteGroups(ctx context.Context, node string) error {
	socket := filepath.Join(c.Dir, node, "flowkeep", "ovs", "fk0.mgmt")
	_, err := output(exec.CommandContext(ctx, "ovs-ofctl", "-O", "OpenFlow13", "del-groups", "unix:"+socket))
	return err
}

// Groups returns the groups of a node's bridge as ovs-ofctl(8) prints them, without counters, sorted.
func (c *Cluster) Groups(ctx context.Context, node string) ([]string, error) {
	socket := filepath.Join(c.Dir, node, "flowkeep", "ovs", "fk0.mgmt")
	text, err := output(exec.CommandContext(ctx, "ovs-ofctl", "-O", "OpenFlow13", "dump-groups", "unix:"+socket))
	if err != nil {
		return nil, err
	}
	groups := slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
		return !strings.Contains(line, "group_id=")
	})
	slices.Sort(groups)
	return groups, nil
}

func parseFlows(text string) (flows []Flow, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		age := ageField.FindStringSubmatch(line)
		if age == nil {
			continue // the header
		}
		seconds, err := strconv.ParseFloat(age[1], 64)
		if err != nil {
			return nil, fmt.Errorf("flow %q: %w", line, err)
		}
		flows = append(flows, Flow{Text: counters.ReplaceAllString(line, ""), Age: time.Duration(seconds * float64(time.Second))})
	}
	return flows, nil
}

// Touched tells what has changed between two dumps taken this far apart: flows added, removed, or sent again although
// equal. A flow that was left alone is older by the time in between.
func Touched(before, after []Flow, between time.Duration) (changes []string) {
	old := make(map[string]time.Duration, len(before))
	for _, f := range before {
		old[f.Text] = f.Age
	}
	for _, f := range after {
		age, known := old[f.Text]
		switch {
		case !known:
			changes = append(changes, "added "+f.Text)
		case f.Age < age+between/2:
			changes = append(changes, "sent again "+f.Text)
		}
		delete(old, f.Text)
	}
	for text := range old {
		changes = append(changes, "removed "+text)
	}
	return changes
}
