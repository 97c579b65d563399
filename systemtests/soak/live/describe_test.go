package live

import (
	"errors"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/soak"
)

// TestDescribe_LinesOfLeaks: a difference's line begins with cluster.Leak where the oracle denies, and only there.
func TestDescribe_LinesOfLeaks(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		a := attempt{from: "x", target: "y", verdict: soak.Verdict{Allowed: allowed}, passed: !allowed}
		text := errors.Join(&wrongProbe{&a}, &wrongStream{&stream{attempt: a}, errors.New("it lives")}).Error()
		leaks := 0
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, cluster.Leak+" ") {
				leaks++
			}
		}
		if want := map[bool]int{false: 2}[allowed]; leaks != want {
			t.Errorf("allowed %v: %d lines begin with %s, want %d:\n%s", allowed, leaks, cluster.Leak, want, text)
		}
	}
}
