package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// maxReruns is how many failures there may be; after more, nothing runs once more.
const maxReruns = 10

// A Rerun is the command that runs failed tests once more.
type Rerun struct {
	Suite Suite
	Tests []*Test
}

// chooseReruns returns the commands that run tests once more, and sets Barred of the failed tests that do not.
// errors is the number of failures that are no test's.
func chooseReruns(failed []*Test, errors int) []Rerun {
	tooMany := len(failed)+errors > maxReruns
	chosen := map[string]*Rerun{}
	for _, t := range failed {
		switch {
		case t.Barred != "":
		case tooMany:
			t.Barred = fmt.Sprintf("more than %d failures", maxReruns)
		case t.Suite == lintSuite:
			t.Barred = "lint"
		case strings.HasSuffix(t.Package, "/internal/archtest"):
			t.Barred = "internal/archtest"
		default:
			s := rerunSuite(t)
			if chosen[s.Name] == nil {
				chosen[s.Name] = &Rerun{Suite: s}
			}
			chosen[s.Name].Tests = append(chosen[s.Name].Tests, t)
		}
	}
	var list []Rerun
	for _, key := range sorted(chosen) { // "again: …" before "cluster": the short ones first
		r := chosen[key]
		names := make([]string, 0, len(r.Tests))
		for _, t := range r.Tests {
			names = append(names, t.Name)
		}
		slices.Sort(names)
		r.Suite.Command = append(r.Suite.Command, "-run", "^("+strings.Join(slices.Compact(names), "|")+")$")
		list = append(list, *r)
	}
	return list
}

// rerunSuite returns the suite that runs tests like this one, its command without their names: tests of all sets run one
// after another on one fresh cluster, others by package.
func rerunSuite(t *Test) Suite {
	switch {
	case slices.Contains(setSuites, t.Suite):
		return Suite{
			Name:      "cluster",
			Command:   []string{"scripts/system", "-only", "pods", "-parallel", "1"},
			Sandboxes: []string{"test", "test-geneve"},
		}
	case slices.Contains(ownSuites, t.Suite):
		again := Suite{Name: "again: " + t.Suite, Command: []string{"scripts/system", "-only", t.Suite}}
		if t.Suite == shapeSuite {
			again.Sandboxes = []string{shapeSandbox}
		}
		return again
	}
	name := "again: " + strings.TrimPrefix(t.Package, "github.com/flowkeep/flowkeep/")
	return Suite{Name: name, Command: []string{"scripts/unit", "-package", t.Package}}
}

// settle merges the outcome of a rerun: a test that passed now counts as passed, and its first failure becomes flaky.
// A test that did not run, or was skipped, has failed.
func (r Rerun) settle(again Outcome) (flaky []*Test) {
	for _, first := range r.Tests {
		i := slices.IndexFunc(again.Tests, func(t *Test) bool { return t.Name == first.Name })
		switch {
		case i < 0:
			first.Barred = "did not run once more"
		case again.Tests[i].Failed:
			first.Barred = "failed again: " + again.Tests[i].Reason
		case again.Tests[i].Skipped || again.Tests[i].Counts.Passed == 0:
			first.Barred = "skipped in its second run"
		default:
			before := *first
			flaky = append(flaky, &before)
			first.Failed, first.Counts = false, again.Tests[i].Counts
		}
	}
	return flaky
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
