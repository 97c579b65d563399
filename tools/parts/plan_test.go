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

func rotating(name string) Part {
	p := part(name, 10, "ofctl")
	p.Rotation = "kernel"
	return p
}

// describe returns the names of steps; those that do not fit are in parentheses.
func describe(steps []Step) string {
	var names []string
	for _, s := range steps {
		if s.Fits {
			names = append(names, s.Part.Name)
		} else {
			names = append(names, "("+s.Part.Name+")")
		}
	}
	return strings.Join(names, " ")
}

func TestPlan(t *testing.T) {
	kernel := []Part{rotating("kernel-1"), rotating("kernel-2"), rotating("kernel-3")}
	long := rotating("kernel-1")
	long.Minutes = 60
	for _, test := range []struct {
		name    string
		parts   []Part
		results []Result
		changes Changes
		left    int // minutes
		want    string
	}{
		{"nothing changed", []Part{part("a", 1, "x")}, []Result{result("a", 1)}, Changes{"commit1": nil}, 9, ""},
		{"another path changed", []Part{part("a", 1, "x")}, []Result{result("a", 1)}, Changes{"commit1": {"xy/z"}}, 9, ""},
		{"a file changed", []Part{part("a", 1, "x/y.go")}, []Result{result("a", 1)}, Changes{"commit1": {"x/y.go"}}, 9, "a"},
		{"a folder changed", []Part{part("a", 1, "x")}, []Result{result("a", 1)}, Changes{"commit1": {"x/y/z"}}, 9, "a"},
		{"no result", []Part{part("a", 1, "x")}, nil, nil, 9, "a"},
		{"unknown commit", []Part{part("a", 1, "x")}, []Result{result("a", 1)}, Changes{}, 9, "a"},
		{"no paths", []Part{part("a", 1)}, nil, nil, 9, ""},
		{
			"changed before the newest result",
			[]Part{part("a", 1, "x")},
			[]Result{result("a", 2), result("a", 1)},
			Changes{"commit1": {"x/y"}, "commit2": nil},
			9, "",
		},
		{
			"oldest first, one without a result before it",
			[]Part{part("a", 1, "x"), part("b", 1, "x"), part("c", 1, "x")},
			[]Result{result("a", 2), result("b", 1)},
			nil, 9, "c b a",
		},
		{"one does not fit", []Part{part("a", 5, "x"), part("b", 9, "x"), part("c", 4, "x")}, nil, nil, 9, "a (b) c"},
		{"no time", []Part{part("a", 5, "x")}, nil, nil, 0, "(a)"},
		{"rotation, first without a result", kernel, nil, nil, 99, "kernel-1"},
		{"rotation, second", kernel, []Result{result("kernel-1", 1)}, nil, 99, "kernel-2"},
		{
			"rotation, oldest",
			kernel,
			[]Result{result("kernel-1", 4), result("kernel-2", 3), result("kernel-3", 2)},
			nil, 99, "kernel-3",
		},
		{
			"rotation, unchanged",
			kernel,
			[]Result{result("kernel-1", 4), result("kernel-2", 3), result("kernel-3", 2)},
			Changes{"commit2": nil, "commit3": nil, "commit4": nil}, 99, "",
		},
		{
			"rotation, the oldest that fits",
			[]Part{long, kernel[1], kernel[2]},
			[]Result{result("kernel-2", 2), result("kernel-3", 1)},
			nil, 20, "(kernel-1) kernel-3",
		},
		{
			"an old record is no reason to fit",
			[]Part{long},
			[]Result{result("kernel-1", 1)},
			nil, 45, "(kernel-1)",
		},
		{
			"rotation, none fits",
			kernel,
			nil,
			nil, 9, "(kernel-1) (kernel-2) (kernel-3)",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := describe(plan(test.parts, test.results, test.changes, time.Duration(test.left)*time.Minute))
			if got != test.want {
				t.Errorf("plan %q, want %q", got, test.want)
			}
		})
	}
}

func TestReasonToRun_NamesFiles(t *testing.T) {
	p, last := part("a", 1, "x"), result("a", 1)
	for _, test := range []struct {
		last    *Result
		changes Changes
		want    string
	}{
		{nil, nil, "has no result yet"},
		{&last, nil, "changes unknown since 2026-01-02 (commit1): the commit is no ancestor of HEAD"},
		{&last, Changes{"commit1": {"x/1"}}, "changed since 2026-01-02 (commit1): x/1"},
		{&last, Changes{"commit1": {"w", "x/1", "x/2", "x/3"}}, "changed since 2026-01-02 (commit1): x/1 and 2 more"},
	} {
		t.Run(test.want, func(t *testing.T) {
			if got := reasonToRun(p, test.last, test.changes); got != test.want {
				t.Errorf("reason %q", got)
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

func TestTimedOut(t *testing.T) {
	for _, test := range []struct {
		name  string
		tally Tally
		took  time.Duration
		want  Tally
	}{
		{"a slow machine", Tally{Passed: 3}, 15 * time.Minute, Tally{Skipped: 1}},
		{"more than twice the time", Tally{Passed: 3}, 21 * time.Minute, Tally{Failed: 1}},
		{"failed before", Tally{Passed: 3, Failed: 2}, 15 * time.Minute, Tally{Passed: 3, Failed: 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := timedOut(test.tally, test.took, 10*time.Minute); got != test.want {
				t.Errorf("counts %v, want %v", got, test.want)
			}
		})
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
			if got := len(part.concerned([]string{file})) > 0; got != want {
				t.Errorf("a change of it concerns the part: %v, want %v", got, want)
			}
		})
	}
}
