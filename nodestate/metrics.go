package nodestate

import (
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Metrics are what the agent counts.
type Metrics struct {
	attempts                        *prometheus.CounterVec
	drifts, writes, refused         prometheus.Counter
	inSync, managed, attempt, links prometheus.Gauge
	apply, show                     prometheus.Histogram
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	const prefix = "flowkeep_nodestate_"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + name, Help: help})
	}
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 4, 9)})
	}
	m := &Metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "attempts_total", Help: "Attempts to apply the desired state, by outcome: Applied, Failed, RolledBack, Partial.",
		}, []string{"outcome"}),
		drifts:  counter("drifts_total", "Drifts: the node differed from the desired state after it had matched."),
		writes:  counter("status_writes_total", "Writes of the node's NodeNetworkState. An idle node makes none."),
		refused: counter("status_write_errors_total", "Writes that the API server refused; they are retried."),
		inSync:  gauge("in_sync", "1 if the node matches the desired state, 0 if not or unknown."),
		managed: gauge("managed", "1 unless spec.managed is false."),
		attempt: gauge("failed_attempts", "Attempts in a row that failed."),
		links:   gauge("interfaces", "Interfaces in the node's network, pods' left out."),
		apply:   seconds("apply_seconds", "How long attempts took, from the first probe to the commit or roll-back."),
		show:    seconds("show_seconds", "How long reading the node's network took."),
	}
	reg.MustRegister(m.attempts, m.drifts, m.writes, m.refused, m.inSync, m.managed, m.attempt, m.links, m.apply, m.show)
	return m
}

// measure keeps the gauges as the last pass saw the node.
func (a *Agent) measure(o Observation, action Action) {
	m := a.cfg.Metrics
	m.managed.Set(one(action.Kind != Silence))
	if action.Kind == Silence {
		m.inSync.Set(0)
		return
	}
	m.inSync.Set(one(condition(a.mem, o).Status == metav1.ConditionTrue))
	m.links.Set(float64(len(o.Current.Interfaces())))
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
