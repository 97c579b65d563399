package live

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/soak"
)

// TestErrors_BeginWithTheirKind: the gate repeats a test unless a line of its output begins with cluster.Leak.
func TestErrors_BeginWithTheirKind(t *testing.T) {
	allowed := attempt{from: "x", target: "y", verdict: soak.Verdict{Allowed: true}}
	denied := attempt{from: "x", target: "y", passed: true}
	inForce := time.Now().Add(-time.Minute)
	lived := func(d time.Duration) error {
		s := &stream{attempt: denied, last: inForce.Add(d)}
		return s.outlived(inForce)
	}
	for name, c := range map[string]struct {
		err  error
		kind string
	}{
		"a denied packet passed":       {&wrongProbe{&denied}, cluster.Leak},
		"an allowed packet was lost":   {&wrongProbe{&allowed}, cluster.Lost},
		"an answer was lost":           {&wrongStream{&stream{attempt: allowed}, cluster.Lost, errors.New("no answer")}, cluster.Lost},
		"revoked, answered after 2 s":  {lived(2 * time.Second), cluster.Late},
		"revoked, answered after 10 s": {lived(cluster.LeakAfter), cluster.Leak},
	} {
		if text := c.err.Error(); !strings.HasPrefix(text, c.kind+" ") {
			t.Errorf("%s: %q, want %s at its beginning", name, text, c.kind)
		}
	}
}
