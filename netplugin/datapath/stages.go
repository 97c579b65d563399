package datapath

import "github.com/flowkeep/flowkeep/ofctl"

// tables is a set of table numbers.
type tables [256]bool

// first is the table that every packet begins in, in any layout.
const first = 0

// apart reports whether both layouts have tables and share none except the first.
func apart(have, want *tables) bool {
	had, wanted := false, false
	for t := first + 1; t < len(have); t++ {
		if have[t] && want[t] {
			return false
		}
		had, wanted = had || have[t], wanted || want[t]
	}
	return had && wanted
}

// Stage is a bundle, one of several that mend a difference.
type Stage struct {
	Mods []ofctl.FlowMod
	// Drained: what was under way in the switch when the stage before was committed must have ended.
	Drained bool
}

// Stages returns the bundles that repair a difference, in their order; usually it is one. If the switch has the flows
// of a layout that shares only the first table with the wanted one, the first bundle adds the new flows beside the
// old, and its first table leads to them. The second bundle deletes the old ones, when no packet is in their tables
// any more. Each packet is evaluated by one of the layouts, to its end. If netplugin ends between the bundles, the
// second is left to do.
func (d *Difference) Stages() []Stage {
	if !apart(&d.have, &d.want) {
		return []Stage{{Mods: d.Mods, Drained: d.onlyLeft()}}
	}
	stages := []Stage{{}, {Drained: true}}
	for _, m := range d.Mods {
		at := 0
		if m.Flow.Table != first && d.have[m.Flow.Table] {
			at = 1
		}
		stages[at].Mods = append(stages[at].Mods, m)
	}
	return stages
}

// onlyLeft reports whether all differences are in tables of another layout that the first table no longer leads to.
func (d *Difference) onlyLeft() bool {
	for _, m := range d.Mods {
		if m.Flow.Table == first || d.want[m.Flow.Table] {
			return false
		}
	}
	return len(d.Mods) > 0
}
