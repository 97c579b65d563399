package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// checkout is the repository of this program.
const checkout = "../.."

func TestTable_PathsAndCommandsExist(t *testing.T) {
	parts, err := readTable(checkout)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		t.Run(p.Name, func(t *testing.T) {
			for _, path := range p.Paths {
				if _, err := os.Stat(filepath.Join(checkout, path)); err != nil || filepath.Clean(path) != path {
					t.Errorf("path %q is no file or folder of the repository: %v", path, err)
				}
			}
			if (len(p.Paths) == 0) != (p.WithoutPaths != "") {
				t.Errorf("paths %q, withoutPaths %q: want one of them", p.Paths, p.WithoutPaths)
			}
			script := ""
			for word := range strings.FieldsSeq(p.Command) {
				if strings.HasPrefix(word, "scripts/") {
					script = word
					break
				}
			}
			if _, err := os.Stat(filepath.Join(checkout, script)); script == "" || err != nil {
				t.Errorf("command %q calls no script of the repository: %v", p.Command, err)
			}
			if len(p.About) == 0 || len(p.About) > 200 {
				t.Errorf("about %q: 1 to 200 characters", p.About)
			}
		})
	}
}

// TestTable_FuzzHasThePathsOfItsTargets compares the paths of the part fuzz with the packages of the product that have
// fuzz targets.
func TestTable_FuzzHasThePathsOfItsTargets(t *testing.T) {
	parts, err := readTable(checkout)
	if err != nil {
		t.Fatal(err)
	}
	fuzz := parts[slices.IndexFunc(parts, func(p Part) bool { return p.Name == "fuzz" })]
	used := map[string]bool{}
	for _, folder := range fuzzedFolders(t) {
		i := slices.IndexFunc(fuzz.Paths, func(path string) bool { return strings.HasPrefix(folder+"/", path+"/") })
		if i < 0 {
			t.Errorf("%s has a fuzz target: add it to the paths of the part fuzz in %s", folder, tablePath)
			continue
		}
		used[fuzz.Paths[i]] = true
	}
	for _, path := range fuzz.Paths {
		if !used[path] {
			t.Errorf("%s has no fuzz target: remove it from the paths of the part fuzz in %s", path, tablePath)
		}
	}
}

// fuzzedFolders returns the folders of the product's module that have a fuzz target.
func fuzzedFolders(t *testing.T) (list []string) {
	t.Helper()
	target := regexp.MustCompile(`(?m)^func Fuzz`)
	err := filepath.WalkDir(checkout, func(file string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if _, err := os.Stat(filepath.Join(file, "go.mod")); err == nil && file != checkout { // another module
				return filepath.SkipDir
			}
			if strings.HasPrefix(entry.Name(), ".") && file != checkout {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil || !target.Match(text) {
			return err
		}
		folder, err := filepath.Rel(checkout, filepath.Dir(file))
		list = append(list, folder)
		return err
	})
	if err != nil || len(list) == 0 {
		t.Fatalf("%d folders with fuzz targets: %v", len(list), err)
	}
	return list
}

func TestPage_IsGenerated(t *testing.T) {
	if err := checkPage(checkout); err != nil {
		t.Error(err)
	}
}

// handWritten is when the last results were recorded by hand.
var handWritten = time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)

// machineText is the form of what machine returns.
var machineText = regexp.MustCompile(`^\d+ cores(, \d+ GiB)?(, Linux \S+)?$`)

func TestMachine_HasTheFormOfResults(t *testing.T) {
	if text := machine(); !machineText.MatchString(text) {
		t.Errorf("machine %q", text)
	}
}

func TestResults_AreWrittenAsTheyAreRead(t *testing.T) {
	results, err := readResults(checkout)
	if err != nil {
		t.Fatal(err)
	}
	text, err := marshalResults(results)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != read(filepath.Join(checkout, resultsPath)) {
		t.Errorf("%s is not as parts writes it: one line a result, by part and date", resultsPath)
	}
	parts, err := readTable(checkout)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Date.After(handWritten) && !machineText.MatchString(r.Machine) {
			t.Errorf("the result of %s of %s has machine %q, which parts does not write: run the part instead",
				r.Part, r.Date.Format(time.DateOnly), r.Machine)
		}
		if found, err := match(parts, []string{r.Part}); err != nil || len(found) != 1 {
			t.Errorf("a result of %q, which is no part: %v", r.Part, err)
		}
	}
}

func TestPage_LinesAreShort(t *testing.T) {
	for line := range strings.Lines(read(filepath.Join(checkout, templatePath))) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 120 {
			t.Errorf("%s: a line of %d columns: %s", templatePath, n, line)
		}
	}
}

func TestMatch(t *testing.T) {
	parts := []Part{part("kernel-1", 1), part("soak", 1), part("kernel-2", 1)}
	for _, test := range []struct {
		patterns string
		want     string
	}{
		{"", "kernel-1 soak kernel-2"},
		{"kernel-*", "kernel-1 kernel-2"},
		{"kernel-2 s*k", "soak kernel-2"},
		{"kernel", `no part matches "kernel"`},
		{"soak fuzz", `no part matches "fuzz"`},
		{"[", `pattern "["`},
	} {
		t.Run(test.patterns, func(t *testing.T) {
			chosen, err := match(parts, strings.Fields(test.patterns))
			var names []string
			for _, p := range chosen {
				names = append(names, p.Name)
			}
			got := strings.Join(names, " ")
			if err != nil {
				got = err.Error()
			}
			if !strings.HasPrefix(got, test.want) || err == nil && got != test.want {
				t.Errorf("matched %q, want %q", got, test.want)
			}
		})
	}
}
