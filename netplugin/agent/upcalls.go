package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/flowkeep/flowkeep/ofctl/appctl"
	"github.com/flowkeep/flowkeep/ofctl/dptype"
)

const (
	// upcallsEvery is how often the kernel's datapath is asked what became of the packets that it has no flow for.
	upcallsEvery = 10 * time.Second
	// deafAfter is how many of them in a row must be lost before it is said that ovs-vswitchd takes none. A few are lost when it is busy.
	deafAfter = 5
	// kernelDatapath is what all bridges of the kernel's datapath share.
	kernelDatapath = dptype.System + "@ovs-system"
)

// upcalls tells whether ovs-vswitchd takes the packets that the kernel's datapath has no flow for. One that takes none looks well in all other ways: it
// answers, and holds its flows, and the node's pods reach nobody.
type upcalls struct {
	known  bool
	before appctl.Lookups // when a packet was led or taken last, or it was looked at first
}

// lost is how many packets were lost of as many as there were since the last one that was taken, if that is enough to say so. Where the datapath has a flow that
// leads packets ovs-vswitchd made it; and only such flows' packets, handed over to be told of, can be lost without having been missed.
func (u *upcalls) lost(now appctl.Lookups) uint64 {
	since := now.Since(u.before)
	if !u.known || since.Hit > 0 || since.Missed > since.Lost {
		u.known, u.before = true, now
		return 0
	}
	if since.Lost < deafAfter {
		return 0
	}
	return since.Lost
}

// hearsPackets looks whether ovs-vswitchd takes packets. What cannot be read says nothing.
func (a *agent) hearsPackets(ctx context.Context, u *upcalls) {
	if a.cfg.DatapathType != dptype.System {
		return
	}
	text, err := a.vswitchd.askSwitch(ctx, "dpctl/show", kernelDatapath)
	if err != nil {
		a.log.Debug("the switch does not say whether it takes packets", "error", err)
		return
	}
	now, err := appctl.ParseLookups(text)
	if err != nil {
		a.log.Debug("the switch does not say whether it takes packets", "error", err)
		return
	}
	problem := ""
	if lost := u.lost(now); lost > 0 {
		problem = fmt.Sprintf("ovs-vswitchd takes no packets from the kernel's datapath: the last %d that had no flow there were lost, so nothing new passes; start it again (systemctl restart openvswitch-switch, or delete the node's pod openvswitch)", lost)
	}
	_ = a.do(ctx, func() { a.deaf(problem) })
}

// deaf notes whether the switch takes packets, with the owner held.
func (a *agent) deaf(problem string) {
	if (problem == "") != (a.wrong.switchProblem == "") {
		if problem == "" {
			a.log.Info("ovs-vswitchd takes packets from the kernel's datapath again")
		} else {
			a.log.Error(problem)
		}
	}
	if problem != a.wrong.switchProblem {
		a.wrong.switchProblem = problem
		a.cfg.Health.SetReady("switch", problem)
		a.metrics.switchUp.Set(map[bool]float64{true: 1}[problem == ""])
	}
}
