package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/drops"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
)

// ensureMeters makes the meters by which the switch tells of what is denied. Without them it tells of nothing: it would of everything.
func (a *agent) ensureMeters(ctx context.Context, s session) {
	want := pipeline.Meters(a.cfg.DropLogRate)
	if a.untellable {
		want = nil
	}
	have, err := s.Meters(ctx)
	if err == nil {
		err = s.EnsureMeters(ctx, want)
	}
	n := uint32(0)
	switch {
	case err == nil && len(want) > 0:
		n = pipeline.MetersOfAKind(a.cfg.DropLogRate)
		a.remade = a.remade || slices.ContainsFunc(want, func(m ofctl.Meter) bool { return !hasMeter(have, m.ID) })
		a.drops.Problem("")
	case err != nil && a.cfg.DropLogRate > 0:
		a.cannotTell(fmt.Errorf("no meters could be made: %w", err))
	}
	if n != a.node.meters {
		a.node.meters = n
		if self := a.self(); a.configured {
			a.compileNode(&self)
		}
	}
}

func hasMeter(list []ofctl.Meter, id uint32) bool {
	return slices.ContainsFunc(list, func(m ofctl.Meter) bool { return m.ID == id })
}

// retold are the flows that tell of dry runs, where a meter was made a moment ago. They name meters by an action: Open vSwitch does not
// take them away with a meter, and goes on with the number in its datapath that this had.
func (a *agent) retold() (mods []ofctl.FlowMod) {
	if !a.remade {
		return nil
	}
	for _, f := range a.compiler.Flows() {
		if pipeline.TellsOfDryRuns(f.Table) && !a.wrong.refused(&f) {
			mods = append(mods, ofctl.FlowMod{Command: ofctl.Add, Flow: f})
		}
	}
	return mods
}

// mayNotTell looks at why the switch took no flows although it has the meters. What it would not take from those that tell, it is
// not given again.
func (a *agent) mayNotTell(err error) {
	var refused *ofctl.SwitchError
	if errors.As(err, &refused) && refused.Flow != nil && pipeline.Tells(refused.Flow.Table) {
		a.untellable = true
		a.cannotTell(err)
	}
}

func (a *agent) cannotTell(err error) {
	a.log.Warn("what is denied is not told of (netctl drops); it is denied all the same", "error", err)
	a.silent(err.Error())
}

// silent says why nothing is told.
func (a *agent) silent(why string) {
	a.drops.Problem("what is denied is not told of: " + why)
	a.untoldDryRuns(why)
}

func (a *agent) untoldDryRuns(why string) {
	a.dryRuns.Problem("what dry runs would deny is counted, and not told of: " + why)
}

// toldDryRuns ends the problem where the switch has meters and refuses no flow that tells of dry runs.
func (a *agent) toldDryRuns() {
	if a.node.meters > 0 && !a.wrong.untold() {
		a.dryRuns.Problem("")
	}
}

// nameDrops is called beside the owner.
func (a *agent) nameDrops(ctx context.Context, events []drops.Event) []drops.Names {
	names := make([]drops.Names, len(events))
	_ = a.do(ctx, func() {
		for i := range events {
			e := &events[i]
			if e.Reason == drops.Forged {
				names[i].Pod = a.compiler.EndpointAt(e.InPort)
				continue
			}
			names[i] = drops.Names{Pod: a.compiler.EndpointOf(e.Local()), Policies: a.compiler.Isolating(e.Class)}
		}
	})
	return names
}

// metersEvery is how often the meters' counters are read: what is denied and not looked at is known by them alone.
const metersEvery = 3 * time.Second

// keepDrops has the switch tell of what it denies, by a connection of its own: the owner's never waits for it.
func (r *runner) keepDrops(ctx context.Context) {
	if r.cfg.DropLogRate == 0 {
		r.silent("netplugin has --drop-log-rate 0")
		return
	}
	for ctx.Err() == nil {
		if err := r.listen(ctx); err != nil && ctx.Err() == nil {
			r.log.Debug("the switch does not tell of what it denies", "error", err, "retry", retryEvery)
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
	}
}

func (r *runner) listen(ctx context.Context) error {
	connectCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	s, err := ofctl.ConnectPacketIns(connectCtx, filepath.Join(r.cfg.OVSRunDir, r.cfg.Bridge+".mgmt"), pipeline.ToldBytes, func(p *ofctl.PacketIn) {
		r.drops.Packet(p)
		r.dryRuns.Packet(p)
	})
	if err != nil {
		return err
	}
	defer s.Close()
	again := time.NewTicker(metersEvery)
	defer again.Stop()
	for {
		counts, err := s.MeterCounts(ctx)
		if err != nil {
			return err
		}
		r.metered(counts)
		select {
		case <-again.C:
		case <-s.Done():
			return s.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// metered gives each its meters.
func (a *agent) metered(counts []ofctl.MeterCount) {
	n := pipeline.MetersOfAKind(a.cfg.DropLogRate)
	var denied, audited []ofctl.MeterCount
	for _, c := range counts {
		switch {
		case pipeline.MetersOfDenied(c.ID, n):
			denied = append(denied, c)
		case pipeline.MetersOfAudited(c.ID, n):
			audited = append(audited, c)
		}
	}
	a.drops.Metered(denied)
	a.dryRuns.Metered(audited)
}

func (a *agent) queryDrops(q *inspect.DropsQuery) ([]byte, error) {
	if q == nil {
		return nil, errors.New("a query for drops does not say which")
	}
	question := drops.Question{Epoch: q.Epoch, Seq: q.Seq, Addresses: q.Addresses, Policy: q.Policy, Most: max(q.Most, 0)}
	if q.Within > 0 {
		question.Since = time.Now().Add(-q.Within)
	}
	of := a.drops
	if q.Audit {
		of = a.dryRuns
	}
	got := of.Ask(&question)
	out := inspect.NodeDrops{Audit: q.Audit, Cursor: inspect.Cursor{Epoch: got.Epoch, Seq: got.Seq}, DropCounts: inspect.DropCounts{Left: got.Left, Forgotten: got.Forgotten, Told: got.Told, Untold: got.Untold},
		Problem: got.Problem, Records: []inspect.DropRecord{}}
	for i := range got.Records {
		d := &got.Records[i]
		out.Records = append(out.Records, inspect.DropRecord{First: d.First, Last: d.Last, Reason: string(d.Reason), From: d.From, To: d.To, Protocol: d.Protocol, Port: d.Port,
			Packets: d.Packets, Connections: d.Connections, Pod: d.Pod, Policies: d.Policies})
	}
	return json.Marshal(out)
}
