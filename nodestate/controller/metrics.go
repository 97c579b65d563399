package controller

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Metrics count what a handler does; nil counts nothing.
type Metrics struct {
	passes    prometheus.Histogram
	decisions prometheus.Histogram
	writes    *prometheus.CounterVec
	waiting   prometheus.Gauge
}

// NewMetrics registers them under the program's registry.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		passes:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "flowkeep_node_config_pass_seconds", Help: "How long passes took, with what they wrote.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 8)}),
		decisions: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "flowkeep_node_config_decision_seconds", Help: "Time to compute a node's desired state from all policies, without reads and writes.", Buckets: prometheus.ExponentialBuckets(0.0001, 1.5, 20)}),
		writes:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "flowkeep_node_config_writes_total", Help: "Updates of nodes' desired states (node) and policies' statuses (policy), by how they ended: written, conflict or failed."}, []string{"object", "outcome"}),
		waiting:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "flowkeep_node_config_waiting_policies", Help: "Policies with nodes that wait for their turn."}),
	}
	reg.MustRegister(m.passes, m.decisions, m.writes, m.waiting)
	return m
}

func (m *Metrics) pass(since time.Time) {
	if m != nil {
		m.passes.Observe(time.Since(since).Seconds())
	}
}

func (m *Metrics) decided(since time.Time) {
	if m != nil {
		m.decisions.Observe(time.Since(since).Seconds())
	}
}

func (m *Metrics) wrote(object string, err error) {
	if m == nil {
		return
	}
	outcome := "written"
	if apierrors.IsConflict(err) {
		outcome = "conflict"
	} else if err != nil {
		outcome = "failed"
	}
	m.writes.WithLabelValues(object, outcome).Inc()
}

func (m *Metrics) waits(policies int) {
	if m != nil {
		m.waiting.Set(float64(policies))
	}
}
