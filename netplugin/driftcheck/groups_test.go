package driftcheck

import (
	"errors"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
)

// TestCompareGroups: each bucket counts, its order too, and a group that Flowkeep never sends is another one.
func TestCompareGroups(t *testing.T) {
	want := pipeline.ServiceGroups()
	held := func(change func(list []readGroup) []readGroup) (out []readGroup) {
		for _, g := range pipeline.ServiceGroups() {
			out = append(out, readGroup{SelectGroup: g})
		}
		return change(out)
	}
	for name, c := range map[string]struct {
		change func([]readGroup) []readGroup
		want   []groupFinding
	}{
		"the same": {func(l []readGroup) []readGroup { slices.Reverse(l); return l }, nil},
		"deleted":  {func(l []readGroup) []readGroup { return l[1:] }, []groupFinding{{inspect.FlowMissing, 1, 2}}},
		"a bucket less": {func(l []readGroup) []readGroup {
			l[1].Buckets = l[1].Buckets[:3]
			return l
		}, []groupFinding{{inspect.FlowChanged, 2, 4}}},
		"two buckets exchanged": {func(l []readGroup) []readGroup {
			b := l[0].Buckets
			b[0], b[1] = b[1], b[0]
			return l
		}, []groupFinding{{inspect.FlowChanged, 1, 2}}},
		"unknown": {func(l []readGroup) []readGroup {
			l[2].unknown = errors.New("type all")
			return l
		}, []groupFinding{{inspect.FlowChanged, 3, 8}}},
		"another's": {func(l []readGroup) []readGroup {
			return append(l, readGroup{SelectGroup: ofctl.SelectGroup{ID: 77}})
		}, []groupFinding{{kind: inspect.FlowExtra, id: 77}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := compareGroups(held(c.change), want); !slices.Equal(got, c.want) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}
