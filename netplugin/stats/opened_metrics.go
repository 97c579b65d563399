package stats

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Bounds of the Services that have metrics of their own: of a node, and of a namespace, so that no tenant takes the
// metrics of others.
const (
	maxServiceSeries   = 1_000
	maxNamespaceSeries = 100
)

// openedCollector is the metrics of an Opened, by Service. Endpoints have none: netctl service show has their counts.
type openedCollector struct {
	ledger                   *Opened
	opened, unserved         *prometheus.Desc
	allOpened, allUnserved   *prometheus.Desc
	leftServices, leftCounts *prometheus.Desc
}

// OpenedCollector returns the counts of Services as metrics.
func OpenedCollector(l *Opened) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("flowkeep_netplugin_"+name, help, labels, nil)
	}
	return &openedCollector{
		ledger: l,
		opened: desc("service_opened_total",
			"Packets of pods that opened connections to a Service and were led to an endpoint, before policies. "+
				"At most 100 Services of a namespace and 1,000 in all.", "service"),
		unserved: desc("service_unserved_total",
			"Packets of pods that opened connections to a Service that had no endpoint for them.", "service"),
		allOpened: desc("services_opened_total",
			"Packets of pods that opened connections to Services and were led to endpoints, before policies."),
		allUnserved: desc("services_unserved_total",
			"Packets of pods that opened connections to Services that had no endpoint for them."),
		leftServices: desc("service_counters_left_out",
			"Services that are counted, but are too many for metrics of their own."),
		leftCounts: desc("service_counters_unattributed_total",
			"Packets that opened connections to Services beyond the number of endpoints that are counted."),
	}
}

// Describe implements prometheus.Collector.
func (c *openedCollector) Describe(to chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(c, to)
	to <- c.opened
	to <- c.unserved
}

// Collect implements prometheus.Collector.
func (c *openedCollector) Collect(to chan<- prometheus.Metric) {
	list, left := c.ledger.Sums()
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	var all OpenedSum
	of, series, out := map[string]int{}, 0, 0
	for i := range list {
		s := &list[i]
		all.Opened, all.Unserved = all.Opened+s.Opened, all.Unserved+s.Unserved
		namespace, _, _ := strings.Cut(s.Service, "/")
		if series == maxServiceSeries || of[namespace] == maxNamespaceSeries {
			out++
			continue
		}
		series, of[namespace] = series+1, of[namespace]+1
		counter(c.opened, s.Opened, s.Service)
		counter(c.unserved, s.Unserved, s.Service)
	}
	counter(c.allOpened, all.Opened)
	counter(c.allUnserved, all.Unserved)
	counter(c.leftCounts, left)
	to <- prometheus.MustNewConstMetric(c.leftServices, prometheus.GaugeValue, float64(out))
}
