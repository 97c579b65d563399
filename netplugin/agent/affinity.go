package agent

import (
	"context"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/datapath"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
)

// maxAffinities is how many clients with affinity are restored after a restart of ovs-vswitchd.
const maxAffinities = 65536

// affinities are the flows by which the switch keeps clients with their endpoints, which it loses when it restarts.
// They belong to the owner.
type affinities map[datapath.Key]affinity

type affinity struct {
	ofctl.Temporary
	used time.Time // when the client was last seen to open a connection
}

// read takes over a reading of the switch at some time. A client has opened a connection since the last one where its
// flow counts more packets.
func (a affinities) read(list []ofctl.Temporary, at time.Time) {
	before := make(affinities, len(a))
	for k, v := range a {
		before[k] = v
	}
	clear(a)
	for i := range list {
		k := datapath.KeyOf(&list[i].Flow)
		used := at
		if was, there := before[k]; there && was.Packets == list[i].Packets {
			used = was.used
		}
		a[k] = affinity{list[i], used}
	}
}

// missing returns the additions of flows that a switch does not have and that had not ended, for the rest of their
// time.
func (a affinities) missing(has map[datapath.Key]bool, at time.Time) (mods []ofctl.FlowMod) {
	for k, v := range a {
		left := time.Duration(v.HardTimeout)*time.Second - at.Sub(v.used)
		if has[k] || left <= countEvery { // it may have ended by itself
			continue
		}
		flow := v.Flow
		flow.Packets, flow.Bytes = 0, 0
		mods = append(mods, ofctl.FlowMod{Command: ofctl.Add, Flow: flow, HardTimeout: uint16(left / time.Second)})
	}
	return mods
}

// keepAffinities reads the switch's flows of clients with affinity until ctx ends.
func (tr *translation) keepAffinities(ctx context.Context) {
	if !tr.a.cfg.translates() {
		return
	}
	again := time.NewTicker(countEvery)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			tr.readAffinities(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// readAffinities reads off the owner goroutine. A failure leaves all as it was.
func (tr *translation) readAffinities(ctx context.Context) {
	var sw session
	if tr.a.do(ctx, func() { sw = tr.a.session }) != nil || sw == nil {
		return
	}
	var list []ofctl.Temporary
	err := sw.Temporaries(ctx, pipeline.LearnedFilter(), func(t ofctl.Temporary) error {
		if pipeline.KeepsClient(&t.Flow) && t.HardTimeout > 0 && len(list) < maxAffinities {
			list = append(list, t)
		}
		return nil
	})
	if err != nil {
		return
	}
	_ = tr.a.do(ctx, func() {
		if tr.a.session == sw {
			tr.affinities.read(list, time.Now())
		}
	})
}
