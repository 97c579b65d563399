package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A History maps the commit of a result to the files of each commit between it and HEAD. A commit that HEAD does not
// contain is no key.
type History map[string][][]string

// dueLines returns a line for each part that has to run.
func dueLines(parts []Part, results []Result, history History) (lines []string) {
	for _, p := range parts {
		if reason := p.reasonDue(newestFirst(results, p.Name), history); reason != "" {
			lines = append(lines, fmt.Sprintf("due: %s, %s", p.Name, reason))
		}
	}
	return lines
}

// reasonDue returns why the part has to run: its newest result failed, or commits after its newest passed result changed
// its paths. It returns "" where neither is so. The part's results are given newest first.
func (p Part) reasonDue(results []Result, history History) string {
	if len(results) > 0 && !results[0].passed() {
		return "failed on commit " + short(results[0].Commit)
	}
	if len(p.Paths) == 0 {
		return ""
	}
	reason := "never passed"
	for _, r := range results {
		if !r.passed() {
			continue
		}
		if commits, known := history[r.Commit]; known {
			return p.countConcerned(commits)
		}
		reason = "never passed on an ancestor of HEAD"
	}
	return reason
}

// countConcerned returns the number of commits that changed the part's paths, as text, and "" for none.
func (p Part) countConcerned(commits [][]string) string {
	n := 0
	for _, files := range commits {
		if p.concerned(files) {
			n++
		}
	}
	switch n {
	case 0:
		return ""
	case 1:
		return "1 commit"
	default:
		return fmt.Sprintf("%d commits", n)
	}
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
