package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
)

// putPod opens an endpoint's port on the switch.
func putPod(t *testing.T, a *agent, e endpoints.Endpoint) {
	t.Helper()
	var err error
	if doErr := a.do(t.Context(), func() {
		a.compiler.PutEndpoint(local(&e))
		err = a.commit(t.Context(), a.take())
	}); doErr != nil || err != nil {
		t.Fatal(doErr, err)
	}
}

func limited(port uint32, ingress, egress uint64) endpoints.Endpoint {
	e := wired("1", "c1", port)
	e.Bandwidth = endpoints.Bandwidth{Ingress: ingress, Egress: egress}
	return e
}

// A real switch gets a pod's meters before the flows that name them, changes them with the limit and the port, and loses
// them with the pod. A drift check sees no difference, and restores a meter that was deleted together with its flows.
func TestBandwidth_OnASwitch(t *testing.T) {
	a, sw, netmaster := onSwitch(t)
	configured(t, a)
	meters := func() string {
		var list []string
		for line := range strings.Lines(sw.OFCtl(t, "dump-meters")) {
			if strings.Contains(line, "kbps") {
				id, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "meter="), " ")
				list = append(list, id)
			}
		}
		slices.Sort(list)
		return strings.Join(list, " ")
	}
	expect := func(when, want string, flows int) {
		t.Helper()
		n := 0
		for line := range strings.Lines(sw.OFCtl(t, "dump-flows", "--no-stats")) {
			if strings.Contains(line, "meter:655") { // of bandwidth: other flows of a pod have meters too
				n++
			}
		}
		if got := meters(); got != want || n != flows {
			t.Errorf("%s: the switch has meters %q in %d flows, want %q in %d", when, got, n, want, flows)
		}
	}
	id := func(port uint32) string { return fmt.Sprintf("%d %d", 65536+2*port, 65537+2*port) }
	putPod(t, a, limited(7, 5e6, 10e6))
	expect("attached", id(7), 2)
	putPod(t, a, limited(7, 5e6, 20e6))
	if dump := sw.OFCtl(t, "dump-meters"); !strings.Contains(dump, "rate=20000") || strings.Contains(dump, "rate=10000") {
		t.Errorf("the limit did not change:\n%s", dump)
	}
	putPod(t, a, limited(8, 5e6, 20e6))
	expect("another port", id(8), 2)
	a.drift.Check(t.Context())
	sw.OFCtl(t, "del-meter", "meter=65552")
	expect("deleted", "65553", 1)
	a.drift.Check(t.Context())
	if got := <-netmaster.drifts; got != "2 missing, 0 changed, 0 extra" {
		t.Errorf("the drift check found %s", got)
	}
	expect("repaired", id(8), 2)
	putPod(t, a, limited(8, 0, 0))
	expect("no limit", "", 0)
	if n := len(netmaster.drifts); n > 0 {
		t.Errorf("%d more drifts", n)
	}
}

// A switch that has no room for the meters has the pod without a limit, and all else as before.
func TestBandwidth_NoRoom(t *testing.T) {
	a, s, _ := running(t)
	configured(t, a)
	tight := &tightSwitch{pickySwitch: s, highest: 3000}
	attach := func() {
		t.Helper()
		var err error
		if doErr := a.do(t.Context(), func() { a.detach(); err = a.attach(t.Context(), tight) }); doErr != nil || err != nil {
			t.Fatal(doErr, err)
		}
	}
	e := limited(7, 5e6, 10e6)
	if err := a.do(t.Context(), func() { a.compiler.PutEndpoint(local(&e)) }); err != nil {
		t.Fatal(err)
	}
	s.meters = nil
	attach()
	if !a.isOpen(t, s, 7) || !hasMeter(s.meters, pipeline.AnswerMeters()[0].ID) {
		t.Errorf("the port is open: %v; meters: %v", a.isOpen(t, s, 7), s.meters)
	}
	names := func() bool {
		return slices.ContainsFunc(s.flows(), func(f ofctl.Flow) bool {
			return f.Actions[0].Kind == ofctl.Metered && pipeline.IsBandwidthMeter(f.Actions[0].Value)
		})
	}
	if names() {
		t.Error("flows name meters that the switch does not have")
	}
	tight.highest = 1 << 18
	attach()
	if !names() {
		t.Error("with room for the meters no flow names one")
	}
}

// tightSwitch takes no meter above the highest.
type tightSwitch struct {
	*pickySwitch
	highest uint32
}

func (s *tightSwitch) EnsureMeters(ctx context.Context, meters []ofctl.Meter) error {
	for _, m := range meters {
		if m.ID > s.highest {
			return ofctl.ErrNoMeters
		}
	}
	return s.pickySwitch.EnsureMeters(ctx, meters)
}

// flows returns the flows that have actions.
func (s *pickySwitch) flows() (list []ofctl.Flow) {
	for _, f := range s.holds {
		if len(f.Actions) > 0 {
			list = append(list, f)
		}
	}
	return list
}
