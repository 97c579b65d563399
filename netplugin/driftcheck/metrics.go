package driftcheck

import (
	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	checks      prometheus.Counter
	errors      prometheus.Counter
	seconds     prometheus.Histogram
	flows       *prometheus.CounterVec // that differed, by kind
	independent *prometheus.CounterVec // checks by result
	updates     prometheus.Counter
	monitored   prometheus.Gauge
}

func newMetrics() metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "flowkeep_netplugin_" + name, Help: help})
	}
	m := metrics{
		checks: counter("drift_checks_total", "Comparisons of the switch with what it should hold."),
		errors: counter("drift_check_errors_total", "Drift checks that did not come to their end."),
		updates: counter("flow_updates_total",
			"Changes of flows, groups and meters by other programs that Open vSwitch reported."),
		monitored: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flowkeep_netplugin_flow_monitor",
			Help: "1 while Open vSwitch reports changes of flows by other programs.",
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "flowkeep_netplugin_drift_check_seconds",
			Help:    "Time from the beginning of a drift check until its result.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}),
		flows: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flowkeep_netplugin_drift_flows_total",
			Help: "Flows that were missing, changed or extra at a drift check.",
		}, []string{"kind"}),
		independent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flowkeep_netplugin_independent_checks_total",
			Help: "Drift checks by a second decoder of flows, by result: same, differs or failed.",
		}, []string{"result"}),
	}
	for _, kind := range []string{inspect.FlowMissing, inspect.FlowChanged, inspect.FlowExtra} {
		m.flows.WithLabelValues(kind)
	}
	for _, result := range []string{independentSame, independentDiffers, independentFailed} {
		m.independent.WithLabelValues(result)
	}
	return m
}

func (m *metrics) register(r prometheus.Registerer) {
	r.MustRegister(m.checks, m.errors, m.seconds, m.flows, m.independent, m.updates, m.monitored)
}

// SetMonitored sets whether the switch reports changes of flows to Observe.
func (c *Checker) SetMonitored(yes bool) {
	value := 0.0
	if yes {
		value = 1
	}
	c.metrics.monitored.Set(value)
}

// drifted counts the differences of a comparison.
func (m *metrics) drifted(n inspect.DriftCount) {
	m.flows.WithLabelValues(inspect.FlowMissing).Add(float64(n.Missing))
	m.flows.WithLabelValues(inspect.FlowChanged).Add(float64(n.Changed))
	m.flows.WithLabelValues(inspect.FlowExtra).Add(float64(n.Extra))
}
