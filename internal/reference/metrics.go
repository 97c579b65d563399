package reference

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/spf13/cobra"
)

// Metrics takes note of what is registered with it, in place of a program's registry. It is for one goroutine.
type Metrics struct {
	metrics map[string]*metric
	from    map[string]bool // packages that registered something, or made it
	broken  []string
}

type metric struct {
	name, kind, help string
	labels           []string
}

// NewMetrics returns an empty registry.
func NewMetrics() *Metrics { return &Metrics{metrics: map[string]*metric{}, from: map[string]bool{}} }

var _ prometheus.Registerer = (*Metrics)(nil)

// description is how a prometheus.Desc, which hides its parts, prints.
var (
	description = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), unit: "[^"]*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	constLabel  = regexp.MustCompile(`([a-z_]+)="(?:[^"\\]|\\.)*"`)
)

// Register takes note of all that the collector describes.
func (m *Metrics) Register(c prometheus.Collector) error {
	m.madeBy(c)
	kinds := kindsOf(c)
	for _, d := range described(c) {
		parts := description.FindStringSubmatch(d)
		if parts == nil {
			m.broken = append(m.broken, "not understood: "+d)
			continue
		}
		name, nameErr := strconv.Unquote(parts[1])
		help, helpErr := strconv.Unquote(parts[2])
		if nameErr != nil || helpErr != nil {
			m.broken = append(m.broken, "not understood: "+d)
			continue
		}
		var labels []string
		for _, l := range constLabel.FindAllStringSubmatch(parts[3], -1) {
			labels = append(labels, l[1])
		}
		if parts[4] != "" {
			labels = append(labels, strings.Split(parts[4], ",")...)
		}
		m.add(name, kinds(name), help, labels)
	}
	return nil
}

// MustRegister implements prometheus.Registerer.
func (m *Metrics) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		_ = m.Register(c)
	}
}

// Unregister implements prometheus.Registerer. Metrics stay in the documentation after it.
func (m *Metrics) Unregister(prometheus.Collector) bool { return false }

// add: one name may be registered several times, with labels that differ by their values only.
func (m *Metrics) add(name, kind, help string, labels []string) {
	got := m.metrics[name]
	if got == nil {
		got = &metric{name: name, kind: kind, help: help, labels: labels}
		m.metrics[name] = got
	}
	if got.kind != kind || got.help != help || !slices.Equal(got.labels, labels) {
		m.broken = append(m.broken, name+" has two kinds")
	}
	if (kind == "counter") != strings.HasSuffix(name, "_total") {
		m.broken = append(m.broken, name+" is a "+kind+": counters end in _total, and nothing else does")
	}
}

func described(c prometheus.Collector) (list []string) {
	all := make(chan *prometheus.Desc)
	go func() { defer close(all); c.Describe(all) }()
	for d := range all {
		list = append(list, d.String())
	}
	return list
}

// kindsOf returns the function from the name of a collector's metric to its kind.
func kindsOf(c prometheus.Collector) func(name string) string {
	switch c.(type) {
	case *prometheus.CounterVec:
		return always("counter")
	case *prometheus.GaugeVec:
		return always("gauge")
	case *prometheus.HistogramVec:
		return always("histogram")
	}
	seen := map[string]string{}
	all := make(chan prometheus.Metric)
	go func() { defer close(all); c.Collect(all) }()
	for got := range all {
		var value dto.Metric
		name := description.FindStringSubmatch(got.Desc().String())
		if err := got.Write(&value); err != nil || name == nil {
			continue
		}
		seen[strings.Trim(name[1], `"`)] = kindOf(&value)
	}
	return func(name string) string {
		switch {
		case seen[name] != "":
			return seen[name]
		case strings.HasSuffix(name, "_total"):
			return "counter"
		}
		return "gauge"
	}
}

func always(kind string) func(string) string { return func(string) string { return kind } }

func kindOf(m *dto.Metric) string {
	switch {
	case m.Counter != nil:
		return "counter"
	case m.Histogram != nil:
		return "histogram"
	}
	return "gauge"
}

const module = "github.com/flowkeep/flowkeep/"

// madeBy takes note of whose the collector is: of the packages that are on the way to its registration, and of its type's.
func (m *Metrics) madeBy(c prometheus.Collector) {
	if t := reflect.TypeOf(c); t.Kind() == reflect.Pointer {
		m.from[strings.TrimPrefix(t.Elem().PkgPath(), module)] = true
	}
	var callers [32]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers[:])])
	for {
		frame, more := frames.Next()
		// the function's name is its package's path, a dot, and its own name
		if rest, ours := strings.CutPrefix(frame.Function, module); ours {
			folder, last := filepath.Split(rest)
			last, _, _ = strings.Cut(last, ".")
			m.from[folder+last] = true
		}
		if !more {
			return
		}
	}
}

// Has reports whether a metric of that name was registered.
func (m *Metrics) Has(name string) bool { return m.metrics[name] != nil }

// Markdown returns a table of the metrics, sorted by name.
func (m *Metrics) Markdown() string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | |\n|---|---|---|---|\n")
	names := make([]string, 0, len(m.metrics))
	for name := range m.metrics {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		got := m.metrics[name]
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, got.kind, quoted(got.labels), cell.Replace(got.help))
	}
	return b.String()
}

// quoted returns the words, each formatted as code.
func quoted(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return "`" + strings.Join(words, "`, `") + "`"
}

// Program is a process, and how what it measures is registered.
type Program struct {
	Command *cobra.Command
	Metrics *Metrics
}

// CheckMetrics fails a test where the file does not have all that the programs measure, or where a package that the test's own main package imports
// makes metrics that none of them registered. With update it writes the file.
func CheckMetrics(t testing.TB, binary string, programs []Program, file string, update bool) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "# Metrics of %s\n\nWritten by `scripts/generate` from what the programs register. Each also has those of Go and of its process (`go_*`, `process_*`).\n", binary)
	from := map[string]bool{}
	for _, p := range programs {
		fmt.Fprintf(&b, "\n## %s\n\nAt `/metrics` of `--http-listen`, which is `%s` by default.\n\n%s", p.Command.CommandPath(), p.Command.Flag("http-listen").DefValue, p.Metrics.Markdown())
		for _, what := range p.Metrics.broken {
			t.Errorf("%s: %s", p.Command.CommandPath(), what)
		}
		for folder := range p.Metrics.from {
			from[folder] = true
		}
	}
	for _, folder := range measuring(t) {
		if !from[folder] {
			t.Errorf("%s makes metrics, and this test registers none of it", folder)
		}
	}
	CheckFile(t, b.String(), file, update)
}

var makes = regexp.MustCompile(`\bprometheus\.New(Gauge|Counter|Histogram|Summary|Desc)`)

// measuring returns the folders of the dependencies of the package under test that register metrics.
func measuring(t testing.TB) (folders []string) {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "-f", `{{$d := .Dir}}{{$p := .ImportPath}}{{range .GoFiles}}{{$p}} {{$d}}/{{.}}{{"\n"}}{{end}}`, ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		folder, ours := strings.CutPrefix(path, module)
		if ours && folder != "internal/reference" && makes.MatchString(read(t, file)) && !slices.Contains(folders, folder) {
			folders = append(folders, folder)
		}
	}
	if len(folders) == 0 {
		t.Fatal("no package makes metrics")
	}
	return folders
}
