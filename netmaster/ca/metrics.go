package ca

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	signed *prometheus.CounterVec
}

// Results of requests for certificates.
const (
	resultSigned  = "signed"
	resultInvalid = "invalid"
	resultRefused = "refused"
	resultBusy    = "busy"
	resultFailed  = "failed"
)

func newMetrics(reg prometheus.Registerer, k *Keeper) metrics {
	m := metrics{
		signed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "flowkeep_netmaster_certificate_requests_total",
			Help: "Certificate requests of nodes: signed, invalid (no node may have the certificate), " +
				"refused (the sender may not have it), busy, or failed."}, []string{"result"}),
	}
	for _, r := range []string{resultSigned, resultInvalid, resultRefused, resultBusy, resultFailed} {
		m.signed.WithLabelValues(r)
	}
	if reg == nil {
		return m
	}
	reg.MustRegister(
		m.signed,
		&collector{k},
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "flowkeep_netmaster_authority_problem",
			Help: "1 while the authority in the cluster is not as it should be, or cannot be looked " +
				"at."}, func() float64 {
			if k.Problem() != "" {
				return 1
			}
			return 0
		}),
	)
	return m
}

// collector reports the expiry of certificates at the time of a scrape.
type collector struct{ k *Keeper }

// ExpiryHelp is the help text of the metric.
const ExpiryHelp = "When a certificate expires: netmaster's own (serving), the authority that signs, the next one."

var expiry = prometheus.NewDesc("flowkeep_netmaster_certificate_expiry_timestamp_seconds", ExpiryHelp,
	[]string{"certificate"}, nil)

// Describe implements prometheus.Collector.
func (c *collector) Describe(all chan<- *prometheus.Desc) { all <- expiry }

// Collect implements prometheus.Collector.
func (c *collector) Collect(all chan<- prometheus.Metric) {
	v := c.k.now.Load()
	if v == nil {
		return
	}
	report := func(unix int64, name string) {
		all <- prometheus.MustNewConstMetric(expiry, prometheus.GaugeValue, float64(unix), name)
	}
	report(v.Own.Leaf.NotAfter.Unix(), "serving")
	if v.state == nil {
		return
	}
	report(v.state.Signing.Cert.NotAfter.Unix(), "authority")
	if v.state.Next != nil {
		report(v.state.Next.Cert.NotAfter.Unix(), "next_authority")
	}
}
