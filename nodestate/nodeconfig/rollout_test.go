package nodeconfig

import (
	"slices"
	"strings"
	"testing"
	"time"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func at(minute int) *metav1.Time {
	t := metav1.NewTime(time.Date(2026, 11, 22, 10, minute, 0, 0, time.UTC))
	return &t
}

func TestTurn(t *testing.T) {
	const applying, applied, failing, waiting = nmstatev1.PhaseApplying, nmstatev1.PhaseApplied, nmstatev1.PhaseFailing, nmstatev1.PhaseWaiting
	for _, c := range []struct {
		name, most string
		entries    map[string]nmstatev1.Phase
		older      bool // the entries are of an earlier generation
		why        string
		others     string
	}{
		{name: "the first", most: "1"},
		{name: "all others are done", most: "1", entries: map[string]nmstatev1.Phase{"a": applied, "b": applied}},
		{name: "one changes", most: "1", entries: map[string]nmstatev1.Phase{"a": applying, "b": applied}, why: "waits for its turn: maxUnavailable is 1", others: "a"},
		{name: "one changes and may", most: "2", entries: map[string]nmstatev1.Phase{"a": applying}},
		{name: "half of four", most: `"50%"`, entries: map[string]nmstatev1.Phase{"a": applying, "b": waiting, "c": waiting}},
		{name: "more than half of four", most: `"50%"`, entries: map[string]nmstatev1.Phase{"a": applying, "b": applying, "c": waiting}, why: "maxUnavailable is 50%", others: "a b"},
		{name: "those that are not concerned do not count", most: `"50%"`, entries: map[string]nmstatev1.Phase{"a": applying, "b": nmstatev1.PhaseNoMatch, "c": nmstatev1.PhaseUnmanaged, "d": nmstatev1.PhaseNotSelected}, why: "maxUnavailable", others: "a"},
		{name: "it has its turn", most: "1", entries: map[string]nmstatev1.Phase{"a": applying, "me": applying}},
		{name: "one fails", most: "5", entries: map[string]nmstatev1.Phase{"a": failing}, why: "stopped: a is failing", others: "a"},
		{name: "one failed before the edit", most: "5", entries: map[string]nmstatev1.Phase{"a": failing}, older: true},
		{name: "one failed before the edit, and takes a turn", most: "1", entries: map[string]nmstatev1.Phase{"a": failing}, older: true, why: "waits for its turn", others: "a"},
	} {
		p := policyOf(t, "p", `{maxUnavailable: `+c.most+someState)
		p.Generation = 2
		s := Standing{entries: map[string]nmstatev1.PolicyNode{}}
		for node, phase := range c.entries {
			s.entries[node] = nmstatev1.PolicyNode{Node: node, Phase: phase, ObservedGeneration: 2}
			if c.older {
				s.entries[node] = nmstatev1.PolicyNode{Node: node, Phase: phase, ObservedGeneration: 1}
			}
		}
		why, others := Turn(p, s, "me")
		if (why == "") != (c.why == "") || !strings.Contains(why, c.why) || strings.Join(others, " ") != c.others && why != "" {
			t.Errorf("%s: %q, %v", c.name, why, others)
		}
	}
}

func TestSilence(t *testing.T) {
	ready := func(status corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: *at(7)}}}}
	}
	for _, c := range []struct {
		name   string
		node   *corev1.Node
		behind bool
		want   string
	}{
		{name: "ready", node: ready(corev1.ConditionTrue)},
		{name: "not ready: it may lack the very network that it is to be given", node: ready(corev1.ConditionFalse)},
		{name: "nothing is known", node: new(corev1.Node)},
		{name: "not heard of", node: ready(corev1.ConditionUnknown), want: "no heartbeat of the node since 2026-11-22T10:07:00Z"},
		{name: "the agent is behind", node: ready(corev1.ConditionTrue), behind: true, want: "has not seen the last change"},
	} {
		if got := Silence(c.node, &State{behind: c.behind}); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

// TestSilentNodesTakeNoTurn, but keep one that they have, and wait for nobody else.
func TestSilentNodesTakeNoTurn(t *testing.T) {
	p := policyOf(t, "p", `{match: [{name: eth1}], desiredState: {interfaces: [{mtu: 1400}]}}`)
	n := nodeOf(stateObject(t, "node1", "", someNICs))
	n.Silent = "nobody is there"
	d := NewRound([]*Policy{p}, nil).Decide(n)
	if e := d.Entries["p"]; d.Write != nil || e.Phase != nmstatev1.PhaseWaiting || !strings.HasSuffix(e.Message, n.Silent) || len(d.Blockers["p"]) != 0 {
		t.Errorf("%+v, %+v", d.Write, e)
	}
	d = NewRound([]*Policy{p}, map[string]Standing{"p": standAs(p, "node1", nmstatev1.PhaseApplying)}).Decide(n)
	if e := d.Entries["p"]; d.Write == nil || e.Phase != nmstatev1.PhaseApplying {
		t.Errorf("%+v, %+v", d.Write, e)
	}
}

// TestWaitingNodesNameThoseThatChange: whenever a status is written, all that wait are told for whom; this alone is no reason to write.
func TestWaitingNodesNameThoseThatChange(t *testing.T) {
	p := policyObject(t, "p", `{maxUnavailable: 3, match: [{name: eth1}], desiredState: {interfaces: [{mtu: 1400}]}}`)
	p.Status.ObservedGeneration = 1
	for name, minute := range map[string]int{"node1": 30, "node2": 10, "node3": 20} {
		p.Status.Nodes = append(p.Status.Nodes, nmstatev1.PolicyNode{Node: name, Phase: nmstatev1.PhaseApplying, Since: at(minute), ObservedGeneration: 1})
	}
	decide := func(node string, done ...*Policy) *Report {
		r := NewRound([]*Policy{NewPolicy(p)}, map[string]Standing{"p": StandingOf(p)})
		o := stateObject(t, node, "", someNICs)
		bring(t, o, done...)
		r.Decide(nodeOf(o))
		return r.Reports["p"]
	}
	messageOf := func(node string) string {
		n := slices.IndexFunc(p.Status.Nodes, func(e nmstatev1.PolicyNode) bool { return e.Node == node })
		return p.Status.Nodes[n].Message
	}
	for _, node := range []string{"node8", "node9"} {
		p.Status, _ = decide(node).Update(p, *at(40))
	}
	const want = "waits for its turn: maxUnavailable is 3, taken by node2 since 2026-11-22T10:10:00Z, node3 since 2026-11-22T10:20:00Z, 1 more"
	if messageOf("node8") != want || messageOf("node9") != want {
		t.Errorf("%q, %q", messageOf("node8"), messageOf("node9"))
	}
	if decide("node8") != nil {
		t.Error("it is told again")
	}
	for _, c := range p.Status.Conditions {
		if c.Type == nmstatev1.ConditionProgressing && (!strings.HasPrefix(c.Message, "3 nodes change, 2 wait; turns are taken by node2 since") || !strings.Contains(c.Message, "spec.managed")) {
			t.Error(c.Message)
		}
	}
	var changed bool
	if p.Status, changed = decide("node2", NewPolicy(p)).Update(p, *at(50)); !changed || messageOf("node9") != "waits for its turn: maxUnavailable is 3, taken by node3 since 2026-11-22T10:20:00Z, node1 since 2026-11-22T10:30:00Z" {
		t.Error(messageOf("node9"))
	}
}

// TestEarlierGenerationsAreNotInForce: that a policy is in force everywhere is not said of what it was before an edit.
func TestEarlierGenerationsAreNotInForce(t *testing.T) {
	s := nmstatev1.NodeNetworkConfigurationPolicyStatus{ObservedGeneration: 2, Nodes: []nmstatev1.PolicyNode{
		{Node: "node1", Phase: nmstatev1.PhaseApplied, ObservedGeneration: 2}, {Node: "node2", Phase: nmstatev1.PhaseConflict, ObservedGeneration: 1}}}
	for generation, want := range map[int64]metav1.ConditionStatus{1: metav1.ConditionFalse, 2: metav1.ConditionTrue} {
		s.Nodes[1].ObservedGeneration = generation
		if c := summaryOf(s, Standing{})[0]; c.Status != want {
			t.Errorf("%+v", c)
		}
	}
}

func TestTellAt(t *testing.T) {
	const applying, applied, waiting, failing = nmstatev1.PhaseApplying, nmstatev1.PhaseApplied, nmstatev1.PhaseWaiting, nmstatev1.PhaseFailing
	type phases map[string]nmstatev1.Phase
	standing := func(of phases) Standing {
		s := Standing{entries: map[string]nmstatev1.PolicyNode{}}
		for node, phase := range of {
			s.entries[node] = nmstatev1.PolicyNode{Node: node, Phase: phase}
		}
		return s
	}
	since := at(1).Time
	for _, c := range []struct {
		name           string
		stored, untold phases
		claims, now    bool
		givesBack      bool
	}{
		{name: "a turn must be stored", untold: phases{"a": applying}, claims: true, now: true},
		{name: "the last turn ends", stored: phases{"a": applying, "b": applied}, untold: phases{"a": applied}, now: true, givesBack: true},
		{name: "the last turns end", stored: phases{"a": applying, "b": applying}, untold: phases{"a": applied, "b": applied}, now: true, givesBack: true},
		{name: "one of two turns ends", stored: phases{"a": applying, "b": applying}, untold: phases{"a": applied}, givesBack: true},
		{name: "a node fails, and keeps its turn", stored: phases{"a": applying}, untold: phases{"a": failing}},
		{name: "a node waits, and may not wait for long", stored: phases{"b": applying}, untold: phases{"a": waiting}},
		{name: "nobody has a turn", untold: phases{"a": nmstatev1.PhaseNoMatch, "b": applied}},
	} {
		r := NewRound(nil, map[string]Standing{"p": standing(c.stored)})
		r.Resume("p", &Report{entries: standing(c.untold).entries})
		r.Reports["p"].claims = c.claims
		want := since
		if !c.now {
			want = since.Add(time.Second)
		}
		if got := r.TellAt("p", since, time.Second); !got.Equal(want) || r.GivesBack("p") != c.givesBack {
			t.Errorf("%s: at %v, gives back: %v", c.name, got, r.GivesBack("p"))
		}
	}
}

// TestRound_ResumedReportForgetsNodes: a node that is no more before its policy was told of it is not told of, and one that was told of is taken out.
func TestRound_ResumedReportForgetsNodes(t *testing.T) {
	o := policyObject(t, "p", `{match: [{name: eth1}], desiredState: {interfaces: [{mtu: 1400}]}}`)
	o.Status.Nodes = []nmstatev1.PolicyNode{{Node: "node3", Phase: nmstatev1.PhaseApplied}}
	first := NewRound([]*Policy{NewPolicy(o)}, map[string]Standing{"p": StandingOf(o)})
	first.Forget(func(node string) bool { return node != "node3" })
	for _, node := range []string{"node1", "node2"} {
		first.Decide(nodeOf(stateObject(t, node, "", `{interfaces: []}`)))
	}
	later := NewRound([]*Policy{NewPolicy(o)}, map[string]Standing{"p": StandingOf(o)})
	later.Resume("p", first.Reports["p"])
	later.Forget(func(node string) bool { return node == "node2" })
	status, _ := later.Reports["p"].Update(o, *at(1))
	if len(status.Nodes) != 1 || status.Nodes[0].Node != "node2" {
		t.Errorf("%+v", status.Nodes)
	}
}
