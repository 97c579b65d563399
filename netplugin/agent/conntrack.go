package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/flowkeep/flowkeep/netplugin/conntrack"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/appctl"
	"github.com/flowkeep/flowkeep/ofctl/dptype"
)

// tracker reads and deletes the connections of Open vSwitch for conntrack.Counter. Of the owner it uses the session only.
type tracker struct{ a *agent }

func (a *agent) newCounter() *conntrack.Counter {
	cfg := conntrack.Config{
		Conntrack:   tracker{a},
		Zones:       []uint16{pipeline.ZonePolicy, pipeline.ZoneService},
		Forgettable: ofctl.Forgettable(a.cfg.DatapathType != dptype.Netdev),
		Logger:      a.log,
		Registerer:  a.cfg.Registerer,
	}
	if a.cfg.translates() {
		cfg.Zones = []uint16{pipeline.ZonePolicy, pipeline.ZoneTranslation, pipeline.ZoneHairpin}
		cfg.Translated = pipeline.ZoneTranslation
	}
	return conntrack.New(cfg)
}

// mostConnections is how many are read. ovs-vswitchd does nothing else meanwhile, for some milliseconds a thousand, and any pod can
// open millions: what the list tells is not worth that a change of policies waits for it.
const mostConnections = 300_000

// Settled returns nil once the unwanted flows of an earlier run are deleted.
func (c tracker) Settled(ctx context.Context) error {
	_, err := c.session(ctx)
	return err
}

// session returns the owner's session once the switch has the wanted flows.
func (c tracker) session(ctx context.Context) (sw session, err error) {
	if err := c.a.do(ctx, func() { sw = c.a.session }); err != nil {
		return nil, err
	}
	if sw == nil {
		return nil, errors.New("Open vSwitch is away")
	}
	return sw, nil
}

// Dump asks ovs-vswitchd's control socket: OpenFlow has no message for it. Of the kernel's tracker, without a zone, it would tell the node's own connections too.
func (c tracker) Dump(ctx context.Context, zone uint16) (string, error) {
	socket, err := c.a.cfg.controlSocket()
	if err != nil {
		return "", err
	}
	n, err := c.count(ctx, socket)
	if err != nil {
		return "", err
	}
	if n > mostConnections {
		return "", fmt.Errorf("%w: %d are tracked on this node, of all zones; no more than %d are read", conntrack.ErrTooMany, n, mostConnections)
	}
	return appctl.Call(ctx, socket, "dpctl/dump-conntrack", c.a.cfg.datapath(), fmt.Sprintf("zone=%d", zone))
}

// tracked is the number of connections that the kernel tracks.
const tracked = "/proc/sys/net/netfilter/nf_conntrack_count"

// count returns the number of tracked connections without reading them.
func (c tracker) count(ctx context.Context, socket string) (int, error) {
	var text string
	if c.a.cfg.DatapathType == dptype.Netdev {
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

// Forget deletes conntrack entries through the switch.
func (c tracker) Forget(ctx context.Context, those []ofctl.Connections) error {
	sw, err := c.session(ctx)
	if err != nil {
		return err
	}
	err = sw.ForgetConnections(ctx, those...)
	if refused := new(ofctl.SwitchError); errors.As(err, &refused) {
		return fmt.Errorf("%w: %w", conntrack.ErrCannot, err)
	}
	return err
}

// datapath returns the name of the datapath, which has the type twice (dpif(3)).
func (c *Config) datapath() string { return fmt.Sprintf("%s@ovs-%s", c.DatapathType, c.DatapathType) }
