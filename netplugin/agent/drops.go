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
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/netplugin/stats"
	"github.com/flowkeep/flowkeep/ofctl"
)

// dropLog has the switch report denied packets, limited by meters.
type dropLog struct {
	a       *agent
	drops   *stats.Drops
	dryRuns *stats.Drops // packets that policies in a dry run would deny
	// resendMetered: meters were created, and flows that name them were not sent again.
	resendMetered bool
	// openingRate is that of the meters, which stay as they are when nf_conntrack_max changes.
	openingRate uint32
	// withoutMeters: the switch refuses flows that report denied packets.
	withoutMeters bool
}

func newDropLog(a *agent) *dropLog {
	dl := &dropLog{a: a}
	cfg := stats.DropConfig{Name: dl.nameDrops, Registerer: a.cfg.Registerer}
	dl.drops = stats.NewDrops(cfg)
	cfg.DryRun, cfg.Logger = true, a.cfg.Logger
	dl.dryRuns = stats.NewDrops(cfg)
	return dl
}

// ensureMeters creates the meters that limit the reports of denied packets. If the switch has no meters, it reports
// none: their number would be unlimited.
func (dl *dropLog) ensureMeters(ctx context.Context, s session) {
	dl.openingRate = dl.a.zoneLimits.openingRate()
	want := dl.meters()
	if dl.withoutMeters {
		want = nil
	}
	have, err := s.Meters(ctx)
	if err == nil {
		err = dl.a.pods.limits.ensureAll(ctx, s, want)
	}
	limits := err == nil && !dl.a.pods.limits.absent
	n, answers := uint32(0), err == nil && len(want) > 0
	switch {
	case answers:
		n = pipeline.MetersOfAKind(dl.a.cfg.DropLogRate)
		dl.resendMetered = dl.resendMetered ||
			slices.ContainsFunc(want, func(m ofctl.Meter) bool { return !hasMeter(have, m.ID) })
		if n > 0 {
			dl.drops.Problem("")
		}
	case err != nil && dl.a.cfg.DropLogRate > 0:
		dl.unsupported(fmt.Errorf("no meters could be made: %w", err))
	}
	if err != nil {
		dl.a.log.Warn("packets to addresses without a pod are not answered; they are dropped", "error", err)
	}
	if n != dl.a.node.meters || answers != dl.a.node.answers || limits != dl.a.node.limits {
		dl.a.node.meters, dl.a.node.answers, dl.a.node.limits = n, answers, limits
		if self := dl.a.node.self(); dl.a.node.configured {
			dl.a.node.compileNode(&self)
		}
	}
}

// meters returns the meters that do not depend on single pods.
func (dl *dropLog) meters() []ofctl.Meter {
	return slices.Concat(pipeline.Meters(dl.a.cfg.DropLogRate, dl.openingRate), pipeline.AnswerMeters())
}

// followRate sends the meters again when the limit of the zone of connections to Services has changed.
func (dl *dropLog) followRate(ctx context.Context) {
	if dl.a.session != nil && dl.openingRate != dl.a.zoneLimits.openingRate() {
		dl.ensureMeters(ctx, dl.a.session)
		_ = dl.a.commit(ctx, dl.a.take())
		dl.a.report()
	}
}

func hasMeter(list []ofctl.Meter, id uint32) bool {
	return slices.ContainsFunc(list, func(m ofctl.Meter) bool { return m.ID == id })
}

// meteredFlows returns the flows that report dry runs, if a meter was created a moment ago. They name meters by an
// action: Open vSwitch does not delete them with a meter, and goes on with the number that this had in its datapath.
func (dl *dropLog) meteredFlows() (mods []ofctl.FlowMod) {
	if !dl.resendMetered {
		return nil
	}
	for _, f := range dl.a.compiler.Flows() {
		if pipeline.TellsOfDryRuns(f.Table) && !dl.a.wrong.refused(&f) {
			mods = append(mods, ofctl.FlowMod{Command: ofctl.Add, Flow: f})
		}
	}
	return mods
}

// flowsRefused stops the reports if the switch refused one of their flows although it has the meters.
func (dl *dropLog) flowsRefused(err error) {
	var refused *ofctl.SwitchError
	if errors.As(err, &refused) && refused.Flow != nil && pipeline.NeedsMeter(refused.Flow.Table) {
		dl.withoutMeters = true
		dl.unsupported(err)
	}
}

func (dl *dropLog) unsupported(err error) {
	dl.a.log.Warn("denied packets are not reported (netctl drops); policies are enforced all the same", "error", err)
	dl.disable(err.Error())
}

// disable sets the reason why no denied packet is logged.
func (dl *dropLog) disable(why string) {
	dl.drops.Problem("denied packets are not reported: " + why)
	dl.setDryRunProblem(why)
}

func (dl *dropLog) setDryRunProblem(why string) {
	dl.dryRuns.Problem("packets that a dry run would deny are counted, but not reported: " + why)
}

// clearDryRunProblem clears the problem if the switch has meters and refuses no flow that reports dry runs.
func (dl *dropLog) clearDryRunProblem() {
	if dl.a.node.meters > 0 && !dl.a.wrong.untold() {
		dl.dryRuns.Problem("")
	}
}

// nameDrops returns the pods and policies of denied packets. Call it off the owner goroutine.
func (dl *dropLog) nameDrops(ctx context.Context, events []stats.DropEvent) []stats.DropNames {
	names := make([]stats.DropNames, len(events))
	_ = dl.a.do(ctx, func() {
		for i := range events {
			e := &events[i]
			if e.Reason == stats.Forged {
				names[i].Pod = dl.a.compiler.EndpointAt(e.InPort)
				continue
			}
			names[i] = stats.DropNames{Pod: dl.a.compiler.EndpointOf(e.Local()), Policies: dl.a.compiler.Isolating(e.Class)}
		}
	})
	return names
}

// metersEvery is how often the meters' counters are read: what is denied and not looked at is known by them alone.
const metersEvery = 3 * time.Second

// keepDrops receives the reports of denied packets on a connection of its own: the owner's never waits for it.
func (dl *dropLog) keepDrops(ctx context.Context) {
	if dl.a.cfg.DropLogRate == 0 {
		dl.disable("netplugin has --drop-log-rate 0")
		return
	}
	for ctx.Err() == nil {
		if err := dl.listen(ctx); err != nil && ctx.Err() == nil {
			dl.a.log.Debug("could not receive denied packets from the switch", "error", err, "retry", retryEvery)
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
	}
}

func (dl *dropLog) listen(ctx context.Context) error {
	connectCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	socket := filepath.Join(dl.a.cfg.OVSRunDir, dl.a.cfg.Bridge+".mgmt")
	s, err := ofctl.ConnectPacketIns(connectCtx, socket, pipeline.ToldBytes, func(p *ofctl.PacketIn) {
		dl.drops.Packet(p)
		dl.dryRuns.Packet(p)
	})
	if err != nil {
		return err
	}
	defer s.Close()
	again := time.NewTicker(metersEvery)
	defer again.Stop()
	var o openings
	for {
		counts, err := s.MeterCounts(ctx)
		if err != nil {
			return err
		}
		dl.metered(counts)
		dl.opened(ctx, &o, counts)
		select {
		case <-again.C:
		case <-s.Done():
			return s.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// metered passes on the counters of the meters.
func (dl *dropLog) metered(counts []ofctl.MeterCount) {
	n := pipeline.MetersOfAKind(dl.a.cfg.DropLogRate)
	var denied, dryRun []ofctl.MeterCount
	for _, c := range counts {
		switch {
		case pipeline.MetersOfDenied(c.ID, n):
			denied = append(denied, c)
		case pipeline.MetersOfDryRuns(c.ID, n):
			dryRun = append(dryRun, c)
		}
	}
	dl.drops.Metered(denied)
	dl.dryRuns.Metered(dryRun)
}

func (ins *inspector) queryDrops(q *inspect.DropsQuery) ([]byte, error) {
	if q == nil {
		return nil, errors.New("a query for drops does not say which")
	}
	question := stats.DropQuery{Epoch: q.Epoch, Seq: q.Seq, Addresses: q.Addresses, Policy: q.Policy, Most: max(q.Most, 0)}
	if q.Within > 0 {
		question.Since = time.Now().Add(-q.Within)
	}
	of := ins.a.dropLog.drops
	if q.DryRun {
		of = ins.a.dropLog.dryRuns
	}
	got := of.Ask(&question)
	out := inspect.NodeDrops{DryRun: q.DryRun, Cursor: inspect.Cursor{Epoch: got.Epoch, Seq: got.Seq}, DropCounts: inspect.DropCounts{Left: got.Left, Forgotten: got.Forgotten, Told: got.Told, Untold: got.Untold},
		Problem: got.Problem, Records: []inspect.DropRecord{}}
	for i := range got.Records {
		d := &got.Records[i]
		out.Records = append(out.Records, inspect.DropRecord{First: d.First, Last: d.Last, Reason: string(d.Reason), From: d.From, To: d.To, Protocol: d.Protocol, Port: d.Port,
			Packets: d.Packets, Connections: d.Connections, Pod: d.Pod, Policies: d.Policies})
	}
	return json.Marshal(out)
}
