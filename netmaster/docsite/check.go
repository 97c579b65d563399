package docsite

import (
	"bytes"
	"fmt"
	"path"
	"strings"

	"golang.org/x/net/html"
)

// BrokenLinks returns the links of all pages that lead to no file or to no anchor, read from the rendered pages.
func (s *Site) BrokenLinks() (broken []string) {
	anchors := map[string]map[string]bool{}
	links := map[string][]string{}
	for _, place := range sortedKeys(s.Files) {
		if path.Ext(place) == ".html" {
			anchors[place], links[place] = scan(s.Files[place])
		}
	}
	for _, place := range sortedKeys(links) {
		for _, to := range links[place] {
			if cause := s.faultOf(place, to, anchors); cause != "" {
				broken = append(broken, fmt.Sprintf("%s: %s: %s", place, to, cause))
			}
		}
	}
	return broken
}

// faultOf returns why a link of a page leads nowhere; empty if it leads somewhere.
func (s *Site) faultOf(place, to string, anchors map[string]map[string]bool) string {
	if strings.HasPrefix(to, "https://") {
		return ""
	}
	file, anchor, hasAnchor := strings.Cut(to, "#")
	target := place
	if file != "" {
		target = path.Join(path.Dir(place), file)
	}
	if s.webUI != "" && target == path.Clean(s.webUI) {
		return ""
	}
	if s.Files[target] == nil {
		return "there is no file " + target
	}
	if hasAnchor && !anchors[target][anchor] {
		return "there is no such anchor"
	}
	return ""
}

// scan returns the ids and the links of an HTML page.
func scan(text []byte) (ids map[string]bool, links []string) {
	ids = map[string]bool{}
	tokens := html.NewTokenizer(bytes.NewReader(text))
	for kind := tokens.Next(); kind != html.ErrorToken; kind = tokens.Next() {
		for _, a := range tokens.Token().Attr {
			switch a.Key {
			case "id":
				ids[a.Val] = true
			case "href", "src", "data-page":
				links = append(links, a.Val)
			}
		}
	}
	return ids, links
}

// Place returns the path on the site of a document, by its path in the repository.
func (s *Site) Place(document string) (string, bool) {
	place, found := s.documents[document]
	return place, found && path.Ext(document) == ".md"
}

// HasPage reports whether a document with a heading of this anchor is on the site. The document is named by its path in
// the repository; an empty anchor stands for the whole page.
func (s *Site) HasPage(document, anchor string) bool {
	for _, p := range s.pages {
		if p.document == document {
			return anchor == "" || p.anchors[anchor]
		}
	}
	return false
}
