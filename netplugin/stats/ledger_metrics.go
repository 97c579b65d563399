package stats

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// mostSeries is the maximum number of places that are exported as metrics. A metric has the number of the remaining
// places; their counts are only in netctl.
const mostSeries = 10_000

// ledgerCollector exports the counts of a ledger, by policy, direction and index of the rule.
type ledgerCollector struct {
	ledger                                                 *Ledger
	packets, bytes, connections, denied, deniedBytes, left *prometheus.Desc
	dryRunPackets, dryRunConnections                       *prometheus.Desc
}

// LedgerCollector gives the counts of what is in force as metrics.
func LedgerCollector(l *Ledger) prometheus.Collector {
	rule := []string{"policy", "direction", "rule"}
	desc := func(name, help string, labels []string) *prometheus.Desc {
		return prometheus.NewDesc("flowkeep_netplugin_"+name, help, labels, nil)
	}
	return &ledgerCollector{
		ledger:            l,
		packets:           desc("rule_packets_total", "Packets that a policy's rule let on, of both directions.", rule),
		bytes:             desc("rule_bytes_total", "Bytes that a policy's rule let on, of both directions.", rule),
		connections:       desc("rule_connections_total", "Connections that a policy's rule let be opened.", rule),
		denied:            desc("denied_packets_total", "Packets that a policy denied, alone or with others, because no rule let them through.", rule[:2]),
		deniedBytes:       desc("denied_bytes_total", "Bytes of the packets that a policy denied.", rule[:2]),
		dryRunPackets:     desc("dry_run_denied_packets_total", "Packets that a policy in a dry run would have denied, alone or with others.", rule[:2]),
		dryRunConnections: desc("dry_run_denied_connections_total", "Connections that a policy in a dry run would have denied, alone or with others.", rule[:2]),
		left:              desc("counters_left_out", "Rules and isolations that are counted, but are too many for metrics.", nil),
	}
}

// Describe implements prometheus.Collector.
func (c *ledgerCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.packets, c.bytes, c.connections, c.denied, c.deniedBytes, c.dryRunPackets, c.dryRunConnections, c.left} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *ledgerCollector) Collect(to chan<- prometheus.Metric) {
	told, left := 0, 0
	for _, s := range c.ledger.States(func(p *Place) bool { return p.Policy != "" && (!p.DryRun || p.Rule == Isolation) }) {
		switch {
		case !s.InForce:
			continue
		case told == mostSeries:
			left++
			continue
		}
		told++
		tell := func(d *prometheus.Desc, n uint64, labels ...string) {
			to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), append([]string{s.Policy, s.Direction.String()}, labels...)...)
		}
		switch {
		case s.DryRun:
			tell(c.dryRunPackets, s.Packets)
			tell(c.dryRunConnections, s.Connections)
			continue
		case s.Rule == Isolation:
			tell(c.denied, s.Packets)
			tell(c.deniedBytes, s.Bytes)
			continue
		}
		index := strconv.Itoa(s.Rule)
		tell(c.packets, s.Packets, index)
		tell(c.bytes, s.Bytes, index)
		tell(c.connections, s.Connections, index)
	}
	to <- prometheus.MustNewConstMetric(c.left, prometheus.GaugeValue, float64(left))
}
