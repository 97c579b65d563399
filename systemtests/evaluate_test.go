package systemtests

import (
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// Parts of texts that an evaluator does not know: unique stands for random characters of a test's own, unknown for
// anything else.
const (
	unique  = "\uE000"
	unknown = "\uE001"
)

// evaluated is the value of an expression: a text, a slice of texts or a function literal.
type evaluated struct {
	text     string
	list     []string
	isList   bool
	typeName string // without its package; empty if it is not known
	literal  *ast.FuncLit
	scope    *evaluatedScope // of literal
}

var unknownValue = evaluated{text: unknown}

// evaluatedScope holds the variables of a function.
type evaluatedScope struct {
	variables map[string]evaluated
	parent    *evaluatedScope
}

func newScope(parent *evaluatedScope) *evaluatedScope {
	return &evaluatedScope{map[string]evaluated{}, parent}
}

// holder returns the innermost scope that declares a variable, nil if there is none.
func (s *evaluatedScope) holder(name string) *evaluatedScope {
	for ; s != nil; s = s.parent {
		if _, known := s.variables[name]; known {
			return s
		}
	}
	return nil
}

// declarations are the functions, methods, structs, constants and variables of packages, by name.
type declarations struct {
	functions map[string][]*ast.FuncDecl
	methods   map[string][]*ast.FuncDecl // by their own name
	structs   map[string]*ast.StructType
	values    map[string]ast.Expr
}

func declarationsOf(files []*ast.File) *declarations {
	d := &declarations{
		functions: map[string][]*ast.FuncDecl{},
		methods:   map[string][]*ast.FuncDecl{},
		structs:   map[string]*ast.StructType{},
		values:    map[string]ast.Expr{},
	}
	for _, file := range files {
		for _, decl := range file.Decls {
			d.add(decl)
		}
	}
	return d
}

func (d *declarations) add(decl ast.Decl) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		of := d.functions
		if decl.Recv != nil {
			of = d.methods
		}
		of[decl.Name.Name] = append(of[decl.Name.Name], decl)
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			d.addSpec(spec)
		}
	}
}

func (d *declarations) addSpec(spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		if s, is := spec.Type.(*ast.StructType); is {
			d.structs[spec.Name.Name] = s
		}
	case *ast.ValueSpec:
		for i, name := range spec.Names {
			if len(spec.Values) == len(spec.Names) {
				d.values[name.Name] = spec.Values[i]
			}
		}
	}
}

// typeNameOf returns the name of a type or of the type that it points to, without its package.
func typeNameOf(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.StarExpr:
		return typeNameOf(x.X)
	case *ast.SelectorExpr:
		return x.Sel.Name
	case *ast.Ident:
		return x.Name
	}
	return ""
}

// methodsOf returns the methods of a name that a type has, of itself or by embedding. If the type is not known they are
// those of all types.
func (d *declarations) methodsOf(typeName, name string) (list []*ast.FuncDecl) {
	for _, m := range d.methods[name] {
		if typeName == "" || typeNameOf(m.Recv.List[0].Type) == typeName {
			list = append(list, m)
		}
	}
	if s := d.structs[typeName]; s != nil && len(list) == 0 {
		for _, f := range s.Fields.List {
			if len(f.Names) == 0 {
				list = append(list, d.methodsOf(typeNameOf(f.Type), name)...)
			}
		}
	}
	return list
}

// fieldType returns the name of the type of a struct's field, of itself or by embedding; empty if it is not known.
func (d *declarations) fieldType(typeName, name string) (found string) {
	s := d.structs[typeName]
	if s == nil {
		return ""
	}
	for _, f := range s.Fields.List {
		ofField := typeNameOf(f.Type)
		for _, n := range f.Names {
			if n.Name == name {
				return ofField
			}
		}
		switch embedded := len(f.Names) == 0; {
		case embedded && ofField == name:
			return ofField
		case embedded && found == "":
			found = d.fieldType(ofField, name)
		}
	}
	return found
}

// parseFiles parses the Go files that match patterns, in other folders without tests.
func parseFiles(t *testing.T, patterns ...string) (files []*ast.File) {
	t.Helper()
	for _, pattern := range patterns {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.Contains(name, "/") && strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
	}
	return files
}

// An evaluator walks through a test function and the functions that it calls, in the order of the source. It evaluates
// texts: literals, constants, variables, concatenation, fmt.Sprintf, strings.ReplaceAll and parameters of calls.
// It walks through all branches once, so that a variable has the value of its last assignment. Where the type of a value
// is not known, a method stands for the methods of that name of all types.
type evaluator struct {
	*declarations
	skip    map[string]bool // functions that it does not walk through
	call    func(method string, args []evaluated) (seen bool)
	walking map[*ast.FuncDecl]bool
	results map[string]evaluated // of functions that it has walked through, by position and arguments
}

func newEvaluator(d *declarations, skip map[string]bool, call func(method string, args []evaluated) bool) *evaluator {
	return &evaluator{
		declarations: d,
		skip:         skip,
		call:         call,
		walking:      map[*ast.FuncDecl]bool{},
		results:      map[string]evaluated{},
	}
}

// run walks through a top-level function with unknown arguments.
func (e *evaluator) run(name string) {
	for _, f := range e.functions[name] {
		e.enter(f, nil)
	}
}

// enter walks through a function and returns the first result of its last return statement.
func (e *evaluator) enter(f *ast.FuncDecl, args []evaluated) evaluated {
	if e.walking[f] || f.Body == nil || e.skip[f.Name.Name] {
		return unknownValue
	}
	key := fmt.Sprintf("%p %v", f, args)
	if known, walked := e.results[key]; walked {
		return known
	}
	e.walking[f] = true
	defer delete(e.walking, f)
	s := newScope(nil)
	if f.Recv != nil {
		bind(s, f.Recv, nil)
	}
	bind(s, f.Type.Params, args)
	v := e.block(f.Body, s)
	if f.Type.Results != nil {
		v.typeName = typeNameOf(f.Type.Results.List[0].Type)
	}
	e.results[key] = v
	return v
}

// bind declares parameters with the values of arguments, or unknown ones.
func bind(s *evaluatedScope, params *ast.FieldList, args []evaluated) {
	for _, field := range params.List {
		for _, name := range field.Names {
			v := unknownValue
			if _, variadic := field.Type.(*ast.Ellipsis); variadic {
				v = listOf(args)
			} else if len(args) > 0 {
				v = args[0]
			}
			v.typeName = typeNameOf(field.Type)
			s.variables[name.Name] = v
			args = args[min(1, len(args)):]
		}
		if len(field.Names) == 0 {
			args = args[min(1, len(args)):]
		}
	}
}

// listOf returns the slice of a variadic parameter: the arguments, or the one that is a slice already.
func listOf(args []evaluated) evaluated {
	if len(args) == 1 && args[0].isList {
		return args[0]
	}
	list := evaluated{isList: true}
	for _, a := range args {
		list.list = append(list.list, a.text)
	}
	return list
}

// block walks through statements and returns the first result of the last return statement.
func (e *evaluator) block(body ast.Node, s *evaluatedScope) (result evaluated) {
	result = unknownValue
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			e.assign(n, s)
		case *ast.ValueSpec:
			for i, name := range n.Names {
				v := unknownValue
				if i < len(n.Values) {
					v = e.eval(n.Values[i], s)
				}
				if n.Type != nil {
					v.typeName = typeNameOf(n.Type)
				}
				s.variables[name.Name] = v
			}
		case *ast.RangeStmt:
			e.loop(n, s)
		case *ast.ReturnStmt:
			for i, r := range n.Results {
				if v := e.eval(r, s); i == 0 {
					result = v
				}
			}
		case ast.Expr:
			e.eval(n, s)
		default:
			return true
		}
		return false
	})
	return result
}

// loop walks through the body of a range statement: once for each element of a slice of texts, or once.
func (e *evaluator) loop(n *ast.RangeStmt, s *evaluatedScope) {
	over := e.eval(n.X, s)
	inner := newScope(s)
	declare := func(x ast.Expr, v evaluated) {
		if name, is := x.(*ast.Ident); is {
			inner.variables[name.Name] = v
		}
	}
	declare(n.Key, unknownValue)
	elements := []string{unknown}
	if over.isList {
		elements = over.list
	}
	for _, text := range elements {
		declare(n.Value, evaluated{text: text})
		e.block(n.Body, inner)
	}
}

func (e *evaluator) assign(n *ast.AssignStmt, s *evaluatedScope) {
	for i, right := range n.Rhs {
		v := e.value(right, s)
		if name, is := n.Lhs[i].(*ast.Ident); is {
			e.set(name.Name, n.Tok, v, s)
		}
	}
	for _, left := range n.Lhs[len(n.Rhs):] { // results of a call after the first one
		if name, is := left.(*ast.Ident); is {
			e.set(name.Name, n.Tok, unknownValue, s)
		}
	}
}

// value evaluates what is assigned. It does not walk through a function literal: its calls follow.
func (e *evaluator) value(x ast.Expr, s *evaluatedScope) evaluated {
	if literal, is := x.(*ast.FuncLit); is {
		return evaluated{text: unknown, literal: literal, scope: s}
	}
	return e.eval(x, s)
}

func (e *evaluator) set(name string, operator gotoken.Token, v evaluated, s *evaluatedScope) {
	holder := s.holder(name)
	if operator == gotoken.DEFINE || holder == nil {
		holder = s
	}
	if operator == gotoken.ADD_ASSIGN {
		v.text = holder.variables[name].text + v.text
	}
	holder.variables[name] = v
}

// eval returns the value of an expression and walks through the calls in it.
func (e *evaluator) eval(x ast.Expr, s *evaluatedScope) evaluated {
	switch x := x.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(x.Value); err == nil {
			return evaluated{text: text}
		}
		return evaluated{text: x.Value}
	case *ast.Ident:
		return e.variable(x.Name, s)
	case *ast.ParenExpr:
		return e.eval(x.X, s)
	case *ast.BinaryExpr:
		left, right := e.eval(x.X, s), e.eval(x.Y, s)
		if x.Op == gotoken.ADD {
			return evaluated{text: left.text + right.text}
		}
	case *ast.SelectorExpr:
		return e.field(x, s)
	case *ast.CallExpr:
		return e.evalCall(x, s)
	case *ast.CompositeLit:
		return e.composite(x, s)
	case *ast.FuncLit: // an argument, or an element
		inner := newScope(s)
		bind(inner, x.Type.Params, nil)
		e.block(x.Body, inner)
		return evaluated{text: unknown, literal: x, scope: s}
	case *ast.SliceExpr:
		return e.eval(x.X, s)
	case *ast.KeyValueExpr:
		return e.eval(x.Value, s)
	case *ast.UnaryExpr:
		return e.eval(x.X, s)
	case *ast.StarExpr:
		return e.eval(x.X, s)
	case *ast.IndexExpr:
		e.eval(x.X, s)
		e.eval(x.Index, s)
	}
	return unknownValue
}

func (e *evaluator) variable(name string, s *evaluatedScope) evaluated {
	if holder := s.holder(name); holder != nil {
		return holder.variables[name]
	}
	if x, known := e.values[name]; known {
		if _, literal := x.(*ast.FuncLit); !literal {
			return e.eval(x, newScope(nil))
		}
	}
	return unknownValue
}

// field returns the value of a field: the random id of a test, a method of net/http, or an unknown one.
func (e *evaluator) field(x *ast.SelectorExpr, s *evaluatedScope) evaluated {
	if x.Sel.Name == "id" {
		return evaluated{text: unique}
	}
	if p, is := x.X.(*ast.Ident); is && p.Name == "http" {
		if method, is := strings.CutPrefix(x.Sel.Name, "Method"); is {
			return evaluated{text: strings.ToUpper(method)}
		}
	}
	return evaluated{text: unknown, typeName: e.fieldType(e.eval(x.X, s).typeName, x.Sel.Name)}
}

// composite returns the value of a slice of texts, or an unknown one of a type.
func (e *evaluator) composite(x *ast.CompositeLit, s *evaluatedScope) evaluated {
	list := evaluated{text: unknown, typeName: typeNameOf(x.Type)}
	if array, is := x.Type.(*ast.ArrayType); is {
		element, named := array.Elt.(*ast.Ident)
		list.isList = named && element.Name == "string"
	}
	for _, element := range x.Elts {
		list.list = append(list.list, e.eval(element, s).text)
	}
	return list
}

// evalCall evaluates the arguments of a call and walks through the function, unless e.call has seen it.
func (e *evaluator) evalCall(x *ast.CallExpr, s *evaluatedScope) evaluated {
	args := make([]evaluated, 0, len(x.Args))
	for _, a := range x.Args {
		args = append(args, e.eval(a, s))
	}
	switch f := x.Fun.(type) {
	case *ast.Ident:
		if v := e.variable(f.Name, s); v.literal != nil {
			inner := newScope(v.scope)
			bind(inner, v.literal.Type.Params, args)
			return e.block(v.literal.Body, inner)
		}
		return e.result("", f.Name, args, e.functions[f.Name])
	case *ast.SelectorExpr:
		return e.evalSelected(f, args, s)
	case *ast.ArrayType: // a conversion to a slice of bytes
		return first(args)
	}
	e.eval(x.Fun, s)
	return unknownValue
}

// evalSelected returns the result of a function of a package, or of a method.
func (e *evaluator) evalSelected(f *ast.SelectorExpr, args []evaluated, s *evaluatedScope) evaluated {
	p, is := f.X.(*ast.Ident)
	switch {
	case !is || s.holder(p.Name) != nil || e.values[p.Name] != nil:
		return e.result("method", f.Sel.Name, args, e.methodsOf(e.eval(f.X, s).typeName, f.Sel.Name))
	case p.Name == "cluster":
		return e.result(p.Name, f.Sel.Name, args, e.functions[f.Sel.Name])
	}
	return e.result(p.Name, f.Sel.Name, args, nil)
}

// result returns the result of a call; from is its package, "method", or empty for functions of the caller's package.
func (e *evaluator) result(from, name string, args []evaluated, declared []*ast.FuncDecl) evaluated {
	texts := make([]string, 0, len(args))
	for _, a := range args {
		texts = append(texts, a.text)
	}
	switch call := strings.TrimPrefix(from+"."+name, "."); {
	case call == "fmt.Sprintf" && len(args) > 0:
		return evaluated{text: format(texts[0], args[1:])}
	case call == "fmt.Appendf" && len(args) > 1:
		return evaluated{text: format(texts[1], args[2:])}
	case (call == "strings.ReplaceAll" || call == "strings.Replace") && len(args) > 2:
		return evaluated{text: strings.ReplaceAll(texts[0], texts[1], texts[2])}
	case call == "strings.ToLower", call == "strings.TrimSpace", call == "string", call == "json.RawMessage":
		return first(args)
	case call == "append" && len(args) > 0:
		return evaluated{text: unknown, list: slices.Concat(args[0].list, listOf(args[1:]).list), isList: args[0].isList}
	case call == "rand.Text", call == "method.Name":
		return evaluated{text: unique}
	case (call == "cluster.PathOf" || call == "PathOf") && len(args) == 3:
		return evaluated{text: cluster.PathOf(texts[0], texts[1], texts[2])}
	case (call == "cluster.Path" || call == "Path") && len(args) == 4:
		return evaluated{text: cluster.Path(texts[0], texts[1], texts[2], texts[3])}
	case from == "method" && e.call(name, args):
		return unknownValue
	}
	v := unknownValue
	for _, f := range declared {
		v = e.enter(f, args)
	}
	return v
}

func first(args []evaluated) evaluated {
	if len(args) == 0 {
		return unknownValue
	}
	return args[0]
}

// verb matches a verb of package fmt; the number is the index of its argument.
var verb = regexp.MustCompile(`%[-+# 0-9.*]*(?:\[(\d+)\])?([a-zA-Z%])`)

// format returns fmt.Sprintf of texts.
func format(text string, args []evaluated) string {
	next := 0
	return verb.ReplaceAllStringFunc(text, func(v string) string {
		m := verb.FindStringSubmatch(v)
		if m[2] == "%" {
			return "%"
		}
		if n, err := strconv.Atoi(m[1]); err == nil {
			next = n - 1
		}
		if next >= len(args) {
			return unknown
		}
		next++
		if m[2] == "q" {
			return strconv.Quote(args[next-1].text)
		}
		return args[next-1].text
	})
}
