package policy

import (
	"slices"
	"strings"
)

// minIndexed is the number of requirements and values from which a Matcher has an index.
const minIndexed = 16

// Matcher matches a selector with labels, as Selector.Matches does. Its cost hardly depends on the number of
// requirements and values. It is immutable.
type Matcher struct {
	requirements []Requirement // sorted by key, each with sorted values
	present      int           // number of requirements that need their label
}

// NewMatcher returns the matcher of a selector; nil if Selector.Matches costs little.
func NewMatcher(s *Selector) *Matcher {
	if terms(s) < minIndexed {
		return nil
	}
	m := &Matcher{requirements: slices.Clone(s.Requirements)}
	slices.SortStableFunc(m.requirements, func(a, b Requirement) int { return strings.Compare(a.Key, b.Key) })
	for i := range m.requirements {
		r := &m.requirements[i]
		r.Values = slices.Sorted(slices.Values(r.Values))
		if r.Operator != NotIn && r.Operator != DoesNotExist {
			m.present++
		}
	}
	return m
}

// Matches reports whether an object with these labels is selected.
func (m *Matcher) Matches(labels map[string]string) bool {
	if labelsLeftOut(labels) {
		return false // a selector of such objects has one requirement
	}
	if len(labels) > len(m.requirements) {
		return !slices.ContainsFunc(m.requirements, func(r Requirement) bool {
			value, has := labels[r.Key]
			return !r.allows(value, has)
		})
	}
	present := 0
	for key, value := range labels {
		i, _ := slices.BinarySearchFunc(m.requirements, key, func(r Requirement, key string) int {
			return strings.Compare(r.Key, key)
		})
		for ; i < len(m.requirements) && m.requirements[i].Key == key; i++ {
			r := &m.requirements[i]
			if !r.allows(value, true) {
				return false
			}
			if r.Operator != NotIn && r.Operator != DoesNotExist {
				present++
			}
		}
	}
	return present == m.present
}

// allows reports whether a requirement with sorted values is met by the label of its key.
func (r *Requirement) allows(value string, has bool) bool {
	switch r.Operator {
	case In, NotIn:
		found := false
		if has {
			_, found = slices.BinarySearch(r.Values, value)
		}
		return found == (r.Operator == In)
	case Exists:
		return has
	case DoesNotExist:
		return !has
	}
	return false
}
