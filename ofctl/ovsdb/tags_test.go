package ovsdb

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestAssignTags(t *testing.T) {
	for _, c := range []struct {
		name string
		have map[string]int
		want map[string]int
	}{
		{"no port", nil, map[string]int{}},
		{"new ports", map[string]int{"b": 0, "a": 0}, map[string]int{"a": 1, "b": 2}},
		{"a port keeps its tag", map[string]int{"a": 7, "b": 0}, map[string]int{"a": 7, "b": 1}},
		{"a new port takes a gap", map[string]int{"a": 1, "c": 3, "b": 0}, map[string]int{"a": 1, "b": 2, "c": 3}},
		{"equal tags", map[string]int{"a": 5, "b": 5, "c": 1}, map[string]int{"a": 5, "b": 2, "c": 1}},
		{"the highest tag", map[string]int{"a": 4094}, map[string]int{"a": 4094}},
		{"the reserved tag", map[string]int{"a": 4095}, map[string]int{"a": 1}},
		{"a negative tag", map[string]int{"a": -1}, map[string]int{"a": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := assignTags(c.have)
			if err != nil || !maps.Equal(got, c.want) {
				t.Errorf("%v, %v; want %v", got, err, c.want)
			}
		})
	}
}

// TestAssignTags_Random compares with an oracle: all tags are valid and differ, a tag of one port alone stays, and a
// second assignment changes nothing.
func TestAssignTags_Random(t *testing.T) {
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 1))
		have, holders := map[string]int{}, map[int]int{}
		for n := range random.IntN(60) {
			tag := random.IntN(80) - 5
			have[fmt.Sprintf("p%d", n)] = tag
			holders[tag]++
		}
		got, err := assignTags(have)
		if err != nil || len(got) != len(have) {
			t.Fatalf("seed %d: %d of %d ports have a tag: %v", seed, len(got), len(have), err)
		}
		used := map[int]string{}
		for name, tag := range got {
			if tag < 1 || tag > 4094 || used[tag] != "" {
				t.Errorf("seed %d: %s has tag %d as %q has", seed, name, tag, used[tag])
			}
			used[tag] = name
			if was := have[name]; was >= 1 && holders[was] == 1 && was != tag {
				t.Errorf("seed %d: %s had tag %d alone, and has %d", seed, name, was, tag)
			}
		}
		if again, err := assignTags(got); err != nil || !maps.Equal(again, got) {
			t.Errorf("seed %d: a second assignment changes tags: %v", seed, err)
		}
	}
}

func TestAssignTags_MorePortsThanTags(t *testing.T) {
	have := map[string]int{}
	for n := range maxTag {
		have[fmt.Sprintf("p%04d", n)] = 0
	}
	if _, err := assignTags(have); err != nil {
		t.Errorf("%d ports: %v", len(have), err)
	}
	have["q"] = 0
	got, err := assignTags(have)
	if err == nil || !strings.Contains(err.Error(), "port q has no VLAN of its own") || len(got) != maxTag {
		t.Errorf("%d ports: %d have a tag, %v", len(have), len(got), err)
	}
}

// TestTagBook_PortsKeepTheirTags: another program's change of a tag is undone, a port that is not in the replica yet
// has its tag alone, and the tag of a port that was removed is free.
func TestTagBook_PortsKeepTheirTags(t *testing.T) {
	var book tagBook
	assign := func(when string, have map[string]int, created []string, want map[string]int) {
		t.Helper()
		if got, err := book.assign(have, created...); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", when, got, err, want)
		}
	}
	assign("the bridge", nil, []string{"fk0"}, map[string]int{"fk0": 1})
	assign("first", map[string]int{"fk0": 0}, []string{"pa"}, map[string]int{"fk0": 1, "pa": 2})
	assign("before a was read", map[string]int{"fk0": 1}, []string{"pb"}, map[string]int{"fk0": 1, "pa": 2, "pb": 3})
	book.remove("pb")
	assign("b was not created", map[string]int{"fk0": 1, "pa": 2}, []string{"pc"},
		map[string]int{"fk0": 1, "pa": 2, "pc": 3})
	assign("changed by another", map[string]int{"fk0": 2, "pa": 1, "pc": 1}, nil,
		map[string]int{"fk0": 1, "pa": 2, "pc": 3})
	assign("a was removed", map[string]int{"fk0": 1, "pc": 3}, []string{"pd"}, map[string]int{"fk0": 1, "pc": 3, "pd": 2})
	assign("a returns", map[string]int{"fk0": 1, "pc": 3, "pd": 2}, []string{"pa"},
		map[string]int{"fk0": 1, "pa": 4, "pc": 3, "pd": 2})
	assign("a is removed unread", map[string]int{"fk0": 1, "pc": 3, "pd": 2}, []string{"pa"},
		map[string]int{"fk0": 1, "pa": 4, "pc": 3, "pd": 2})
}
