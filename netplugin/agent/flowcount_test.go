package agent

import (
	"context"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/flowkeep/flowkeep/ofctl"
)

// counted is a flowCounter that returns a number.
func counted(flows int) flowCounter {
	return func(context.Context) (int, error) { return flows, nil }
}

// driftMetric returns the value of a counter of the drift check; result is its label's value, empty: it has none.
func driftMetric(t *testing.T, a *agent, name, result string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	a.drift.Register(r)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (result == "" || m.GetLabel()[0].GetValue() == result) {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("there is no %s %s", name, result)
	return 0
}

func driftChecks(t *testing.T, a *agent) int {
	t.Helper()
	return int(driftMetric(t, a, "flowkeep_netplugin_drift_checks_total", ""))
}

// TestCheckCount_RestoresFlows: flows that another program deletes or adds are repaired by the next count.
func TestCheckCount_RestoresFlows(t *testing.T) {
	a, sw, netmaster := onSwitch(t)
	s, err := ofctl.Connect(t.Context(), sw.Management())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	count := func(ctx context.Context) (int, error) { return ofctl.FlowCount(ctx, s) }
	var checked flowCounts
	check := func() {
		t.Helper()
		if checked, err = a.flowCount.checkCount(t.Context(), count, checked); err != nil {
			t.Fatal(err)
		}
	}
	check()
	if n := driftChecks(t, a); n != 0 {
		t.Fatalf("%d drift checks of an unchanged switch", n)
	}
	want := checked.want
	for _, change := range []string{"del-flows", "add-flow table=0,priority=65535,actions=NORMAL", "del-flows"} {
		command := strings.Fields(change)
		sw.OFCtl(t, command[0], command[1:]...)
		check()
		<-netmaster.drifts
		if check(); checked.have != want || checked.want != want {
			t.Errorf("after %q the switch has %d flows of %d", change, checked.have, checked.want)
		}
	}
	if n := driftChecks(t, a); n != 3 {
		t.Errorf("%d comparisons for 3 changes", n)
	}
}

// TestCheckCount_ComparesOnce: a difference that a comparison does not find is not compared each second.
func TestCheckCount_ComparesOnce(t *testing.T) {
	a, _, _ := onSwitch(t)
	var checked flowCounts
	for _, c := range []struct {
		flows       int
		driftChecks int
	}{{7, 1}, {7, 1}, {8, 2}, {8, 2}} {
		var err error
		if checked, err = a.flowCount.checkCount(t.Context(), counted(c.flows), checked); err != nil {
			t.Fatal(err)
		}
		if n := driftChecks(t, a); n != c.driftChecks {
			t.Errorf("%d comparisons at a count of %d, want %d", n, c.flows, c.driftChecks)
		}
	}
}
