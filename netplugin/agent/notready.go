package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/flowkeep/flowkeep/internal/process"
)

// notReady is the metric of the parts of netplugin that are not ready. It has no series while all are.
type notReady struct {
	health *process.Health
	desc   *prometheus.Desc
}

func newNotReady(health *process.Health) *notReady {
	return &notReady{health, prometheus.NewDesc("flowkeep_netplugin_not_ready",
		"1 for each part of netplugin that is not ready: /readyz has the reason.", []string{"part"}, nil)}
}

// Describe implements prometheus.Collector.
func (n *notReady) Describe(to chan<- *prometheus.Desc) { to <- n.desc }

// Collect implements prometheus.Collector.
func (n *notReady) Collect(to chan<- prometheus.Metric) {
	for part := range n.health.Parts() {
		to <- prometheus.MustNewConstMetric(n.desc, prometheus.GaugeValue, 1, part)
	}
}
