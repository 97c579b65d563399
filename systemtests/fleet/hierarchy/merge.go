// Package hierarchy is a policy controller for tests: it merges inherited policies as GEP-713
// (https://gateway-api.sigs.k8s.io/geps/gep-713/) describes, with defaults and overrides, each atomic or merged rule by
// rule, and reports in PolicyStatus which policy is enforced.
//
// The ranks are those of Kuadrant's RFC 0007: a hub's policy is weaker than one of the spoke for the same gateway,
// which is weaker than one for a route. What is a hub's policy is recognised by an annotation.
package hierarchy

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Rank is how specific a policy is.
type Rank int

// Ranks, the least specific first.
const (
	Hub Rank = iota
	Gateway
	Route
)

// Strategy is how a policy's rules are merged with those of a more specific policy.
type Strategy struct {
	Overrides bool // they precede the more specific policy's, and do not yield to them
	Merged    bool // rule by rule, and not as a whole
}

// Policy is a policy that applies to a route, through its gateway or by itself.
type Policy struct {
	Name    string // namespace/name
	Rank    Rank
	Created string // RFC 3339
	Strategy
	Rules map[string]string
}

// Effective returns the rules that apply to a route, and the policy of each, if these policies apply to it. Of several
// of one rank the oldest counts.
func Effective(policies []Policy) (rules, from map[string]string) {
	rules, from = map[string]string{}, map[string]string{}
	for _, p := range chain(policies) {
		own := maps.Clone(p.Rules)
		switch {
		case p.Overrides && !p.Merged:
			clear(rules)
			clear(from)
		case !p.Overrides && p.Merged:
			maps.DeleteFunc(own, func(name, _ string) bool { _, has := rules[name]; return has })
		case !p.Overrides && len(rules) > 0:
			continue
		}
		for name, rule := range own {
			rules[name], from[name] = rule, p.Name
		}
	}
	return rules, from
}

// chain returns the policies that count, the most specific first.
func chain(policies []Policy) []Policy {
	policies = slices.Clone(policies)
	slices.SortFunc(policies, func(a, b Policy) int {
		return cmp.Or(-cmp.Compare(a.Rank, b.Rank), strings.Compare(a.Created, b.Created), strings.Compare(a.Name, b.Name))
	})
	return slices.CompactFunc(policies, func(a, b Policy) bool { return a.Rank == b.Rank })
}
