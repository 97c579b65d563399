package resolve

import (
	"iter"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// groupIndex finds the groups whose selector could choose an object with given labels: under one of the values of its
// first In requirement, or among those without any.
type groupIndex struct {
	byLabel map[label][]*group
	always  []*group
}

func newGroupIndex() groupIndex { return groupIndex{byLabel: map[label][]*group{}} }

// anchor is the requirement that a selector is filed under; nil: it has none that names values.
func anchor(s *policy.Selector) *policy.Requirement {
	if s == nil {
		return nil
	}
	for i := range s.Requirements {
		if s.Requirements[i].Operator == policy.In {
			return &s.Requirements[i]
		}
	}
	return nil
}

func (x *groupIndex) add(g *group, s *policy.Selector) {
	r := anchor(s)
	if r == nil {
		x.always = append(x.always, g)
		return
	}
	for i, v := range r.Values {
		if !contains(r.Values[:i], v) {
			l := label{r.Key, v}
			x.byLabel[l] = append(x.byLabel[l], g)
		}
	}
}

func contains(values []string, v string) bool {
	for _, have := range values {
		if have == v {
			return true
		}
	}
	return false
}

func (x *groupIndex) remove(g *group, s *policy.Selector) {
	r := anchor(s)
	if r == nil {
		x.always = without(x.always, g)
		return
	}
	for _, v := range r.Values {
		l := label{r.Key, v}
		if left := without(x.byLabel[l], g); len(left) > 0 {
			x.byLabel[l] = left
		} else {
			delete(x.byLabel, l)
		}
	}
}

// candidates gives each group once: an object has one value for the key that a group is filed under.
func (x *groupIndex) candidates(labels map[string]string) iter.Seq[*group] {
	return func(yield func(*group) bool) {
		for _, g := range x.always {
			if !yield(g) {
				return
			}
		}
		if len(x.byLabel) == 0 {
			return
		}
		for k, v := range labels {
			for _, g := range x.byLabel[label{k, v}] {
				if !yield(g) {
					return
				}
			}
		}
	}
}
