package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// testName is a test as the documents name it: folder.Name, or folder.Name/subtest.
var testName = regexp.MustCompile("`([a-z0-9/-]+)\\.(Test[A-Za-z0-9_]+)(?:/([^`]+))?`")

// tableRows are the rows of the tables in a document, without their headings.
func tableRows(text string) (rows []string) {
	before := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "|--"):
			before = "" // the line before was the heading
		case strings.HasPrefix(line, "|"):
			if before != "" {
				rows = append(rows, before)
			}
			before = line
		default:
			if before != "" {
				rows = append(rows, before)
			}
			before = ""
		}
	}
	if before != "" {
		rows = append(rows, before)
	}
	return rows
}

// tests are those that a folder has: the functions, and all strings in its test files, of which some name subtests.
type tests struct{ functions, texts map[string]bool }

func testsIn(folder string) (tests, error) {
	found := tests{map[string]bool{}, map[string]bool{}}
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	if err != nil {
		return found, err
	}
	for _, file := range files {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return found, err
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				found.functions[n.Name.Name] = true
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					found.texts[text] = true
				}
			}
			return true
		})
	}
	return found, nil
}

// unproven tells what is wrong with a row: that it names no test, or one that is not there.
func unproven(t *testing.T, row string) (list []string) {
	t.Helper()
	named := testName.FindAllStringSubmatch(row, -1)
	if len(named) == 0 {
		list = append(list, "names no test: "+row)
	}
	for _, n := range named {
		found, err := testsIn(n[1])
		if err != nil {
			t.Fatal(err)
		}
		if !found.functions[n[2]] || n[3] != "" && !found.texts[n[3]] {
			list = append(list, n[0]+" does not exist")
		}
	}
	return list
}

// TestEveryTrapHasATest holds docs/traps.md to the tests.
func TestEveryTrapHasATest(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/traps.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := tableRows(string(text))
	if len(rows) < 30 {
		t.Fatalf("only %d traps found", len(rows))
	}
	for _, row := range rows {
		for _, complaint := range unproven(t, row) {
			t.Error(complaint)
		}
	}
}

// anyTest is a test as documents for users name it, without its folder.
var anyTest = regexp.MustCompile("`(?:[a-z0-9/.-]+\\.)?((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9_]*)")

// allTests are the names of the tests of all folders.
func allTests(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Za-z0-9_]+)\(`)

// unshown tells what is wrong with a row of docs/semantics.md: that its last cell names no test, or one that is not there.
func unshown(row string, names map[string]bool) (list []string) {
	cells := strings.Split(strings.TrimSuffix(row, "|"), "|")
	if !anyTest.MatchString(cells[len(cells)-1]) {
		list = append(list, "names no test: "+row)
	}
	for _, m := range anyTest.FindAllStringSubmatch(row, -1) {
		if !names[m[1]] {
			list = append(list, m[1]+" does not exist")
		}
	}
	return list
}

// maxArchitectureWords keeps ARCHITECTURE.md readable at one sitting.
const maxArchitectureWords = 900

// quotedPath matches a path of the repository in a table of ARCHITECTURE.md.
var quotedPath = regexp.MustCompile("`([a-z]+(?:/[a-z0-9_./-]+)?)`")

// wrongPlaces returns the paths in the right column of a table's rows that do not exist.
func wrongPlaces(rows []string) (list []string) {
	for _, row := range rows {
		cells := strings.Split(row, "|")
		paths := quotedPath.FindAllStringSubmatch(cells[len(cells)-2], -1)
		if len(paths) == 0 {
			list = append(list, "no path: "+row)
		}
		for _, path := range paths {
			if _, err := os.Stat(filepath.Join(root, path[1])); err != nil {
				list = append(list, "no such path: "+path[1])
			}
		}
	}
	return list
}

func TestArchitecture_PathsExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(strings.Fields(string(text))); n > maxArchitectureWords {
		t.Errorf("ARCHITECTURE.md has %d words, the limit is %d", n, maxArchitectureWords)
	}
	rows := tableRows(string(text))
	if len(rows) < 20 {
		t.Errorf("only %d rows", len(rows))
	}
	for _, complaint := range wrongPlaces(rows) {
		t.Error(complaint)
	}
}

func TestWrongPlaces_ReportsAbsentPaths(t *testing.T) {
	for row, want := range map[string]int{
		"| a thing | `netmaster/nowhere` |":               1,
		"| a thing | somewhere |":                         1,
		"| a thing | `netmaster`, `no/such.go` |":         1,
		"| `not/a/path` | `netmaster/feed`, text |":       0,
		"| a thing | `netplugin/agent/driftcheck.go`   |": 0,
	} {
		if got := wrongPlaces([]string{row}); len(got) != want {
			t.Errorf("%s: %v", row, got)
		}
	}
}

// TestEveryMeaningHasATest holds docs/semantics.md to the tests.
func TestEveryMeaningHasATest(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/semantics.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows, names := tableRows(string(text)), allTests(t)
	if len(rows) < 40 {
		t.Fatalf("only %d meanings found", len(rows))
	}
	for _, row := range rows {
		for _, complaint := range unshown(row, names) {
			t.Error(complaint)
		}
	}
}

func TestTheTestOfMeaningsCanFail(t *testing.T) {
	names := map[string]bool{"TestOne": true}
	for row, want := range map[string]int{
		"| a field | a meaning | |":                        1,
		"| a field | a meaning, as `TestOne` has it | |":   1,
		"| a field | a meaning | `TestNobodyWrote` |":      1,
		"| a field | a meaning | packets: `TestOne` |":     0,
		"| a field | a meaning | `some/folder.TestOne` |":  0,
		"| a field | a meaning | `TestOne`, `TestOther` |": 1,
	} {
		if got := unshown(row, names); len(got) != want {
			t.Errorf("%s: %v", row, got)
		}
	}
}

func TestTheTrapTestCanFail(t *testing.T) {
	for row, want := range map[string]int{
		"| a trap | none |": 1,
		"| a trap | `internal/archtest.TestNobodyWrote` |":                                             1,
		"| a trap | `no/such/folder.TestEveryTrapHasATest` |":                                          1,
		"| a trap | `internal/archtest.TestEveryTrapHasATest/with a subtest that is not " + "there` |": 1,
		"| a trap | `internal/archtest.TestEveryTrapHasATest`, `internal/archtest.TestImportTable` |":  0,
	} {
		if got := unproven(t, row); len(got) != want {
			t.Errorf("%s: %v", row, got)
		}
	}
}
