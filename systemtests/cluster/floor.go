package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Floor is a bare bridge of a node's own switch between two network namespaces: what packets cost without Flowkeep.
type Floor struct {
	A, B Pod
	c    *Cluster
}

// clientWait is how long a client may find no server yet.
const clientWait = 15 * time.Second

const floorScript = `ovs="--db=unix:$RUN/node1/flowkeep/ovs/db.sock" ns=fk-$SANDBOX
nsenter --net=/run/netns/$ns-node1 -- bash -euc '
  ovs-vsctl '"$ovs"' --may-exist add-br floor -- set bridge floor datapath_type=netdev fail-mode=secure
  for x in a b; do
    ip link add fl$x type veth peer name eth0 netns '$ns'-f$x
    ip link set fl$x up
    ovs-vsctl '"$ovs"' --may-exist add-port floor fl$x
  done'
for x in a b; do
  nsenter --net=/run/netns/$ns-f$x -- bash -euc '
    ip link set eth0 up; ethtool -K eth0 tx off >/dev/null; ip addr add 192.0.2.'$([ $x = a ] && echo 1 || echo 2)'/24 dev eth0'
done`

const floorEnd = `ns=fk-$SANDBOX
nsenter --net=/run/netns/$ns-node1 -- ovs-vsctl --db=unix:$RUN/node1/flowkeep/ovs/db.sock --if-exists del-br floor
for x in a b; do
  nsenter --net=/run/netns/$ns-node1 -- ip link del fl$x 2>/dev/null || true
done`

// MakeFloor makes it on node1; Remove it in any case.
func (c *Cluster) MakeFloor(ctx context.Context) (*Floor, error) {
	f := &Floor{c: c}
	for _, p := range []struct {
		pod  *Pod
		name string
		ip   string
	}{{&f.A, "fa", "192.0.2.1"}, {&f.B, "fb", "192.0.2.2"}} {
		*p.pod = Pod{Name: p.name, Node: "node1", NetNS: c.NodeNS(p.name), IPs: []netip.Addr{netip.MustParseAddr(p.ip)}}
		if err := c.addNetNS(p.name); err != nil {
			return f, err
		}
	}
	_, err := c.script(ctx, floorScript)
	return f, err
}

// Flows replaces the bridge's flows.
func (f *Floor) Flows(ctx context.Context, flows ...string) error {
	socket := "unix:" + filepath.Join(f.c.Dir, "node1", "flowkeep", "ovs", "floor.mgmt")
	if _, err := output(exec.CommandContext(ctx, "ovs-ofctl", "del-flows", socket)); err != nil {
		return err
	}
	add := exec.CommandContext(ctx, "ovs-ofctl", "add-flows", socket, "-")
	add.Stdin = strings.NewReader(strings.Join(flows, "\n"))
	_, err := output(add)
	return err
}

// Clients asks B once over UDP from each of count addresses, 100.64.0.1 and on, and returns how many were answered and how
// many entries the datapath had for them right after.
func (f *Floor) Clients(ctx context.Context, count int) (answered, megaflows int, err error) {
	if _, err = f.c.RunIn(ctx, f.A.NetNS, "ip", "route", "replace", "local", "100.64.0.0/10", "dev", "lo"); err != nil {
		return 0, 0, err
	}
	if _, err = f.c.RunIn(ctx, f.B.NetNS, "ip", "route", "replace", "100.64.0.0/10", "via", f.A.IPs[0].String()); err != nil {
		return 0, 0, err
	}
	text, err := f.c.RunIn(ctx, f.A.NetNS, f.c.probe(), "clients", "100.64.0.1", strconv.Itoa(count), netip.AddrPortFrom(f.B.IPs[0], 80).String())
	if err != nil {
		return 0, 0, err
	}
	if answered, err = strconv.Atoi(strings.TrimSpace(text)); err != nil {
		return 0, 0, err
	}
	text, err = f.c.script(ctx, `ovs-appctl -t "$RUN/node1/flowkeep/ovs/vswitchd.ctl" dpctl/dump-flows | grep -c recirc_id || true`)
	if err == nil {
		megaflows, err = strconv.Atoi(strings.TrimSpace(text))
	}
	return answered, megaflows, err
}

// Change applies flows of ovs-ofctl's syntax, each with its command (add-flow, del-flows --strict).
func (f *Floor) Change(ctx context.Context, command, flow string) error {
	_, err := f.c.script(ctx, fmt.Sprintf(`ovs-ofctl %s unix:$RUN/node1/flowkeep/ovs/floor.mgmt '%s'`, command, flow))
	return err
}

// Remove removes it, as far as it is there.
func (f *Floor) Remove(ctx context.Context) error {
	_, err := f.c.script(ctx, floorEnd)
	return errors.Join(err, f.c.removeNetNS(f.A.Name), f.c.removeNetNS(f.B.Name))
}

// Throughput is what one TCP connection carries in 3 s, in bits a second.
func (c *Cluster) Throughput(ctx context.Context, from, to Pod) (float64, error) {
	return c.received(ctx, from, to, "-t", "3")
}

// DatagramRate returns the rate at which datagrams of 1,000 bytes arrive that are sent at a rate for 4 s, in bits a
// second.
func (c *Cluster) DatagramRate(ctx context.Context, from, to Pod, sent float64) (float64, error) {
	return c.received(ctx, from, to, "-t", "4", "-u", "-l", "1000", "-b", strconv.FormatFloat(sent, 'f', 0, 64))
}

// received returns the rate that iperf3's server reports for a client with these flags.
func (c *Cluster) received(ctx context.Context, from, to Pod, flags ...string) (float64, error) {
	server := inNS(ctx, to.NetNS, "iperf3", "-s", "-p", "5299", "--forceflush")
	if err := server.Start(); err != nil {
		return 0, err
	}
	defer func() { _ = server.Process.Signal(syscall.SIGTERM); _ = server.Wait() }()
	ip, _ := to.IP(4)
	client := append([]string{"iperf3", "-c", ip.String(), "-p", "5299", "-J"}, flags...)
	var rate float64
	err := Until(ctx, clientWait, func() error {
		text, err := output(inNS(ctx, from.NetNS, client...))
		if err != nil {
			return err
		}
		var result struct {
			Error string
			End   struct {
				Received struct {
					BitsPerSecond float64 `json:"bits_per_second"`
				} `json:"sum_received"`
			}
		}
		if err := json.Unmarshal([]byte(text), &result); err != nil {
			return err
		}
		if rate = result.End.Received.BitsPerSecond; rate == 0 {
			return fmt.Errorf("iperf3 measured nothing: %s", cmp.Or(result.Error, text))
		}
		return nil
	})
	return rate, err
}

// Connects is how many TCP connections a second one pod makes to another's port.
func (c *Cluster) Connects(ctx context.Context, from, to Pod, port int) (float64, error) {
	ip, _ := to.IP(4)
	text, err := output(inNS(ctx, from.NetNS, c.probe(), "connects", netip.AddrPortFrom(ip, uint16(port)).String()))
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(text), 64)
}

// Edge is a moment at which a way opened or shut; see the probe's.
type Edge struct {
	UnixNanos int64 `json:"unixNanos"`
	Open      bool  `json:"open"`
}

// WatchEdges asks so many times a second over UDP until the function that it returns is called. It waits for the first
// answer, at most as long as an attempt to connect may take.
func (c *Cluster) WatchEdges(ctx context.Context, e Expectation, perSecond float64) (stop func() ([]Edge, error), err error) {
	cmd := inNS(ctx, e.From.NetNS, c.probe(), "edges", "-rate", formatRate(Rate(perSecond)), "-answered", e.target())
	var out strings.Builder
	cmd.Stdout = &out
	answered, err := startAnswered(cmd)
	if err != nil {
		return nil, err
	}
	answered.await(Stretch(redial))
	return func() (edges []Edge, err error) {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return nil, fmt.Errorf("%v: %w", e, err)
		}
		if err := cmd.Wait(); err != nil {
			return nil, fmt.Errorf("%v: %w", e, err)
		}
		return edges, json.Unmarshal([]byte(out.String()), &edges)
	}, nil
}
