package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const product = "github.com/flowkeep/flowkeep/"

func failedTest(suite, pkg, name string) *Test {
	return &Test{Suite: suite, Package: pkg, Name: name, Failed: true, Counts: Counts{Failed: 1}}
}

func TestChooseReruns(t *testing.T) {
	barred := failedTest("shared", "systemtests/shared", "TestLeaks")
	barred.Barred = "LEAK"
	failed := []*Test{
		failedTest("exclusive", "systemtests/exclusive", "TestHA"),
		failedTest("shared", "systemtests/shared", "TestPorts"),
		barred,
		failedTest("fleet", product+"systemtests/fleet", "TestFleet"),
		failedTest("shape", "systemtests/shape", "TestInBrief"),
		failedTest("unit", product+"netmaster/feed", "TestB"),
		failedTest("unit", product+"netmaster/feed", "TestA"),
		failedTest("lint", "lint", "gofmt"),
		failedTest("unit", product+"internal/archtest", "TestProse"),
	}
	var got []string
	for _, r := range chooseReruns(failed, 1) {
		got = append(got, r.Suite.Name+" = "+strings.Join(r.Suite.Command, " "))
		if sandboxes := slices.Contains(r.Suite.Sandboxes, "test-shape"); sandboxes != strings.HasSuffix(r.Suite.Name, "shape") {
			t.Errorf("%s boots the clusters %v", r.Suite.Name, r.Suite.Sandboxes)
		}
	}
	want := []string{
		"again: fleet = scripts/system -only fleet -run ^(TestFleet)$",
		"again: netmaster/feed = scripts/unit -package github.com/flowkeep/flowkeep/netmaster/feed -run ^(TestA|TestB)$",
		"again: shape = scripts/system -only shape -run ^(TestInBrief)$",
		"cluster = scripts/system -only pods -parallel 1 -run ^(TestHA|TestPorts)$",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if failed[7].Barred != "lint" || failed[8].Barred != "internal/archtest" {
		t.Errorf("barred: %q, %q", failed[7].Barred, failed[8].Barred)
	}
}

func TestChooseReruns_TooMany(t *testing.T) {
	var failed []*Test
	for i := range 8 {
		failed = append(failed, failedTest("unit", "p", fmt.Sprint("Test", i)))
	}
	if list := chooseReruns(failed, 2); len(list) != 1 {
		t.Errorf("10 failures: %d commands, want 1", len(list))
	}
	if list := chooseReruns(failed, 3); len(list) != 0 || failed[0].Barred == "" {
		t.Errorf("11 failures: %+v, barred %q", list, failed[0].Barred)
	}
}

func TestSettle(t *testing.T) {
	for name, c := range map[string]struct {
		again  []*Test
		barred string // empty: it is flaky
	}{
		"passed":         {[]*Test{{Name: "TestA", Counts: Counts{Passed: 3}}}, ""},
		"failed again":   {[]*Test{{Name: "TestA", Failed: true, Reason: "why"}}, "failed again: why"},
		"skipped":        {[]*Test{{Name: "TestA", Skipped: true, Counts: Counts{Skipped: 1}}}, "skipped in its second run"},
		"another passed": {[]*Test{{Name: "TestB", Counts: Counts{Passed: 1}}}, "did not run once more"},
	} {
		t.Run(name, func(t *testing.T) {
			first := failedTest("shared", "systemtests/shared", "TestA")
			first.Reason = "lost"
			flaky := Rerun{Tests: []*Test{first}}.settle(Outcome{Tests: c.again})
			if isFlaky := len(flaky) == 1; isFlaky != (c.barred == "") || first.Failed == isFlaky || first.Barred != c.barred {
				t.Fatalf("flaky %v, now %+v", flaky, first)
			}
			if c.barred == "" && (flaky[0].Reason != "lost" || first.Counts != c.again[0].Counts) {
				t.Errorf("flaky %+v, now %+v", flaky[0], first)
			}
		})
	}
}
