package fleet_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/fleet"
)

// idle is how long nothing may be written while nothing changes.
const idle = 5 * time.Second

// versions are those of all works and of the objects whose status is written, by path.
func (w *world) versions() map[string]string {
	w.Helper()
	found := map[string]string{}
	works, err := w.works()
	w.must(err)
	for _, work := range works {
		found[work.Metadata.Namespace+"/"+work.Metadata.Name] = work.Metadata.ResourceVersion
	}
	for _, path := range []string{gatewayPath(w.ns, "web"), ratesPath(w.ns, "limits"), ratesPath(w.ns, "more")} {
		found[path] = dig(w.there(w.Hub, path), "metadata", "resourceVersion")
	}
	return found
}

var (
	writes   = regexp.MustCompile(`apiserver_request_total\{.*\} (\d+)`)
	verb     = regexp.MustCompile(`verb="(APPLY|POST|PUT|PATCH|DELETE|DELETECOLLECTION)"`)
	resource = regexp.MustCompile(`resource="(\w+)"`)
)

// writes counts what the hub's API server was asked to write of what policy-sync may; statuses of works are their agents'.
func (w *world) writes() map[string]string {
	w.Helper()
	text, err := w.Hub.Ask(w.ctx, "GET", "/metrics", nil)
	w.must(err)
	found := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if m := writes.FindStringSubmatch(line); m != nil && verb.MatchString(line) && !containsAll(line, `"manifestworks"`, `"status"`) {
			if r := resource.FindStringSubmatch(line); r != nil && slices.Contains([]string{"manifestworks", "gateways", "gatewayclasses", "ratelimitpolicies", "networkpolicysets", "policyoverrides"}, r[1]) {
				found[line[:strings.LastIndex(line, " ")]] = m[1]
			}
		}
	}
	return found
}

// A restart writes nothing, and neither does time: there is no loop between statuses and copies.
func TestFleetRestartWritesNothing(t *testing.T) {
	w := newSynced(t)
	w.class(rateLimits)
	w.gateway("web", "everywhere")
	w.rates("limits", "web", 10)
	w.rates("more", "web", 20)
	for _, s := range []*fleet.Server{w.c1, w.c2} {
		for _, name := range []string{"limits", "more"} {
			w.tell(s, ratesPath(w.ns, name), conditions("Accepted True Accepted", "Enforced True Enforced"))
		}
	}
	for _, name := range []string{"limits", "more"} {
		w.says(w.Hub, ratesPath(w.ns, name), "fleet.flowkeep.io/Enforced", "True")
	}
	w.settled(2)
	w.quiet("restarted", func() {
		w.must(w.Stop(fleet.PolicySync))
		w.must(w.StartPolicySync(w.ctx, fleet.PolicySync))
	})
	w.quiet("killed and started", func() {
		w.must(w.Kill(fleet.PolicySync))
		w.must(w.StartPolicySync(w.ctx, fleet.PolicySync))
	})
}

// quiet fails the test unless do can be followed by no write. The first times, answers of agents from before may still
// arrive; a loop, and a start that writes, write each time.
func (w *world) quiet(when string, do func()) {
	w.Helper()
	w.eventually(when+", it writes nothing", func() error {
		before, counted := w.versions(), w.writes()
		do()
		time.Sleep(idle)
		if after := w.versions(); !maps.Equal(before, after) {
			return fmt.Errorf("versions were\n%v\nand are\n%v", before, after)
		}
		after := w.writes()
		for line, n := range after {
			if counted[line] != n {
				return fmt.Errorf("it wrote: %s was %q and is %q", line, counted[line], n)
			}
		}
		return nil
	})
}

// Killed in the midst of a change that concerns many works, it goes on where it was; one that waits takes over when the active one ends.
func TestFleetKilledInTheMidst(t *testing.T) {
	w := newSynced(t)
	w.class(rateLimits)
	const count = 6 // a work agent sends the hub five requests a second
	name := func(n int) string { return fmt.Sprintf("web%d", n) }
	for n := range count {
		w.gateway(name(n), "everywhere")
		w.rates(name(n), name(n), 10)
	}
	all := func(limit int) {
		w.Helper()
		for n := range count {
			for _, s := range []*fleet.Server{w.c1, w.c2} {
				w.shows(s, ratesPath(w.ns, name(n)), fmt.Sprint(limit), "spec", "limits", "l", "rates", 0, "limit")
			}
		}
	}
	all(10)
	for round := range 2 {
		limit := 20 + round
		for n := range count {
			w.rates(name(n), name(n), limit)
			if n == count/2 {
				w.must(w.Kill(fleet.PolicySync))
			}
		}
		w.must(w.StartPolicySync(w.ctx, fleet.PolicySync))
		all(limit)
	}

	defer func() { w.must(w.Stop("second")) }()
	go func() { _ = w.StartPolicySync(w.ctx, "second") }() // it may be ready only when it is active
	w.eventually("another runs", func() error { return w.Alive("second") })
	w.must(w.Stop(fleet.PolicySync))
	w.rates(name(0), name(0), 50)
	w.shows(w.c1, ratesPath(w.ns, name(0)), "50", "spec", "limits", "l", "rates", 0, "limit")
	w.must(w.StartPolicySync(w.ctx, fleet.PolicySync))
}
