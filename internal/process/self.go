package process

import (
	"bytes"
	"fmt"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/spf13/pflag"
)

// Self is a program's own state for a support bundle. It reads neither the environment nor files.
type Self struct {
	Log      *Ring
	Gatherer prometheus.Gatherer
	Flags    map[string]string
}

// Metrics returns the text of /metrics.
func (s *Self) Metrics() (string, error) {
	families, err := s.Gatherer.Gather()
	var b bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			return "", fmt.Errorf("write the metrics: %w", err)
		}
	}
	return b.String(), err
}

// FlagsOf returns the values of all flags in force. Secrets, recognized by their names, are left out.
func FlagsOf(set *pflag.FlagSet) map[string]string {
	out := map[string]string{}
	set.VisitAll(func(f *pflag.Flag) {
		out[f.Name] = f.Value.String()
		if isSecret(f.Name) && out[f.Name] != "" {
			out[f.Name] = "(left out)"
		}
	})
	return out
}

// isSecret: a file of one is none.
func isSecret(name string) bool {
	for _, word := range []string{"token", "password", "secret"} {
		if strings.HasSuffix(name, word) {
			return true
		}
	}
	return false
}

// KeptLog is how much of a program's log is kept for support, in bytes.
const KeptLog = 512 << 10

// Ring keeps the last lines that were written to it. Each Write is a line, or some; safe for concurrent use.
type Ring struct {
	mu      sync.Mutex
	most    int // bytes
	size    int
	lines   [][]byte // from first on
	first   int
	dropped uint64
}

// NewRing keeps that many bytes at most.
func NewRing(most int) *Ring { return &Ring{most: most} }

// Write never fails. What alone is too long is cut.
func (r *Ring) Write(text []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	line := bytes.Clone(text[:min(len(text), r.most)])
	r.lines = append(r.lines, line)
	for r.size += len(line); r.size > r.most; r.dropped++ {
		r.size -= len(r.lines[r.first])
		r.lines[r.first] = nil
		r.first++
	}
	if r.first > len(r.lines)/2 && r.first > 64 {
		r.lines = append([][]byte(nil), r.lines[r.first:]...)
		r.first = 0
	}
	return len(text), nil
}

// Text returns the kept lines and the number of earlier ones.
func (r *Ring) Text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b bytes.Buffer
	if r.dropped > 0 {
		fmt.Fprintf(&b, "(%d earlier lines are not kept)\n", r.dropped)
	}
	for _, line := range r.lines[r.first:] {
		b.Write(line)
	}
	return b.String()
}
