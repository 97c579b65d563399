package cluster

import (
	"testing"
	"time"
)

// TestUndisturbed_LateSteps: the time of late steps does not count, until patience is over.
func TestUndisturbed_LateSteps(t *testing.T) {
	t.Setenv("FLOWKEEP_SLOW", "1")
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		late, steps int // of 500 ms each, before those of 10 ms; how many steps were made
	}{
		"none":               {0, 100},
		"some":               {3, 103},
		"more than patience": {70, 64}, // the 63rd and the 64th step count, 1 s
	} {
		t.Run(name, func(t *testing.T) {
			steps := 0
			undisturbed(time.Second, func() (time.Duration, bool) {
				if steps++; steps <= c.late {
					return 500 * ms, true
				}
				return 10 * ms, true
			})
			if steps != c.steps {
				t.Errorf("%d steps, want %d", steps, c.steps)
			}
		})
	}
}

func TestMachine_LateSince(t *testing.T) {
	began := time.Now()
	m := &Machine{began: began}
	m.delayed(began, time.Second)
	m.delayed(began.Add(time.Second), 30*time.Millisecond)
	m.delayed(began.Add(2*time.Second), minDelay-1)
	for since, want := range map[time.Duration]time.Duration{
		-1:              time.Second,
		0:               30 * time.Millisecond,
		time.Second:     0,
		2 * time.Second: 0,
	} {
		if got := m.LateSince(began.Add(since)); got != want {
			t.Errorf("after %v: %v, want %v", since, got, want)
		}
	}
}

func TestMostUsed(t *testing.T) {
	before := map[string]float64{"ended": 9, "netplugin": 1}
	after := map[string]float64{"netplugin": 3.5, "started": 4, "kthreadd": 0, "a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1}
	const want = "started 4.0 s, netplugin 2.5 s, a 1.0 s, b 1.0 s, c 1.0 s, d 1.0 s, e 1.0 s, f 1.0 s"
	if got := mostUsed(before, after); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
