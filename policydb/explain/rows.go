package explain

import (
	"fmt"
	"slices"
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

// Rows are the differences in words, those that deny first.
func (d *Delta) Rows() (rows []Row) {
	for _, denied := range []bool{true, false} {
		for i := range d.Differences {
			x := &d.Differences[i]
			r := Row{Difference: i, Denied: denied, From: d.names(x.From), To: d.names(x.To), Family: x.Family, What: x.Gained}
			if denied {
				r.What = x.Lost
			}
			if r.What.IsNone() {
				continue
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

// becauses are the causes in words, those alike in one, with what they speak of where that is not all.
func becauses(causes []Cause, denied bool, what Connections) (list []string) {
	var policies []string // of what list tells, by its index
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
		at := slices.Index(list, text)
		if at < 0 {
			at = len(list)
			list, policies = append(list, text), append(policies, "")
		}
		if policies[at] != "" {
			policies[at] += ", "
		}
		policies[at] += c.place()
	}
	for i, text := range list {
		words, part, _ := strings.Cut(text, "\n")
		list[i] = words + " " + policies[i] + part
	}
	return list
}

// Some are the first of a list, and how many more there are.
func Some(list []string, most int) string {
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}
