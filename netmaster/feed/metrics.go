package feed

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	connected     prometheus.Gauge
	errors        prometheus.Gauge
	refused       *prometheus.CounterVec
	rules, groups prometheus.Counter
	delayed       prometheus.Counter
	inbound       prometheus.Counter
	realised      prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) metrics {
	name := func(n string) string { return "flowkeep_netmaster_feed_" + n }
	m := metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{Name: name("nodes"), Help: "Nodes connected to the feed."}),
		errors: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: name("errors"),
			Help: "What connected nodes could not put in force and deny instead; netctl status lists the errors.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("refused_total"),
			Help: "Streams refused or ended, by gRPC code: FailedPrecondition is another version, " +
				"PermissionDenied another's name.",
		}, []string{"code"}),
		delayed: prometheus.NewCounter(prometheus.CounterOpts{Name: name("announcements_delayed_total"),
			Help: "Announcements that waited because their node announces too often."}),
		inbound: prometheus.NewCounter(prometheus.CounterOpts{Name: name("messages_delayed_total"),
			Help: "Messages of nodes that waited because their node sends more than it may."}),
		rules: prometheus.NewCounter(
			prometheus.CounterOpts{Name: name("rules_sent_total"), Help: "Rules sent to nodes, removals included."}),
		groups: prometheus.NewCounter(
			prometheus.CounterOpts{Name: name("groups_sent_total"), Help: "Groups sent to nodes, whole or as patches."},
		),
	}
	m.realised = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "flowkeep_netmaster_policy_realised_seconds",
		Help: "Time from the API server's word of a changed NetworkPolicy until the last of the nodes that need " +
			"it has it in force; of nodes that stay connected, and changes that fail on none.",
		Buckets: []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60}})
	if r != nil {
		r.MustRegister(m.realised, m.connected, m.errors, m.refused, m.delayed, m.inbound, m.rules, m.groups)
	}
	return m
}
