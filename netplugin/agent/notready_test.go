package agent

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
)

// TestNotReady: there is a series for each part that is not ready, and none while all are.
func TestNotReady(t *testing.T) {
	health, registry := new(process.Health), prometheus.NewRegistry()
	registry.MustRegister(newNotReady(health))
	parts := func() (list []string) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				list = append(list, fmt.Sprintf("%s %s %v", f.GetName(), m.GetLabel()[0].GetValue(), m.GetGauge().GetValue()))
			}
		}
		return list
	}
	if got := parts(); len(got) != 0 {
		t.Errorf("all is ready: %q", got)
	}
	health.SetReady("ports", "fk-gw is missing")
	if got := parts(); !slices.Equal(got, []string{"flowkeep_netplugin_not_ready ports 1"}) {
		t.Errorf("ports are not ready: %q", got)
	}
	health.SetReady("ports", "")
	if got := parts(); len(got) != 0 {
		t.Errorf("all is ready again: %q", got)
	}
}

// TestTroubleshooting_NamesHostObjects: each value of the label object of host repairs has a row.
func TestTroubleshooting_NamesHostObjects(t *testing.T) {
	text, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, chapter, _ := strings.Cut(string(text), "\n## The host's network was changed\n")
	chapter, _, _ = strings.Cut(chapter, "\n## ")
	for _, object := range append(slices.Clone(hostnet.Objects), objectPort, objectBridge) {
		if !slices.ContainsFunc(strings.Split(chapter, "\n"), func(line string) bool {
			first, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
			return strings.Contains(first, "`"+object+"`")
		}) {
			t.Errorf("no row for %s", object)
		}
	}
}
