package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// show prints v as JSON or YAML if the options say so, else by text.
func show(w io.Writer, o *options, v any, text func(w io.Writer, wide bool)) error {
	switch o.output {
	case "json":
		b, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return err
		}
		_, err = w.Write(append(escaped(b), '\n'))
		return err
	case "yaml":
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if b, err = yaml.JSONToYAML(escaped(b)); err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	}
	text(w, o.output == "wide")
	return nil
}

// plain writes text to a terminal, and a mark for each control character: netmaster passes on texts of nodes, and
// these may not move the cursor or change colours.
type plain struct{ w io.Writer }

// Write replaces control characters but for line ends and tabs.
func (p *plain) Write(text []byte) (int, error) {
	clean := bytes.Map(func(r rune) rune {
		if hidden(r) {
			return '\uFFFD'
		}
		return r
	}, text)
	if _, err := p.w.Write(clean); err != nil {
		return 0, err
	}
	return len(text), nil
}

func hidden(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
}

// escaped returns the same JSON with hidden characters escaped. Only strings can hold them.
func escaped(text []byte) []byte {
	if !bytes.ContainsFunc(text, hidden) {
		return text
	}
	var out []byte
	for _, r := range string(text) {
		if hidden(r) {
			out = fmt.Appendf(out, "\\u%04x", r)
		} else {
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

// oneLine is for what stands in a row: what ends a line would pass for the next row.
var oneLine = strings.NewReplacer("\n", " ", "\t", " ", "\r", " ", "\v", " ", "\f", " ")

// table aligns rows under a heading. It writes once: a tabwriter writes each cell apart.
func table(w io.Writer, heading []string, rows [][]string) {
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(heading, "\t"))
	for _, r := range rows {
		for i := range r {
			r[i] = oneLine.Replace(r[i])
		}
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	t.Flush()
	_, _ = w.Write(text.Bytes())
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// age formats the time since then as kubectl does.
func age(since time.Time) string {
	if since.IsZero() {
		return "-"
	}
	d := time.Since(since)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
