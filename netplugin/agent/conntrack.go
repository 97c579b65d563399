package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/appctl"
)

// conntrack is the switch's connection tracker, as connections.Counter needs it. It takes nothing from the owner but its session.
type conntrack struct{ a *agent }

// mostConnections is how many are read. ovs-vswitchd does nothing else meanwhile, for some milliseconds a thousand, and any pod can
// open millions: what the list tells is not worth that a change of policies waits for it.
const mostConnections = 300_000

// Dump gives the connections of the policies' zone.
func (c conntrack) Dump(ctx context.Context) (string, error) {
	return c.dump(ctx, fmt.Sprintf("zone=%d", pipeline.ZonePolicy))
}

// opener is how a dump names a protocol and who opened the connection.
var opener = regexp.MustCompile(`(?m)^([^,\n]+),orig=\(src=([^,)\n]+)`)

// Openers are told once the flows of an earlier run that should not be there are gone, with which a pod that is not known could still send.
func (c conntrack) Openers(ctx context.Context) (map[netip.Addr]bool, error) {
	if sw, err := c.session(ctx); sw == nil {
		return nil, err
	}
	text, err := c.dump(ctx)
	if err != nil {
		return nil, err
	}
	found := map[netip.Addr]bool{}
	for _, m := range opener.FindAllStringSubmatch(text, -1) {
		if strings.HasPrefix(m[1], "icmp") { // Open vSwitch forgets none of these
			continue
		}
		a, err := netip.ParseAddr(m[2])
		if err != nil {
			return nil, fmt.Errorf("the switch's connections: %w", err)
		}
		found[a] = true
	}
	return found, nil
}

// session is the owner's, after the switch has what it should.
func (c conntrack) session(ctx context.Context) (sw session, err error) {
	if err := c.a.do(ctx, func() { sw = c.a.session }); err != nil {
		return nil, err
	}
	if sw == nil {
		return nil, errors.New("Open vSwitch is away")
	}
	return sw, nil
}

// dump asks ovs-vswitchd's control socket: OpenFlow has no message for it.
func (c conntrack) dump(ctx context.Context, filter ...string) (string, error) {
	socket, err := c.a.cfg.controlSocket()
	if err != nil {
		return "", err
	}
	n, err := c.count(ctx, socket)
	if err != nil {
		return "", err
	}
	if n > mostConnections {
		return "", fmt.Errorf("%d connections are tracked on this node, of all zones; no more than %d are read", n, mostConnections)
	}
	return appctl.Call(ctx, socket, "dpctl/dump-conntrack", append([]string{c.a.cfg.datapath()}, filter...)...)
}

// tracked is the number of connections that the kernel tracks.
const tracked = "/proc/sys/net/netfilter/nf_conntrack_count"

// count tells how many connections are tracked, without looking at them.
func (c conntrack) count(ctx context.Context, socket string) (int, error) {
	var text string
	if c.a.cfg.DatapathType == hostnet.DatapathNetdev {
		var err error
		if text, err = appctl.Call(ctx, socket, "dpctl/ct-get-nconns", c.a.cfg.datapath()); err != nil {
			return 0, err
		}
	} else {
		have, err := os.ReadFile(tracked)
		if errors.Is(err, os.ErrNotExist) {
			return 0, nil // it tracks none
		}
		if err != nil {
			return 0, fmt.Errorf("count connections: %w", err)
		}
		text = string(have)
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return 0, fmt.Errorf("count connections: %w", err)
	}
	return n, nil
}

// Forget removes every connection that is from or to the address. A switch that cannot is not asked again.
func (c conntrack) Forget(ctx context.Context, a netip.Addr) error {
	sw, err := c.session(ctx)
	if err != nil {
		return err
	}
	err = errors.Join(sw.ForgetConnections(ctx, pipeline.ZonePolicy, a), sw.ForgetConnections(ctx, pipeline.ZoneService, a))
	if refused := new(ofctl.SwitchError); errors.As(err, &refused) {
		c.a.log.Error("the switch cannot forget connections, Open vSwitch can since 3.1; what is left of a dead pod's may pass for the next pod's of its address", "address", a, "error", err)
		return nil
	}
	return err
}

// datapath is its name: the type twice (dpif(3)).
func (c *Config) datapath() string { return fmt.Sprintf("%s@ovs-%s", c.DatapathType, c.DatapathType) }

// trackHalves has the userspace datapath's conntrack take TCP segments as they come. Of a connection to a Service that the
// node's own programs answer it sees one direction only, the answers being translated when it sees them (docs/decisions/002): by the windows it knows of,
// a stream is invalid after 64 KiB. The kernel's conntrack is told by hostnet.
func (a *agent) trackHalves(ctx context.Context) {
	if a.cfg.DatapathType != hostnet.DatapathNetdev {
		return
	}
	if err := a.control(ctx, "dpctl/ct-disable-tcp-seq-chk", a.cfg.datapath()); err != nil {
		a.log.Error("could not turn off the check of TCP windows; long transfers to Services of other nodes' pods will stall", "error", err)
	}
}

// heldFragments is how many fragments, of all the node's pods, the userspace datapath may hold for reassembly: as many as Open vSwitch
// 3.1 allows (IPF_NFRAG_UBOUND), about 10 MB. Those behind a denied first fragment are among them, for 15 s.
const heldFragments = "5000"

// holdFragments leaves room for pods that send what is fragmented and denied: by default 1000 fragments are held, and no fragment of any
// other pod passes then.
func (a *agent) holdFragments(ctx context.Context) {
	if a.cfg.DatapathType != hostnet.DatapathNetdev {
		return
	}
	if err := a.control(ctx, "dpctl/ipf-set-max-nfrags", a.cfg.datapath(), heldFragments); err != nil {
		a.log.Error("could not raise the limit of fragments that wait for the rest of their datagram; a pod that sends many keeps those of others from passing", "error", err)
	}
}
