package explain

import (
	"fmt"
	"strings"
)

// Row is a Difference in words: one for what is lost, one for what is gained.
type Row struct {
	// Difference is the index in Delta.Differences.
	Difference int
	Denied     bool // it was allowed and is denied now, or the other way
	From, To   []string
	Family     int // as in Difference
	What       Connections
	Because    []string
}

// Rows returns the differences as text, those that deny first.
func (d *Delta) Rows() (rows []Row) { return d.FirstRows(2 * len(d.Differences)) }

// FirstRows returns no more than the first so many rows.
func (d *Delta) FirstRows(most int) (rows []Row) {
	for _, denied := range []bool{true, false} {
		for i := range d.Differences {
			x := &d.Differences[i]
			r := Row{
				Difference: i,
				Denied:     denied,
				From:       d.names(x.From),
				To:         d.names(x.To),
				Family:     x.Family,
				What:       x.Gained,
			}
			if denied {
				r.What = x.Lost
			}
			if r.What.IsNone() {
				continue
			}
			if len(rows) == most {
				return rows
			}
			r.Because = becauses(x.Because, denied, r.What)
			rows = append(rows, r)
		}
	}
	return rows
}

func (d *Delta) names(indexes []int) (names []string) {
	for _, i := range indexes {
		names = append(names, d.Groups[i].String())
	}
	return names
}

// becauses returns the causes as text. Equal texts are merged, and the connections of a cause are added if they are
// not all of them.
func becauses(causes []Cause, denied bool, what Connections) (list []string) {
	var places [][]string // of the entries of list, by index
	index := map[string]int{}
	for i := range causes {
		c := &causes[i]
		if c.Denies() != denied {
			continue
		}
		part := ""
		if !c.Connections.Equal(what) {
			part = " (" + c.Connections.String() + ")"
		}
		text := effectTexts[c.Effect]
		if c.Rule < 0 {
			text = fmt.Sprintf(text, c.Direction)
		}
		text += "\n" + part
		at, known := index[text]
		if !known {
			at = len(list)
			index[text] = at
			list, places = append(list, text), append(places, nil)
		}
		places[at] = append(places[at], c.place())
	}
	for i, text := range list {
		words, part, _ := strings.Cut(text, "\n")
		list[i] = words + " " + strings.Join(places[i], ", ") + part
	}
	return list
}

// Some returns the first entries of a list and the number of the others.
func Some(list []string, most int) string {
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}
