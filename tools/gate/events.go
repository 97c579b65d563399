package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Counts are numbers of tests, subtests included.
type Counts struct{ Passed, Failed, Skipped int }

func (c *Counts) add(d Counts) {
	c.Passed += d.Passed
	c.Failed += d.Failed
	c.Skipped += d.Skipped
}

// A Test is a top-level test function with its subtests, as the events of one run show it.
type Test struct {
	Suite, Package, Name string
	Failed               bool
	Skipped              bool // the top-level test itself
	Reason               string
	// Barred is the reason why the test may not run once more, or why its second run does not count; empty: it may.
	Barred string
	Counts Counts
}

// Outcome is what the events of a suite show.
type Outcome struct {
	Tests []*Test
	// Errors are failures that are no test's: a package that did not build, or did not end.
	Errors []string
	// Notes are lines of output that begin with NOTE.
	Notes []string
	// Times are measured times that tests logged with their limits.
	Times []Timing
}

// event is a line of test2json; see go doc test2json.
type event struct {
	Action, Package, Test, Output string
}

// outputOf matches the prefix that package testing puts before the first line of t.Log and t.Error.
var outputOf = regexp.MustCompile(`^[^\s:]+\.go:\d+: `)

// The words at the beginning of a line of output that say that a denied packet passed, and that a program of Flowkeep
// crashed during a system test.
const (
	leakWord  = "LEAK"
	crashWord = "CRASH"
)

// markOf returns the word at the beginning of a line of output that keeps a test from running once more, if there is one.
func markOf(line string) string {
	message := messageOf(line)
	for _, word := range []string{leakWord, crashWord} {
		if strings.HasPrefix(message, word) {
			return word
		}
	}
	return ""
}

// messageOf returns a line of output without white space and the place of t.Error at its beginning.
func messageOf(line string) string {
	line = strings.TrimSpace(line)
	return strings.TrimSpace(line[len(outputOf.FindString(line)):])
}

// barring returns why a package with this line of output may not run once more: the test program did not end by itself,
// or had a data race. The lines begin in the first column: tests indent what they quote.
func barring(line string) string {
	switch {
	case strings.HasPrefix(line, "WARNING: DATA RACE"), strings.HasPrefix(line, "testing: race detected"):
		return "data race"
	case strings.HasPrefix(line, "panic: test timed out"), strings.HasPrefix(line, "SIGQUIT: "):
		return "timed out"
	case strings.HasPrefix(line, "panic: "), strings.HasPrefix(line, "fatal error: "):
		return "panic"
	}
	return ""
}

// pack is a package while its events are read.
type pack struct {
	name   string
	tests  map[string]*running
	order  []string
	notes  []string
	times  []Timing
	barred string
	result string // of the package itself
	last   string // line of its own output
}

// running is a top-level test while its events are read.
type running struct {
	results map[string]string // by full name; empty: not ended
	mark    string            // leakWord or crashWord, if it printed one
	leak    string            // the line of leakWord
	kinds   map[string]string // by full name: the first line that begins with the kind of a failure
	reasons map[string]string // by full name: the first other line that package testing marks with its place
	lines   map[string]string // by full name: the first line of other output
}

// errorsFile is the file of a suite's folder with a line for each command that failed without a failed test.
const errorsFile = "errors"

// readOutcome reads the events and errors of all files in a folder.
func readOutcome(suite, folder string) (Outcome, error) {
	var all Outcome
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	for _, file := range files {
		f, openErr := os.Open(file)
		if openErr != nil {
			err = errors.Join(err, openErr)
			continue
		}
		one := readEvents(suite, f)
		_ = f.Close() // it was only read
		all.Tests = append(all.Tests, one.Tests...)
		all.Errors = append(all.Errors, one.Errors...)
		all.Notes = append(all.Notes, one.Notes...)
		all.Times = append(all.Times, one.Times...)
	}
	text, readErr := os.ReadFile(filepath.Join(folder, errorsFile))
	if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
		err = errors.Join(err, readErr)
	}
	for line := range strings.Lines(string(text)) {
		all.Errors = append(all.Errors, strings.TrimSpace(line))
	}
	return all, err
}

// hasFailed reports whether a test has failed, or something that is no test.
func (o Outcome) hasFailed() bool {
	return len(o.Errors) > 0 || slices.ContainsFunc(o.Tests, func(t *Test) bool { return t.Failed })
}

// readEvents returns what the events of one command show. It skips lines that are no events.
func readEvents(suite string, r io.Reader) Outcome {
	var order []string
	packs := map[string]*pack{}
	reader := bufio.NewReader(r)
	for {
		line, err := reader.ReadBytes('\n')
		if err != nil {
			break // the end; a line without its end is one at which the writer was killed
		}
		var e event
		if json.Unmarshal(line, &e) != nil || e.Package == "" {
			continue
		}
		p := packs[e.Package]
		if p == nil {
			p = &pack{name: e.Package, tests: map[string]*running{}}
			packs[e.Package] = p
			order = append(order, e.Package)
		}
		p.take(e)
	}
	var all Outcome
	for _, name := range order {
		one := packs[name].outcome(suite)
		all.Tests = append(all.Tests, one.Tests...)
		all.Errors = append(all.Errors, one.Errors...)
		all.Notes = append(all.Notes, one.Notes...)
		all.Times = append(all.Times, one.Times...)
	}
	return all
}

func (p *pack) take(e event) {
	line := strings.TrimRight(e.Output, "\n")
	if e.Action == "output" && p.barred == "" {
		p.barred = barring(line)
	}
	message := messageOf(line)
	if strings.HasPrefix(message, "NOTE") {
		p.notes = append(p.notes, message)
	}
	if t, is := parseTiming(e.Test, message); is {
		p.times = append(p.times, t)
	}
	if e.Test == "" {
		p.takeOwn(e.Action, line)
		return
	}
	top, _, _ := strings.Cut(e.Test, "/")
	t := p.tests[top]
	if t == nil {
		t = &running{
			results: map[string]string{},
			kinds:   map[string]string{},
			reasons: map[string]string{},
			lines:   map[string]string{},
		}
		p.tests[top] = t
		p.order = append(p.order, top)
	}
	switch e.Action {
	case "run":
		t.results[e.Test] = ""
	case "pass", "fail", "skip":
		t.results[e.Test] = e.Action
	case "output":
		t.print(e.Test, line)
	}
}

// takeOwn takes an event of the package that is no test's.
func (p *pack) takeOwn(action, line string) {
	switch action {
	case "pass", "fail", "skip":
		p.result = action
	case "output":
		if mark := markOf(line); mark != "" {
			p.barred = mark
		}
		if text := strings.TrimSpace(line); text != "" && text != "FAIL" {
			p.last = text
		}
	}
}

// print takes a line of output of a test or subtest.
func (t *running) print(name, line string) {
	if mark := markOf(line); mark != "" && t.mark != leakWord {
		t.mark = mark
		if mark == leakWord {
			t.leak = strings.TrimSpace(line)
		}
	}
	text := strings.TrimSpace(line)
	if text == "" || strings.HasPrefix(text, "=== ") || strings.HasPrefix(text, "--- ") {
		return
	}
	if _, known := t.lines[name]; !known {
		t.lines[name] = text
	}
	message := messageOf(text)
	if _, known := t.kinds[name]; !known && hasKind(message) {
		t.kinds[name] = text
	}
	if _, known := t.reasons[name]; !known && outputOf.MatchString(text) && !strings.HasPrefix(message, timeWord) {
		t.reasons[name] = text
	}
}

// hasKind reports whether a message begins with the kind of a failure; see systemtests/cluster/failure.go.
func hasKind(message string) bool {
	return slices.ContainsFunc([]string{leakWord, "LOST ", "LATE "}, func(kind string) bool {
		return strings.HasPrefix(message, kind)
	})
}

// outcome returns what the events of the package show in the end.
func (p *pack) outcome(suite string) (o Outcome) {
	o.Notes, o.Times = p.notes, p.times
	failed := false
	for _, name := range p.order {
		t := p.tests[name].test()
		t.Suite, t.Package, t.Name = suite, p.name, name
		if t.Failed && t.Barred == "" {
			t.Barred = p.barred
		}
		failed = failed || t.Failed
		o.Tests = append(o.Tests, t)
	}
	switch {
	case p.result == "fail" && !failed:
		o.Errors = append(o.Errors, p.name+": failed without a failed test: "+p.last)
	case p.result == "":
		o.Errors = append(o.Errors, p.name+": did not end")
	case p.barred != "" && !failed:
		o.Errors = append(o.Errors, p.name+": "+p.barred+" outside of its tests")
	}
	return o
}

// test returns the test without its names. A test that did not end has failed, and so has one that printed a leak.
func (t *running) test() *Test {
	result := &Test{}
	var failed []string
	for _, name := range sorted(t.results) {
		switch outcome := t.results[name]; outcome {
		case "pass":
			result.Counts.Passed++
		case "skip":
			result.Counts.Skipped++
			result.Skipped = result.Skipped || !strings.Contains(name, "/")
		default:
			result.Counts.Failed++
			failed = append(failed, name)
			if outcome == "" {
				result.Barred = "did not end"
			}
		}
	}
	if t.mark != "" {
		result.Barred, result.Reason = t.mark, t.leak
		if len(failed) == 0 { // it is a failure all the same
			result.Counts.Failed++
		}
	}
	result.Failed = result.Counts.Failed > 0
	if result.Failed && result.Reason == "" {
		result.Reason = t.reason(failed)
	}
	return result
}

// reason returns the first line of the failure of the innermost of the failed tests that has one.
func (t *running) reason(failed []string) string {
	for _, lines := range []map[string]string{t.kinds, t.reasons, t.lines} {
		for _, name := range slices.Backward(failed) {
			if line := lines[name]; line != "" {
				return line
			}
		}
	}
	return "no output"
}
