package stats

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

// ledTo is an endpoint of a Service; 0: none.
func ledTo(service string, endpoint byte) pipeline.Led {
	out := pipeline.Led{Service: service, Protocol: policy.TCP}
	if endpoint > 0 {
		out.Endpoint = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, endpoint}), 80)
	}
	return out
}

// slotFlow is a flow that leads to an endpoint.
func slotFlow(number int, packets uint64, age time.Duration, led pipeline.Led) OpenedFlow {
	f := OpenedFlow{Led: led, Counted: ofctl.Counted{Table: pipeline.TableServiceSlot, Packets: packets, Age: age}}
	f.Match.Reg[4] = ofctl.U32{Value: uint32(number), Mask: 0xffffffff}
	return f
}

// opened returns the packets of an endpoint.
func opened(o *Opened, led pipeline.Led) uint64 {
	for _, c := range o.Of(led.Service) {
		if c.Led == led {
			return c.Packets
		}
	}
	return 0
}

func TestOpened(t *testing.T) {
	const began = time.Hour
	o := NewOpened(time.Unix(1, 0), began)
	one, two := ledTo("shop/web", 1), ledTo("shop/web", 2)
	at := began
	book := func(flows ...OpenedFlow) {
		at += 10 * time.Second
		o.Book(at, flows)
	}
	want := func(when string, first, second uint64) {
		t.Helper()
		if a, b := opened(o, one), opened(o, two); a != first || b != second {
			t.Errorf("%s: %d and %d packets, want %d and %d", when, a, b, first, second)
		}
	}
	old := func() time.Duration { return at + 10*time.Second - time.Minute } // the age of a flow from before began
	book(slotFlow(1, 100, old(), one), slotFlow(2, 5, 10*time.Second, two))
	want("what was counted before it began", 0, 5)
	book(slotFlow(1, 103, old(), one), slotFlow(2, 5, 20*time.Second, two))
	want("more", 3, 5)
	book(slotFlow(1, 4, 5*time.Second, one), slotFlow(2, 7, 30*time.Second, two))
	want("another flow in its place", 7, 7)
	book(slotFlow(1, 5, 15*time.Second, two), slotFlow(2, 7, 40*time.Second, two))
	want("a slot that leads elsewhere", 7, 8)
	o.Only(nil, func(string) bool { return true })
	book(slotFlow(2, 1, time.Second, two))
	want("gone, and there again", 7, 9)
	o.Only(nil, func(string) bool { return false })
	if list, left := o.Sums(); len(list) != 0 || left != 0 || o.pairs != 0 {
		t.Errorf("a Service that is gone: %+v, %d", list, left)
	}
}

// TestOpened_IsBounded: a Service with very many endpoints, and very many Services, take no more memory.
func TestOpened_IsBounded(t *testing.T) {
	o := NewOpened(time.Unix(1, 0), 0)
	for i := range maxOfService + 5 {
		address := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		led := pipeline.Led{Service: "a/b", Endpoint: netip.AddrPortFrom(address, 80)}
		o.add(&led, 1)
	}
	if list, left := o.Sums(); len(list) != 1 || list[0].Opened != maxOfService || left != 5 {
		t.Errorf("%+v, %d are left", list, left)
	}
	for i := range maxOpened {
		led := ledTo(fmt.Sprint("a/", i), 1)
		o.add(&led, 1)
	}
	if _, left := o.Sums(); left != 5+maxOfService || o.pairs != maxOpened {
		t.Errorf("%d pairs, %d are left", o.pairs, left)
	}
}

// TestOpenedCollector_IsBounded: no namespace takes the metrics of others.
func TestOpenedCollector_IsBounded(t *testing.T) {
	o := NewOpened(time.Unix(1, 0), 0)
	put := func(service string) {
		for endpoint, packets := range map[byte]uint64{0: 1, 7: 2} {
			led := ledTo(service, endpoint)
			o.add(&led, packets)
		}
	}
	for i := range maxNamespaceSeries + 50 {
		put(fmt.Sprintf("a-tenant/s%d", i))
	}
	put("shop/web")
	r := prometheus.NewRegistry()
	r.MustRegister(OpenedCollector(o))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	services, values := map[string]float64{}, map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if labels := m.GetLabel(); len(labels) == 0 {
				values[f.GetName()] = value
			} else if f.GetName() == "flowkeep_netplugin_service_opened_total" {
				services[labels[0].GetValue()] = value
			}
		}
	}
	if len(services) != maxNamespaceSeries+1 || services["shop/web"] != 2 {
		t.Errorf("%d Services have metrics, shop/web counts %v", len(services), services["shop/web"])
	}
	if n := float64(maxNamespaceSeries + 51); values["flowkeep_netplugin_services_opened_total"] != 2*n ||
		values["flowkeep_netplugin_services_unserved_total"] != n ||
		values["flowkeep_netplugin_service_counters_left_out"] != 50 {
		t.Errorf("%v", values)
	}
}
