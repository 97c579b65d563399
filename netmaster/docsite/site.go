// Package docsite renders the documents of the repository as a static site: HTML pages, a navigation, and a search that
// runs in the browser. netmaster serves the site at /docs/, and make docs writes the same files to a directory. The
// pages have no inline scripts or styles and load nothing from other servers.
package docsite

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// frontPage is the document with the navigation.
const frontPage = "README.md"

// searchPage is a page without a document.
const searchPage = "search.html"

//go:embed static
var static embed.FS

//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

// Options are the parts of the site that depend on the place of its files.
type Options struct {
	// Version is printed on each page.
	Version string
	// WebUI is the address of the web UI from the site's root; empty if the files are served by themselves.
	WebUI string
}

// Site is a rendered site.
type Site struct {
	// Files are the contents by path from the site's root.
	Files map[string][]byte
	// documents are the paths of the files by the documents' paths in the repository.
	documents map[string]string
	pages     []*page
	symptoms  []symptom
	webUI     string
}

// Build renders the documents of a file system that has the layout of the repository.
func Build(documents fs.FS, options Options) (*Site, error) {
	s := &Site{Files: map[string][]byte{}, documents: map[string]string{}, webUI: options.WebUI}
	sources, err := s.read(documents)
	if err != nil {
		return nil, err
	}
	if sources[frontPage] == nil {
		return nil, fmt.Errorf("read documents: there is no %s", frontPage)
	}
	for _, name := range sortedKeys(sources) {
		p, err := s.parse(name, sources[name])
		if err != nil {
			return nil, fmt.Errorf("render %s: %w", name, err)
		}
		s.pages = append(s.pages, p)
	}
	return s, s.write(options)
}

// read returns the texts of the documents, and copies pictures and the site's own scripts and styles.
func (s *Site) read(documents fs.FS) (map[string][]byte, error) {
	sources := map[string][]byte{}
	err := fs.WalkDir(documents, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(documents, name)
		s.documents[name] = placeOf(name)
		if path.Ext(name) == ".md" {
			sources[name] = text
		} else {
			s.Files[placeOf(name)] = text
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read documents: %w", err)
	}
	own, err := fs.ReadDir(static, "static")
	if err != nil {
		return nil, fmt.Errorf("read the site's own files: %w", err)
	}
	for _, f := range own {
		if s.Files[f.Name()], err = static.ReadFile("static/" + f.Name()); err != nil {
			return nil, fmt.Errorf("read the site's own files: %w", err)
		}
	}
	return sources, nil
}

// placeOf returns the path of a document's file on the site.
func placeOf(name string) string {
	place, isDoc := strings.CutPrefix(name, "docs/")
	if !isDoc && name != frontPage {
		place = "source/" + name
	}
	base, isPage := strings.CutSuffix(place, ".md")
	if !isPage {
		return place
	}
	if path.Base(base) == "README" {
		base = path.Join(path.Dir(base), "index")
	}
	return base + ".html"
}

// view is what the template shows.
type view struct {
	Options
	Title string
	// Root is the relative path to the site's root: empty, or ends with a slash.
	Root       string
	Navigation []chapter
	Body       template.HTML
	IsSearch   bool
}

// chapter is a part of the navigation.
type chapter struct {
	Name  string
	Links []link
}

type link struct {
	Text, Place string
	IsCurrent   bool
}

// write renders all pages and the search data.
func (s *Site) write(options Options) error {
	var front *page
	sections := []section{}
	for _, p := range s.pages {
		sections = append(sections, p.sections...)
		if p.document == frontPage {
			front = p
		}
	}
	search := &page{place: searchPage, title: "Search"}
	for _, p := range append(s.pages, search) {
		var out bytes.Buffer
		err := pageTemplate.Execute(&out, view{
			Options:    options,
			Title:      p.title,
			Root:       rootFrom(p.place),
			Navigation: navigation(front.chapters, p.place),
			Body:       p.body,
			IsSearch:   p == search,
		})
		if err != nil {
			return fmt.Errorf("render %s: %w", p.place, err)
		}
		s.Files[p.place] = out.Bytes()
	}
	data, err := json.Marshal(sections)
	if err != nil {
		return fmt.Errorf("encode the search data: %w", err)
	}
	s.Files["search-data.js"] = slices.Concat([]byte("const searchData = "), data, []byte(";\n"))
	return nil
}

// Size returns the size of all files in bytes.
func (s *Site) Size() (size int) {
	for _, content := range s.Files {
		size += len(content)
	}
	return size
}

// WriteFiles writes the files below a directory.
func (s *Site) WriteFiles(directory string) error {
	for place, content := range s.Files {
		file := filepath.Join(directory, filepath.FromSlash(place))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return fmt.Errorf("write the site: %w", err)
		}
		if err := os.WriteFile(file, content, 0o644); err != nil {
			return fmt.Errorf("write the site: %w", err)
		}
	}
	return nil
}

// navigation returns the chapters with the current page marked.
func navigation(chapters []chapter, current string) []chapter {
	out := slices.Clone(chapters)
	for i := range out {
		out[i].Links = slices.Clone(out[i].Links)
		for j := range out[i].Links {
			out[i].Links[j].IsCurrent = out[i].Links[j].Place == current
		}
	}
	return out
}

// rootFrom returns the relative path from a page to the site's root.
func rootFrom(place string) string { return strings.Repeat("../", strings.Count(place, "/")) }
