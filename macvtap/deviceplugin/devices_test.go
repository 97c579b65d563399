package deviceplugin

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/macvtap"
)

func TestPreferred(t *testing.T) {
	all := devicesOf(resource("r", 3, 3, 1)) // p0 and p1 have three, p2 one
	short := func(ids ...string) (list []string) {
		for _, id := range ids {
			list = append(list, "r:p"+id)
		}
		return list
	}
	every := short("0:0", "0:1", "0:2", "1:0", "1:1", "1:2", "2:0")
	for what, c := range map[string]struct {
		available, must []string
		size            int
		want            []string
	}{
		"one":                                   {every, nil, 1, short("0:0")},
		"one of each":                           {every, nil, 3, short("0:0", "1:0", "2:0")},
		"then of those that have some left":     {every, nil, 5, short("0:0", "1:0", "2:0", "0:1", "1:1")},
		"all":                                   {every, nil, 7, every},
		"more than there are":                   {every, nil, 70, every},
		"none":                                  {every, nil, 0, nil},
		"fewer than none":                       {every, nil, -3, nil},
		"nothing is available":                  {nil, nil, 2, nil},
		"where one is in use":                   {short("0:1", "0:2", "1:0", "1:1", "1:2"), nil, 1, short("1:0")},
		"must is honoured":                      {every, short("1:2"), 1, short("1:2")},
		"and counts for its parent":             {every, short("1:2"), 3, short("1:2", "0:0", "2:0")},
		"more musts than size":                  {every, short("1:2", "1:1"), 1, short("1:2")},
		"musts twice":                           {every, short("1:2", "1:2"), 2, short("1:2", "0:0")},
		"strangers come last":                   {append(short("0:0"), "x", "a"), nil, 3, append(short("0:0"), "a", "x")},
		"strangers though the own are all used": {[]string{"x"}, nil, 1, []string{"x"}},
		"available twice":                       {short("0:0", "0:0"), nil, 2, short("0:0")},
	} {
		got := preferred(all, c.available, c.must, c.size)
		if !slices.Equal(sorted(got), sorted(c.want)) || c.size == 1 && !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}

// Whatever is asked: as many as asked for or there are, each once, of what is available, the musts among them, and the parents' use as even
// as can be: no device could move from its parent to one that has two fewer in use.
func TestPreferredProperties(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 6))
		var capacities []int
		for range 1 + r.IntN(4) {
			capacities = append(capacities, 1+r.IntN(6))
		}
		all := devicesOf(resource("r", capacities...))
		var available, must []string
		for _, d := range all {
			if r.IntN(3) > 0 {
				available = append(available, d.id)
			}
		}
		r.Shuffle(len(available), func(i, j int) { available[i], available[j] = available[j], available[i] })
		size := r.IntN(len(all) + 2)
		must = slices.Clone(available[:min(len(available), r.IntN(3), size)])
		got := preferred(all, available, must, size)
		if err := check(all, available, must, size, got); err != nil {
			t.Fatalf("seed %d: %v: %v of %v with %v: %v", seed, err, size, available, must, got)
		}
		r.Shuffle(len(available), func(i, j int) { available[i], available[j] = available[j], available[i] })
		if second := preferred(all, available, must, size); !slices.Equal(got, second) {
			t.Fatalf("seed %d: %v, and then %v", seed, got, second)
		}
	}
}

func check(all []device, available, must []string, size int, got []string) error {
	if len(got) != min(size, len(available)) || len(unique(got)) != len(got) {
		return fmt.Errorf("%d chosen", len(got))
	}
	used, spare, moved := map[string]int{}, map[string]int{}, map[string]int{}
	for _, d := range all {
		switch chosen := slices.Contains(got, d.id); {
		case chosen && !slices.Contains(available, d.id), !chosen && slices.Contains(must, d.id):
			return fmt.Errorf("%s: chosen is %v", d.id, chosen)
		case chosen && !slices.Contains(must, d.id):
			moved[d.parent]++
			used[d.parent]++
		case chosen || !slices.Contains(available, d.id):
			used[d.parent]++
		default:
			spare[d.parent]++
		}
	}
	for from := range moved {
		for to := range spare {
			if used[from] > used[to]+1 {
				return fmt.Errorf("%s has %d in use, %s %d", from, used[from], to, used[to])
			}
		}
	}
	return nil
}

func TestDeviceIDsAreTheSameAlways(t *testing.T) {
	r := resource("data", 2, 1)
	before := devicesOf(r)
	r.Parents[0].Healthy, r.Parents[0].Mode = false, macvtap.Private
	after := devicesOf(r)
	for i := range before {
		if before[i].id != after[i].id || strings.Count(before[i].id, ":") != 2 {
			t.Errorf("%v, %v", before[i], after[i])
		}
	}
	if len(after) != 3 || after[0].healthy || !after[2].healthy {
		t.Errorf("%v", after)
	}
}
