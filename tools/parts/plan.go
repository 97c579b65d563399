package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// Changes maps a commit to the files that differ between it and HEAD. A commit that HEAD does not contain is no key.
type Changes map[string][]string

// A Step is a part that CI has a reason to run.
type Step struct {
	Part     Part
	Expected time.Duration
	Reason   string
	Fits     bool // in the time that is left, after the steps before it
}

// plan returns the parts that the changed paths concern, the part with the oldest result first. Of each rotation it has
// the oldest part that fits into the time left, and before it the older ones that do not fit.
func plan(parts []Part, results []Result, changes Changes, left time.Duration) (steps []Step) {
	taken := map[string]bool{}
	for _, p := range candidates(parts, results) {
		reason := reasonToRun(p, newest(results, p.Name), changes)
		if reason == "" || taken[p.Rotation] {
			continue
		}
		s := Step{Part: p, Expected: p.expected(results), Reason: reason}
		if s.Expected <= left {
			s.Fits = true
			left -= s.Expected
			taken[p.Rotation] = p.Rotation != ""
		}
		steps = append(steps, s)
	}
	return steps
}

// candidates returns the parts with paths, the part with the oldest result first.
func candidates(parts []Part, results []Result) []Part {
	list := slices.DeleteFunc(slices.Clone(parts), func(p Part) bool { return len(p.Paths) == 0 })
	slices.SortStableFunc(list, func(a, b Part) int {
		return lastRun(results, a.Name).Compare(lastRun(results, b.Name))
	})
	return list
}

// lastRun returns the date of the newest result, the zero time without one.
func lastRun(results []Result, part string) time.Time {
	if r := newest(results, part); r != nil {
		return r.Date
	}
	return time.Time{}
}

// reasonToRun returns why CI runs a part, "" if nothing that concerns it has changed since its newest result.
func reasonToRun(p Part, last *Result, changes Changes) string {
	if last == nil {
		return "has no result yet"
	}
	since := fmt.Sprintf("since %s (%s)", last.Date.Format(time.DateOnly), short(last.Commit))
	files, known := changes[last.Commit]
	if !known {
		return "changes unknown " + since + ": the commit is no ancestor of HEAD"
	}
	switch concerned := p.concerned(files); len(concerned) {
	case 0:
		return ""
	case 1:
		return "changed " + since + ": " + concerned[0]
	default:
		return fmt.Sprintf("changed %s: %s and %d more", since, concerned[0], len(concerned)-1)
	}
}

// printPlan prints a row for each step.
func printPlan(w io.Writer, steps []Step) {
	if len(steps) == 0 {
		fmt.Fprintln(w, "nothing has changed that concerns a part")
		return
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PART\tMINUTES\tFITS\tREASON")
	for _, s := range steps {
		fits := "no"
		if s.Fits {
			fits = "yes"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", s.Part.Name, minutes(s.Expected), fits, s.Reason)
	}
	table.Flush()
}

// unfinished returns the parts without a passed result for a commit: those without any result first, then failed ones.
func unfinished(parts []Part, results []Result, commit string) (list []Part) {
	for _, p := range parts {
		if r := newestOf(results, p.Name, commit); r == nil || !r.passed() {
			list = append(list, p)
		}
	}
	hasResult := func(p Part) int {
		if newestOf(results, p.Name, commit) != nil {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(list, func(a, b Part) int { return cmp.Compare(hasResult(a), hasResult(b)) })
	return list
}

// minutes returns a duration in minutes, rounded.
func minutes(d time.Duration) string { return fmt.Sprintf("%.0f", d.Minutes()) }

func short(commit string) string { return commit[:min(len(commit), 12)] }
