package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxColumns = 120
	maxMethods = 25
	maxLines   = 600
)

// proseRules describes every figure that prose.txt holds.
var proseRules = map[string]string{
	"code.comments": "the comment of a function begins with a verb, not with is, are, tells or has",
	"code.files":    fmt.Sprintf("a file of Go has at most %d lines; each line of a longer one counts", maxLines),
	"code.limits":   "the name of a limit begins with max, not with most or longest",
	"code.lines":    fmt.Sprintf("a line of Go has at most %d columns, a tab counting as 4", maxColumns),
	"code.types":    fmt.Sprintf("a type has at most %d methods; each method of a larger one counts", maxMethods),
	"code.words":    "Go comments use no word of internal/archtest/prose-words.txt",
	"docs.lines":    fmt.Sprintf("a line of a document has at most %d columns, table rows excepted", maxColumns),
	"docs.words":    "documents use no word of internal/archtest/prose-words.txt outside code blocks",
	"tests.sleeps":  "tests wait for conditions: they have no time.Sleep outside of loops and synctest.Test",
}

// place is one violation of a rule.
type place struct {
	file string
	line int
	text string
}

func (p place) String() string { return fmt.Sprintf("%s:%d: %s", p.file, p.line, p.text) }

// proseCount collects the places that violate each rule.
type proseCount struct {
	words   *regexp.Regexp
	places  map[string][]place
	methods map[string][]place // by folder and type
}

// newProseCount returns an empty count for a list of words, one a line.
func newProseCount(list string) *proseCount {
	var words []string
	for line := range strings.Lines(list) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			words = append(words, strings.Join(strings.Fields(regexp.QuoteMeta(line)), `\s+`))
		}
	}
	pattern := regexp.MustCompile(`(?i)\b(?:` + strings.Join(words, "|") + `)\b`)
	return &proseCount{words: pattern, places: map[string][]place{}, methods: map[string][]place{}}
}

// add records a violation.
func (c *proseCount) add(rule, file string, line int, text string) {
	c.places[rule] = append(c.places[rule], place{file, line, text})
}

// goFile counts one Go file.
func (c *proseCount) goFile(file string, source []byte) error {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, file, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	c.longLines("code.lines", file, strings.Split(string(source), "\n"))
	if n := strings.Count(string(source), "\n"); n > maxLines {
		for line := range n {
			c.add("code.files", file, line+1, fmt.Sprintf("the file has %d lines", n))
		}
	}
	for _, group := range tree.Comments {
		c.listedWords("code.words", file, fset.Position(group.Pos()).Line, commentText(group, fset))
	}
	for _, decl := range tree.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			c.function(file, fset.Position(decl.Pos()).Line, decl)
		case *ast.GenDecl:
			c.limits(file, fset, decl)
		}
	}
	return nil
}

// testFile counts the sleeps of one file of tests. A loop may sleep between two looks at a condition, and a sleep in a
// bubble of synctest.Test takes no time.
func (c *proseCount) testFile(file string, source []byte) error {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, file, source, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			return false
		case *ast.CallExpr:
			switch calledName(n) {
			case "synctest.Test":
				return false
			case "time.Sleep":
				c.add("tests.sleeps", file, fset.Position(n.Pos()).Line, "time.Sleep")
			}
		}
		return true
	})
	return nil
}

// calledName returns the name of a called function of another package, "" for other functions.
func calledName(call *ast.CallExpr) string {
	if s, ok := call.Fun.(*ast.SelectorExpr); ok {
		if p, ok := s.X.(*ast.Ident); ok {
			return p.Name + "." + s.Sel.Name
		}
	}
	return ""
}

// opening matches a first word that no function's comment has.
var opening = regexp.MustCompile(`^(?i:is|are|tells|has)[,.:;]*$`)

// function counts the first word of a function's comment, and the methods of its receiver.
func (c *proseCount) function(file string, line int, decl *ast.FuncDecl) {
	if decl.Recv != nil && len(decl.Recv.List) == 1 {
		name := path.Dir(file) + "." + receiverType(decl.Recv.List[0].Type)
		c.methods[name] = append(c.methods[name], place{file, line, decl.Name.Name})
	}
	words := strings.Fields(decl.Doc.Text())
	if len(words) > 1 && strings.Trim(words[0], ",.:;") == decl.Name.Name {
		words = words[1:]
	}
	if len(words) > 0 && opening.MatchString(words[0]) {
		c.add("code.comments", file, line, decl.Name.Name+" "+words[0]+" …")
	}
}

var limitName = regexp.MustCompile(`^([mM]ost|[lL]ongest)($|[^a-z])`)

// limits counts the badly named constants and variables of a package.
func (c *proseCount) limits(file string, fset *token.FileSet, decl *ast.GenDecl) {
	for _, spec := range decl.Specs {
		if spec, ok := spec.(*ast.ValueSpec); ok {
			for _, name := range spec.Names {
				if limitName.MatchString(name.Name) {
					c.add("code.limits", file, fset.Position(name.Pos()).Line, name.Name)
				}
			}
		}
	}
}

// types counts the methods of large types, those of the smallest first, once all files have been counted.
func (c *proseCount) types() {
	var names []string
	for name, methods := range c.methods {
		if len(methods) > maxMethods {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := len(c.methods[a]) - len(c.methods[b]); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		for _, method := range c.methods[name] {
			text := fmt.Sprintf("%s: %s has %d methods", method.text, name, len(c.methods[name]))
			c.add("code.types", method.file, method.line, text)
		}
	}
}

// document counts one Markdown file.
func (c *proseCount) document(file, text string) {
	lines := strings.Split(text, "\n")
	prose, rows := slices.Clone(lines), slices.Clone(lines)
	fenced, indented, blank := false, false, true
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		indented = strings.HasPrefix(line, "    ") && (indented || blank)
		if fenced || fence || indented {
			prose[i] = ""
		}
		if fence {
			fenced = !fenced
		}
		if blank = strings.TrimSpace(line) == ""; strings.HasPrefix(strings.TrimSpace(line), "|") {
			rows[i] = ""
		}
	}
	c.longLines("docs.lines", file, rows)
	c.listedWords("docs.words", file, 1, strings.Join(prose, "\n"))
}

// longLines counts the lines above maxColumns.
func (c *proseCount) longLines(rule, file string, lines []string) {
	for i, line := range lines {
		if n := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")); n > maxColumns {
			c.add(rule, file, i+1, fmt.Sprintf("%d columns", n))
		}
	}
}

// listedWords counts the words of the list in a text that begins at a line of its file.
func (c *proseCount) listedWords(rule, file string, first int, text string) {
	for _, at := range c.words.FindAllStringIndex(text, -1) {
		word := strings.Join(strings.Fields(text[at[0]:at[1]]), " ")
		c.add(rule, file, first+strings.Count(text[:at[0]], "\n"), word)
	}
}

// commentText returns the text of a comment group on as many lines as the group has.
func commentText(group *ast.CommentGroup, fset *token.FileSet) string {
	var b strings.Builder
	next := fset.Position(group.Pos()).Line
	for _, comment := range group.List {
		for ; next < fset.Position(comment.Pos()).Line; next++ {
			b.WriteByte('\n')
		}
		b.WriteString(strings.TrimPrefix(comment.Text, "//"))
		next += strings.Count(comment.Text, "\n")
	}
	return b.String()
}

// receiverType returns the name of a receiver's type, without its pointer and type parameters.
func receiverType(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiverType(e.X)
	case *ast.ParenExpr:
		return receiverType(e.X)
	case *ast.IndexExpr:
		return receiverType(e.X)
	case *ast.IndexListExpr:
		return receiverType(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
