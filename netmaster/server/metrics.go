package server

import (
	"github.com/flowkeep/flowkeep/netmaster/access"
	"github.com/flowkeep/flowkeep/netmaster/enforcement"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/webhook"
	"github.com/flowkeep/flowkeep/policydb/labelcache"
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	boundMetrics
	revision     prometheus.Gauge
	events       prometheus.Gauge
	apiUp        prometheus.Gauge
	leads, epoch prometheus.Gauge
	standbys     prometheus.Gauge
	objects      *prometheus.GaugeVec
	batchSeconds prometheus.Histogram
	conflicts    prometheus.Counter
	invalid      *prometheus.GaugeVec
	storeErrors  prometheus.Counter
	storeCorrupt prometheus.Counter
	storeWaiting prometheus.Gauge
	settling     prometheus.Gauge
	settleWait   prometheus.Histogram
	watchLag     prometheus.Gauge
	servicesUp   prometheus.Gauge
	notEnforced  prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) metrics {
	name := func(n string) string { return "flowkeep_netmaster_" + n }
	m := metrics{
		revision: prometheus.NewGauge(
			prometheus.GaugeOpts{Name: name("revision"), Help: "Revision of the resolved state."}),
		events: prometheus.NewGauge(
			prometheus.GaugeOpts{Name: name("watch_events"), Help: "Object changes seen since the start."}),
		apiUp: prometheus.NewGauge(
			prometheus.GaugeOpts{Name: name("api_connected"), Help: "1 while the API server can be watched."}),
		leads: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: name("leads"),
			Help: "1 while this netmaster serves: as the leader, or as the only one.",
		}),
		epoch: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: name("epoch"),
			Help: "Epoch in which this netmaster leads; 0: it does not, or takes part in no election.",
		}),
		standbys: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: name("standbys"),
			Help: "Netmasters that stand by, as the leader knows; 0 where this one does not lead.",
		}),
		objects: prometheus.NewGaugeVec(
			prometheus.GaugeOpts{Name: name("objects"), Help: "How much the engine holds."}, []string{"kind"}),
		batchSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    name("batch_seconds"),
			Help:    "Time from a batch of events to its deltas for nodes.",
			Buckets: prometheus.ExponentialBuckets(0.00001, 4, 12),
		}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: name("address_conflicts_total"),
			Help: "Addresses that several endpoints of equal standing claimed.",
		}),
		invalid: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: name("invalid_objects"),
			Help: "Objects of which a part was not understood, or is over a budget, and is left out.",
		}, []string{"kind", "reason"}),
		storeErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: name("store_errors_total"),
			Help: "Seconds during which the policy DB could not be written.",
		}),
		storeWaiting: prometheus.NewGauge(
			prometheus.GaugeOpts{Name: name("store_waiting"), Help: "Keys that are not in the policy DB yet."}),
		storeCorrupt: prometheus.NewCounter(prometheus.CounterOpts{
			Name: name("store_corrupt_total"),
			Help: "Times the policy DB was unreadable and set aside.",
		}),
	}
	m.addWatchMetrics(name)
	m.notEnforced = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: name("pods_not_enforced"),
		Help: "Running pods that enforced policies select and that Flowkeep did not attach: no policy is enforced there; 0 on " +
			"a standby.",
	})
	m.boundMetrics = newBoundMetrics(r)
	if r != nil {
		r.MustRegister(m.settling, m.settleWait, m.watchLag, m.servicesUp, m.notEnforced)
		r.MustRegister(m.revision, m.events, m.apiUp, m.leads, m.epoch, m.standbys, m.objects, m.batchSeconds,
			m.conflicts, m.invalid, m.storeErrors, m.storeCorrupt, m.storeWaiting)
	}
	return m
}

// addWatchMetrics makes the metrics of how far the watches have come.
func (m *metrics) addWatchMetrics(name func(string) string) {
	m.settling = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: name("settling_pods"),
		Help: "Announced pods that wait until every policy older than they is known.",
	})
	m.settleWait = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    name("settle_wait_seconds"),
		Help:    "Time that an announced pod waited until every policy older than it was known.",
		Buckets: []float64{0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60},
	})
	m.servicesUp = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: name("services_connected"),
		Help: "1 while Services and EndpointSlices are known and can be watched.",
	})
	m.watchLag = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: name("watch_lag_seconds"),
		Help: "Age of the oldest policy or namespace of the API server that no watch has delivered; 0: none.",
	})
}

// DeclareMetrics registers all metrics with all label values, for the reference documentation.
func DeclareMetrics(r prometheus.Registerer) {
	newMetrics(r)
	labelcache.New(labelcache.Config{Registerer: r})
	feed.NewServer(feed.Config{Registerer: r})
	enforcement.New(enforcement.Config{Registerer: r})
	webhook.New(webhook.Config{Registerer: r})
	access.New(access.Config{Registerer: r})
}
