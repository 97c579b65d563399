package archtest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// dependenciesFile lists the direct dependencies: module, version, date of the release, and the reason to keep an old
// one.
const dependenciesFile = "dependencies.tsv"

const dependenciesHeader = "# Direct dependencies, written by scripts/generate: module, version, release, why an old one stays.\n"

// maxDependencyAge is the age of a release, at the time of the last commit, above which it needs a reason.
const maxDependencyAge = 2 * 365 * 24 * time.Hour

type dependency struct {
	module, version, date, reason string
}

// TestDependencies_AreRecentOrHaveAReason compares the direct dependencies of every go.mod with the list, and requires a
// reason for each release older than two years. It needs no network; -update gets new dates from the module proxy.
func TestDependencies_AreRecentOrHaveAReason(t *testing.T) {
	have := directDependencies(t)
	text, err := os.ReadFile(dependenciesFile)
	if err != nil && !*update {
		t.Fatal(err)
	}
	listed := parseDependencies(string(text))
	if *update {
		writeDependencies(t, have, listed)
		return
	}
	for _, complaint := range wrongDependencies(have, listed, lastCommit(t)) {
		t.Error(complaint)
	}
}

func TestWrongDependencies(t *testing.T) {
	now := time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	have := map[string]bool{"a v1": true, "b v2": true}
	for name, c := range map[string]struct {
		listed []dependency
		want   int
	}{
		"recent":              {[]dependency{{"a", "v1", "2026-01-01", ""}, {"b", "v2", "2025-01-01", ""}}, 0},
		"old, with a reason":  {[]dependency{{"a", "v1", "2018-01-01", "named"}, {"b", "v2", "2025-01-01", ""}}, 0},
		"old":                 {[]dependency{{"a", "v1", "2018-01-01", ""}, {"b", "v2", "2025-01-01", ""}}, 1},
		"another version":     {[]dependency{{"a", "v0", "2026-01-01", ""}, {"b", "v2", "2025-01-01", ""}}, 2},
		"missing":             {[]dependency{{"b", "v2", "2025-01-01", ""}}, 1},
		"not a dependency":    {[]dependency{{"a", "v1", "2026-01-01", ""}, {"b", "v2", "2025-01-01", ""}, {"c", "v1", "2026-01-01", ""}}, 1},
		"a date that is none": {[]dependency{{"a", "v1", "lately", ""}, {"b", "v2", "2025-01-01", ""}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := wrongDependencies(have, c.listed, now); len(got) != c.want {
				t.Error(got)
			}
		})
	}
}

// wrongDependencies returns the faults of the list at a time. The keys of have are "module version".
func wrongDependencies(have map[string]bool, listed []dependency, now time.Time) (list []string) {
	seen := map[string]bool{}
	for _, d := range listed {
		release := d.module + " " + d.version
		seen[release] = true
		released, err := time.Parse(time.DateOnly, d.date)
		switch {
		case !have[release]:
			list = append(list, release+" is listed, but no go.mod requires it: run scripts/generate")
		case err != nil:
			list = append(list, fmt.Sprintf("%s: %v", release, err))
		case now.Sub(released) > maxDependencyAge && d.reason == "":
			list = append(list, fmt.Sprintf("%s is of %s: update it, or state in %s why it stays", release, d.date, dependenciesFile))
		}
	}
	for release := range have {
		if !seen[release] {
			list = append(list, release+" is not listed: run scripts/generate")
		}
	}
	return list
}

func parseDependencies(text string) (list []dependency) {
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if strings.HasPrefix(line, "#") || len(cells) < 3 {
			continue
		}
		cells = append(cells, "")
		list = append(list, dependency{
			module:  cells[0],
			version: cells[1],
			date:    cells[2],
			reason:  cells[3],
		})
	}
	return list
}

// directDependencies returns "module version" of each module that a go.mod of the repository requires directly. A
// replaced module counts as its replacement.
func directDependencies(t *testing.T) map[string]bool {
	t.Helper()
	have := map[string]bool{}
	for _, folder := range moduleFolders(t) {
		for _, r := range requirements(t, folder) {
			if !r.Indirect {
				have[r.Path+" "+r.Version] = true
			}
		}
	}
	if len(have) < 20 {
		t.Fatalf("only %d dependencies found", len(have))
	}
	return have
}

// A requirement is a module that a go.mod requires.
type requirement struct {
	Path, Version string
	Indirect      bool
}

// requirements returns what the go.mod of a folder requires, a replaced module as its replacement, without modules of
// the repository.
func requirements(t *testing.T, folder string) (list []requirement) {
	t.Helper()
	var file struct {
		Require []requirement
		Replace []struct {
			Old, New struct{ Path, Version string }
		}
	}
	if err := json.Unmarshal(goCommand(t, folder, "mod", "edit", "-json"), &file); err != nil {
		t.Fatal(err)
	}
	for _, r := range file.Require {
		for _, s := range file.Replace {
			if s.Old.Path == r.Path && (s.Old.Version == "" || s.Old.Version == r.Version) {
				r.Path, r.Version = s.New.Path, s.New.Version
			}
		}
		if r.Version != "" {
			list = append(list, r)
		}
	}
	return list
}

// moduleFolders returns the folders of the repository that have a go.mod.
func moduleFolders(t *testing.T) (list []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		if entry.Name() == "go.mod" {
			folder, err := filepath.Rel(root, filepath.Dir(path))
			list = append(list, folder)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func goCommand(t *testing.T, folder string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = filepath.Join(root, folder), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s in %s: %v", strings.Join(args, " "), folder, err)
	}
	return out
}

// writeDependencies writes the list. A new version has no reason to stay.
func writeDependencies(t *testing.T, have map[string]bool, listed []dependency) {
	t.Helper()
	byRelease := map[string]dependency{}
	for _, d := range listed {
		byRelease[d.module+" "+d.version] = d
	}
	var list []string
	for release := range have {
		d, found := byRelease[release]
		if !found {
			d.module, d.version, _ = strings.Cut(release, " ")
			d.date = strings.TrimSpace(string(goCommand(t, ".", "list", "-mod=mod", "-m", "-f",
				"{{.Time.Format \"2006-01-02\"}}", d.module+"@"+d.version)))
		}
		line := strings.Join([]string{d.module, d.version, d.date, d.reason}, "\t")
		list = append(list, strings.TrimRight(line, "\t")+"\n")
	}
	slices.Sort(list)
	if err := os.WriteFile(dependenciesFile, []byte(dependenciesHeader+strings.Join(list, "")), 0o644); err != nil {
		t.Fatal(err)
	}
}

// lastCommit returns the time of the last commit, so that the test does not begin to fail by itself; without a
// repository it returns the present time.
func lastCommit(t *testing.T) time.Time {
	t.Helper()
	cmd := exec.Command("git", "log", "-1", "--format=%cI")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return time.Now()
	}
	at, err := time.Parse(time.RFC3339, strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	return at
}
