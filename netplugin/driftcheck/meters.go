package driftcheck

import (
	"context"
	"fmt"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
)

// meterFinding is a meter of the switch that is not as it should be; have is zero where it is missing, want where it is
// extra.
type meterFinding struct {
	kind       string
	have, want ofctl.Meter
}

// meterComparison compares the meters of a switch that logs denied packets; without want it compares none.
type meterComparison struct {
	want, have []ofctl.Meter
	found      []meterFinding
}

func (m *meterComparison) read(ctx context.Context, from Reader) (err error) {
	if len(m.want) > 0 {
		m.have, err = from.Meters(ctx)
	}
	return err
}

// compare sets which meters differ.
func (m *meterComparison) compare() {
	if len(m.want) > 0 {
		m.found = compareMeters(m.have, m.want)
	}
}

func (m *meterComparison) count() (n inspect.DriftCount) {
	for i := range m.found {
		countKind(&n, m.found[i].kind)
	}
	return n
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

// countKind adds a difference of a kind to a count.
func countKind(n *inspect.DriftCount, kind string) {
	switch kind {
	case inspect.FlowMissing:
		n.Missing++
	case inspect.FlowChanged:
		n.Changed++
	case inspect.FlowExtra:
		n.Extra++
	}
}

// describe returns the difference as one of flows.
func (f *meterFinding) describe() inspect.Difference {
	shown := f.want
	d := inspect.Difference{Kind: f.kind}
	switch f.kind {
	case inspect.FlowChanged:
		d.Found = meterText(f.have)
	case inspect.FlowExtra:
		shown = f.have
	}
	d.Flow = inspect.Flow{
		TableName: inspect.MeterTable,
		Kind:      "meter",
		Match:     fmt.Sprintf("meter=%d", shown.ID),
		Actions:   meterText(shown),
		Note:      "limits the samples of denied packets",
	}
	if pipeline.IsBandwidthMeter(shown.ID) {
		d.Note = "limits a pod's bandwidth"
	}
	if f.kind == inspect.FlowExtra {
		d.Note = "not Flowkeep's"
	}
	return d
}

func meterText(m ofctl.Meter) string {
	if m.Rate == 0 {
		return "not of packets"
	}
	if m.Kilobits {
		return fmt.Sprintf("%d kilobits a second, %d at once", m.Rate, m.Burst)
	}
	return fmt.Sprintf("%d packets a second, %d at once", m.Rate, m.Burst)
}
