package docsite

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/flowkeep/flowkeep"
)

const root = "../.."

// maxSize is the limit for all files of the site, and for the documents that netmaster holds.
const maxSize = 5 << 20

// build renders the repository's documents as netmaster serves them.
func build(t *testing.T) *Site {
	t.Helper()
	s, err := Build(flowkeep.Documents, Options{Version: "v1.2.3", WebUI: "../"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// buildOf renders documents, with a front page that links to all of them.
func buildOf(t *testing.T, documents map[string]string) (*Site, error) {
	t.Helper()
	front := "# Front\n\n## Documentation\n\n| | |\n|---|---|\n| all |"
	files := fstest.MapFS{}
	for name, text := range documents {
		files[name] = &fstest.MapFile{Data: []byte(text)}
		front += " [" + name + "](" + name + ")"
	}
	files["README.md"] = &fstest.MapFile{Data: []byte(front + " |\n")}
	return Build(files, Options{Version: "v1.2.3"})
}

func TestBuild_LinksLeadSomewhere(t *testing.T) {
	s := build(t)
	for _, broken := range s.BrokenLinks() {
		t.Error(broken)
	}
	if len(s.pages) < 70 {
		t.Errorf("only %d pages", len(s.pages))
	}
	for _, p := range s.pages {
		for _, file := range p.leaving {
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s: there is no %s", p.document, file)
			}
		}
	}
}

// Each page is reached from the front page.
func TestBuild_PagesAreReached(t *testing.T) {
	s := build(t)
	reached := map[string]bool{}
	var visit func(place string)
	visit = func(place string) {
		if reached[place] || !strings.HasSuffix(place, ".html") {
			return
		}
		reached[place] = true
		_, links := scan(s.Files[place])
		for _, to := range links {
			file, _, _ := strings.Cut(to, "#")
			visit(strings.TrimPrefix(filepath.Join("/", filepath.Dir(place), file), "/"))
		}
	}
	visit("index.html")
	for place := range s.Files {
		if strings.HasSuffix(place, ".html") && !reached[place] {
			t.Errorf("no way leads from the front page to %s", place)
		}
	}
}

// The pages stay within the web UI's content security policy, and load nothing from other servers.
func TestBuild_PagesHaveNothingInline(t *testing.T) {
	s := build(t)
	inline := regexp.MustCompile(`<script>|<style|style="|\son[a-z]+="|<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//`)
	for place, text := range s.Files {
		if filepath.Ext(place) != ".html" {
			continue
		}
		if found := inline.Find(text); found != nil {
			t.Errorf("%s: %s", place, found)
		}
		if strings.Contains(string(text), "raw HTML omitted") {
			t.Errorf("%s: HTML of its document is not rendered", place)
		}
	}
	for _, name := range []string{"site.js", "search.js", "minisearch.js"} {
		if found := regexp.MustCompile(`innerHTML|document\.write|\beval\(|new Function`).Find(s.Files[name]); found != nil {
			t.Errorf("%s: %s", name, found)
		}
	}
}

func TestBuild_Size(t *testing.T) {
	if size := build(t).Size(); size > maxSize || size < 1<<20 {
		t.Errorf("the site has %d bytes, the limit is %d", size, maxSize)
	}
	held := 0
	err := fs.WalkDir(flowkeep.Documents, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		held += int(info.Size())
		return err
	})
	if err != nil || held > maxSize {
		t.Errorf("the documents have %d bytes, the limit is %d: %v", held, maxSize, err)
	}
}

func TestBuild_Page(t *testing.T) {
	s, err := buildOf(t, map[string]string{
		"docs/a/README.md": "# A\n\nWords of a.\n\n## The `code` of x, y & z_1\n\n## Twice\n\n## Twice\n\n| l | r |\n|:--|--:|\n| 1 | 2 |\n",
		"docs/b.md":        "<!-- hidden -->\n# B\n\nSee [a](a/README.md#twice-1), [code](../cmd/main.go) and <https://example.com/>.\n",
		"SECURITY.md":      "# S\n\n![p](docs/p.png) [b](docs/b.md)\n",
		"docs/p.png":       "png",
	})
	if err != nil {
		t.Fatal(err)
	}
	for place, wants := range map[string][]string{
		"a/index.html": {
			`<h2 id="the-code-of-x-y--z_1">The <code>code</code> of x, y &amp; z_1<a href="#the-code-of-x-y--z_1" class="anchor">#</a>`,
			`<h2 id="twice">`, `<h2 id="twice-1">`, `<td align="right">2</td>`, `<title>A – Flowkeep</title>`,
			`href="../site.css"`, `<li><a href="../b.html">docs/b.md</a></li>`,
			`<li><a href="../a/index.html" aria-current="page">docs/a/README.md</a></li>`, `v1.2.3`,
		},
		"b.html":               {`See <a href="a/index.html#twice-1">a</a>, code and <a href="https://example.com/">`},
		"source/SECURITY.html": {`<img src="../p.png" alt="p">`, `<a href="../b.html">b</a>`},
		"search.html":          {`src="minisearch.js"`, `src="search-data.js"`},
	} {
		for _, want := range wants {
			if !strings.Contains(string(s.Files[place]), want) {
				t.Errorf("%s lacks %s:\n%s", place, want, s.Files[place])
			}
		}
	}
	if strings.Contains(string(s.Files["b.html"]), "hidden") || strings.Contains(string(s.Files["b.html"]), "Web UI") {
		t.Errorf("%s", s.Files["b.html"])
	}
	if got := s.BrokenLinks(); len(got) > 0 {
		t.Error(got)
	}
}

func TestBuild_RefusesDocuments(t *testing.T) {
	for want, text := range map[string]string{
		"docs/x.md: it does not begin with a heading": "Words.\n\n# X\n",
		"docs/x.md: it contains HTML":                 "# X\n\n<div>\nx\n</div>\n",
		"docs/x.md: there is no picture":              "# X\n\n![p](none.png)\n",
	} {
		if _, err := buildOf(t, map[string]string{"docs/x.md": text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := Build(fstest.MapFS{}, Options{}); err == nil {
		t.Error("no documents are a site")
	}
}

func TestBrokenLinks_ReportsThem(t *testing.T) {
	s, err := buildOf(t, map[string]string{
		"docs/a.md": "# A\n\n[one](b.md#none) [two](#none) [three](http://example.com/) [four](b.md#b)\n",
		"docs/b.md": "# B\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"a.html: b.html#none: there is no such anchor",
		"a.html: #none: there is no such anchor",
		"a.html: http://example.com/: there is no file http:/example.com",
	}
	if got := s.BrokenLinks(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	delete(s.Files, "b.html")
	if got := s.BrokenLinks(); !slices.Contains(got, "a.html: b.html#b: there is no file b.html") {
		t.Errorf("%q", got)
	}
}

// The search data have each section once, with its text.
func TestBuild_SearchData(t *testing.T) {
	s, err := buildOf(t, map[string]string{
		"docs/a.md": "# Title\n\nIntro *words*\nand `--flag`.\n\n## Part\n\n| x | y |\n|---|---|\n| one | two |\n\n    netctl status\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.TrimSuffix(strings.TrimPrefix(string(s.Files["search-data.js"]), "const searchData = "), ";\n")
	var got []section
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	want := []section{
		{"a.html#title", "Title", "", "Intro words and --flag."},
		{"a.html#part", "Title", "Part", "x y one two netctl status"},
	}
	if !slices.Equal(got[len(got)-2:], want) {
		t.Errorf("%q", got)
	}
}

func TestWriteFiles(t *testing.T) {
	s, dir := build(t), t.TempDir()
	if err := s.WriteFiles(dir); err != nil {
		t.Fatal(err)
	}
	for place, want := range s.Files {
		if got, err := os.ReadFile(filepath.Join(dir, place)); err != nil || string(got) != string(want) {
			t.Errorf("%s: %v", place, err)
		}
	}
	if err := s.WriteFiles(filepath.Join(dir, "index.html")); err == nil {
		t.Error("a file was taken for a directory")
	}
}
