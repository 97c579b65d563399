package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A Tally counts tests.
type Tally struct{ Passed, Failed, Skipped int }

func (t Tally) add(u Tally) Tally {
	return Tally{t.Passed + u.Passed, t.Failed + u.Failed, t.Skipped + u.Skipped}
}

// summaryLine is a line with which scripts/conformance and scripts/cyclonus end each run.
var summaryLine = regexp.MustCompile(`(?m)^(\d+) passed, (\d+) failed(?:, (\d+) not run)?\r?$`)

// count returns the counts of a part: the lines "PASSED FAILED SKIPPED" of its tally file, or else the summary lines of
// its log, or else one test. A part that failed has at least one failed test; so has one whose tally is of no test.
func count(tally, log string, passed bool) Tally {
	var sum Tally
	found := false
	for line := range strings.Lines(tally) {
		var t Tally
		if n, _ := fmt.Sscan(line, &t.Passed, &t.Failed, &t.Skipped); n == 3 {
			sum, found = sum.add(t), true
		}
	}
	if !found {
		for _, m := range summaryLine.FindAllStringSubmatch(log, -1) {
			sum, found = sum.add(Tally{number(m[1]), number(m[2]), number(m[3])}), true
		}
	}
	if !found && passed {
		return Tally{Passed: 1}
	}
	if sum.Failed == 0 && (!passed || sum == Tally{}) {
		sum.Failed = 1
	}
	return sum
}

func number(text string) int {
	n, _ := strconv.Atoi(text) // "" is none
	return n
}
