package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var day0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// result is a passed result of a minute, n days after day0, for a commit named after the day.
func result(part string, n int) Result {
	return Result{
		Part:    part,
		Commit:  fmt.Sprintf("commit%d", n),
		Date:    day0.AddDate(0, 0, n),
		Seconds: 60,
		Passed:  1,
	}
}

func part(name string, minutes int, paths ...string) Part {
	return Part{Name: name, Command: "true", Minutes: minutes, Paths: paths}
}

func TestDueLines(t *testing.T) {
	failed := func(r Result) Result { r.Failed = 1; return r }
	changed := [][]string{{"x/y"}, {"other", "x/z"}, {"xy/z", "x/y_test.go"}}
	withPaths, withoutPaths := part("a", 1, "x"), part("a", 1)
	for _, test := range []struct {
		name    string
		part    Part
		results []Result
		history History
		want    string
	}{
		{"no result", withPaths, nil, nil, "due: a, never passed"},
		{"unchanged", withPaths, []Result{result("a", 1)}, History{"commit1": nil}, ""},
		{"another path changed", withPaths, []Result{result("a", 1)}, History{"commit1": {{"xy/z"}}}, ""},
		{"changed once", withPaths, []Result{result("a", 1)}, History{"commit1": changed[:1]}, "due: a, 1 commit"},
		{"changed twice", withPaths, []Result{result("a", 1)}, History{"commit1": changed}, "due: a, 2 commits"},
		{
			"changed before the newest passed result",
			withPaths,
			[]Result{result("a", 2), result("a", 1)},
			History{"commit1": changed, "commit2": nil},
			"",
		},
		{
			"failed last",
			withPaths,
			[]Result{result("a", 1), failed(result("a", 2))},
			History{"commit1": nil},
			"due: a, failed on commit commit2",
		},
		{
			"failed before it passed",
			withPaths,
			[]Result{failed(result("a", 1)), result("a", 2)},
			History{"commit2": nil},
			"",
		},
		{
			"passed on another history",
			withPaths,
			[]Result{result("a", 2)},
			nil,
			"due: a, never passed on an ancestor of HEAD",
		},
		{
			"passed on another history, and before on this one",
			withPaths,
			[]Result{result("a", 1), result("a", 2)},
			History{"commit1": changed},
			"due: a, 2 commits",
		},
		{"no paths, no result", withoutPaths, nil, nil, ""},
		{"no paths, passed", withoutPaths, []Result{result("a", 1)}, nil, ""},
		{"no paths, failed", withoutPaths, []Result{failed(result("a", 1))}, nil, "due: a, failed on commit commit1"},
		{"result of another part", withPaths, []Result{result("b", 1)}, History{"commit1": nil}, "due: a, never passed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := strings.Join(dueLines([]Part{test.part}, test.results, test.history), "\n")
			if got != test.want {
				t.Errorf("printed %q, want %q", got, test.want)
			}
		})
	}
}

func TestExpected_IsTheLargerOfTableAndNewestDuration(t *testing.T) {
	timed := func(n, seconds, failed int) Result {
		r := result("a", n)
		r.Seconds, r.Failed = seconds, failed
		return r
	}
	for _, test := range []struct {
		name    string
		results []Result
		want    time.Duration
	}{
		{"none", nil, 7 * time.Minute},
		{"longer", []Result{timed(2, 540, 0), timed(1, 900, 0)}, 9 * time.Minute},
		{"shorter", []Result{timed(2, 90, 0), timed(1, 900, 0)}, 7 * time.Minute},
		{"failed late", []Result{timed(2, 600, 1), timed(1, 50, 0)}, 10 * time.Minute},
		{"failed early", []Result{timed(2, 3, 1), timed(1, 540, 0)}, 7 * time.Minute},
		{"not recorded", []Result{timed(2, 0, 0), timed(1, 540, 0)}, 9 * time.Minute},
		{"another part", []Result{result("b", 2)}, 7 * time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := part("a", 7).expected(test.results); got != test.want {
				t.Errorf("expected %v, want %v", got, test.want)
			}
		})
	}
}

func TestUnfinished_FailedPartsAreLast(t *testing.T) {
	failed := result("a", 1)
	failed.Failed = 1
	parts := []Part{part("a", 1), part("b", 1), part("c", 1), part("d", 1)}
	results := []Result{failed, result("b", 1), result("c", 2)}
	var names []string
	for _, p := range unfinished(parts, results, "commit1") {
		names = append(names, p.Name)
	}
	if want := []string{"c", "d", "a"}; !slices.Equal(names, want) {
		t.Errorf("to run: %v, want %v", names, want)
	}
}

func TestConcerned_LeavesOutUnitTests(t *testing.T) {
	part := Part{Paths: []string{"netplugin/hostnet", "systemtests/simnodes", "deploy/x_test.go"}}
	for file, want := range map[string]bool{
		"netplugin/hostnet/hostnet.go":      true,
		"netplugin/hostnet/hostnet_test.go": false,
		"netplugin/hostnetwork.go":          false,
		"systemtests/simnodes/rig_test.go":  true,
		"deploy/x_test.go":                  true,
	} {
		t.Run(file, func(t *testing.T) {
			if got := part.concerned([]string{file}); got != want {
				t.Errorf("a change of it concerns the part: %v, want %v", got, want)
			}
		})
	}
}
