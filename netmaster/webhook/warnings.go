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

var (
	errBusy     = errors.New("netmaster is busy with other changes")
	errInternal = errors.New("an error in netmaster, see its log")
)

const prefix = "Flowkeep: "

// Bounds of warnings: the API server cuts what is longer than 256 characters, and drops what comes after 4096 in all.
const (
	mostLength = 250
	mostTotal  = 3500
	mostLines  = 12
)

// describe tells a dry run everything, and a real change in a line.
func describe(d *inspect.Diff, dry bool) (warnings []string, outcome string) {
	var notes []string
	for _, t := range d.Policies {
		notes = append(notes, t.Notes...)
	}
	switch {
	case d.Same() && len(notes) == 0 && !dry:
		return nil, outcomeNone
	case d.Same():
		warnings = append(warnings, prefix+"no connection would be denied or allowed that is not so now")
	default:
		warnings = append(warnings, prefix+summary(d))
	}
	if dry {
		warnings = append(warnings, lines(d)...)
		if d.Live != nil {
			for _, node := range slices.Sorted(maps.Keys(d.Live.Unknown)) {
				notes = append(notes, fmt.Sprintf("connections of node %s are not all known: %s", node, d.Live.Unknown[node]))
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

func lines(d *inspect.Diff) (list []string) {
	cuts := map[int]int{}
	if d.Live != nil {
		for _, c := range d.Live.Cuts {
			cuts[c.Difference] = c.Connections
		}
	}
	const most = 2
	for _, r := range d.Rows() {
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

// bound keeps warnings within what the API server passes on, and says how many are left out.
func bound(warnings []string) (list []string) {
	total := 0
	for i, text := range warnings {
		text = shorten(text)
		if total += len(text); i == mostLines || total > mostTotal {
			return append(list, fmt.Sprintf("%sand %d more; netctl diff -f shows all", prefix, len(warnings)-i))
		}
		list = append(list, text)
	}
	return list
}

// shorten also takes out what may not be in a header.
func shorten(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, text)
	if len(text) <= mostLength {
		return text
	}
	return strings.ToValidUTF8(text[:mostLength-3], "") + "..."
}
