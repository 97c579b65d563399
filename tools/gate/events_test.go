package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// eventText returns the events of a package p, a line each: "action test output".
func eventText(lines ...string) string {
	var b strings.Builder
	for _, line := range lines {
		fields := append(strings.SplitN(line, " ", 3), "", "")
		fmt.Fprintf(&b, `{"Action":%q,"Package":"p","Test":%q,"Output":%q}`+"\n", fields[0], fields[1], fields[2]+"\n")
	}
	return b.String()
}

func TestReadEvents(t *testing.T) {
	passed := []string{"run TestA", "pass TestA", "pass"}
	for name, c := range map[string]struct {
		lines []string
		want  []Test
		errs  []string
	}{
		"passed": {passed, []Test{{Name: "TestA", Counts: Counts{Passed: 1}}}, nil},
		"reason of the innermost": {
			[]string{"run TestA", "run TestA/x", "output TestA/x     a_test.go:7: why", "fail TestA/x", "fail TestA", "fail"},
			[]Test{{Name: "TestA", Failed: true, Reason: "a_test.go:7: why", Counts: Counts{Failed: 2}}}, nil,
		},
		"skipped": {
			[]string{"run TestA", "skip TestA", "pass"},
			[]Test{{Name: "TestA", Skipped: true, Counts: Counts{Skipped: 1}}}, nil,
		},
		"reason with a kind": {
			[]string{"run TestA", "output TestA     a_test.go:5: TIME 0.10 of the limit", "output TestA     a_test.go:6: log",
				"output TestA     a_test.go:7: LOST 2 of 9", "fail TestA", "fail"},
			[]Test{{Name: "TestA", Failed: true, Reason: "a_test.go:7: LOST 2 of 9", Counts: Counts{Failed: 1}}}, nil,
		},
		"a time is no reason": {
			[]string{"run TestA", "output TestA     a_test.go:5: TIME 0.10 of the limit", "output TestA     a_test.go:7: wrong",
				"fail TestA", "fail"},
			[]Test{{Name: "TestA", Failed: true, Reason: "a_test.go:7: wrong", Counts: Counts{Failed: 1}}}, nil,
		},
		"leak": {
			[]string{"run TestA", "output TestA     a_test.go:7: LEAK: a to b", "fail TestA", "fail"},
			[]Test{{Name: "TestA", Failed: true, Barred: "LEAK", Reason: "a_test.go:7: LEAK: a to b", Counts: Counts{Failed: 1}}}, nil,
		},
		"leak in a later line": {
			[]string{"run TestA", "output TestA     a_test.go:7: two", "output TestA           LEAK: a to b", "fail TestA", "fail"},
			[]Test{{Name: "TestA", Failed: true, Barred: "LEAK", Reason: "LEAK: a to b", Counts: Counts{Failed: 1}}}, nil,
		},
		"leak in a test that passed": {
			[]string{"run TestA", "output TestA     a_test.go:7: LEAK", "pass TestA", "pass"},
			[]Test{{Name: "TestA", Failed: true, Barred: "LEAK", Reason: "a_test.go:7: LEAK", Counts: Counts{Passed: 1, Failed: 1}}}, nil,
		},
		"crash": {
			[]string{"run TestA", "output TestA     a_test.go:7: lost", "output TestA     b_test.go:7: CRASH of netmaster", "fail TestA", "fail"},
			[]Test{{Name: "TestA", Failed: true, Barred: "CRASH", Reason: "a_test.go:7: lost", Counts: Counts{Failed: 1}}}, nil,
		},
		"a quoted word is no leak": {append([]string{"output TestA     a_test.go:7: no LEAK"}, passed...),
			[]Test{{Name: "TestA", Counts: Counts{Passed: 1}}}, nil},
		"race": {
			[]string{"run TestA", "output TestA WARNING: DATA RACE", "output TestA     testing.go:1: race detected", "fail TestA", "fail"},
			[]Test{{Name: "TestA", Failed: true, Barred: "data race", Reason: "testing.go:1: race detected", Counts: Counts{Failed: 1}}}, nil,
		},
		"panic bars the others": {
			[]string{"run TestA", "fail TestA", "run TestB", "output TestB panic: x", "fail TestB", "fail"},
			[]Test{
				{Name: "TestA", Failed: true, Barred: "panic", Reason: "no output", Counts: Counts{Failed: 1}},
				{Name: "TestB", Failed: true, Barred: "panic", Reason: "panic: x", Counts: Counts{Failed: 1}},
			}, nil,
		},
		"a quoted panic is none": {
			[]string{"run TestA", "output TestA     a_test.go:7: log:", "output TestA         panic: x", "fail TestA", "fail"},
			[]Test{{Name: "TestA", Failed: true, Reason: "a_test.go:7: log:", Counts: Counts{Failed: 1}}}, nil,
		},
		"killed": {
			[]string{"run TestA", "output TestA SIGQUIT: quit", "fail"},
			[]Test{{Name: "TestA", Failed: true, Barred: "did not end", Reason: "SIGQUIT: quit", Counts: Counts{Failed: 1}}}, nil,
		},
		"cut off after a failure": {
			[]string{"run TestA", "fail TestA"},
			[]Test{{Name: "TestA", Failed: true, Reason: "no output", Counts: Counts{Failed: 1}}}, []string{"p: did not end"},
		},
		"cut off":           {[]string{"run TestA", "pass TestA"}, []Test{{Name: "TestA", Counts: Counts{Passed: 1}}}, []string{"p: did not end"}},
		"build failed":      {[]string{"output  no such import", "output  FAIL", "fail"}, nil, []string{"p: failed without a failed test: no such import"}},
		"race after a test": {[]string{"output  WARNING: DATA RACE", "pass"}, nil, []string{"p: data race outside of its tests"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := readEvents("unit", strings.NewReader(eventText(c.lines...)))
			var tests []Test
			for _, one := range got.Tests {
				one.Suite, one.Package = "", ""
				tests = append(tests, *one)
			}
			if !slices.Equal(tests, c.want) || !slices.Equal(got.Errors, c.errs) {
				t.Errorf("got %+v, %q, want %+v, %q", tests, got.Errors, c.want, c.errs)
			}
		})
	}
}

// TestReadEvents_TwoCommands: lint writes the events of one command after those of another.
func TestReadEvents_TwoCommands(t *testing.T) {
	text := eventText("run gofmt", "fail gofmt", "fail") + "no event\n" + eventText("run chart", "pass chart", "pass") + `{"Action":"run","Pack`
	got := readEvents("lint", strings.NewReader(text))
	if len(got.Tests) != 2 || !got.Tests[0].Failed || got.Tests[1].Failed || len(got.Errors) != 0 {
		t.Errorf("got %+v, %q", got.Tests, got.Errors)
	}
}

func TestReadEvents_Notes(t *testing.T) {
	got := readEvents("unit", strings.NewReader(eventText("run TestA", "output TestA     a_test.go:7: NOTE: x fell", "pass TestA", "pass")))
	if !slices.Equal(got.Notes, []string{"NOTE: x fell"}) {
		t.Errorf("got %q", got.Notes)
	}
}
