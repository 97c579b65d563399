package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"html/template"
	"io"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/explain"
)

// page needs nothing else: no script, no font, no picture from anywhere.
var page = template.Must(template.New("").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Who reaches whom</title>
<style>
:root { color-scheme: light dark; --all: #2e8b57; --some: #e0a030; --none: transparent; --line: #8884; }
body { font: 14px system-ui, sans-serif; margin: 1.5rem; }
table { border-collapse: collapse; }
th { font-weight: normal; text-align: left; padding: .2rem .6rem; }
thead th { vertical-align: bottom; position: sticky; top: 0; background: Canvas; }
thead th span { writing-mode: vertical-rl; transform: rotate(180deg); white-space: nowrap; }
tbody th { position: sticky; left: 0; background: Canvas; white-space: nowrap; }
td { border: 1px solid var(--line); width: 1.5rem; height: 1.5rem; text-align: center; }
td.all { background: var(--all); } td.some { background: var(--some); color: #000; } td.none { background: var(--none); }
tr:hover td, tr:hover th { outline: 1px solid #06c8; }
</style></head><body>
<h1>Who reaches whom</h1>
<p>Revision {{.Revision}}{{.Only}}. A row is where packets come from, a column where they go.</p>
<table><thead><tr><th></th>{{range .Groups}}<th><span>{{.}}</span></th>{{end}}</tr></thead><tbody>
{{range .Rows}}<tr><th>{{.Name}}</th>{{range .Cells}}<td class="{{.Class}}" title="{{.Title}}">{{.Sign}}</td>{{end}}</tr>
{{end}}</tbody></table>
<ul>{{range .Legend}}<li>{{.}}</li>{{end}}</ul>
{{with .Note}}<p>{{.}}</p>
{{end}}</body></html>
`))

type htmlCell struct{ Class, Title, Sign string }

type htmlRow struct {
	Name  string
	Cells []htmlCell
}

func classOf(c explain.Connections) string {
	switch {
	case c.IsAll():
		return "all"
	case c.IsNone():
		return "none"
	}
	return "some"
}

func matrixHTML(w io.Writer, m *inspect.Matrix, q *explain.Question) error {
	data := struct {
		Revision uint64
		Only     string
		Groups   []string
		Rows     []htmlRow
		Legend   []string
		Note     string
	}{Revision: m.Revision}
	if len(m.NotEnforced) > 0 {
		data.Note = notEnforcedText(m)
	}
	if q.Protocol != 0 {
		data.Only = fmt.Sprintf(", only %s/%d", q.Protocol, q.Port)
	}
	sign := signs(&m.Matrix, q)
	for i, from := range m.Groups {
		data.Groups = append(data.Groups, from.String())
		row := htmlRow{Name: from.String()}
		for j, to := range m.Groups {
			c := m.Cell(i, j)
			if unjudged(&m.Matrix, i, j) {
				row.Cells = append(row.Cells, htmlCell{Class: "none"})
				continue
			}
			row.Cells = append(row.Cells, htmlCell{classOf(c), fmt.Sprintf("%s → %s: %s", from, to, c), sign[m.Cells[i][j]]})
		}
		data.Rows = append(data.Rows, row)
	}
	for i, v := range m.Values {
		data.Legend = append(data.Legend, fmt.Sprintf("%s %s", sign[i], v))
	}
	return page.Execute(w, data)
}

// matrixSVG draws squares of 18 units behind the names.
func matrixSVG(w io.Writer, m *inspect.Matrix) error {
	const square, character = 18, 7
	names := make([]string, len(m.Groups))
	longest := 0
	for i, g := range m.Groups {
		names[i] = g.String()
		longest = max(longest, len(names[i]))
	}
	left := longest*character + 16
	side := len(names) * square
	var b bytes.Buffer
	text := func(s string) string {
		var out bytes.Buffer
		_ = xml.EscapeText(&out, []byte(s)) // a buffer takes all
		return out.String()
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="monospace" font-size="12"><rect width="100%%" height="100%%" fill="#fff"/>`+"\n", left+side+8, left+side+8)
	for i, name := range names {
		at := left + i*square
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text><text transform="translate(%d %d) rotate(-90)">%[3]s</text>`+"\n", left-8, at+square-5, text(name), at+square-5, left-8)
		for j := range names {
			if unjudged(&m.Matrix, i, j) {
				continue
			}
			c := m.Cell(i, j)
			fill := map[string]string{"all": "#2e8b57", "some": "#e0a030", "none": "#fff"}[classOf(c)]
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%[3]d" fill="%s" stroke="#ccc"><title>%s</title></rect>`+"\n", left+j*square, at, square, fill, text(fmt.Sprintf("%s → %s: %s", name, names[j], c)))
		}
	}
	b.WriteString("</svg>\n")
	_, err := w.Write(b.Bytes())
	return err
}
