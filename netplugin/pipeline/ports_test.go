package pipeline

import (
	"math/rand/v2"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// TestRangesMatchExactly: endPort ranges become few masked matches and match exactly the range.
func TestRangesMatchExactly(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		a, b := uint16(r.UintN(65536)), uint16(r.UintN(65536))
		pr := policy.PortRange{Protocol: policy.TCP, First: min(a, b), Last: max(a, b)}
		checkRange(t, pr)
	}
	for _, pr := range []policy.PortRange{{First: 0, Last: 65535}, {First: 1, Last: 65535}, {First: 1, Last: 65534}, {First: 80, Last: 80}, {First: 65535, Last: 65535}, {First: 0, Last: 0}} {
		pr.Protocol = policy.UDP
		checkRange(t, pr)
	}
	if m := portMatches(policy.PortRange{First: 2, Last: 1}); m != nil {
		t.Errorf("an empty range matches %v", m)
	}
}

func checkRange(t *testing.T, pr policy.PortRange) {
	t.Helper()
	matches := portMatches(pr)
	if len(matches) > 30 {
		t.Errorf("%d-%d takes %d matches", pr.First, pr.Last, len(matches))
	}
	for port := range 65536 {
		hit := false
		for _, m := range matches {
			hit = hit || uint16(port)&m.port.Mask == m.port.Value
		}
		if want := uint16(port) >= pr.First && uint16(port) <= pr.Last; hit != want {
			t.Fatalf("%d-%d: port %d matched: %v", pr.First, pr.Last, port, hit)
		}
	}
}
