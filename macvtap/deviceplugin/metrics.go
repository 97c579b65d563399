package deviceplugin

import "github.com/prometheus/client_golang/prometheus"

// Metrics are what a Manager counts.
type Metrics struct {
	registrations, refused, allocations *prometheus.CounterVec
	up, offered                         *prometheus.GaugeVec
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	const prefix = "flowkeep_macvtap_"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, labels)
	}
	m := &Metrics{
		registrations: counter("registrations_total", "Registrations that the kubelet took, by resource: one for each start of it or of this process.", "resource"),
		refused:       counter("registration_errors_total", "Registrations that failed, and connections that the kubelet closed; they are retried.", "resource"),
		allocations:   counter("allocations_total", "The kubelet's requests for devices, by resource and result: ok, error.", "resource", "result"),
		up:            gauge("registered", "1 if the kubelet follows the resource's devices.", "resource"),
		offered:       gauge("devices", "Devices offered to the kubelet, by resource and health.", "resource", "health"),
	}
	reg.MustRegister(m.registrations, m.refused, m.allocations, m.up, m.offered)
	return m
}

func (m *Metrics) registered(resource string, is bool) {
	value := 0.0
	if is {
		value = 1
	}
	m.up.WithLabelValues(resource).Set(value)
}

func (m *Metrics) devices(resource string, devices []device) {
	healthy := 0
	for _, d := range devices {
		if d.healthy {
			healthy++
		}
	}
	m.offered.WithLabelValues(resource, "healthy").Set(float64(healthy))
	m.offered.WithLabelValues(resource, "unhealthy").Set(float64(len(devices) - healthy))
}

func (m *Metrics) gone(resource string) {
	m.offered.DeletePartialMatch(prometheus.Labels{"resource": resource})
}

// forget the registration of what is exposed no more; what was counted stays.
func (m *Metrics) forget(resource string) { m.up.DeleteLabelValues(resource) }

func (m *Metrics) allocated(resource string, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.allocations.WithLabelValues(resource, result).Inc()
}
