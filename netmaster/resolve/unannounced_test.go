package resolve_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

func noSandbox(e *policy.Endpoint) { e.NoSandbox = true }
func sandbox(e *policy.Endpoint)   { e.HasSandbox = true }

// unannounced returns the engine's unannounced pods, with a + if a policy selects them.
func unannounced(e *resolve.Engine) string {
	var out []string
	for cursor, again := uint32(0), true; again; again = cursor != 0 {
		var pods []resolve.UnannouncedPod
		pods, cursor = e.Unannounced(cursor, 3)
		for _, p := range pods {
			out = append(out, p.ID()+map[bool]string{true: "+"}[p.Selected])
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func dryRun(p *policy.Policy) *policy.Policy { p.DryRun = true; return p }

func batches(b ...resolve.Batch) []resolve.Batch { return b }

// unannouncedAfter applies batches to an empty engine and compares its unannounced pods.
func unannouncedAfter(t *testing.T, steps []resolve.Batch, want string) {
	t.Helper()
	s := newScene(t)
	for _, b := range steps {
		s.do(b)
	}
	if got := unannounced(s.engine); got != want {
		t.Errorf("unannounced: %q, want %q", got, want)
	}
	inStep(t, s.engine)
}

func like(more ...func(*policy.Endpoint)) *policy.Endpoint {
	return pod("a/web", "app=web", web, more...)
}

func TestUnannounced(t *testing.T) {
	runs, attached := podEvents(like()), announced(says(like(), web))
	for name, c := range map[string]struct {
		steps []resolve.Batch
		want  string
	}{
		"running":               {batches(runs), "a/web"},
		"no address yet":        {batches(podEvents(pod("a/web", "app=web", ""))), ""},
		"on no node":            {batches(podEvents(like(on("")))), ""},
		"of the host's network": {batches(podEvents(like(hostNetwork))), ""},
		"finished":              {batches(runs, podEvents(like(finished))), ""},
		"terminating":           {batches(podEvents(like(terminating))), "a/web"},
		"without a sandbox":     {batches(podEvents(like(noSandbox))), ""},
		"announced":             {batches(runs, attached), ""},
		"announced before":      {batches(attached, runs), ""},
		"announced as another":  {batches(runs, announced(says(like(uid("u")), web))), "a/web"},
		"of another node":       {batches(runs, announced(says(like(on("node2")), web))), "a/web"},
		"deleted":               {batches(runs, resolve.Batch{DeletedEndpoints: []string{"a/web"}}), ""},
		"another leader":        {batches(runs, attached, resolve.Batch{ForgetAnnouncements: true}), "a/web"},
		"selected":              {batches(world([]*policy.Endpoint{like()}, ingress("p", "app=web"))), "a/web+"},
		"in a dry run":          {batches(world([]*policy.Endpoint{like()}, dryRun(egress("p", "app=web")))), "a/web"},
		"not only in a dry run": {batches(world([]*policy.Endpoint{like()}, dryRun(egress("p", "app=web")),
			ingress("q", "app=web"))), "a/web+"},
		"a peer alone": {batches(world([]*policy.Endpoint{like()}, webToAPI)), "a/web"},
		"selected no more": {batches(world([]*policy.Endpoint{like()}, ingress("p", "app=web")),
			resolve.Batch{DeletedPolicies: []string{"a/p"}}), "a/web"},
	} {
		t.Run(name, func(t *testing.T) { unannouncedAfter(t, c.steps, c.want) })
	}
}

func TestUnannounced_Withdrawn(t *testing.T) {
	const six = "fd00::1"
	moved, turned := pod("a/web", "app=web", other), pod("a/web", "app=web", six+" "+web)
	runs, moves, sandboxed := podEvents(like()), podEvents(moved), podEvents(like(sandbox))
	attached, detached := announced(says(like(), web)), withdrawn(says(like(), ""))
	dual := announced(says(like(), web+" "+six))
	hello := resolve.Batch{NodeAnnounced: []resolve.NodeAnnouncements{{Node: "node1"}}}
	for name, c := range map[string]struct {
		steps []resolve.Batch
		want  string
	}{
		"same status":            {batches(runs, attached, hello), ""},
		"same status again":      {batches(runs, attached, hello, runs), ""},
		"moved after it":         {batches(runs, attached, hello, moves), "a/web"},
		"moved before it":        {batches(runs, attached, moves, detached), "a/web"},
		"moved before a hello":   {batches(runs, attached, moves, hello), "a/web"},
		"moved, announced":       {batches(runs, detached, moves, announced(says(moved, other))), ""},
		"moved, and it repeats":  {batches(runs, detached, moves, detached), "a/web"},
		"status in other order":  {batches(podEvents(turned), dual, detached), ""},
		"status lacks a family":  {batches(runs, dual, detached), ""},
		"record lost":            {batches(sandboxed, attached, hello), "a/web"},
		"record lost, found":     {batches(sandboxed, attached, hello, attached), ""},
		"without a sandbox then": {batches(sandboxed, attached, hello, podEvents(like(noSandbox))), ""},
		"terminating":            {batches(podEvents(like(sandbox, terminating)), attached, hello), ""},
		"finished then":          {batches(sandboxed, attached, hello, podEvents(like(finished))), ""},
	} {
		t.Run(name, func(t *testing.T) { unannouncedAfter(t, c.steps, c.want) })
	}
}

func TestUnannounced_ManyPods(t *testing.T) {
	s := newScene(t)
	var all resolve.Batch
	var want []string
	for i := range 200 {
		number := strconv.Itoa(i)
		p := pod("a/p"+number, "app=x", "10.1.0."+number)
		all.Endpoints = append(all.Endpoints, p)
		if i%3 == 0 {
			all.Announced = append(all.Announced, says(p, "10.1.0."+number))
		} else {
			want = append(want, p.ID())
		}
	}
	s.do(all)
	slices.Sort(want)
	if got := unannounced(s.engine); got != strings.Join(want, " ") {
		t.Errorf("unannounced: %s\nwant %s", got, strings.Join(want, " "))
	}
}

func TestHasUnannounced(t *testing.T) {
	runs, p := like(), ingress("p", "app=web")
	attached := announced(says(like(), web))
	for name, c := range map[string]struct {
		steps []resolve.Batch
		want  bool
	}{
		"unannounced":       {batches(world([]*policy.Endpoint{runs}, p)), true},
		"announced":         {batches(world([]*policy.Endpoint{runs}, p), attached), false},
		"in a dry run":      {batches(world([]*policy.Endpoint{runs}, dryRun(ingress("p", "app=web")))), true},
		"another pod":       {batches(world([]*policy.Endpoint{pod("a/x", "app=x", web)}, p)), false},
		"another namespace": {batches(world([]*policy.Endpoint{pod("b/web", "app=web", web)}, p)), false},
		"one of two":        {batches(world([]*policy.Endpoint{runs, pod("a/x", "app=web", other)}, p), attached), true},
		"no policy":         {batches(world([]*policy.Endpoint{runs})), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			for _, b := range c.steps {
				s.do(b)
			}
			if got := s.engine.HasUnannounced("a/p"); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// The rules of a group are examined once, however many unannounced pods a dry run selects.
func TestUnannounced_Steps(t *testing.T) {
	const pods, rules = 100, 50
	var list []policy.PolicyRule
	for i := range uint16(rules - 1) {
		list = append(list, ports(port(policy.TCP, i+1, i+1)))
	}
	for name, c := range map[string]struct {
		label func(i int) string
		most  int
	}{
		"one class":    {func(int) string { return "app=web" }, 1 + rules},
		"many classes": {func(i int) string { return "app=web number=" + strconv.Itoa(i) }, pods + rules},
	} {
		t.Run(name, func(t *testing.T) {
			var all []*policy.Endpoint
			for i := range pods {
				number := strconv.Itoa(i)
				all = append(all, pod("a/p"+number, c.label(i), "10.1.0."+number))
			}
			s := newScene(t)
			s.do(world(all, dryRun(ingress("p", "app=web", list...))))
			if got := s.engine.UnannouncedSteps(pods); got > c.most {
				t.Errorf("%d steps, want at most %d", got, c.most)
			}
		})
	}
}
