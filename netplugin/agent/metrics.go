package agent

import (
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	revision       prometheus.Gauge
	switchUp       prometheus.Gauge
	masterUp       prometheus.Gauge
	flowMods       prometheus.Counter
	refused        prometheus.Counter
	audits         prometheus.Counter
	auditErrors    prometheus.Counter
	auditSeconds   prometheus.Histogram
	drift          *prometheus.CounterVec
	hostRepairs    *prometheus.CounterVec
	stateErrors    prometheus.Counter
	stateCorrupt   prometheus.Counter
	stateStale     prometheus.Counter
	unsaved        prometheus.Gauge
	updateSeconds  prometheus.Histogram
	realizeSeconds prometheus.Histogram
	cniSeconds     *prometheus.HistogramVec
	cniErrors      *prometheus.CounterVec
}

// promisedStart is how many seconds half of the pods may wait for their policies (issue 3): a bucket ends there, so that it can be told whether they do.
const promisedStart = 0.15

func newMetrics(r prometheus.Registerer) metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "flowkeep_netplugin_" + name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "flowkeep_netplugin_" + name, Help: help})
	}
	buckets := prometheus.ExponentialBuckets(0.0005, 2, 16)
	m := metrics{
		revision:     gauge("revision", "Revision of the rule set that is in force."),
		switchUp:     gauge("switch_connected", "1 while Open vSwitch is connected and takes packets."),
		masterUp:     gauge("netmaster_connected", "1 while netmaster is connected."),
		flowMods:     counter("flow_mods_total", "Flow mods committed."),
		refused:      counter("flow_mods_refused_total", "Flow mods that the switch refused."),
		audits:       counter("audits_total", "Comparisons of the switch with what it should hold."),
		auditErrors:  counter("audit_errors_total", "Audits that did not come to their end."),
		auditSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "flowkeep_netplugin_audit_seconds", Help: "Time from the beginning of an audit until its result.", Buckets: buckets}),
		drift:        prometheus.NewCounterVec(prometheus.CounterOpts{Name: "flowkeep_netplugin_drift_flows_total", Help: "Flows that were missing, changed or extra at an audit."}, []string{"kind"}),
		hostRepairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flowkeep_netplugin_host_repairs_total",
			Help: "Parts of the host's network that another program removed or changed, and netplugin restored.",
		}, []string{"object"}),
		stateErrors:    counter("state_errors_total", "Failures to write the rule set to disk."),
		stateCorrupt:   counter("state_corrupt_total", "Times the rule set on disk was unreadable and set aside."),
		stateStale:     counter("state_stale_total", "Starts with a rule set on disk that was not the last in force."),
		unsaved:        gauge("state_unsaved", "1 while the disk does not take the rule set that is in force."),
		updateSeconds:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "flowkeep_netplugin_update_seconds", Help: "Time from an update to its being in force.", Buckets: buckets}),
		realizeSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "flowkeep_netplugin_realize_seconds", Help: "Time a wired pod waited for its policies to be in force; part of ADD.", Buckets: slices.Sorted(slices.Values(append(slices.Clone(buckets), promisedStart)))}),
		cniSeconds:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "flowkeep_netplugin_cni_seconds", Help: "Time of CNI commands.", Buckets: buckets}, []string{"command"}),
		cniErrors:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "flowkeep_netplugin_cni_errors_total", Help: "CNI commands that failed."}, []string{"command"}),
	}
	for _, kind := range []string{inspect.FlowMissing, inspect.FlowChanged, inspect.FlowExtra} {
		m.drift.WithLabelValues(kind) // there from the start: rates need a beginning
	}
	for _, object := range append(slices.Clone(hostnet.Objects), objectPort) {
		m.hostRepairs.WithLabelValues(object)
	}
	if r != nil {
		r.MustRegister(m.hostRepairs, m.revision, m.switchUp, m.masterUp, m.flowMods, m.refused, m.audits, m.auditErrors, m.auditSeconds, m.drift, m.stateErrors, m.stateCorrupt, m.stateStale, m.unsaved, m.updateSeconds, m.realizeSeconds, m.cniSeconds, m.cniErrors)
	}
	return m
}

func (m *metrics) observeCNI(command string, took time.Duration, err error) {
	m.cniSeconds.WithLabelValues(command).Observe(took.Seconds())
	if err != nil {
		m.cniErrors.WithLabelValues(command).Inc()
	}
}

// DeclareMetrics registers all that an agent measures, for whoever lists it; the agent is made of cfg, and ends at once.
func DeclareMetrics(cfg Config) error {
	a, err := newAgent(cfg)
	if err != nil {
		return err
	}
	a.close()
	return nil
}
