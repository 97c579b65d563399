package main

import "testing"

func TestCount(t *testing.T) {
	suite := "47 passed, 0 failed, 3 not run\n[12 s] run 2\n46 passed, 1 failed, 3 not run\r\nx 9 passed, 9 failed\n"
	for _, test := range []struct {
		name       string
		tally, log string
		passed     bool
		want       Tally
	}{
		{"lines are summed", "1 0 0\n20 0 3\n", "5 passed, 0 failed\n", true, Tally{21, 0, 3}},
		{"failed", "1 2 0\n", "", false, Tally{1, 2, 0}},
		{"failed outside of tests", "4 0 0\n", "", false, Tally{4, 1, 0}},
		{"no test ran", "0 0 0\n", "", true, Tally{0, 1, 0}},
		{"all were skipped", "0 0 3\n", "", true, Tally{0, 0, 3}},
		{"a broken line", "4 0 0\n1 ", "", true, Tally{4, 0, 0}},
		{"summary lines of the log", "", suite, false, Tally{93, 1, 6}},
		{"cyclonus", "", "216 passed, 0 failed\n", true, Tally{216, 0, 0}},
		{"exit code, passed", "", "", true, Tally{1, 0, 0}},
		{"exit code, failed", "", "", false, Tally{0, 1, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := count(test.tally, test.log, test.passed); got != test.want {
				t.Errorf("counts %v, want %v", got, test.want)
			}
		})
	}
}
