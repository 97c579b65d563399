package main

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// A Timing is a time that a test has measured and compared with a limit.
type Timing struct {
	Test string
	Part float64 // of the limit
	Text string
}

// timeWord begins a line with a measured time.
const timeWord = "TIME "

// maxTimes is how many times the summary has.
const maxTimes = 5

// parseTiming reads a line of a test's output: "TIME 0.83 of the limit: …", with LATE in front if the time exceeds its
// limit (cluster.Timing of systemtests).
func parseTiming(test, line string) (Timing, bool) {
	line, isTime := strings.CutPrefix(strings.TrimPrefix(line, "LATE "), timeWord)
	part, _, _ := strings.Cut(line, " ")
	n, err := strconv.ParseFloat(part, 64)
	if !isTime || err != nil {
		return Timing{}, false
	}
	return Timing{test, n, line}, true
}

// worst returns the times that are nearest to their limits, or exceed them: one of each top-level test, the worst first.
func worst(times []Timing) (list []Timing) {
	sorted := slices.SortedStableFunc(slices.Values(times), func(a, b Timing) int { return cmp.Compare(b.Part, a.Part) })
	for _, t := range sorted {
		t.Test, _, _ = strings.Cut(t.Test, "/")
		known := slices.ContainsFunc(list, func(o Timing) bool { return o.Test == t.Test })
		if !known && len(list) < maxTimes {
			list = append(list, t)
		}
	}
	return list
}
