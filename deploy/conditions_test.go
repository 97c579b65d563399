package deploy

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// figures are the metrics of netplugin that report no condition: what is counted and measured while all is well.
var figures = []string{
	"answers_total",
	"dry_run_denied_connections_total",
	"dry_run_denied_packets_total",
	"drift_check_seconds",
	"dry_run_logged_total",
	"dry_run_suppressed_total",
	"drift_checks_total",
	"certificate_requests_total",
	"cni_seconds",
	"connections_cut_total",
	"connections_unread_total",
	"counters_left_out",
	"denied_bytes_total",
	"denied_packets_total",
	"drops_logged_total",
	"drops_suppressed_total",
	"flow_mods_total",
	"flow_updates_total",
	"host_writes_total",
	"peer_ways",
	"realize_seconds",
	"revision",
	"service_counters_left_out",
	"service_counters_unattributed_total",
	"service_opened_total",
	"service_unserved_total",
	"services_opened_total",
	"services_unserved_total",
	"rule_bytes_total",
	"rule_connections_total",
	"rule_packets_total",
	"update_seconds",
}

// TestConditionsHaveAlerts: each metric of netplugin that reports a condition is in an alert. A new metric is one, unless
// it is added to figures.
func TestConditionsHaveAlerts(t *testing.T) {
	const prefix = "flowkeep_netplugin_"
	alerting := map[string]bool{}
	for _, a := range alerts(t) {
		for _, name := range metric.FindAllString(a.Expr, -1) {
			alerting[strings.TrimPrefix(strings.TrimSuffix(name, "_bucket"), prefix)] = true
		}
	}
	known := map[string]bool{}
	for _, m := range inTable.FindAllSubmatch(read(t, "../docs/reference/netplugin-metrics.md"), -1) {
		name, ours := strings.CutPrefix(string(m[1]), prefix)
		if !ours {
			continue
		}
		known[name] = true
		if alerting[name] == slices.Contains(figures, name) {
			t.Errorf("%s: in an alert: %v; a figure: %v", name, alerting[name], !alerting[name])
		}
	}
	for _, name := range figures {
		if !known[name] {
			t.Errorf("there is no metric %s", name)
		}
	}
}

// readyPart finds a part of netplugin that may not be ready.
var readyPart = regexp.MustCompile(`[sS]etReady\("([a-z]+)", [^"]`)

// TestReadinessIsInTroubleshooting: the chapter of netplugin's readiness has a row for each part.
func TestReadinessIsInTroubleshooting(t *testing.T) {
	_, chapter, _ := strings.Cut(string(read(t, "../docs/troubleshooting.md")), "\n## A netplugin is not ready\n")
	chapter, _, _ = strings.Cut(chapter, "\n## ")
	parts := 0
	err := filepath.WalkDir("../netplugin/agent", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range readyPart.FindAllSubmatch(text, -1) {
			parts++
			if !strings.Contains(chapter, "`"+string(m[1])+": …`") {
				t.Errorf("%s: no row for %s", path, m[1])
			}
		}
		return err
	})
	if err != nil || parts == 0 {
		t.Errorf("%d parts: %v", parts, err)
	}
}
