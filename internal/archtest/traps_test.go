package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// testName is a test as the documents name it: folder.Name, or folder.Name/subtest.
var testName = regexp.MustCompile("`([a-z0-9/-]+)\\.(Test[A-Za-z0-9]+)(?:/([^`]+))?`")

// trapRows are the rows of the tables in a document, without their headings.
func trapRows(text string) (rows []string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| trap |") {
			rows = append(rows, line)
		}
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
	rows := trapRows(string(text))
	if len(rows) < 30 {
		t.Fatalf("only %d traps found", len(rows))
	}
	for _, row := range rows {
		for _, complaint := range unproven(t, row) {
			t.Error(complaint)
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
