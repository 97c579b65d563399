package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// Object is one of a manifest.
type Object struct {
	// Where names the file and the place in it.
	Where                             string
	APIVersion, Kind, Namespace, Name string
	JSON                              []byte
}

// String returns the object's kind and name, such as "NetworkPolicy shop/db".
func (o *Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

func (o *Object) wrap(err error) error { return fmt.Errorf("%s: %v: %w", o.Where, o, err) }

// Limits of what is read.
const (
	maxBytes  = 512 << 20 // of one file
	maxNested = 4         // lists in lists
	maxErrors = 20
)

// extensions are those of the files of a directory that count, as for kubectl.
var extensions = []string{".json", ".yaml", ".yml"}

// Read returns the objects of a file, of the files in a directory (with recursive, of its subdirectories too), or of
// stdin if the name is "-". Its error lists everything that could not be read.
func Read(name string, recursive bool, stdin io.Reader) ([]Object, error) {
	if name == "-" {
		return ReadFrom("stdin", stdin)
	}
	if strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://") {
		return nil, fmt.Errorf("%s: addresses are not fetched; use curl %s | … -f -", name, name)
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return readFile(name)
	}
	names, err := filesIn(name, recursive)
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s has no file that ends with %s%s", name, strings.Join(extensions, ", "),
			map[bool]string{false: "; -R looks below it too"}[recursive])
	}
	if err != nil {
		return nil, err
	}
	var all []Object
	var bad failures
	for _, n := range names {
		list, err := readFile(n)
		all = append(all, list...)
		bad.add(err)
	}
	return all, bad.err()
}

func filesIn(dir string, recursive bool) (names []string, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != dir && !recursive:
			return filepath.SkipDir
		case !entry.IsDir() && slices.Contains(extensions, filepath.Ext(path)):
			names = append(names, path)
		}
		return nil
	})
	return names, err
}

func readFile(name string) ([]Object, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadFrom(name, f)
}

// ReadFrom gives the objects of a text: YAML or JSON, several documents, lists.
func ReadFrom(where string, r io.Reader) ([]Object, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", where, err)
	case len(text) > maxBytes:
		return nil, fmt.Errorf("%s has more than %d MiB", where, maxBytes>>20)
	case !utf8.Valid(text):
		return nil, fmt.Errorf("%s is no text in UTF-8", where)
	}
	var all []Object
	var bad failures
	for i, d := range documents(text) {
		at := fmt.Sprintf("%s, document %d (line %d)", where, i+1, d.line)
		list, err := d.objects(at)
		all = append(all, list...)
		bad.add(err)
	}
	return all, bad.err()
}

// document is a part of a text, and the line that it begins at.
type document struct {
	text []byte
	line int
}

// documents parts a text at the lines that begin with --- or are ..., as YAML has it. Those without content are left
// out.
func documents(text []byte) (list []document) {
	text = bytes.TrimPrefix(text, []byte("\uFEFF"))
	var now []byte
	line, begin := 0, 1
	end := func() {
		if hasContent(now) {
			list = append(list, document{now, begin})
		}
		now = nil
	}
	for l := range bytes.Lines(text) {
		line++
		switch bare := bytes.TrimRight(l, " \t\r\n"); {
		case string(bare) == "...":
			end()
			begin = line + 1
			continue
		case bytes.HasPrefix(l, []byte("---")) && (len(bare) == 3 || l[3] == ' ' || l[3] == '\t'):
			end()
			begin = line
			l = append([]byte("    "), bytes.TrimLeft(l[3:], " \t")...)
		}
		now = append(now, l...)
	}
	end()
	return list
}

// hasContent reports whether the text has anything but comments and directives.
func hasContent(text []byte) bool {
	for l := range bytes.Lines(text) {
		if l = bytes.TrimSpace(l); len(l) > 0 && l[0] != '#' && l[0] != '%' {
			return true
		}
	}
	return false
}

func (d *document) objects(where string) ([]Object, error) {
	values, err := d.values()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	var all []Object
	var bad failures
	for i, v := range values {
		at := where
		if len(values) > 1 {
			at += fmt.Sprintf(", object %d", i+1)
		}
		list, err := objectsOf(at, v, "", "", 0)
		all = append(all, list...)
		bad.add(err)
	}
	return all, bad.err()
}

// values returns the document as JSON, or several values if JSON objects follow each other.
func (d *document) values() (values []json.RawMessage, err error) {
	if text := bytes.TrimSpace(d.text); text[0] == '{' {
		if values, err = jsonValues(text); err == nil {
			return values, nil
		}
	}
	one, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		return nil, d.lineError(err)
	}
	if string(bytes.TrimSpace(one)) == "null" {
		return nil, nil
	}
	return []json.RawMessage{one}, nil
}

func jsonValues(text []byte) (values []json.RawMessage, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	for {
		var v json.RawMessage
		if err := dec.Decode(&v); errors.Is(err, io.EOF) {
			return values, nil
		} else if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
}

var lineNumber = regexp.MustCompile(`line (\d+)`)

// lineError counts lines from the beginning of the file.
func (d *document) lineError(err error) error {
	text := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	text = lineNumber.ReplaceAllStringFunc(text, func(s string) string {
		n, err := strconv.Atoi(s[len("line "):])
		if err != nil {
			return s
		}
		return fmt.Sprintf("line %d", n+d.line-1)
	})
	return errors.New(shorten(strings.ReplaceAll(text, "\n", " ")))
}

// shorten bounds what is said of hostile input.
func shorten(text string) string {
	const most = 400
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// header is what every object has.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name         string `json:"name"`
		GenerateName string `json:"generateName"`
		Namespace    string `json:"namespace"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

// objectsOf returns an object, or the items of a list. The items of a typed list may omit apiVersion and kind.
func objectsOf(where string, text []byte, apiVersion, kind string, depth int) ([]Object, error) {
	var h header
	if err := json.Unmarshal(text, &h); err != nil {
		return nil, fmt.Errorf("%s: it is no Kubernetes object: %s", where, shorten(err.Error()))
	}
	if h.Kind == "" && kind != "" {
		h.APIVersion, h.Kind = apiVersion, kind
	}
	switch {
	case h.Kind == "":
		return nil, fmt.Errorf("%s: it has no kind", where)
	case h.APIVersion == "":
		return nil, fmt.Errorf("%s: %s has no apiVersion", where, shorten(h.Kind))
	case !strings.HasSuffix(h.Kind, "List") || h.Items == nil:
		return []Object{{where, shorten(h.APIVersion), shorten(h.Kind), shorten(h.Metadata.Namespace),
			shorten(h.Metadata.Name), text}}, nil
	case depth >= maxNested:
		return nil, fmt.Errorf("%s: lists in lists in lists", where)
	}
	var all []Object
	var bad failures
	for i, item := range h.Items {
		list, err := objectsOf(fmt.Sprintf("%s, item %d", where, i+1), item, h.APIVersion,
			strings.TrimSuffix(h.Kind, "List"), depth+1)
		all = append(all, list...)
		bad.add(err)
	}
	return all, bad.err()
}

// failures are what is wrong: the first few, a line each, and how many more.
type failures struct {
	list []error
	more int
}

func (f *failures) add(err error) {
	if several, ok := err.(*failures); ok { //nolint:errorlint // it is only ever returned as it is
		for _, e := range several.list {
			f.add(e)
		}
		f.more += several.more
		return
	}
	switch {
	case err == nil:
	case len(f.list) < maxErrors:
		f.list = append(f.list, err)
	default:
		f.more++
	}
}

func (f *failures) err() error {
	if len(f.list) == 0 {
		return nil
	}
	return f
}

func (f *failures) Error() string {
	var lines []string
	for _, e := range f.list {
		lines = append(lines, e.Error())
	}
	if f.more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", f.more))
	}
	return strings.Join(lines, "\n")
}

// Join returns several errors as one, one line each.
func Join(errs ...error) error {
	var f failures
	for _, e := range errs {
		f.add(e)
	}
	return f.err()
}
