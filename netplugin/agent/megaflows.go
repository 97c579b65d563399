package agent

import (
	"context"

	"github.com/flowkeep/flowkeep/ofctl/dptype"
)

// maxMegaflows bounds the datapath's cache, by Open vSwitch's flow-limit, where an administrator has not: a change of
// flows takes effect when all entries are purged, or revised (docs/decisions/028). Above it a packet without an entry is
// evaluated by ovs-vswitchd, and entries that were not used for 100 ms are deleted.
const maxMegaflows = 50_000

// purge empties the userspace datapath's cache of decisions (megaflows), so that every packet after a change of flows is judged by
// them. Open vSwitch revises the cache itself, but its userspace datapath before 3.1.3 looks for the entry to change by a packet that it is for, and
// where two entries overlap it changes the other: a connection that had been forbidden went on for as long as it sent, while the tables denied it. No packet
// is lost by it: one that finds nothing in the cache is judged by the flows at once. It is done though ctx has ended: the flows are changed.
func (v *vswitchd) purge(ctx context.Context) {
	if v.cfg.DatapathType != dptype.Netdev {
		return
	}
	v.purgeOnce(context.WithoutCancel(ctx))
	select {
	case v.purged <- struct{}{}:
	default: // the next one is still due
	}
}

func (v *vswitchd) purgeOnce(ctx context.Context) {
	if err := v.control(ctx, "revalidator/purge"); err != nil && ctx.Err() == nil {
		v.log.Error("could not empty the datapath's cache; connections that are denied now may go on while they send",
			"error", err)
	}
}

// keepPurged purges the cache once more behind each change of flows, when the round of revalidators has ended that was
// under way at the first purge. A purge leaves the megaflow out that a revalidator has locked at this moment, and what
// a revalidator has decided on before a purge may reach the datapath after it: on a busy node the thread can be off
// its processor for long in between.
func (v *vswitchd) keepPurged(ctx context.Context) {
	for {
		select {
		case <-v.purged:
		case <-ctx.Done():
			return
		}
		if err := v.control(ctx, "revalidator/wait"); err != nil {
			v.log.Debug("the switch reports no end of its revision; its cache is emptied at once", "error", err)
		}
		v.purgeOnce(ctx)
	}
}

// purgeAlong asks for a purge when a change of flows is on its way to the switch. One that is asked for when the switch has answered comes some milliseconds
// after the change, and meanwhile packets meet what the revision has made of overlapping entries. ovs-vswitchd's main loop hears OpenFlow first, then
// its control socket, and wakes the revision in its next round: mostly this purge comes between. Where the loop hears it before the change, or it fails,
// there is the other.
func (v *vswitchd) purgeAlong(ctx context.Context) {
	if v.cfg.DatapathType != dptype.Netdev {
		return
	}
	if answer, err := v.ask(context.WithoutCancel(ctx), "revalidator/purge"); err == nil {
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
func (v *vswitchd) drain(ctx context.Context) {
	for range revisions {
		if err := v.control(ctx, "revalidator/wait"); err != nil {
			v.log.Warn("the switch does not say that it has revised its cache; packets may be lost while it does", "error", err)
			break // the purge needs no revision
		}
	}
	v.purge(ctx)
}
