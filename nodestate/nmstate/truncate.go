package nmstate

import (
	"maps"
	"slices"
)

// ReportLimit is how large a reported state may be, in bytes of JSON, and ObjectLimit how large the whole object: with what
// the API server adds of its own it stays below what etcd takes (1.5 MiB).
const (
	ReportLimit = 768 << 10
	ObjectLimit = 1400 << 10
)

// Room is what an object leaves to the reported state whose other parts, the desire above all, take so many bytes.
func Room(taken int) int { return max(0, min(ReportLimit, ObjectLimit-taken)) }

// Truncate leaves entries out until s has at most limit bytes as JSON: routes in force first, then neighbours by
// LLDP, then pods' and other virtual interfaces, hardware, and interfaces that desired names last. Of equals it
// leaves out the last ones first, so that equal states are truncated equally. It reports whether it left anything
// out, and returns s itself if not. Parts that are no list are kept, whatever their size.
func Truncate(s, desired State, limit int) (State, bool) {
	size := len(encoded(s))
	if size <= limit {
		return s, false
	}
	s = maps.Clone(s)
	named := map[string]bool{}
	for _, i := range desired.Interfaces() {
		named[i.Name()] = true
	}
	excess := size - limit
	for _, key := range []string{keyRoutes, keyRouteRules} {
		section := maps.Clone(object(s[key]))
		for _, part := range []string{keyRunning, keyConfig} {
			if entries, ok := section[part].([]any); ok {
				section[part], excess = shorten(entries, excess, func(any) int { return 0 })
				s[key] = section
			}
		}
	}
	if entries, ok := s[keyInterfaces].([]any); ok {
		entries, excess = withoutNeighbours(entries, excess)
		s[keyInterfaces], _ = shorten(entries, excess, func(entry any) int {
			i := Interface(object(entry))
			switch {
			case named[i.Name()]:
				return 3
			case hardware.MatchString(i.Name()), i.Type() == "ethernet", i.Type() == "bond":
				return 2
			}
			return 1
		})
	}
	return s, true
}

// withoutNeighbours takes neighbours from interfaces, from the last on, until that was worth excess bytes.
func withoutNeighbours(entries []any, excess int) ([]any, int) {
	entries = slices.Clone(entries)
	for n := len(entries) - 1; n >= 0 && excess > 0; n-- {
		section := Interface(object(entries[n])).Section(keyLLDP)
		if neighbours, ok := section[keyNeighbours]; ok {
			i, lldp := maps.Clone(object(entries[n])), maps.Clone(section)
			delete(lldp, keyNeighbours)
			i[keyLLDP], entries[n] = lldp, i
			excess -= len(encoded(neighbours)) + len(`,"neighbors":`)
		}
	}
	return entries, excess
}

// shorten leaves out entries worth excess bytes, those of least weight first, of equals the last; it gives what is left in
// its order, and the excess that remains.
func shorten(entries []any, excess int, weight func(any) int) ([]any, int) {
	order := make([]int, len(entries))
	for n := range order {
		order[n] = len(order) - 1 - n
	}
	slices.SortStableFunc(order, func(a, b int) int { return weight(entries[a]) - weight(entries[b]) })
	gone := map[int]bool{}
	for _, n := range order {
		if excess <= 0 {
			break
		}
		gone[n] = true
		excess -= len(encoded(entries[n])) + len(",")
	}
	left := make([]any, 0, len(entries)-len(gone))
	for n, entry := range entries {
		if !gone[n] {
			left = append(left, entry)
		}
	}
	return left, excess
}
