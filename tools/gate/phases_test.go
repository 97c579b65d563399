package main

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestLimit(t *testing.T) {
	const minute = time.Minute
	p := Phase{Bounds: [maxSlowness]int{6, 8, 9}}
	for _, c := range []struct {
		phase                 Phase
		slowness              int
		unused, elapsed, want time.Duration
	}{
		{p, 1, 0, 0, 6 * minute},
		{p, 3, 0, 0, 9 * minute},
		{p, 3, 5 * minute, 0, 14 * minute},
		{p, 3, 0, 65 * minute, 3 * minute},
		{p, 3, 5 * minute, 65 * minute, 3 * minute},
		{p, 1, 0, 69 * minute, 0},
		{p, 1, minute, 69 * minute, 0},
		{Phase{}, 1, 0, 8 * minute, 60 * minute},
		{Phase{}, 1, 5 * minute, 8 * minute, 60 * minute},
	} {
		if got := c.phase.limit(c.slowness, c.unused, c.elapsed); got != c.want {
			t.Errorf("limit of %v at slowness %d after %v, with %v unused: %v, want %v",
				c.phase.Bounds, c.slowness, c.elapsed, c.unused, got, c.want)
		}
	}
}

func TestCountUnused(t *testing.T) {
	const minute = time.Minute
	bounded := Phase{Bounds: [maxSlowness]int{6, 8, 9}}
	for _, c := range []struct {
		phase                     Phase
		unused, limit, took, want time.Duration
	}{
		{bounded, 0, 6 * minute, 4 * minute, 2 * minute},
		{bounded, 3 * minute, 9 * minute, 7 * minute, 2 * minute},
		{bounded, 0, 6 * minute, 6*minute + 1, 0},
		{Phase{}, 3 * minute, 60 * minute, 4 * minute, 3 * minute},
	} {
		if got := c.phase.countUnused(1, c.unused, c.limit, c.took); got != c.want {
			t.Errorf("%v of %v used by a phase with the bounds %v, %v unused before: %v, want %v",
				c.took, c.limit, c.phase.Bounds, c.unused, got, c.want)
		}
	}
}

// TestAllPhases: the commands exist, the bounds leave time for second runs on a machine of slowness 3, and the gate ends
// when the preflight or the build fails.
func TestAllPhases(t *testing.T) {
	var sum [maxSlowness]int
	for i, p := range allPhases() {
		if early := i < 2; p.Required != early || early != (p.Bounds == [maxSlowness]int{}) {
			t.Errorf("%s: Required is %v, with the bounds %v", p.Name, p.Required, p.Bounds)
		}
		for i, bound := range p.Bounds {
			sum[i] += bound
		}
		for _, s := range p.Suites {
			if _, err := os.Stat(filepath.Join("..", "..", s.Command[0])); err != nil {
				t.Error(err)
			}
		}
	}
	if sum[maxSlowness-1] > int(phasesEnd.Minutes()) {
		t.Errorf("the bounds' sums are %v minutes", sum)
	}
}

func TestSlownessOf(t *testing.T) {
	const reference = 200 * time.Millisecond
	for ratio, want := range map[float64]int{0.2: 1, 1: 1, 1.4: 1, 1.6: 2, 2.4: 2, 2.6: 3, 9: 3, 1e30: 3} {
		m := measurement{took: time.Duration(min(ratio*float64(reference), math.MaxInt64/2)), reference: reference}
		if got := slownessOf([]measurement{{took: 1, reference: reference}, m, {took: 1, reference: reference}}); got != want {
			t.Errorf("%.1f times the reference: slowness %d, want %d", ratio, got, want)
		}
	}
	if got := slownessOf(nil); got != 1 {
		t.Errorf("without measurements: slowness %d", got)
	}
}

// TestMeasureWork: each kind of work is measured, and does something.
func TestMeasureWork(t *testing.T) {
	var names []string
	for _, m := range measureWork() {
		names = append(names, m.name)
		if m.took < m.reference/50 {
			t.Errorf("%v: too short to have done the work", m)
		}
	}
	if want := []string{"loop", "processes", "memory"}; !slices.Equal(names, want) {
		t.Errorf("measured %q, want %q", names, want)
	}
}
