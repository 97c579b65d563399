package driftcheck

import (
	"context"
	"fmt"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/ofctl"
)

// readGroup is a group of the switch; unknown is an error where Flowkeep never sends such a group.
type readGroup struct {
	ofctl.SelectGroup
	unknown error
}

// groupFinding is a group of the switch that is not as it should be.
type groupFinding struct {
	kind string
	id   uint32
	want int // buckets
}

// groupComparison compares the groups of a switch that translates Services; without want it compares none.
type groupComparison struct {
	want  []ofctl.SelectGroup
	have  []readGroup
	found []groupFinding
}

func (g *groupComparison) read(ctx context.Context, from Reader) error {
	if len(g.want) == 0 {
		return nil
	}
	return from.Groups(ctx, func(group ofctl.SelectGroup, unknown error) error {
		g.have = append(g.have, readGroup{group, unknown})
		return nil
	})
}

// compare sets which groups differ.
func (g *groupComparison) compare() {
	if len(g.want) > 0 {
		g.found = compareGroups(g.have, g.want)
	}
}

func (g *groupComparison) count() (n inspect.DriftCount) {
	for i := range g.found {
		countKind(&n, g.found[i].kind)
	}
	return n
}

func compareGroups(have []readGroup, want []ofctl.SelectGroup) (list []groupFinding) {
	for _, w := range want {
		i := slices.IndexFunc(have, func(h readGroup) bool { return h.ID == w.ID })
		switch {
		case i < 0:
			list = append(list, groupFinding{inspect.FlowMissing, w.ID, len(w.Buckets)})
		case have[i].unknown != nil || !have[i].Equal(w):
			list = append(list, groupFinding{inspect.FlowChanged, w.ID, len(w.Buckets)})
		}
	}
	for _, h := range have {
		if !slices.ContainsFunc(want, func(w ofctl.SelectGroup) bool { return w.ID == h.ID }) {
			list = append(list, groupFinding{kind: inspect.FlowExtra, id: h.ID})
		}
	}
	return list
}

// describe returns the difference as one of flows.
func (f *groupFinding) describe() inspect.Difference {
	d := inspect.Difference{Kind: f.kind, Flow: inspect.Flow{
		TableName: inspect.GroupTable,
		Kind:      "group",
		Match:     fmt.Sprintf("group_id=%d", f.id),
		Actions:   fmt.Sprintf("select of %d buckets", f.want),
		Note:      "chooses endpoints of Services",
	}}
	if f.kind == inspect.FlowExtra {
		d.Actions, d.Note = "", "not Flowkeep's"
	}
	return d
}
