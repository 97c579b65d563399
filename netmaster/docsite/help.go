package docsite

import (
	"regexp"
	"strings"

	"github.com/yuin/goldmark/ast"
	extast "github.com/yuin/goldmark/extension/ast"
)

// guide is the document with the tables of symptoms.
const guide = "docs/troubleshooting.md"

// minQuote is the length from which a quoted text identifies a message.
const minQuote = 12

// symptom is a text of a message that the guide quotes, and the section with it.
type symptom struct {
	// parts occur in the message in this order.
	parts []string
	size  int
	place string
	// fromStatus reports whether it is in the list of the status' problems.
	fromStatus bool
}

// mention matches a document in a text, and the anchor of a heading.
var mention = regexp.MustCompile(`\b(docs/[a-z0-9/-]+\.md)(#[a-z0-9-]+)?`)

// Help returns the place of the section that a message names, or whose table in the guide to troubleshooting quotes it;
// empty if there is none.
func (s *Site) Help(message string) string {
	for _, m := range mention.FindAllStringSubmatch(message, -1) {
		if s.HasPage(m[1], strings.TrimPrefix(m[2], "#")) {
			return s.documents[m[1]] + m[2]
		}
	}
	place, size := "", 0
	for _, q := range s.symptoms {
		if q.size > size && q.matches(message) {
			place, size = q.place, q.size
		}
	}
	return place
}

// Guide returns the place of the guide to troubleshooting.
func (s *Site) Guide() string { return placeOf(guide) }

func (q symptom) matches(message string) bool {
	for _, part := range q.parts {
		_, after, found := strings.Cut(message, part)
		if !found {
			return false
		}
		message = after
	}
	return true
}

// symptomsOf returns the quoted texts in the first cells of the guide's tables. A table before the first section names
// the sections by links.
func symptomsOf(place string, root ast.Node, source []byte) (list []symptom) {
	section := ""
	for n := root.FirstChild(); n != nil; n = n.NextSibling() {
		if h, is := n.(*ast.Heading); is && h.Level > 1 {
			section = place + "#" + anchorAttribute(h)
		}
		if n.Kind() != extast.KindTable {
			continue
		}
		for row := n.FirstChild(); row != nil; row = row.NextSibling() {
			list = append(list, rowSymptoms(row, section, source)...)
		}
	}
	return list
}

// rowSymptoms returns the quoted texts in the first cell of a row. Without a section the row's link leads to it.
func rowSymptoms(row ast.Node, section string, source []byte) (list []symptom) {
	isList := section == ""
	if isList {
		links := chapterOf(row, source).Links
		if len(links) == 0 {
			return nil
		}
		section = links[0].Place
	}
	if strings.HasPrefix(section, "#") {
		section = placeOf(guide) + section
	}
	for c := row.FirstChild().FirstChild(); c != nil; c = c.NextSibling() {
		if c.Kind() != ast.KindCodeSpan {
			continue
		}
		if q := quote(textOf(c, source)); q.size >= minQuote {
			q.place, q.fromStatus = section, isList
			list = append(list, q)
		}
	}
	return list
}

// quote returns a quoted text as a symptom. An ellipsis stands for any text.
func quote(text string) (q symptom) {
	for part := range strings.SplitSeq(text, "…") {
		if part = strings.TrimSpace(part); part != "" {
			q.parts = append(q.parts, part)
			q.size += len(part)
		}
	}
	return q
}
