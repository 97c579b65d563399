package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// record's own files, which are no part of what the parts check.
var recordFiles = []string{".", ":(exclude)" + resultsPath, ":(exclude)" + pagePath}

// A repository is a git work tree.
type repository struct{ root string }

func (r repository) git(args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-C", r.root}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

// commit returns the newest commit that changed more than the results on record, so that committing results keeps them.
func (r repository) commit() (string, error) {
	out, err := r.git(append([]string{"log", "-1", "--format=%H", "--"}, recordFiles...)...)
	if err == nil && out == "" {
		err = fmt.Errorf("there is no commit in %s", r.root)
	}
	return strings.TrimSpace(out), err
}

// dirty returns the files with changes that are not committed, but for the results on record.
func (r repository) dirty() ([]string, error) {
	out, err := r.git(append([]string{"status", "--porcelain", "--untracked-files=all", "--"}, recordFiles...)...)
	if err != nil || out == "" {
		return nil, err
	}
	return strings.Split(strings.TrimRight(out, "\n"), "\n"), nil
}

// cleanCommit returns the commit of a work tree without changes.
func (r repository) cleanCommit() (string, error) {
	files, err := r.dirty()
	if err != nil {
		return "", err
	}
	if len(files) > 0 {
		return "", fmt.Errorf("a result needs a commit, and these changes are not committed; commit them and repeat:\n%s",
			strings.Join(files[:min(len(files), 10)], "\n"))
	}
	return r.commit()
}

// version returns the name of the commit as the programs print it.
func (r repository) version() (string, error) {
	out, err := r.git("describe", "--tags", "--always", "--abbrev=12")
	return strings.TrimSpace(out), err
}

// countCommits returns the number of commits that HEAD has, itself included.
func (r repository) countCommits() (int, error) {
	out, err := r.git("rev-list", "--count", "HEAD")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(out))
}

// history returns the commits since each passed result.
func (r repository) history(results []Result) History {
	history := History{}
	for _, result := range results {
		if _, known := history[result.Commit]; known || !result.passed() {
			continue
		}
		if commits, err := r.commitsSince(result.Commit); err == nil { // an error: it is no ancestor of HEAD
			history[result.Commit] = commits
		}
	}
	return history
}

// commitsSince returns the files of each commit between an ancestor of HEAD and HEAD, both names of a renamed file. A
// merge has the files that differ from all its parents.
func (r repository) commitsSince(commit string) (commits [][]string, err error) {
	if _, err := r.git("merge-base", "--is-ancestor", "--", commit, "HEAD"); err != nil {
		return nil, err
	}
	out, err := r.git("log", "-c", "--no-renames", "--name-only", "--format=%x00", commit+"..HEAD", "--")
	if err != nil {
		return nil, err
	}
	for _, text := range strings.Split(out, "\x00")[1:] {
		commits = append(commits, strings.FieldsFunc(text, func(c rune) bool { return c == '\n' }))
	}
	return commits, nil
}
