package docsite

import (
	"bytes"
	"errors"
	"html/template"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
)

// markdown reads the dialect that the documents use. Columns are aligned by an attribute, since the web UI's content
// security policy forbids inline styles.
var markdown = goldmark.New(goldmark.WithExtensions(
	extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignAttribute)),
	extension.Strikethrough,
))

// page is a rendered document.
type page struct {
	// document is the path in the repository, place the path on the site.
	document, place string
	title           string
	body            template.HTML
	// anchors are the ids of the headings.
	anchors map[string]bool
	// sections are the texts between headings.
	sections []section
	// chapters are the rows of the table in the section Documentation: the navigation, if this is the front page.
	chapters []chapter
	// leaving are the paths in the repository of links to files that the site does not have.
	leaving []string
}

// section is an entry of the search data.
type section struct {
	Place   string `json:"place"`
	Title   string `json:"title"`
	Heading string `json:"heading"`
	Text    string `json:"text"`
}

var (
	errNoTitle = errors.New("it does not begin with a heading")
	errHTML    = errors.New("it contains HTML, which is not rendered")
)

// parse renders a document.
func (s *Site) parse(name string, source []byte) (*page, error) {
	p := &page{document: name, place: placeOf(name), anchors: map[string]bool{}}
	root := markdown.Parser().Parse(text.NewReader(source))
	if err := p.walk(root, source); err != nil {
		return nil, err
	}
	if err := s.resolveLinks(p, root); err != nil {
		return nil, err
	}
	switch name {
	case frontPage:
		p.chapters = chaptersOf(root, source)
	case guide:
		s.symptoms = symptomsOf(p.place, root, source)
	}
	var out bytes.Buffer
	if err := markdown.Renderer().Render(&out, source, root); err != nil {
		return nil, err
	}
	p.body = template.HTML(out.String()) // rendered from compiled-in documents, without their raw HTML
	return p, nil
}

// walk gives headings their anchors and collects the sections.
func (p *page) walk(root ast.Node, source []byte) error {
	var next ast.Node
	for n := root.FirstChild(); n != nil; n = next {
		next = n.NextSibling()
		switch n := n.(type) {
		case *ast.HTMLBlock:
			if !isComment(n, source) {
				return errHTML
			}
			root.RemoveChild(root, n)
		case *ast.Heading:
			p.addHeading(n, source)
		default:
			if len(p.sections) == 0 {
				return errNoTitle
			}
			last := &p.sections[len(p.sections)-1]
			last.Text = strings.TrimSpace(last.Text + " " + textOf(n, source))
		}
	}
	if p.title == "" {
		return errNoTitle
	}
	return nil
}

func isComment(block *ast.HTMLBlock, source []byte) bool {
	return bytes.HasPrefix(block.Lines().Value(source), []byte("<!--"))
}

func (p *page) addHeading(h *ast.Heading, source []byte) {
	words := textOf(h, source)
	id := p.uniqueAnchor(words)
	h.SetAttributeString("id", []byte(id))
	heading := words
	if p.title == "" {
		p.title, heading = words, ""
	}
	p.sections = append(p.sections, section{Place: p.place + "#" + id, Title: p.title, Heading: heading})
	self := ast.NewLink()
	self.Destination = []byte("#" + id)
	self.SetAttributeString("class", []byte("anchor"))
	self.AppendChild(self, ast.NewString([]byte("#")))
	h.AppendChild(h, self)
}

// uniqueAnchor returns the anchor of a heading, with a number if the page has had it before.
func (p *page) uniqueAnchor(heading string) string {
	base := anchorOf(heading)
	id := base
	for i := 1; p.anchors[id]; i++ {
		id = base + "-" + strconv.Itoa(i)
	}
	p.anchors[id] = true
	return id
}

// anchorOf returns the anchor that code hosts give a heading: lower case, hyphens for spaces, no punctuation.
func anchorOf(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// textOf returns the words of a node, with code and without marks.
func textOf(n ast.Node, source []byte) string {
	var out strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Text:
			if entering {
				out.Write(n.Value(source))
				if n.SoftLineBreak() {
					out.WriteByte(' ')
				}
			}
		case *ast.String:
			if entering {
				out.Write(n.Value)
			}
		default:
			if n.Type() == ast.TypeBlock && !entering || n.Kind() == extast.KindTableCell && entering {
				out.WriteByte(' ')
			}
			if code, is := n.(*ast.CodeBlock); is && entering {
				out.Write(code.Lines().Value(source))
			}
			if code, is := n.(*ast.FencedCodeBlock); is && entering {
				out.Write(code.Lines().Value(source))
			}
		}
		return ast.WalkContinue, nil
	})
	return strings.Join(strings.Fields(out.String()), " ")
}

// resolveLinks turns links between documents into links between pages. A link to a file of the repository that the site
// does not have becomes its text.
func (s *Site) resolveLinks(p *page, root ast.Node) error {
	var nodes []ast.Node
	err := ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n.Kind() {
		case ast.KindLink, ast.KindImage:
			if entering {
				nodes = append(nodes, n)
			}
		case ast.KindRawHTML:
			return ast.WalkStop, errHTML
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		return err
	}
	for _, n := range nodes {
		switch n := n.(type) {
		case *ast.Link:
			if !s.resolve(p, &n.Destination) {
				replaceByChildren(n)
			}
		case *ast.Image:
			if !s.resolve(p, &n.Destination) {
				return errors.New("there is no picture " + string(n.Destination))
			}
		}
	}
	return nil
}

// resolve rewrites the destination of a link and reports whether the site has it.
func (s *Site) resolve(p *page, destination *[]byte) bool {
	to := string(*destination)
	if strings.Contains(to, "://") || strings.HasPrefix(to, "#") {
		return true
	}
	file, anchor, hasAnchor := strings.Cut(to, "#")
	name := path.Join(path.Dir(p.document), file)
	place, found := s.documents[name]
	if !found {
		p.leaving = append(p.leaving, name)
		return false
	}
	to = rootFrom(p.place) + place
	if hasAnchor {
		to += "#" + anchor
	}
	*destination = []byte(to)
	return true
}

func replaceByChildren(n ast.Node) {
	parent := n.Parent()
	for c := n.FirstChild(); c != nil; c = n.FirstChild() {
		parent.InsertBefore(parent, n, c)
	}
	parent.RemoveChild(parent, n)
}

// chaptersOf returns the rows of the table below the heading Documentation whose links lead to pages.
func chaptersOf(root ast.Node, source []byte) (chapters []chapter) {
	isBelow := false
	for n := root.FirstChild(); n != nil; n = n.NextSibling() {
		if h, is := n.(*ast.Heading); is {
			isBelow = h.Attributes() != nil && anchorAttribute(h) == "documentation"
		}
		if n.Kind() != extast.KindTable || !isBelow {
			continue
		}
		for row := n.FirstChild(); row != nil; row = row.NextSibling() {
			if row.Kind() == extast.KindTableRow {
				chapters = append(chapters, chapterOf(row, source))
			}
		}
	}
	return chapters
}

func anchorAttribute(h *ast.Heading) string {
	id, _ := h.AttributeString("id")
	b, _ := id.([]byte)
	return string(b)
}

// chapterOf returns a row of the table as a part of the navigation.
func chapterOf(row ast.Node, source []byte) chapter {
	c := chapter{Name: textOf(row.FirstChild(), source)}
	_ = ast.Walk(row, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if l, is := n.(*ast.Link); is && entering {
			c.Links = append(c.Links, link{Text: textOf(l, source), Place: string(l.Destination)})
		}
		return ast.WalkContinue, nil
	})
	return c
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
