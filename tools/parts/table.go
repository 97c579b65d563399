package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// tablePath is the path of the table of parts in the repository.
const tablePath = "scripts/parts.json"

// A Part is a check of `make test-full`.
type Part struct {
	Name    string `json:"name"`
	About   string `json:"about"`
	Command string `json:"command"` // split at spaces; no shell reads it
	// Minutes is the expected duration on two cores. A longer one on record replaces it.
	Minutes int `json:"minutes"`
	// Paths are files and folders. A change of one of them makes the part due; a part without paths is due only after a
	// failure. Unit tests in a folder do not count: the gate runs them, and a part tests the product.
	Paths []string `json:"paths"`
	// WithoutPaths is the reason why a part has no paths.
	WithoutPaths string `json:"withoutPaths"`
}

// readTable returns the parts of the table in the repository at root.
func readTable(root string) ([]Part, error) {
	text, err := os.ReadFile(filepath.Join(root, tablePath))
	if err != nil {
		return nil, fmt.Errorf("read the table of parts: %w", err)
	}
	var parts []Part
	if err := json.Unmarshal(text, &parts); err != nil {
		return nil, fmt.Errorf("%s: %w", tablePath, err)
	}
	names := map[string]bool{}
	for _, p := range parts {
		if p.Name == "" || strings.TrimSpace(p.Command) == "" || p.Minutes <= 0 {
			return nil, fmt.Errorf("%s: part %q needs a name, a command and its minutes", tablePath, p.Name)
		}
		if names[p.Name] {
			return nil, fmt.Errorf("%s: two parts are named %s", tablePath, p.Name)
		}
		names[p.Name] = true
	}
	return parts, nil
}

// match returns the parts whose names match a shell pattern of patterns, or all parts without patterns.
func match(parts []Part, patterns []string) ([]Part, error) {
	if len(patterns) == 0 {
		return parts, nil
	}
	chosen := map[string]bool{}
	for _, pattern := range patterns {
		found := false
		for _, p := range parts {
			ok, err := path.Match(pattern, p.Name)
			if err != nil {
				return nil, fmt.Errorf("pattern %q: %w", pattern, err)
			}
			found = found || ok
			chosen[p.Name] = chosen[p.Name] || ok
		}
		if !found {
			return nil, fmt.Errorf("no part matches %q; `make test-full ARGS=-l` lists the parts", pattern)
		}
	}
	var list []Part
	for _, p := range parts {
		if chosen[p.Name] {
			list = append(list, p)
		}
	}
	return list, nil
}

// concerned reports whether one of the files is one of the part's paths or below one.
func (p Part) concerned(files []string) bool {
	return slices.ContainsFunc(files, func(file string) bool {
		return slices.ContainsFunc(p.Paths, func(own string) bool {
			return file == own || strings.HasPrefix(file, own+"/") && !isUnitTest(file)
		})
	})
}

// isUnitTest reports whether a file belongs to the unit tests of a package of the product.
func isUnitTest(file string) bool {
	return strings.HasSuffix(file, "_test.go") && !strings.HasPrefix(file, "systemtests/")
}

// expected returns the larger of the table's minutes and the newest duration on record: a run that failed early was
// short.
func (p Part) expected(results []Result) time.Duration {
	expected := time.Duration(p.Minutes) * time.Minute
	for _, r := range newestFirst(results, p.Name) {
		if r.Seconds > 0 {
			return max(expected, time.Duration(r.Seconds)*time.Second)
		}
	}
	return expected
}
