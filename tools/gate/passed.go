package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// checkout is a git work tree. Its zero value has no tree.
type checkout struct{ tree, commit string }

// readCheckout returns HEAD of a folder's repository; the tree is empty where the work tree differs from it, and both
// where there is no repository.
func readCheckout(dir string) (c checkout) {
	git := func(args ...string) (string, bool) {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err == nil
	}
	commit, ok := git("rev-parse", "HEAD")
	if !ok {
		return c
	}
	c.commit = commit
	tree, ok := git("rev-parse", "HEAD^{tree}")
	if changes, clean := git("status", "--porcelain"); ok && clean && changes == "" {
		c.tree = tree
	}
	return c
}

// recordPassed appends the tree to the file of trees that passed, if the work tree was that tree at the start and at the
// end. It reports whether it did.
func recordPassed(cache string, start, end checkout) (bool, error) {
	if start.tree == "" || start.tree != end.tree {
		return false, nil
	}
	return true, appendLine(filepath.Join(cache, "passed"), end.tree)
}

// appendLine appends a line to a file, which it creates if need be.
func appendLine(path, line string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(f, line); err != nil {
		_ = f.Close() // the first error counts
		return err
	}
	return f.Close()
}
