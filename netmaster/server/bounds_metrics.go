package server

import (
	"github.com/flowkeep/flowkeep/internal/limit"
	"github.com/prometheus/client_golang/prometheus"
)

// boundMetrics counts what was refused because of a limit of nodes or clients.
type boundMetrics struct {
	claimsRefused prometheus.Gauge       // of Node objects, at present
	refusedClaims *prometheus.CounterVec // announcements
	staticPods    prometheus.Gauge
	waiting       prometheus.Gauge // policies that wait in the intake
	closed        *prometheus.CounterVec
}

func newBoundMetrics(r prometheus.Registerer) boundMetrics {
	m := boundMetrics{
		claimsRefused: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flowkeep_netmaster_claims_refused",
			Help: "Addresses and podCIDRs of Node objects that another node had first."}),
		refusedClaims: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flowkeep_netmaster_announcements_refused_total",
			Help: "What nodes announced that does not count: address (not of the node's podCIDRs; one a minute and " +
				"node at most) or no_uid."}, []string{"reason"}),
		staticPods: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flowkeep_netmaster_static_pods_left_out",
			Help: "Static pods outside of --static-pod-namespaces, which are no peers by selectors."}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flowkeep_netmaster_waiting_policies",
			Help: "Policies that the watches have delivered and that are not taken over yet: nodes have yet to " +
				"acknowledge others of the same namespace."}),
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flowkeep_netmaster_connections_closed_total",
			Help: "Connections closed because of a bound, by port (feed, access): address (too many of one address " +
				"without a certificate), unknown (too many without one) or peer (too many with one certificate)."},
			[]string{"port", "bound"}),
	}
	for _, reason := range []string{refusedAddress, refusedNoUID} {
		m.refusedClaims.WithLabelValues(reason)
	}
	for _, port := range []string{portFeed, portAccess} {
		for _, bound := range []string{limit.BoundAddress, limit.BoundUnknown, limit.BoundPeer} {
			m.closed.WithLabelValues(port, bound)
		}
	}
	if r != nil {
		r.MustRegister(m.claimsRefused, m.refusedClaims, m.staticPods, m.waiting, m.closed)
	}
	return m
}
