package main

import "time"

// A Suite is a command whose tests belong together.
type Suite struct {
	Name      string
	Command   []string
	Sandboxes []string // clusters that it boots and removes
	// Slowness is the least one that its tests get: more than the machine's where other suites take the processors.
	Slowness int
}

// A Phase runs its suites at the same time.
type Phase struct {
	Name   string
	Suites []Suite
	// Required reports whether the gate ends when the phase fails: no later phase runs, and no test a second time.
	Required bool
	// Bounds are the minutes that the phase may take at slowness 1, 2 and 3, with what earlier phases left of theirs;
	// zero: until phasesEnd.
	Bounds [maxSlowness]int
}

// The gate's time, from the start of scripts/test.
const (
	phasesEnd = 68 * time.Minute // no phase runs longer
	rerunsEnd = 78 * time.Minute // no failed test runs once more after it
	gateEnd   = 80 * time.Minute // the gate ends itself
)

// The suites whose failures have a meaning of their own; see rerun.go.
const (
	lintSuite  = "lint"
	fleetSuite = "fleet"
	shapeSuite = "shape"

	shapeSandbox = "test-shape"
)

// ownSuites are the suites of scripts/system that start what they test by themselves.
var ownSuites = []string{fleetSuite, "try", "hostile", shapeSuite}

// setSuites are the suites on sandbox clusters. Their packages are systemtests/NAME.
var setSuites = []string{"shared", "nodes", "exclusive", "quiet"}

// allPhases returns the phases of the gate. No compiler runs in the phases after the first two: scripts/preflight and
// scripts/test -build compile all programs and tests. lint, unit and fleet measure nothing; nor does shape, whose tests
// have the limits of a slow machine there.
func allPhases() []Phase {
	suite := func(name string, command ...string) Suite { return Suite{Name: name, Command: command} }
	set := func(name string, sandboxes ...string) Suite {
		return Suite{Name: name, Command: []string{"scripts/system", "-only", name}, Sandboxes: sandboxes}
	}
	shape := set(shapeSuite, shapeSandbox)
	shape.Slowness = maxSlowness
	return []Phase{
		{Name: "preflight", Suites: []Suite{suite("preflight", "scripts/preflight")}, Required: true},
		{Name: buildPhase, Suites: []Suite{suite(buildPhase, "scripts/test", "-build")}, Required: true},
		{
			Name: "lint, unit, fleet",
			Suites: []Suite{
				suite(lintSuite, "scripts/lint"),
				suite("unit", "scripts/unit", "-no-links"),
				set(fleetSuite),
				set("try"),
				set("nodes", "test-nodes"),
				shape,
			},
			Bounds: [maxSlowness]int{16, 22, 28},
		},
		{Name: "shared", Suites: []Suite{set("shared", "test")}, Bounds: [maxSlowness]int{6, 8, 9}},
		{
			Name:   "exclusive, quiet",
			Suites: []Suite{set("exclusive", "test", "test-geneve"), set("quiet", "test-quiet")},
			Bounds: [maxSlowness]int{17, 21, 23},
		},
		{Name: "hostile", Suites: []Suite{set("hostile")}, Bounds: [maxSlowness]int{3, 3, 3}},
		{Name: "links", Suites: []Suite{suite("links", "scripts/unit", "-links")}, Bounds: [maxSlowness]int{3, 4, 5}},
	}
}

// buildPhase is the phase that compiles. It has no tests.
const buildPhase = "build"

// limit returns how long the phase may run on a machine of this slowness, that long after the gate began, if earlier
// phases have not used so much of their limits.
func (p Phase) limit(slowness int, unused, elapsed time.Duration) time.Duration {
	limit := phasesEnd - elapsed
	if bound := p.Bounds[slowness-1]; bound > 0 {
		limit = min(limit, time.Duration(bound)*time.Minute+unused)
	}
	return max(limit, 0)
}

// countUnused returns what later phases may use after one that took so much of its limit. A phase without a bound
// changes nothing.
func (p Phase) countUnused(slowness int, unused, limit, took time.Duration) time.Duration {
	if p.Bounds[slowness-1] == 0 {
		return unused
	}
	return max(limit-took, 0)
}
