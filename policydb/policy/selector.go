package policy

import (
	"slices"
	"strings"
)

// Matches reports whether an object with these labels is selected (Kubernetes API conventions: a nil selector selects
// nothing, an empty one everything; NotIn and DoesNotExist match if the label is absent). Labels that are over budget
// match no selector of a user (labels.go).
func (s *Selector) Matches(labels map[string]string) bool {
	if s == nil || labelsLeftOut(labels) && !s.isOverBudget() {
		return false
	}
	for i := range s.Requirements {
		if !s.Requirements[i].matches(labels) {
			return false
		}
	}
	return true
}

func (r *Requirement) matches(labels map[string]string) bool {
	value, has := labels[r.Key]
	switch r.Operator {
	case In:
		return has && slices.Contains(r.Values, value)
	case NotIn:
		return !has || !slices.Contains(r.Values, value)
	case Exists:
		return has
	case DoesNotExist:
		return !has
	}
	return false
}

// Canonical returns a text that is equal for two selectors if and only if they have the same requirements in any
// order.
func (s *Selector) Canonical() string { return string(s.appendCanonical(nil)) }

func (s *Selector) appendCanonical(b []byte) []byte {
	if s == nil {
		return append(b, '-')
	}
	b = append(b, '{')
	if len(s.Requirements) == 1 {
		return append(s.Requirements[0].appendCanonical(b), '}')
	}
	texts := make([]string, 0, len(s.Requirements))
	for i := range s.Requirements {
		texts = append(texts, string(s.Requirements[i].appendCanonical(nil)))
	}
	slices.Sort(texts)
	b = append(b, strings.Join(slices.Compact(texts), "&")...)
	return append(b, '}')
}

func (r *Requirement) appendCanonical(b []byte) []byte {
	b = append(b, quote(r.Key)...)
	b = append(b, " !=?+-"[min(int(r.Operator), 5)])
	values := r.Values
	if len(values) > 1 {
		values = slices.Clone(values)
		slices.Sort(values)
		values = slices.Compact(values)
	}
	for _, v := range values {
		b = append(b, ',')
		b = append(b, quote(v)...)
	}
	return b
}

// quote keeps the separators of the canonical form out of keys and values. Valid labels hold none of them.
func quote(s string) string {
	if !strings.ContainsAny(s, "%{}&,|!=?+ ") {
		return s
	}
	return strings.NewReplacer("%", "%25", "{", "%7b", "}", "%7d", "&", "%26", ",", "%2c", "|", "%7c", "!", "%21", "=",
		"%3d", "?", "%3f", "+", "%2b", " ", "%20").Replace(s)
}

// String returns the selector in kubectl's syntax. Equal selectors have equal texts.
func (s *Selector) String() string {
	if s == nil {
		return "none"
	}
	if len(s.Requirements) == 0 {
		return "all"
	}
	parts := make([]string, len(s.Requirements))
	for i, r := range s.Requirements {
		parts[i] = r.String()
	}
	slices.Sort(parts)
	return strings.Join(slices.Compact(parts), ",")
}

func (r Requirement) String() string {
	values := slices.Clone(r.Values)
	slices.Sort(values)
	values = slices.Compact(values)
	list := "(" + strings.Join(values, ",") + ")"
	switch r.Operator {
	case In:
		if len(values) == 1 {
			return r.Key + "=" + values[0]
		}
		return r.Key + " in " + list
	case NotIn:
		return r.Key + " notin " + list
	case Exists:
		return r.Key
	case DoesNotExist:
		return "!" + r.Key
	}
	return r.Key + " ?"
}
