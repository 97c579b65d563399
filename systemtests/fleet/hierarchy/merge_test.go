package hierarchy

import (
	"fmt"
	"testing"
)

func TestEffective(t *testing.T) {
	defaults, merged := Strategy{}, Strategy{Merged: true}
	overrides, mergedOverrides := Strategy{Overrides: true}, Strategy{Overrides: true, Merged: true}
	policy := func(name string, rank Rank, s Strategy, rules ...string) Policy {
		p := Policy{Name: name, Rank: rank, Created: "2026-01-01T00:00:00Z", Strategy: s, Rules: map[string]string{}}
		for _, r := range rules {
			p.Rules[r] = name
		}
		return p
	}
	younger := policy("a", Gateway, defaults, "x")
	younger.Created = "2026-02-01T00:00:00Z"
	for _, c := range []struct {
		what     string
		policies []Policy
		want     string
	}{
		{"none", nil, "map[]"},
		{"the hub's alone", []Policy{policy("hub", Hub, defaults, "x", "y")}, "map[x:hub y:hub]"},
		{"the spoke's is stronger", []Policy{policy("hub", Hub, defaults, "x", "y"), policy("own", Gateway, defaults, "x")}, "map[x:own]"},
		{"the route's is the strongest", []Policy{policy("hub", Hub, defaults, "x"), policy("own", Gateway, defaults, "x"), policy("r", Route, defaults, "z")}, "map[z:r]"},
		{"merged defaults fill in", []Policy{policy("hub", Hub, merged, "x", "y"), policy("own", Gateway, defaults, "x")}, "map[x:own y:hub]"},
		{"overrides replace", []Policy{policy("hub", Hub, overrides, "x"), policy("own", Gateway, defaults, "x", "y"), policy("r", Route, defaults, "z")}, "map[x:hub]"},
		{"merged overrides replace rule by rule", []Policy{policy("hub", Hub, mergedOverrides, "x"), policy("own", Gateway, defaults, "x", "y")}, "map[x:hub y:own]"},
		{"the older of one rank counts", []Policy{younger, policy("b", Gateway, defaults, "y")}, "map[y:b]"},
	} {
		t.Run(c.what, func(t *testing.T) {
			rules, from := Effective(c.policies)
			if got := fmt.Sprint(rules); got != c.want || fmt.Sprint(from) != c.want {
				t.Errorf("%v from %v, want %s", rules, from, c.want)
			}
		})
	}
}
