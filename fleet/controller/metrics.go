package controller

import (
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// metrics count what the controller does.
type metrics struct {
	works    *prometheus.CounterVec
	statuses *prometheus.CounterVec
	latency  prometheus.Histogram
	decision prometheus.Histogram
	depth    *prometheus.GaugeVec
	watched  prometheus.Gauge
	frozen   prometheus.Gauge
	problems prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		works:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "flowkeep_policy_sync_work_writes_total", Help: "Writes of ManifestWorks by verb (create, update, delete) and how they ended: written, conflict (the work has changed; retried), gone (the cluster's namespace is missing or being deleted) or failed."}, []string{"verb", "outcome"}),
		statuses: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "flowkeep_policy_sync_status_writes_total", Help: "Writes of statuses on the hub, by kind of object and outcome."}, []string{"kind", "outcome"}),
		latency:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "flowkeep_policy_sync_seconds", Help: "From the first event that concerned a bundle to the last of the writes that it led to; bundles of which nothing had to be written are not counted.", Buckets: prometheus.ExponentialBuckets(0.005, 1.6, 20)}),
		decision: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "flowkeep_policy_sync_decision_seconds", Help: "Time to compute a bundle's works, without reads and writes.", Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16)}),
		depth: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "flowkeep_policy_sync_queue_depth",
			Help: "Bundles and statuses that wait or are being processed; delayed ones and retries count.",
		}, []string{"queue"}),
		watched:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "flowkeep_policy_sync_kinds_watched", Help: "Kinds of policies that are watched because classes list them."}),
		frozen:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "flowkeep_policy_sync_frozen_bundles", Help: "Bundles of which nothing is changed on spokes, because what decides about them is broken or cannot be read."}),
		problems: prometheus.NewGauge(prometheus.GaugeOpts{Name: "flowkeep_policy_sync_problems", Help: "Objects, or parts of them, that are not sent, by what is wrong with them."}),
	}
	reg.MustRegister(m.works, m.statuses, m.latency, m.decision, m.depth, m.watched, m.frozen, m.problems)
	return m
}

// DeclareMetrics registers a controller's metrics, for a list of them.
func DeclareMetrics(reg prometheus.Registerer) { newMetrics(reg) }

// How writes end.
const (
	written  = "written"
	conflict = "conflict"
	gone     = "gone"
	failed   = "failed"
)

// outcomeOf a write. What was deleted meanwhile, or made meanwhile, is a conflict like any other: the event is on its way.
func outcomeOf(err error) string {
	switch {
	case err == nil:
		return written
	case apierrors.HasStatusCause(err, "NamespaceTerminating"), namespaceMissing(err):
		return gone
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), apierrors.IsGone(err):
		return conflict
	}
	return failed
}

// namespaceMissing reports whether a create failed for want of its namespace, not of another object.
func namespaceMissing(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || !apierrors.IsNotFound(err) {
		return false
	}
	d := status.ErrStatus.Details
	return d != nil && d.Kind == "namespaces"
}

// isRefusal reports whether the API server has answered that it does not accept a write as it is.
func isRefusal(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || apierrors.IsTooManyRequests(err) || apierrors.IsUnauthorized(err) {
		return false
	}
	code := status.ErrStatus.Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}

func (m *metrics) work(verb string, err error) string {
	outcome := outcomeOf(err)
	m.works.WithLabelValues(verb, outcome).Inc()
	return outcome
}

func (m *metrics) status(kind string, err error) string {
	outcome := outcomeOf(err)
	m.statuses.WithLabelValues(kind, outcome).Inc()
	return outcome
}

func (m *metrics) decided(since time.Time) { m.decision.Observe(time.Since(since).Seconds()) }
