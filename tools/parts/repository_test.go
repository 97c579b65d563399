package main

import (
	"os"
	"path/filepath"
	"regexp"
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
