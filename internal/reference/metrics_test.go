package reference

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
)

// lately tells what it knows when it is asked, which may be nothing.
type lately struct{ gauge, counter *prometheus.Desc }

func (l lately) Describe(c chan<- *prometheus.Desc) { c <- l.gauge; c <- l.counter }
func (l lately) Collect(chan<- prometheus.Metric)   {}

func TestMetricsAreDescribed(t *testing.T) {
	m := NewMetrics()
	m.MustRegister(
		prometheus.NewCounterVec(prometheus.CounterOpts{Name: "things_total", Help: `Things, "such" as | these.`}, []string{"kind", "colour"}),
		prometheus.NewHistogram(prometheus.HistogramOpts{Name: "thing_seconds", Help: "How long."}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "thing_is", Help: "One of two.", ConstLabels: prometheus.Labels{"which": "a, b"}}, func() float64 { return 1 }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "thing_is", Help: "One of two.", ConstLabels: prometheus.Labels{"which": "c"}}, func() float64 { return 1 }),
		lately{prometheus.NewDesc("late", "Unknown yet.", nil, nil), prometheus.NewDesc("late_total", "None yet.", []string{"of"}, nil)})
	const want = "| metric | type | labels | |\n|---|---|---|---|\n" +
		"| `late` | gauge |  | Unknown yet. |\n" +
		"| `late_total` | counter | `of` | None yet. |\n" +
		"| `thing_is` | gauge | `which` | One of two. |\n" +
		"| `thing_seconds` | histogram |  | How long. |\n" +
		"| `things_total` | counter | `kind`, `colour` | Things, \"such\" as \\| these. |\n"
	if got := m.Markdown(); got != want || len(m.broken) != 0 {
		t.Errorf("got:\n%s\nwant:\n%s\nwrong: %q", got, want, m.broken)
	}
	m.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "things", Help: "Badly named."}),
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "late", Help: "Something else."}))
	if len(m.broken) != 2 || !strings.Contains(m.broken[0], "things is a counter") || !strings.Contains(m.broken[1], "late has two kinds") {
		t.Errorf("told as wrong: %q", m.broken)
	}
}

func TestMetricsThatAreMissedFail(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "prog"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"go.mod": "module github.com/flowkeep/flowkeep\n", "prog/main.go": "package main\n\nfunc main() { _ = prometheus.NewGauge }\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(filepath.Join(dir, "prog"))
	cmd := &cobra.Command{Use: "prog", Run: func(*cobra.Command, []string) {}}
	cmd.Flags().String("http-listen", "127.0.0.1:1", "")
	m := NewMetrics()
	note := &told{TB: t}
	if CheckMetrics(note, "prog", []Program{{cmd, m}}, "metrics.md", true); !note.failed {
		t.Error("nobody misses a package's metrics")
	}
	m.from["prog"] = true
	note = &told{TB: t}
	if CheckMetrics(note, "prog", []Program{{cmd, m}}, "metrics.md", false); note.failed {
		t.Error("it fails although all is there")
	}
	m.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "thing", Help: "New."}))
	note = &told{TB: t}
	if CheckMetrics(note, "prog", []Program{{cmd, m}}, "metrics.md", false); !note.failed {
		t.Error("nobody notices a new metric")
	}
}
