package ofctl_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

const groupID = 8

// selectGroup has a bucket for each of so many slots.
func selectGroup(slots int) ofctl.SelectGroup {
	g := ofctl.SelectGroup{ID: groupID}
	for slot := range slots {
		load := ofctl.Action{Kind: ofctl.SetReg, Reg: 4, Value: uint32(slot)}
		g.Buckets = append(g.Buckets, []ofctl.Action{load, {Kind: ofctl.Resubmit, Table: 5}})
	}
	return g
}

func groups(t testing.TB, s *ofctl.Session) (found []ofctl.SelectGroup) {
	t.Helper()
	err := s.Groups(t.Context(), func(g ofctl.SelectGroup, err error) error {
		found = append(found, g)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestGroups_InABundle: groups and the flows that name them are one change, or none is made.
func TestGroups_InABundle(t *testing.T) {
	s := connect(t, ovstest.Start(t, 2))
	want := selectGroup(256)
	flow := ofctl.Flow{Table: 3, Priority: 1, Actions: []ofctl.Action{{Kind: ofctl.Group, Value: groupID}}}
	if err := s.Commit(t.Context(), mods(ofctl.Add, []ofctl.Flow{flow})); err == nil {
		t.Error("a flow with an unknown group was accepted")
	}
	bad := ofctl.Flow{Table: 9, Priority: 1, Actions: []ofctl.Action{{Kind: ofctl.GotoTable, Table: 3}}}
	adds := []ofctl.GroupMod{{Command: ofctl.Add, Group: want}}
	var refused *ofctl.SwitchError
	err := s.CommitWithGroups(t.Context(), adds, mods(ofctl.Add, []ofctl.Flow{flow, bad}))
	if !errors.As(err, &refused) || refused.Flow == nil || refused.Flow.Table != 9 {
		t.Errorf("a bundle with a bad flow: %v", err)
	}
	if left := groups(t, s); len(left) != 0 {
		t.Errorf("a refused bundle left %v", left)
	}
	if err := s.CommitWithGroups(t.Context(), adds, mods(ofctl.Add, []ofctl.Flow{flow})); err != nil {
		t.Fatal(err)
	}
	if got := groups(t, s); len(got) != 1 || !got[0].Equal(want) {
		t.Errorf("groups: %v, want %s", got, want)
	}
	gone := ofctl.SelectGroup{ID: groupID}
	err = s.CommitWithGroups(t.Context(), []ofctl.GroupMod{{Command: ofctl.Delete, Group: gone}}, nil)
	if left := groups(t, s); err != nil || len(left) != 0 || len(dump(t, s)) != 0 {
		t.Errorf("deleted: %v; groups %v, flows %v", err, left, dump(t, s))
	}
}

// TestEnsureGroups checks that EnsureGroups corrects every group that differs, including those of other programs.
func TestEnsureGroups(t *testing.T) {
	sw := ovstest.Start(t, 2)
	s := connect(t, sw)
	sw.OFCtl(t, "add-group", "group_id=3,type=all,bucket=actions=output:1")
	sw.OFCtl(t, "add-group", "group_id=4,type=select,bucket=weight:5,actions=output:1")
	other := selectGroup(4)
	other.ID = 4
	for _, want := range [][]ofctl.SelectGroup{{selectGroup(2), other}, {selectGroup(4), other}, {other}, nil} {
		if err := s.EnsureGroups(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		got := groups(t, s)
		slices.SortFunc(got, func(a, b ofctl.SelectGroup) int { return int(b.ID) - int(a.ID) })
		if !slices.EqualFunc(got, want, ofctl.SelectGroup.Equal) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	large := selectGroup(1500)
	if err := s.EnsureGroups(t.Context(), []ofctl.SelectGroup{large}); !errors.Is(err, ofctl.ErrTooLarge) {
		t.Errorf("a group of 1,500 buckets: %v", err)
	}
}
