package native

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/flowkeep/flowkeep/nodestate"
)

// extended returns a change with more steps, which undoes what it undid and these steps. The steps begin at the state
// later.
func extended(c nodestate.Change, later *before, steps []Step) (nodestate.Change, error) {
	was := later
	if len(c.Before) > 0 {
		was = new(before)
		if err := json.Unmarshal(c.Before, was); err != nil {
			return c, err
		}
		was.extend(later)
	}
	raw, err := json.Marshal(was)
	if err != nil {
		return c, err
	}
	c.Before, c.Steps = raw, slices.Clone(c.Steps)
	for _, s := range steps {
		if text := s.String(); !slices.Contains(c.Steps, text) {
			c.Steps = append(c.Steps, text)
		}
	}
	return c, nil
}

// extend adds what a later part of the change concerns. Of what both concern, the state before the first part counts.
func (was *before) extend(later *before) {
	known := func(name string) bool { return was.Links[name] != nil || slices.Contains(was.Absent, name) }
	was.addRoutes(later)
	for _, name := range later.Absent {
		if !known(name) {
			was.Absent = append(was.Absent, name)
		}
	}
	maps.DeleteFunc(later.Links, func(name string, _ *link) bool { return known(name) })
	maps.Copy(was.Links, later.Links)
	was.Rules = append(was.Rules, without(without(later.Rules, was.RulesIn), was.Rules)...)
	was.RulesIn = append(was.RulesIn, without(without(later.RulesIn, was.Rules), was.RulesIn)...)
	if was.DNS == nil {
		was.DNS = later.DNS
	}
}

// addRoutes adds the later part's routes, except those by links that the roll-back removes.
func (was *before) addRoutes(later *before) {
	has := func(list []route, r *route) bool {
		return slices.ContainsFunc(list, func(o route) bool { return o.equal(r) })
	}
	removed := func(r *route) bool { return slices.ContainsFunc(was.Absent, r.over) }
	taken := func(r *route) bool {
		return slices.ContainsFunc(was.Routes, func(o route) bool { return o.sameKey(r) })
	}
	for _, r := range later.Routes {
		if !has(was.Added, &r) && !removed(&r) && !taken(&r) {
			was.Routes = append(was.Routes, r)
		}
	}
	for _, r := range later.Added {
		if !has(was.Routes, &r) && !has(was.Added, &r) {
			was.Added = append(was.Added, r)
		}
	}
}
