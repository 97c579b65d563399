package agent

import (
	"fmt"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
)

// meterFinding is a meter of the switch that is not as it should be; have is zero where it is missing, want where it is extra.
type meterFinding struct {
	kind       string
	have, want ofctl.Meter
}

// meters are those that the switch should have; none where it tells of nothing that is denied. Those of somebody else do no harm then.
func (a *agent) meters() []ofctl.Meter {
	if a.node.meters == 0 {
		return nil
	}
	return pipeline.Meters(a.cfg.DropLogRate)
}

// settleMeters counts meters like flows.
func (x *comparison) settleMeters() {
	if len(x.wantMeters) == 0 {
		return
	}
	x.meters = compareMeters(x.haveMeters, x.wantMeters)
	n := countMeters(x.meters)
	x.missing, x.changed, x.extra = x.missing+n.Missing, x.changed+n.Changed, x.extra+n.Extra
}

func compareMeters(have, want []ofctl.Meter) (list []meterFinding) {
	for _, w := range want {
		i := slices.IndexFunc(have, func(h ofctl.Meter) bool { return h.ID == w.ID })
		switch {
		case i < 0:
			list = append(list, meterFinding{inspect.FlowMissing, ofctl.Meter{}, w})
		case have[i] != w:
			list = append(list, meterFinding{inspect.FlowChanged, have[i], w})
		}
	}
	for _, h := range have {
		if !slices.ContainsFunc(want, func(w ofctl.Meter) bool { return w.ID == h.ID }) {
			list = append(list, meterFinding{inspect.FlowExtra, h, ofctl.Meter{}})
		}
	}
	return list
}

func countMeters(list []meterFinding) (n inspect.DriftCount) {
	for i := range list {
		switch list[i].kind {
		case inspect.FlowMissing:
			n.Missing++
		case inspect.FlowChanged:
			n.Changed++
		case inspect.FlowExtra:
			n.Extra++
		}
	}
	return n
}

// describe tells of it as of a flow.
func (f *meterFinding) describe() inspect.Difference {
	shown := f.want
	d := inspect.Difference{Kind: f.kind}
	switch f.kind {
	case inspect.FlowChanged:
		d.Found = meterText(f.have)
	case inspect.FlowExtra:
		shown = f.have
	}
	d.Flow = inspect.Flow{TableName: inspect.MeterTable, Kind: "meter", Match: fmt.Sprintf("meter=%d", shown.ID), Actions: meterText(shown), Note: "by it is told what is denied"}
	if f.kind == inspect.FlowExtra {
		d.Note = "not Flowkeep's"
	}
	return d
}

func meterText(m ofctl.Meter) string {
	if m.Rate == 0 {
		return "not of packets"
	}
	return fmt.Sprintf("%d packets a second, %d at once", m.Rate, m.Burst)
}
