package archtest

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	update    = flag.Bool("update", false, "write the figures of prose.txt")
	listProse = flag.String("list-prose", "", "list the places of a `figure`: code.words, or words for both kinds")
)

// figuresFile is prose.txt in the repository.
const figuresFile = "internal/archtest/prose.txt"

const proseHeader = "# Figures of TestProse, written by scripts/generate; CONTRIBUTING.md has the rules.\n"

// TestProse compares the prose of product code and documents with the figures in prose.txt. It fails where a figure rose.
func TestProse(t *testing.T) {
	places := countRepository(t)
	listPlaces(t, places)
	have := map[string]int{}
	for rule := range proseRules {
		have[rule] = len(places[rule])
	}
	if *update {
		if err := os.WriteFile("prose.txt", []byte(formatFigures(have)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile("prose.txt")
	if err != nil {
		t.Fatal(err)
	}
	want, err := parseFigures(string(text))
	if err != nil {
		t.Fatalf("prose.txt: %v; run scripts/generate", err)
	}
	for _, c := range compareFigures(have, want) {
		switch {
		case c.fell:
			t.Log("NOTE: " + c.text) // the gate prints it
		case c.rose:
			c.text += "; likely the new ones:\n" + lines(likely(places[c.rule], addedLines(t)))
			c.text += "all: go test ./internal/archtest -run '^TestProse$' -v -list-prose " + c.rule
			fallthrough
		default:
			t.Error(c.text)
		}
	}
}

// listPlaces logs the places that -list-prose requests.
func listPlaces(t *testing.T, places map[string][]place) {
	t.Helper()
	known := *listProse == ""
	for _, rule := range slices.Sorted(maps.Keys(proseRules)) {
		if rule == *listProse || strings.HasSuffix(rule, "."+*listProse) {
			known = true
			t.Logf("%s, %d: %s\n%s", rule, len(places[rule]), proseRules[rule], lines(places[rule]))
		}
	}
	if !known {
		t.Fatalf("-list-prose %s: unknown figure; prose.txt has the figures", *listProse)
	}
}

// countRepository counts the tracked files of product code and the tracked documents.
func countRepository(t *testing.T) map[string][]place {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skip("the tracked files are unknown: this folder is not a git checkout")
	}
	_, _ = os.Stat(filepath.Join(root, ".git", "index")) // go test keeps no cached result after git add
	list, err := os.ReadFile("prose-words.txt")
	if err != nil {
		t.Fatal(err)
	}
	count := newProseCount(string(list))
	files := strings.Split(strings.TrimSuffix(git(t, root, "ls-files", "-z"), "\x00"), "\x00")
	var modules []string // the other modules' folders
	for _, file := range files {
		if path.Base(file) == "go.mod" && file != "go.mod" {
			modules = append(modules, path.Dir(file))
		}
	}
	counted := 0
	for _, file := range files {
		code, test := isProductCode(file, modules), strings.HasSuffix(file, "_test.go")
		if !code && !test && !isDocument(file) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, file))
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed, and still in the index
			continue
		case err == nil && code:
			err = count.goFile(file, text)
		case err == nil && test:
			err = count.testFile(file, text)
		case err == nil:
			count.document(file, string(text))
		}
		if err != nil {
			t.Fatal(err)
		}
		counted++
	}
	if counted < 50 {
		t.Fatalf("only %d files counted", counted)
	}
	count.types()
	return count.places
}

// isProductCode reports whether a file is Go code of the root module that is neither a test nor generated.
func isProductCode(file string, modules []string) bool {
	name := path.Base(file)
	generated := strings.HasPrefix(name, "zz_") ||
		strings.HasSuffix(name, ".pb.go") || strings.HasSuffix(name, "_generated.go")
	return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && !generated &&
		!slices.Contains(strings.Split(file, "/"), "testdata") &&
		!slices.ContainsFunc(modules, func(folder string) bool { return within(file, folder) })
}

// isDocument reports whether a file is one of the documents whose prose is counted.
func isDocument(file string) bool {
	return within(file, "docs") && strings.HasSuffix(file, ".md") ||
		slices.Contains([]string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"}, file)
}

// complaint describes a figure that differs from prose.txt.
type complaint struct {
	rule, text string
	rose, fell bool
}

// compareFigures returns a complaint for each figure that differs.
func compareFigures(have, want map[string]int) (list []complaint) {
	for _, rule := range slices.Sorted(maps.Keys(have)) {
		was, known := want[rule]
		switch now := have[rule]; {
		case !known:
			text := rule + " is missing in prose.txt: run scripts/generate"
			list = append(list, complaint{rule: rule, text: text})
		case now > was:
			text := fmt.Sprintf("%s rose from %d to %d: %s", rule, was, now, proseRules[rule])
			list = append(list, complaint{rule: rule, text: text, rose: true})
		case now < was:
			text := fmt.Sprintf("%s fell from %d to %d: scripts/generate writes it to %s", rule, was, now, figuresFile)
			list = append(list, complaint{rule: rule, text: text, fell: true})
		}
	}
	return list
}

// formatFigures returns the text of prose.txt.
func formatFigures(figures map[string]int) string {
	var b strings.Builder
	b.WriteString(proseHeader)
	for _, rule := range slices.Sorted(maps.Keys(figures)) {
		fmt.Fprintf(&b, "%s %d\n", rule, figures[rule])
	}
	return b.String()
}

// parseFigures parses prose.txt: comments, and lines of a name and a number.
func parseFigures(text string) (map[string]int, error) {
	figures := map[string]int{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.Atoi(value)
		if err != nil || proseRules[name] == "" {
			return nil, fmt.Errorf("%q is no figure and its number", strings.TrimSpace(line))
		}
		figures[name] = n
	}
	return figures, nil
}

// likely returns the first ten places on added lines, or the first ten of all if none is on an added line.
func likely(places []place, added map[string]map[int]bool) []place {
	list := slices.DeleteFunc(slices.Clone(places), func(p place) bool { return !added[p.file][p.line] })
	if len(list) == 0 {
		list = places
	}
	return list[:min(10, len(list))]
}

// lines returns the places, one a line.
func lines(places []place) string {
	var b strings.Builder
	for _, p := range places {
		fmt.Fprintln(&b, "   ", p)
	}
	return b.String()
}

// addedLines returns the lines that differ, by file, since the commit that last changed prose.txt.
func addedLines(t *testing.T) map[string]map[int]bool {
	t.Helper()
	base := strings.TrimSpace(git(t, root, "log", "-1", "--format=%H", "--", figuresFile))
	if base == "" {
		return nil
	}
	diff := git(t, root, "diff", "-U0", "--no-color", "--no-ext-diff", "--dst-prefix=b/", base, "--", "*.go", "*.md")
	return parseDiff(diff)
}

// parseDiff returns the line numbers that a diff without context adds to each file.
func parseDiff(diff string) map[string]map[int]bool {
	added, file := map[string]map[int]bool{}, ""
	for line := range strings.Lines(diff) {
		if name, ok := strings.CutPrefix(line, "+++ b/"); ok {
			file = strings.TrimSpace(name)
			added[file] = map[int]bool{}
		}
		var first, n int
		_, hunk, ok := strings.Cut(line, " +")
		if !ok || !strings.HasPrefix(line, "@@ ") {
			continue
		}
		if _, err := fmt.Sscanf(hunk, "%d,%d", &first, &n); err != nil {
			n = 1 // a hunk of one line has no count
		}
		for i := range n {
			added[file][first+i] = true
		}
	}
	return added
}

// git returns the output of a git command in a folder.
func git(t *testing.T, folder string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = folder
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}
