package enforcement

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	objects                    prometheus.Gauge
	answers                    *prometheus.GaugeVec
	written, overtaken, failed prometheus.Counter
}

func newMetrics(r prometheus.Registerer) metrics {
	name := func(n string) string { return "flowkeep_netmaster_enforcement_" + n }
	writes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: name("writes_total"),
		Help: "Statuses of NetworkPolicyEnforcement objects, by what came of writing them: written, overtaken " +
			"(the object is another by now: tried again) or failed.",
	}, []string{"outcome"})
	m := metrics{
		objects: prometheus.NewGauge(
			prometheus.GaugeOpts{Name: name("objects"), Help: "NetworkPolicyEnforcement objects that are answered."}),
		answers: prometheus.NewGaugeVec(
			prometheus.GaugeOpts{Name: name("answers"), Help: "Answers by status: True, False or Unknown."},
			[]string{"status"}),
		written:   writes.WithLabelValues("written"),
		overtaken: writes.WithLabelValues("overtaken"),
		failed:    writes.WithLabelValues("failed"),
	}
	if r != nil {
		r.MustRegister(m.objects, m.answers, writes)
	}
	return m
}
