package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/flowkeep/flowkeep/netplugin/connections"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/appctl"
)

// conntrack is the switch's connection tracker, as connections.Counter needs it. It takes nothing from the owner but its session.
type conntrack struct{ a *agent }

func (a *agent) newCounter() *connections.Counter {
	return connections.New(connections.Config{Conntrack: conntrack{a}, Zones: []uint16{pipeline.ZonePolicy, pipeline.ZoneService},
		Forgettable: ofctl.Forgettable(a.cfg.DatapathType != hostnet.DatapathNetdev), Logger: a.log, Registerer: a.cfg.Registerer})
}

// mostConnections is how many are read. ovs-vswitchd does nothing else meanwhile, for some milliseconds a thousand, and any pod can
// open millions: what the list tells is not worth that a change of policies waits for it.
const mostConnections = 300_000

// Settled tells whether the flows of an earlier run that should not be there are gone.
func (c conntrack) Settled(ctx context.Context) error {
	_, err := c.session(ctx)
	return err
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

// Dump asks ovs-vswitchd's control socket: OpenFlow has no message for it. Of the kernel's tracker, without a zone, it would tell the node's own connections too.
func (c conntrack) Dump(ctx context.Context, zone uint16) (string, error) {
	socket, err := c.a.cfg.controlSocket()
	if err != nil {
		return "", err
	}
	n, err := c.count(ctx, socket)
	if err != nil {
		return "", err
	}
	if n > mostConnections {
		return "", fmt.Errorf("%w: %d are tracked on this node, of all zones; no more than %d are read", connections.ErrTooMany, n, mostConnections)
	}
	return appctl.Call(ctx, socket, "dpctl/dump-conntrack", c.a.cfg.datapath(), fmt.Sprintf("zone=%d", zone))
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

// Forget has the switch remove connections.
func (c conntrack) Forget(ctx context.Context, those []ofctl.Connections) error {
	sw, err := c.session(ctx)
	if err != nil {
		return err
	}
	err = sw.ForgetConnections(ctx, those...)
	if refused := new(ofctl.SwitchError); errors.As(err, &refused) {
		return fmt.Errorf("%w: %w", connections.ErrCannot, err)
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
