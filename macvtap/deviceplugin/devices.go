package deviceplugin

import (
	"cmp"
	"slices"

	"github.com/flowkeep/flowkeep/macvtap"
)

// device is one of a resource's.
type device struct {
	id      string
	parent  string
	mode    macvtap.Mode
	healthy bool
}

// devicesOf are in the order of parents and numbers: the same for the same resource, always.
func devicesOf(r macvtap.Resource) (list []device) {
	for _, p := range r.Parents {
		for n := range p.Capacity {
			list = append(list, device{macvtap.DeviceID(r.Name, p.Link, n), p.Link, p.Mode, p.Healthy})
		}
	}
	return list
}

func byID(list []device) map[string]device {
	m := make(map[string]device, len(list))
	for _, d := range list {
		m[d.id] = d
	}
	return m
}

// preferred chooses size of the available devices, those of must first, so that parents carry equally many: the next device is always of
// the parent that has the fewest in use, counting what is not available as in use, and then of the one that has the most left. Of one
// parent's devices the first in order are taken. What the resource does not have comes last. The kubelet asks for no more than is
// available; where it does, it gets what there is.
func preferred(all []device, available, must []string, size int) []string {
	free := spare(all, available, must)
	used := map[string]int{}
	for _, d := range all {
		used[d.parent]++
	}
	for parent, ids := range free {
		used[parent] -= len(ids)
	}
	chosen := unique(must)
	chosen = chosen[:max(0, min(size, len(chosen)))]
	for len(chosen) < size {
		parent, ok := leastUsed(free, used)
		if !ok {
			break
		}
		chosen = append(chosen, free[parent][0])
		free[parent] = free[parent][1:]
		used[parent]++
	}
	return chosen
}

// spare are the available devices that need not be taken, by parent, each in order; "" is the parent of unknown ones.
func spare(all []device, available, must []string) map[string][]string {
	left := map[string]bool{}
	for _, id := range available {
		left[id] = true
	}
	for _, id := range must {
		delete(left, id)
	}
	free := map[string][]string{}
	for _, d := range all {
		if left[d.id] {
			free[d.parent] = append(free[d.parent], d.id)
			delete(left, d.id)
		}
	}
	for id := range left {
		free[""] = append(free[""], id)
	}
	slices.Sort(free[""])
	return free
}

func leastUsed(free map[string][]string, used map[string]int) (best string, ok bool) {
	for parent, ids := range free {
		if len(ids) == 0 {
			continue
		}
		order := cmp.Or(
			compare(parent == "", best == ""),
			cmp.Compare(used[parent], used[best]),
			cmp.Compare(len(free[best]), len(ids)),
			cmp.Compare(parent, best),
		)
		if !ok || order < 0 {
			best, ok = parent, true
		}
	}
	return best, ok
}

// compare orders false before true.
func compare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func unique(ids []string) (list []string) {
	seen := map[string]bool{}
	for _, id := range ids {
		if !seen[id] {
			list = append(list, id)
		}
		seen[id] = true
	}
	return list
}
