package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
)

// TestNextRefused: a pod that holds more than an eighth of a table that is nearly full is refused. From 7/8 on, all
// pods that hold some are until there are fewer than 6/8, but where the table is full of connections that are not pods'.
func TestNextRefused(t *testing.T) {
	const limit = 800
	var refused []string
	var all bool
	for i, c := range []struct {
		count, a, b uint32
		want        []string
	}{
		{599, 590, 5, nil},
		{600, 101, 5, []string{"ns/a"}},
		{600, 90, 5, []string{"ns/a"}},
		{700, 90, 5, []string{"ns/a"}}, // the node's own programs
		{700, 395, 5, []string{"ns/a", "ns/b"}},
		{600, 395, 5, []string{"ns/a", "ns/b"}},
		{700, 300, 5, []string{"ns/a", "ns/b"}},
		{700, 290, 5, []string{"ns/a"}},
		{700, 395, 5, []string{"ns/a", "ns/b"}},
		{599, 395, 5, []string{"ns/a"}},
		{650, 395, 5, []string{"ns/a"}},
		{499, 395, 5, nil},
	} {
		refused, all = nextRefused(map[string]uint32{"ns/a": c.a, "ns/b": c.b}, c.count, limit, refused, all)
		if !slices.Equal(refused, c.want) {
			t.Errorf("reading %d: %v are refused, want %v", i, refused, c.want)
		}
	}
}

// TestNextRefused_AtTheBound: pods that each hold less than an eighth, and many that hold one, are not refused and
// allowed in turn where the number of entries goes up and down by one.
func TestNextRefused_AtTheBound(t *testing.T) {
	const limit = 262144
	held := map[string]uint32{}
	for i := range 108 {
		held[fmt.Sprintf("ns/%d", i)] = 1
		if i < 8 {
			held[fmt.Sprintf("ns/%d", i)] = 26000
		}
	}
	var refused []string
	var all bool
	for i, count := range []uint32{229375, 229376, 229375, 229376, 196608, 196607, 196608} {
		refused, all = nextRefused(held, count, limit, refused, all)
		want := map[bool]int{true: len(held)}[i > 0 && i < 5]
		if len(refused) != want || all != (want > 0) {
			t.Errorf("reading %d, %d entries: %d pods are refused, want %d", i, count, len(refused), want)
		}
	}
}

// TestNodeTable_Bound: where a pod has nearly filled the node's table the switch gets flows that drop its new
// connections, and none for another pod; they go when the entries have ended, or after failed readings.
func TestNodeTable_Bound(t *testing.T) {
	a, s, _ := running(t)
	if err := a.do(t.Context(), func() { twoPods(a) }); err != nil {
		t.Fatal(err)
	}
	const most = 8000
	var count uint32
	opened, failed := map[netip.Addr]uint32{}, error(nil)
	nt := &a.zoneLimits.table
	nt.size = func() (uint32, uint32, error) { return count, most, nil }
	nt.opened = func([]netip.Prefix) (map[netip.Addr]uint32, error) { return opened, failed }
	first, broken := netip.MustParseAddr("10.244.1.2"), errors.New("no table")
	steps := []struct {
		count, first uint32
		err          error
		refuses      bool
	}{
		{5000, 4000, nil, false},
		{6000, 1001, nil, true},
		{6000, 1001, broken, true},
		{4000, 1001, nil, false},
		{6000, 1001, nil, true},
	}
	for range maxFailedReadings {
		steps = append(steps, steps[2])
	}
	steps[len(steps)-1].refuses = false
	for i, c := range steps {
		count, failed, opened[first], nt.shares.again = c.count, c.err, c.first, time.Time{}
		if err := nt.bound(t.Context()); !errors.Is(err, c.err) {
			t.Errorf("reading %d: %v", i, err)
		}
		dropped := map[uint8]int{}
		if err := a.do(t.Context(), func() {
			for k := range s.holds {
				if k.priority == pipeline.CappedPriority {
					dropped[k.table]++
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		want := map[bool]int{true: 1}[c.refuses]
		isRight := dropped[pipeline.TableCommit] == want && dropped[pipeline.TableServiceNew] == want
		if !isRight || isSet(t, a.metrics.capped) != c.refuses {
			t.Errorf("reading %d: flows %v, want %d in each table", i, dropped, want)
		}
	}
}
