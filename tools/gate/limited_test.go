package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestLimited: sandbox/limited runs nothing without a limit. The directories of cgroups are files here.
func TestLimited(t *testing.T) {
	run := func(root string, args ...string) (string, error) {
		cmd := exec.Command("../../systemtests/sandbox/limited", args...)
		cmd.Env = append(os.Environ(), "FLOWKEEP_CGROUPS="+root)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	none := t.TempDir()
	if out, err := run(none, "group", "2Mi", "echo", "ran"); err == nil || strings.Contains(out, "ran") ||
		!strings.Contains(out, "no memory controller") {
		t.Errorf("without a memory controller: %q, %v", out, err)
	}
	if _, err := run(none); err == nil {
		t.Error("the check finds a memory controller where there is none")
	}
	first, second := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(first, "memory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(second, "cgroup.controllers"), []byte("cpu memory\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for root, file := range map[string]string{
		first:  "memory/group/memory.limit_in_bytes",
		second: "group/memory.max",
	} {
		if out, err := run(root); out != "" || err != nil {
			t.Errorf("check for %s: %q, %v", file, out, err)
		}
		out, err := run(root, "group", "2Mi", "echo", "ran")
		limit, missing := os.ReadFile(filepath.Join(root, file))
		if out != "ran\n" || err != nil || missing != nil || string(limit) != "2097152\n" {
			t.Errorf("%s: %q, %v; limit %q, %v", file, out, err, limit, missing)
		}
	}
}
