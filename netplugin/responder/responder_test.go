package responder

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/flowkeep/flowkeep/ofctl"
)

var back = []ofctl.Action{{Kind: ofctl.Output, Port: 7}}

func routeToPort7(_ *ofctl.PacketIn, to netip.Addr) ([]ofctl.Action, bool) {
	return back, to == client4
}

func packetIn(f []byte) *ofctl.PacketIn { return &ofctl.PacketIn{Frame: f, Size: len(f)} }

// counted returns the sum of a counter's values, those of one reason where it is not empty.
func counted(t *testing.T, registry *prometheus.Registry, name, reason string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := m.GetLabel()
			if f.GetName() == name && (reason == "" || len(labels) == 1 && labels[0].GetValue() == reason) {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// suppressedBy returns the counter of a reason.
func suppressedBy(t *testing.T, registry *prometheus.Registry, reason string) float64 {
	t.Helper()
	return counted(t, registry, "flowkeep_netplugin_answers_suppressed_total", reason)
}

// TestResponder_BoundsItsAnswers: a flood gets what the limit lets through, and the rest is counted.
func TestResponder_BoundsItsAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		r := New(Config{Route: routeToPort7, Registerer: registry})
		sent := 0
		ctx, cancel := context.WithCancel(t.Context())
		go r.Run(ctx, func(f []byte, actions []ofctl.Action) error {
			if len(actions) != 1 || actions[0] != back[0] {
				t.Errorf("sent by %v", actions)
			}
			sent++
			return nil
		})
		const seconds, flood = 4, 1000
		for range seconds {
			for range flood {
				r.Packet(packetIn(frame(false, protocolUDP, datagram("hello"))))
				synctest.Wait()
			}
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if want := maxBurst * seconds; sent != want { // the burst is full again after a second
			t.Errorf("%d answers, want %d", sent, want)
		}
		if n := counted(t, registry, "flowkeep_netplugin_answers_total", ""); n != float64(sent) {
			t.Errorf("%v answers are counted, %d were sent", n, sent)
		}
		if n := suppressedBy(t, registry, byRate); n != float64(seconds*flood-sent) {
			t.Errorf("%v are suppressed by rate, want %d", n, seconds*flood-sent)
		}
		cancel()
	})
}

// TestResponder_CountsSuppressed: each way of no answer has its reason.
func TestResponder_CountsSuppressed(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := New(Config{Route: routeToPort7, Registerer: registry})
	refuse := func([]byte, []ofctl.Action) error { return errors.New("no connection") }
	r.answer(packetIn(frame(false, protocolTCP, segment(4, ""))), refuse)
	r.answer(packetIn(frame(false, protocolUDP, datagram("hello"))), refuse)
	r.answer(packetIn(frame(true, protocolUDP, datagram("hello"))), refuse) // no way back
	for range maxWaiting + 3 {
		r.Packet(packetIn(nil))
	}
	for reason, want := range map[string]float64{byRule: 1, bySwitch: 2, byQueue: 3, byRate: 0, byMeter: 0} {
		if n := suppressedBy(t, registry, reason); n != want {
			t.Errorf("%s: %v, want %v", reason, n, want)
		}
	}
	if n := counted(t, registry, "flowkeep_netplugin_answers_total", ""); n != 0 {
		t.Errorf("%v answers are counted", n)
	}
}

// TestResponder_ReadsMeters: what meters drop is counted from the first reading on, also when the switch was restarted.
func TestResponder_ReadsMeters(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := New(Config{Route: routeToPort7, Registerer: registry})
	for _, dropped := range []uint64{100, 107, 107, 2} {
		r.Metered([]ofctl.MeterCount{{ID: 2001, Packets: 1000, Dropped: dropped}})
	}
	if n := suppressedBy(t, registry, byMeter); n != 9 {
		t.Errorf("%v are suppressed by meters, want 9", n)
	}
}
