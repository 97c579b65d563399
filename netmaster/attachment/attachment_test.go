package attachment

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// pods returns pods written as "namespace/name@node"; a + after the name: a policy selects it.
func pods(text string) (out []resolve.UnannouncedPod) {
	for _, f := range strings.Fields(text) {
		id, node, _ := strings.Cut(f, "@")
		id, selected := strings.CutSuffix(id, "+")
		ns, name, _ := strings.Cut(id, "/")
		e := &policy.Endpoint{Namespace: ns, Name: name, UID: "u", Node: node, Labels: map[string]string{"app": name}}
		out = append(out, resolve.UnannouncedPod{Endpoint: e, Selected: selected})
	}
	return out
}

func always(string) bool { return true }

// state returns a set's pods, with a ! if they are overdue.
func state(s *Set) string {
	if s == nil {
		return "none"
	}
	var out []string
	for _, p := range s.pods {
		out = append(out, p.ID()+map[bool]string{true: "!"}[p.Overdue])
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// event is an update of a tracker, and the wanted set.
type event struct {
	second    int    // since the start
	connected string // nodes
	pods      string // unannounced
	want      string
}

func TestTracker(t *testing.T) {
	both := "a/p@n1 a/q@n2"
	for name, events := range map[string][]event{
		"not attached": {{0, "n1", "a/p@n1", "a/p"}, {29, "n1", "a/p@n1", "a/p"}, {30, "n1", "a/p@n1", "a/p!"},
			{500, "n1", "a/p@n1", "a/p!"}},
		"announced in time": {{0, "n1", "a/p@n1", "a/p"}, {20, "n1", "", ""}, {40, "n1", "", ""}},
		"announced late":    {{0, "n1", "a/p@n1", "a/p"}, {30, "n1", "a/p@n1", "a/p!"}, {31, "n1", "", ""}},
		"its time starts again": {{0, "n1", "a/p@n1", "a/p"}, {20, "n1", "", ""}, {25, "n1", "a/p@n1", "a/p"},
			{50, "n1", "a/p@n1", "a/p"}},
		"starts later":         {{0, "n1", "", ""}, {100, "n1", "a/p@n1", "a/p"}, {130, "n1", "a/p@n1", "a/p!"}},
		"node never connected": {{0, "n1", "a/p@n2", "a/p"}, {100, "n1", "a/p@n2", "a/p"}},
		"node away in between": {{0, "n1", "a/p@n1", "a/p"}, {20, "", "a/p@n1", "a/p"}, {100, "n1", "a/p@n1", "a/p"},
			{129, "n1", "a/p@n1", "a/p"}, {130, "n1", "a/p@n1", "a/p!"}},
		"node away afterwards": {{0, "n1", "a/p@n1", "a/p"}, {30, "n1", "a/p@n1", "a/p!"}, {31, "", "a/p@n1", "a/p!"},
			{90, "n1", "a/p@n1", "a/p!"}, {91, "n1", "", ""}},
		"two nodes": {{0, "n1", both, "a/p a/q"}, {10, "n1 n2", both, "a/p a/q"}, {30, "n1 n2", both, "a/p! a/q"},
			{40, "n1 n2", both, "a/p! a/q!"}},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Unix(1000, 0)
			tracker := NewTracker(Grace)
			for _, e := range events {
				connected := func(node string) bool { return slices.Contains(strings.Fields(e.connected), node) }
				set := tracker.Update(pods(e.pods), connected, start.Add(time.Duration(e.second)*time.Second))
				if got := state(set); got != e.want {
					t.Errorf("after %d s: %q, want %q", e.second, got, e.want)
				}
			}
		})
	}
}

// overdue returns a set in which all pods are overdue.
func overdue(text string) *Set {
	tracker := NewTracker(Grace)
	tracker.Update(pods(text), always, time.Unix(0, 0))
	return tracker.Update(pods(text), always, time.Unix(0, 0).Add(Grace))
}

func TestTracker_RecreatedPod(t *testing.T) {
	tracker := NewTracker(Grace)
	tracker.Update(pods("a/p@n1"), always, time.Unix(0, 0))
	again := pods("a/p@n1")
	again[0].UID = "another"
	if got := state(tracker.Update(again, always, time.Unix(0, 0).Add(Grace))); got != "a/p" {
		t.Errorf("%q: a pod of the same name took over the time of its predecessor", got)
	}
}

func TestSet_SelectedBy(t *testing.T) {
	set := overdue("a/q+@n2 a/p+@n1 b/p+@n1 aa/p+@n1 A/p+@n1")
	selector := func(values ...string) policy.Selector {
		return policy.Selector{Requirements: []policy.Requirement{{Key: "app", Operator: policy.In, Values: values}}}
	}
	for name, c := range map[string]struct {
		set    *Set
		policy *policy.Policy
		want   string
	}{
		"all":               {set, &policy.Policy{Namespace: "a"}, "a/p a/q"},
		"one":               {set, &policy.Policy{Namespace: "a", AppliedTo: selector("q")}, "a/q"},
		"egress alone":      {set, &policy.Policy{Namespace: "b", IsolatesEgress: true}, "b/p"},
		"in a dry run":      {set, &policy.Policy{Namespace: "b", DryRun: true}, "b/p"},
		"a new policy":      {overdue("a/p@n1"), &policy.Policy{Namespace: "a"}, "a/p"},
		"another":           {set, &policy.Policy{Namespace: "a", AppliedTo: selector("none")}, ""},
		"another namespace": {set, &policy.Policy{Namespace: "c"}, ""},
		"no policy":         {set, nil, ""},
		"no set":            {nil, &policy.Policy{Namespace: "a"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, p := range c.set.SelectedBy(c.policy) {
				got = append(got, p.ID())
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestSet_Problem(t *testing.T) {
	var many []string
	for i := range 12 {
		many = append(many, fmt.Sprintf("a/p%02d+@n1", i))
	}
	for name, c := range map[string]struct {
		set   *Set
		count int
		want  string
	}{
		"none":         {nil, 0, ""},
		"not selected": {overdue("a/p@n1"), 0, ""},
		"one": {overdue("dbg/p+@n1 dbg/q@n1"), 1,
			"dbg/p on n1 is not wired by Flowkeep, and no policy that selects it is enforced there: " + Remedy},
		"two": {overdue("b/q+@n2 a/p+@n1"), 2,
			"2 pods are not wired by Flowkeep, and no policy that selects them is enforced there: a/p on n1, b/q on n2: " +
				Remedy},
		"many": {overdue(strings.Join(many, " ")), 12, "a/p09 on n1 and 2 more: " + Remedy},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.set.Problem()
			if !strings.HasSuffix(got, c.want) || (got == "") != (c.want == "") || c.set.Count() != c.count {
				t.Errorf("%d pods: %q, want %d: %q", c.set.Count(), got, c.count, c.want)
			}
		})
	}
}

func TestDescribeUnattached_NamesAtMostTen(t *testing.T) {
	for count, want := range map[int]string{
		0: "",
		1: "a/p0 is not wired by Flowkeep: " + Remedy,
		2: "a/p0, a/p1 are not wired by Flowkeep: " + Remedy,
		12: "a/p0, a/p1, a/p2, a/p3, a/p4, a/p5, a/p6, a/p7, a/p8, a/p9 and 2 more are not wired by Flowkeep: " +
			Remedy,
	} {
		var pods []string
		for i := range count {
			pods = append(pods, fmt.Sprintf("a/p%d", i))
		}
		if got := DescribeUnattached(pods); got != want {
			t.Errorf("%d pods: %q, want %q", count, got, want)
		}
	}
}

func TestSet_Lacks(t *testing.T) {
	tracker := NewTracker(Grace)
	young := tracker.Update(pods("a/p@n1"), always, time.Unix(0, 0))
	old := overdue("a/p@n1")
	if young.Lacks("a/p") || !old.Lacks("a/p") || old.Lacks("a/q") || old.Lacks("b/p") || (*Set)(nil).Lacks("a/p") {
		t.Error("only an overdue pod is not attached")
	}
}

func TestSet_Digest(t *testing.T) {
	one := overdue("a/p+@n1")
	for name, c := range map[string]struct {
		other *Set
		same  bool
	}{
		"the same":             {overdue("a/p+@n1"), true},
		"one more, for a time": {NewSet(append(slices.Clone(one.pods), Pod{UnannouncedPod: pods("a/q@n1")[0]})), true},
		"another pod":          {overdue("a/q+@n1"), false},
		"selected no more":     {overdue("a/p@n1"), false},
		"one more":             {overdue("a/p+@n1 a/q+@n1"), false},
		"none":                 {new(Set), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := one.Digest() == c.other.Digest(); got != c.same {
				t.Errorf("%x and %x", one.Digest(), c.other.Digest())
			}
		})
	}
	if none, young := (*Set)(nil), NewSet([]Pod{{UnannouncedPod: pods("a/p@n1")[0]}}); none.Digest()+young.Digest() != 0 {
		t.Error("the digest of no pods is not 0")
	}
}

func TestSet_IsNewerThan(t *testing.T) {
	at := time.Unix(100, 0)
	set := NewTracker(Grace).Update(nil, always, at)
	if !set.IsNewerThan(at.Add(-1)) || set.IsNewerThan(at) || (*Set)(nil).IsNewerThan(at.Add(-1)) {
		t.Error("a set is as old as its update")
	}
}

func TestSet_Equal(t *testing.T) {
	pod := pods("a/p+@n1")
	looked := func(pods []resolve.UnannouncedPod, second int64) *Set {
		tracker := NewTracker(Grace)
		tracker.Update(pods, always, time.Unix(0, 0))
		return tracker.Update(pods, always, time.Unix(second, 0))
	}
	unselected := []resolve.UnannouncedPod{{Endpoint: pod[0].Endpoint}}
	for name, c := range map[string]struct {
		a, b *Set
		want bool
	}{
		"same":                  {looked(pod, 1), looked(pod, 2), true},
		"overdue":               {looked(pod, 1), looked(pod, 30), false},
		"selected":              {looked(pod, 30), looked(unselected, 30), false},
		"updated":               {looked(pod, 1), looked(pods("a/p+@n1"), 1), false},
		"attached":              {looked(pod, 1), new(Set), false},
		"first look":            {nil, new(Set), false},
		"of no leader, not yet": {nil, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.a.Equal(c.b) != c.want || c.b.Equal(c.a) != c.want {
				t.Errorf("%v and %v: want equal: %v", state(c.a), state(c.b), c.want)
			}
		})
	}
}

func TestSet_NewlyNotEnforced(t *testing.T) {
	for name, c := range map[string]struct {
		before *Set
		want   string
	}{
		"first look":                {nil, "a/p a/q"},
		"one before":                {overdue("a/p+@n1"), "a/q"},
		"overdue before its policy": {overdue("a/p@n1 a/q+@n1"), "a/p"},
		"both before":               {overdue("a/q+@n1 a/p+@n1"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, p := range overdue("a/q+@n1 a/p+@n1 a/free@n1").NewlyNotEnforced(c.before) {
				got = append(got, p.ID())
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func BenchmarkTracker_AllPodsOlder(b *testing.B) {
	list := make([]resolve.UnannouncedPod, 100_000)
	for i := range list {
		name := strconv.Itoa(i)
		list[i].Endpoint = &policy.Endpoint{Namespace: "ns" + strconv.Itoa(i%1000), Name: name, UID: name, Node: "n1"}
	}
	tracker := NewTracker(Grace)
	for b.Loop() {
		tracker.Update(list, always, time.Unix(0, 0))
	}
}
