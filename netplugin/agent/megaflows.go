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
// them. Open vSwitch revises the cache itself, but its userspace datapath before 3.1.3 looks for the entry to change by a packet that it is for, and
// where two entries overlap it changes the other: a connection that had been forbidden went on for as long as it sent, while the tables denied it. No packet
// is lost by it: one that finds nothing in the cache is judged by the flows at once. It is done though ctx has ended: the flows are changed.
func (a *agent) purge(ctx context.Context) {
	if a.cfg.DatapathType != hostnet.DatapathNetdev {
		return
	}
	if err := a.control(context.WithoutCancel(ctx), "revalidator/purge"); err != nil {
		a.log.Error("could not empty the datapath's cache; connections that are denied now may go on while they send", "error", err)
	}
}

// purgeAlong asks for a purge when a change of flows is on its way to the switch. One that is asked for when the switch has answered comes some milliseconds
// after the change, and meanwhile packets meet what the revision has made of overlapping entries. ovs-vswitchd's main loop hears OpenFlow first, then
// its control socket, and wakes the revision in its next round: mostly this purge comes between. Where the loop hears it before the change, or it fails,
// there is the other.
func (a *agent) purgeAlong(ctx context.Context) {
	if a.cfg.DatapathType != hostnet.DatapathNetdev {
		return
	}
	if answer, err := a.ask(context.WithoutCancel(ctx), "revalidator/purge"); err == nil {
		go func() { _, _ = answer() }()
	}
}

// revisions is how many rounds of Open vSwitch's revalidators must end after a change of flows until one has ended that began with it. revalidator/wait
// tells the end of the round that is under way. That one may have begun before the change; and so may the next before ovs-vswitchd's main loop, which told
// of the end of the first, has told the revalidators of the change.
const revisions = 3

// drain waits until no packet is led by an entry of the datapath's cache that was made before the last change of flows, or of a packet that was being
// judged then: its entry is made after, and after a purge too. Where the switch does not say in time that it has revised them, a packet of such an entry
// may find no flow and is dropped.
func (a *agent) drain(ctx context.Context) {
	for range revisions {
		if err := a.control(ctx, "revalidator/wait"); err != nil {
			a.log.Warn("the switch does not say that it has revised its cache; packets may be lost while it does", "error", err)
			break // the purge needs no revision
		}
	}
	a.purge(ctx)
}

// control has ovs-vswitchd do a command, in bounded time.
func (a *agent) control(ctx context.Context, command string, args ...string) error {
	_, err := a.askSwitch(ctx, command, args...)
	return err
}

func (a *agent) askSwitch(ctx context.Context, command string, args ...string) (string, error) {
	answer, err := a.ask(ctx, command, args...)
	if err != nil {
		return "", err
	}
	return answer()
}

// ask sends ovs-vswitchd a command. What it returns waits for the answer, in bounded time, and is to be called once.
func (a *agent) ask(ctx context.Context, command string, args ...string) (func() (string, error), error) {
	socket, err := a.cfg.controlSocket()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, controlTime)
	answer, err := appctl.Ask(ctx, socket, command, args...)
	if err != nil {
		cancel()
		return nil, err
	}
	return func() (string, error) {
		defer cancel()
		return answer()
	}, nil
}

// controlSocket is ovs-vswitchd's.
func (c *Config) controlSocket() (string, error) {
	if c.OVSControl != "" {
		return c.OVSControl, nil
	}
	return appctl.Socket(c.OVSRunDir)
}
