package process

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"
)

func TestRingKeepsTheLastLines(t *testing.T) {
	r := NewRing(1000)
	if r.Text() != "" {
		t.Errorf("%q", r.Text())
	}
	for i := range 10000 {
		fmt.Fprintf(r, "line %d\n", i)
		if len(r.lines) > 1000 {
			t.Fatalf("%d lines are held", len(r.lines))
		}
	}
	text := r.Text()
	if !strings.HasPrefix(text, "(9900 earlier lines are not kept)\nline 9900\n") || !strings.HasSuffix(text, "\nline 9999\n") {
		t.Errorf("%.100q … %q", text, text[len(text)-20:])
	}
	if n, err := r.Write([]byte(strings.Repeat("x", 5000))); n != 5000 || err != nil || r.size > 1000 {
		t.Errorf("%d, %v: %d", n, err, r.size)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 1000 {
				fmt.Fprintln(r, "together")
				_ = r.Text()
			}
		})
	}
	all.Wait()
}

func TestMetricsAreText(t *testing.T) {
	s := Self{Gatherer: NewRegistry("test")}
	if text, err := s.Metrics(); err != nil || !strings.Contains(text, `flowkeep_build_info{program="test"`) {
		t.Errorf("%v: %.300s", err, text)
	}
}

func TestFlagsWithoutSecrets(t *testing.T) {
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	set.String("page-token", "hunter2", "")
	set.String("page-token-file", "/etc/token", "")
	set.String("listen", ":1", "")
	if got := FlagsOf(set); got["page-token"] != "(left out)" || got["page-token-file"] != "/etc/token" || got["listen"] != ":1" {
		t.Error(got)
	}
}
