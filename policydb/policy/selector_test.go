package policy_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

func requires(key string, op policy.Operator, values ...string) policy.Requirement {
	return policy.Requirement{Key: key, Operator: op, Values: values}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		r    policy.Requirement
		want string // which of the label sets below match
	}{
		{requires("app", policy.In, "a", "b"), "a b"},
		{requires("app", policy.In, ""), "empty"},
		{requires("app", policy.In), ""},
		{requires("app", policy.NotIn, "a", "b"), "c empty other none"},
		{requires("app", policy.NotIn, ""), "a b c other none"},
		{requires("app", policy.Exists), "a b c empty"},
		{requires("app", policy.DoesNotExist), "other none"},
		{requires("app", 0), ""},
		{requires("app", 99, "a"), ""},
	} {
		var got []string
		for _, name := range []string{"a", "b", "c", "empty", "other", "none"} {
			s := policy.Selector{Requirements: []policy.Requirement{c.r}}
			if s.Matches(labelSets[name]) {
				got = append(got, name)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%v matches %v, want %q", c.r, got, c.want)
		}
	}
}

var labelSets = map[string]map[string]string{
	"a": {"app": "a"}, "b": {"app": "b", "x": "y"}, "c": {"app": "c"}, "empty": {"app": ""}, "other": {"x": "a"}, "none": nil,
}

func TestMatchesAllRequirements(t *testing.T) {
	both := policy.Selector{Requirements: []policy.Requirement{requires("app", policy.In, "b"), requires("x", policy.Exists)}}
	if !both.Matches(labelSets["b"]) || both.Matches(labelSets["a"]) || both.Matches(labelSets["other"]) {
		t.Error("a selector is a conjunction")
	}
	var none *policy.Selector
	if none.Matches(nil) || !(&policy.Selector{}).Matches(nil) {
		t.Error("nil selects nothing, the empty one everything")
	}
}

// normal is the meaning of a selector's text: a set of requirements, each with a set of values.
func normal(s policy.Selector) string {
	set := map[string]bool{}
	for _, r := range s.Requirements {
		values := slices.Clone(r.Values)
		slices.Sort(values)
		set[fmt.Sprintf("%q %d %q", r.Key, r.Operator, slices.Compact(values))] = true
	}
	var out []string
	for k := range set {
		out = append(out, k)
	}
	slices.Sort(out)
	return strings.Join(out, ";")
}

func shuffled(r *rand.Rand, s policy.Selector) policy.Selector {
	out := policy.Selector{Requirements: slices.Clone(s.Requirements)}
	for i := range out.Requirements {
		v := slices.Clone(out.Requirements[i].Values)
		if len(v) > 0 && r.IntN(2) == 0 {
			v = append(v, v[r.IntN(len(v))])
		}
		r.Shuffle(len(v), func(i, j int) { v[i], v[j] = v[j], v[i] })
		out.Requirements[i].Values = v
	}
	if n := len(out.Requirements); n > 0 && r.IntN(2) == 0 {
		out.Requirements = append(out.Requirements, out.Requirements[r.IntN(n)])
	}
	r.Shuffle(len(out.Requirements), func(i, j int) {
		out.Requirements[i], out.Requirements[j] = out.Requirements[j], out.Requirements[i]
	})
	return out
}

func TestCanonicalIgnoresOrderAndDuplicates(t *testing.T) {
	for seed := range uint64(2000) {
		g := policytest.New(seed)
		s := g.Selector()
		again, other := shuffled(g.Rand, s), g.Selector()
		if s.Canonical() != again.Canonical() || s.String() != again.String() {
			t.Fatalf("%+v and %+v differ: %s, %s", s, again, s.Canonical(), again.Canonical())
		}
		if (normal(s) == normal(other)) != (s.Canonical() == other.Canonical()) {
			t.Fatalf("%+v and %+v: %s, %s", s, other, s.Canonical(), other.Canonical())
		}
	}
}

// FuzzCanonical looks for two selectors of different meaning with one canonical form: keys and values are hostile.
func FuzzCanonical(f *testing.F) {
	f.Add("app", uint8(1), "a,b", "tier", uint8(2), "c", "app", uint8(1), "b,a", "tier", uint8(2), "c")
	f.Add("a!", uint8(1), "", "%25", uint8(9), "-", "a", uint8(1), "!", "%", uint8(9), "25-")
	f.Fuzz(func(t *testing.T, k1 string, o1 uint8, v1, k2 string, o2 uint8, v2, k3 string, o3 uint8, v3, k4 string, o4 uint8, v4 string) {
		of := func(k string, o uint8, v string) policy.Requirement {
			return requires(k, policy.Operator(o%5), strings.Split(v, "\n")...)
		}
		a := policy.Selector{Requirements: []policy.Requirement{of(k1, o1, v1), of(k2, o2, v2)}}
		b := policy.Selector{Requirements: []policy.Requirement{of(k3, o3, v3), of(k4, o4, v4)}}
		if (normal(a) == normal(b)) != (a.Canonical() == b.Canonical()) {
			t.Errorf("%+v: %s\n%+v: %s", a, a.Canonical(), b, b.Canonical())
		}
	})
}

// TestMatcher_RandomSelectors compares matchers of selectors with many terms with Selector.Matches.
func TestMatcher_RandomSelectors(t *testing.T) {
	r := rand.New(rand.NewPCG(24, 1))
	operators := []policy.Operator{policy.In, policy.NotIn, policy.Exists, policy.DoesNotExist, 99}
	matched := 0
	for range 20_000 {
		var s policy.Selector
		for range 1 + r.IntN(20) {
			one := requires(fmt.Sprint("k", r.IntN(30)), operators[r.IntN(4)])
			if r.IntN(100) == 0 {
				one.Operator = operators[4]
			}
			for range 20 * (1 - r.IntN(2)) {
				one.Values = append(one.Values, fmt.Sprint("v", r.IntN(30)))
			}
			s.Requirements = append(s.Requirements, one)
		}
		labels := map[string]string{}
		for range r.IntN(40) {
			labels[fmt.Sprint("k", r.IntN(30))] = fmt.Sprint("v", r.IntN(30))
		}
		m := policy.NewMatcher(&s)
		if m == nil {
			continue
		}
		want := s.Matches(labels)
		if m.Matches(labels) != want {
			t.Fatalf("%v matches %v: %v, want %v", s, labels, !want, want)
		}
		if want {
			matched++
		}
	}
	if matched < 300 {
		t.Errorf("only %d match", matched)
	}
}
