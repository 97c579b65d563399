package agent

import (
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	revision     prometheus.Gauge
	switchUp     prometheus.Gauge
	masterUp     prometheus.Gauge
	flowMods     prometheus.Counter
	refused      prometheus.Counter
	hostRepairs  *prometheus.CounterVec
	hostWrites   *prometheus.CounterVec
	contested    *prometheus.GaugeVec
	tracked      *prometheus.GaugeVec
	trackedLimit *prometheus.GaugeVec
	limited      prometheus.Counter
	full         prometheus.Gauge
	capped       prometheus.Gauge
	leftOut      *prometheus.GaugeVec
	ways         *prometheus.GaugeVec // in traffic mode auto
	// networkProblems are by kind, as inspect.NetworkKinds
	networkProblems *prometheus.GaugeVec
	watchFailures   *prometheus.CounterVec // by watchedHost and objectHostPort
	unbounded       *prometheus.GaugeVec   // by zone of conntrack
	stateErrors     prometheus.Counter
	stateCorrupt    prometheus.Counter
	stateStale      prometheus.Counter
	unsaved         prometheus.Gauge
	untranslated    prometheus.Gauge
	kept            *prometheus.GaugeVec
	updateSeconds   prometheus.Histogram
	realizeSeconds  prometheus.Histogram
	cniSeconds      *prometheus.HistogramVec
	cniErrors       *prometheus.CounterVec
}

// watchedHost is the watch of the host's network in the metric of failures.
const watchedHost = "host"

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
		revision:      gauge("revision", "Revision of the rule set that is in force."),
		switchUp:      gauge("switch_connected", "1 while Open vSwitch is connected and takes packets."),
		masterUp:      gauge("netmaster_connected", "1 while netmaster is connected."),
		flowMods:      counter("flow_mods_total", "Flow mods committed."),
		refused:       counter("flow_mods_refused_total", "Flow mods that the switch refused."),
		watchFailures: newWatchFailures(),
		unbounded: zoneGauge("tracked_connections_unbounded",
			"1 while the switch does not have netplugin's limit of a zone, or does not return it."),
		tracked: zoneGauge("tracked_connections",
			"Connections that conntrack holds, by zone: policy, service, translation and hairpin are pods', "+
				"node is the whole table of the node's kernel."),
		trackedLimit: zoneGauge("tracked_connections_limit",
			"Connections that a zone may have; a new one above it is not tracked, or dropped."),
		limited: counter("connections_limited_total",
			"Packets of new connections to Services that were dropped because their pod opened too many."),
		full: gauge("conntrack_full",
			"1 while new connections are dropped, but the node's own, because pods' have nearly filled conntrack."),
		capped: gauge("capped_pods",
			"Pods that open no connections to Services, or none at all, because they hold too many of the node's."),
		stateErrors:  counter("state_errors_total", "Failures to write the rule set to disk."),
		stateCorrupt: counter("state_corrupt_total", "Times the rule set on disk was unreadable and set aside."),
		stateStale:   counter("state_stale_total", "Starts with a rule set on disk that was not the last in force."),
		unsaved:      gauge("state_unsaved", "1 while the disk does not take the rule set that is in force."),
		untranslated: gauge("services_untranslated", "Services that the switch does not translate as a whole."),
		kept: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "flowkeep_netplugin_pods_kept",
			Help: "Pods of which a part is not seen, by reason; nothing proves that they have ended.",
		}, []string{"reason"}),
		updateSeconds:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "flowkeep_netplugin_update_seconds", Help: "Time from an update to its being in force.", Buckets: buckets}),
		realizeSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "flowkeep_netplugin_realize_seconds", Help: "Time a wired pod waited for its policies to be in force; part of ADD.", Buckets: slices.Sorted(slices.Values(append(slices.Clone(buckets), promisedStart)))}),
		cniSeconds:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "flowkeep_netplugin_cni_seconds", Help: "Time of CNI commands.", Buckets: buckets}, []string{"command"}),
		cniErrors:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "flowkeep_netplugin_cni_errors_total", Help: "CNI commands that failed."}, []string{"command"}),
	}
	m.leftOut, m.networkProblems = newNetworkMetrics()
	m.hostRepairs, m.hostWrites, m.contested = newHostMetrics()
	m.ways = newWays()
	m.begin()
	if r != nil {
		r.MustRegister(m.kept, m.leftOut, m.ways, m.networkProblems, m.untranslated)
		r.MustRegister(m.tracked, m.trackedLimit, m.unbounded, m.limited, m.full, m.capped)
		r.MustRegister(m.contested, m.watchFailures, m.hostWrites)
		r.MustRegister(m.hostRepairs, m.revision, m.switchUp, m.masterUp, m.flowMods, m.refused, m.stateErrors, m.stateCorrupt, m.stateStale, m.unsaved, m.updateSeconds, m.realizeSeconds, m.cniSeconds, m.cniErrors)
	}
	return m
}

// newHostMetrics returns the counts of repairs and of writes of the host's network, and the objects that another
// program changes again and again.
func newHostMetrics() (repairs, writes *prometheus.CounterVec, contested *prometheus.GaugeVec) {
	repairs = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "flowkeep_netplugin_host_repairs_total",
		Help: "Parts of the host's network that another program removed or changed, and netplugin restored.",
	}, []string{"object"})
	writes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "flowkeep_netplugin_host_writes_total",
		Help: "Parts of the host's network that netplugin wrote because they differed, whatever the cause: " +
			"at its start, after a change of the cluster, and as repairs.",
	}, []string{"object"})
	contested = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "flowkeep_netplugin_host_contested",
		Help: "1 for each part of the host's network that another program changes again after each repair; " +
			"at most 20.",
	}, []string{"object", "name"})
	return repairs, writes, contested
}

// newWays returns the number of other nodes by their way, in traffic mode auto.
func newWays() *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "flowkeep_netplugin_peer_ways",
		Help: "Other nodes by the way to their pods, in traffic mode auto. While a way is changing it counts as " +
			"that, and both ways are accepted.",
	}, []string{"way"})
}

func newWatchFailures() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "flowkeep_netplugin_watch_failures_total",
		Help: "Times that the watch of the host's network (host) or of the rules of hostPorts (hostport) failed; " +
			"it is tried again each second.",
	}, []string{"watch"})
}

// newNetworkMetrics returns the gauges of what this node finds wrong with the cluster's network.
func newNetworkMetrics() (leftOut, problems *prometheus.GaugeVec) {
	leftOut = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "flowkeep_netplugin_peer_cidrs_left_out",
		Help: "PodCIDRs of other nodes without a route of Flowkeep's, by reason.",
	}, []string{"reason"})
	problems = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "flowkeep_netplugin_network_problems",
		Help: "Problems of the cluster's network as this node sees it, by kind; at most 16.",
	}, []string{"kind"})
	return leftOut, problems
}

// zoneGauge returns a gauge by zone of conntrack.
func zoneGauge(name, help string) *prometheus.GaugeVec {
	opts := prometheus.GaugeOpts{Name: "flowkeep_netplugin_" + name, Help: help}
	return prometheus.NewGaugeVec(opts, []string{"zone"})
}

// begin sets the series of all labels to 0: rates need a beginning.
func (m *metrics) begin() {
	for _, object := range append(slices.Clone(hostnet.Objects), objectPort, objectBridge, objectHostPort) {
		m.hostRepairs.WithLabelValues(object)
		m.hostWrites.WithLabelValues(object)
	}
	for _, watch := range []string{watchedHost, objectHostPort} {
		m.watchFailures.WithLabelValues(watch)
	}
	for _, reason := range hostnet.LeftReasons {
		m.leftOut.WithLabelValues(reason)
	}
	for _, kind := range inspect.NetworkKinds {
		m.networkProblems.WithLabelValues(kind)
	}
	for _, reason := range endpoints.KeptReasons {
		m.kept.WithLabelValues(reason)
	}
}

// countWrites counts objects of a kind that were written because they differed, whatever the cause.
func (m *metrics) countWrites(kind string, names ...string) {
	m.hostWrites.WithLabelValues(kind).Add(float64(len(distinct(names))))
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
