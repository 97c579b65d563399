package reference

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
)

var update = flag.Bool("update", false, "write docs/reference anew")

func TestReference(t *testing.T) {
	CheckFile(t, Events(), "../../docs/reference/events.md", *update)
	CheckFile(t, Keys(), "../../docs/reference/annotations.md", *update)
	CheckFile(t, Ports(), "../../docs/reference/ports.md", *update)
}

// strings of a file's sources that are literals.
func literals(t *testing.T, file string) (all []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if text, err := strconv.Unquote(l.Value); err == nil {
				all = append(all, text)
			}
		}
		return true
	})
	return all
}

// constants of api/wellknown, by their names.
func constants(t *testing.T, prefix string) (names []string) {
	t.Helper()
	files, err := filepath.Glob("../../api/wellknown/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal("no sources", err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, prefix) && v.Names[0].Name != prefix+"s" {
				names = append(names, v.Names[0].Name)
			}
			return true
		})
	}
	return names
}

// Each constant is described, once.
func TestTablesAreComplete(t *testing.T) {
	tables := read(t, "../../api/wellknown/events.go") + read(t, "../../api/wellknown/keys.go")
	names := slices.Concat(constants(t, "Event"), constants(t, "Annotation"), constants(t, "Label"))
	if len(names) < 20 {
		t.Fatalf("only %d constants were seen", len(names))
	}
	for _, name := range names {
		row := regexp.MustCompile(`\n\t\{\s*` + name + ", ")
		if n := len(row.FindAllString(tables, -1)); n != 1 {
			t.Errorf("%s has %d rows in its table", name, n)
		}
	}
	seen := map[wellknown.EventReason]bool{}
	for _, e := range wellknown.Events {
		if seen[e.Reason] || e.Kind == "" || e.APIVersion == "" || e.Writer == "" || e.Means == "" || e.Do == "" {
			t.Errorf("%s is there twice, or not all is told of it", e.Reason)
		}
		seen[e.Reason] = true
	}
	for _, k := range wellknown.Keys {
		if k.On == "" || k.Writes == "" || k.Reads == "" || k.Values == "" {
			t.Errorf("not all is told of %s", k.Name)
		}
	}
}

var ours = regexp.MustCompile(`^([a-z]+\.)?flowkeep\.io/[a-z0-9-]+$`)

// No program has an annotation or a label of ours that is not of the table: they are written in api/wellknown alone.
func TestKeysAreOfTheTable(t *testing.T) {
	names := map[string]bool{"flowkeep.io/gateway-sync": true} // a controllerName
	for _, root := range []string{"api", "internal", "netctl", "netmaster", "netplugin", "ofctl", "policydb"} {
		err := filepath.WalkDir("../../"+root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			if strings.Contains(path, "/api/wellknown/") {
				return nil
			}
			for _, text := range literals(t, path) {
				if ours.MatchString(text) && !names[text] {
					t.Errorf("%s writes %q itself: it belongs into api/wellknown", path, text)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Chapters to which the reference leads are there.
func TestReferenceLeadsSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([a-z./-]+\.md)(?:#([a-z0-9-]+))?\)`)
	for _, text := range []string{Events(), Keys(), Ports()} {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			file := filepath.Join("../../docs/reference", m[1])
			if _, err := os.Stat(file); err != nil {
				t.Error(err)
			} else if m[2] != "" && !slices.Contains(chapters(read(t, file)), m[2]) {
				t.Errorf("%s has no chapter #%s", m[1], m[2])
			}
		}
	}
}

var (
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notSlug = regexp.MustCompile(`[^a-z0-9 -]`)
)

// chapters of a document, as GitHub names them.
func chapters(text string) (all []string) {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		all = append(all, strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}
