package agent

import (
	"context"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/ofctl/appctl"
)

// controlTime bounds how long the owner waits for an answer on ovs-vswitchd's control socket.
const controlTime = 2 * time.Second

// purge empties the userspace datapath's cache of decisions (megaflows), so that every packet after a change of flows is judged by
// them. Open vSwitch revises the cache itself, but its userspace datapath (seen with 3.1) at times keeps an old decision where two
// entries overlap: a connection that had been forbidden went on for as long as it sent, while the tables denied it. No packet is lost
// by it: one that finds nothing in the cache is judged by the flows at once. It is done though ctx has ended: the flows are changed.
func (a *agent) purge(ctx context.Context) {
	if a.cfg.DatapathType != hostnet.DatapathNetdev {
		return
	}
	if err := a.control(context.WithoutCancel(ctx), "revalidator/purge"); err != nil {
		a.log.Error("could not empty the datapath's cache; connections that are denied now may go on while they send", "error", err)
	}
}

// control has ovs-vswitchd do a command, in bounded time.
func (a *agent) control(ctx context.Context, command string, args ...string) error {
	_, err := a.askSwitch(ctx, command, args...)
	return err
}

func (a *agent) askSwitch(ctx context.Context, command string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, controlTime)
	defer cancel()
	socket, err := a.cfg.controlSocket()
	if err != nil {
		return "", err
	}
	return appctl.Call(ctx, socket, command, args...)
}

// controlSocket is ovs-vswitchd's.
func (c *Config) controlSocket() (string, error) {
	if c.OVSControl != "" {
		return c.OVSControl, nil
	}
	return appctl.Socket(c.OVSRunDir)
}
