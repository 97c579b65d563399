package agent

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are what the agent counts.
type Metrics struct {
	resources, conflicts, problems, absent, known prometheus.Gauge
	held                                          prometheus.Gauge
	refused                                       prometheus.Counter
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	const prefix = "flowkeep_macvtap_"
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + name, Help: help})
	}
	m := &Metrics{
		resources: gauge("resources", "Resources that the node exposes."),
		conflicts: gauge("conflicts", "Entries that are not exposed because an older entry conflicts."),
		problems:  gauge("problems", "Entries that are refused in whole or in part."),
		absent:    gauge("absent_parents", "Entries none of whose parents is there."),
		known:     gauge("policies_known", "1 if policies and labels are synced with the API server."),
		held:      gauge("devices_held", "Devices that pods hold, by the kubelet's last report."),
		refused:   prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "report_errors_total", Help: "Reports that could not be written to the API server; they are retried."}),
	}
	reg.MustRegister(m.resources, m.conflicts, m.problems, m.absent, m.known, m.held, m.refused)
	return m
}

func (m *Metrics) measure(r Report) {
	m.resources.Set(float64(len(r.Facts.Exposure.Resources)))
	m.conflicts.Set(float64(len(r.Facts.Exposure.Conflicts)))
	m.problems.Set(float64(len(r.Facts.Exposure.Problems)))
	m.absent.Set(float64(len(r.Facts.Exposure.Absent)))
	m.held.Set(float64(len(r.Facts.Holders)))
	m.known.Set(1)
	for _, t := range r.Trouble {
		if t.Reason == ReasonUnknown {
			m.known.Set(0)
		}
	}
}
