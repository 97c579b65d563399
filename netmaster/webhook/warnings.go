package webhook

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/explain"
)

var errInternal = errors.New("an error in netmaster, see its log")

const prefix = "Flowkeep: "

// Limits of warnings. The API server truncates one at 256 characters, and drops what exceeds 4096 in all.
const (
	maxLength = 250
	maxTotal  = 3500
	maxLines  = 12
)

// restricted describes what a dry run omits for a user who may not create a diff.
const restricted = "left out is what changes for other namespaces, and live connections: that needs the ClusterRole " +
	"flowkeep-view"

// describe returns the warnings: for a dry run everything that the user may see, for a real change one line.
func describe(d *inspect.Diff, dry, whole bool) (warnings []string, outcome string) {
	var notes []string
	for _, t := range d.Policies {
		notes = append(notes, t.Notes...)
	}
	switch {
	case d.Same() && len(notes) == 0 && !dry:
		return nil, outcomeNone
	case d.Same() && !whole:
		warnings = append(warnings,
			prefix+"no connection within the namespace, or with addresses outside, would change")
	case d.Same():
		warnings = append(warnings, prefix+"no connection would be denied or allowed that is not so now")
	default:
		warnings = append(warnings, prefix+summary(d))
	}
	if dry && !whole {
		warnings = append(warnings, restricted)
	}
	if dry {
		warnings = append(warnings, lines(d)...)
		if more := rowsOf(d) - maxLines; more > 0 {
			notes = append([]string{fmt.Sprintf("%s%d more lines; netctl diff -f shows all", prefix, more)}, notes...)
		}
		if d.Live != nil {
			for _, node := range slices.Sorted(maps.Keys(d.Live.Unknown)) {
				notes = append(notes,
					fmt.Sprintf("connections of node %s are not all known: %s", node, d.Live.Unknown[node]))
			}
		}
	}
	return append(warnings, notes...), outcomeTold
}

func summary(d *inspect.Diff) string {
	denied, allowed := d.Ways()
	text := fmt.Sprintf("%d allowed -> denied, %d denied -> allowed", denied, allowed)
	if d.Live != nil {
		text += fmt.Sprintf("; live connections that would be cut: %d", d.Live.Connections)
		if len(d.Live.Unknown) > 0 {
			text += " or more"
		}
	}
	return text
}

// rowsOf returns the number of rows of a difference in words.
func rowsOf(d *inspect.Diff) (n int) {
	for i := range d.Differences {
		for _, c := range []explain.Connections{d.Differences[i].Lost, d.Differences[i].Gained} {
			if !c.IsNone() {
				n++
			}
		}
	}
	return n
}

// lines returns a line for each of the first rows.
func lines(d *inspect.Diff) (list []string) {
	cuts := map[int]int{}
	if d.Live != nil {
		for _, c := range d.Live.Cuts {
			cuts[c.Difference] = c.Connections
		}
	}
	const most = 2
	for _, r := range d.FirstRows(maxLines) {
		does := "would reach"
		if r.Denied {
			does = "would no longer reach"
		}
		text := fmt.Sprintf("%s %s %s at %s", explain.Some(r.From, most), does, explain.Some(r.To, most), r.What)
		if r.Family != 0 {
			text += fmt.Sprintf(" (IPv%d)", r.Family)
		}
		if n := cuts[r.Difference]; n > 0 && r.Denied {
			text += fmt.Sprintf(" (%d live)", n)
		}
		list = append(list, text+": "+strings.Join(r.Because, "; "))
	}
	return list
}

// bound limits the warnings to what the API server passes on, and states how many are omitted.
func bound(warnings []string) (list []string) {
	total := 0
	for i, text := range warnings {
		text = shorten(text)
		if total += len(text); i == maxLines || total > maxTotal {
			return append(list, fmt.Sprintf("%sand %d more; netctl diff -f shows all", prefix, len(warnings)-i))
		}
		list = append(list, text)
	}
	return list
}

// shorten truncates a warning and removes characters that are invalid in a header.
func shorten(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, text)
	if len(text) <= maxLength {
		return text
	}
	return strings.ToValidUTF8(text[:maxLength-3], "") + "..."
}
