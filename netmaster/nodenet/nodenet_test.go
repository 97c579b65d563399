package nodenet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/netmaster/feed"
)

func problem(kind, node string) inspect.NetworkProblem {
	return inspect.NetworkProblem{Kind: kind, Node: node, Text: kind + " of " + node}
}

func TestMerge(t *testing.T) {
	came := func(node string) bool { return strings.HasPrefix(node, "real") }
	got := Merge(map[string][]inspect.NetworkProblem{
		"real2": {problem(inspect.NetworkPeer, "odd"), problem(inspect.NetworkCIDRs, "real2")},
		"real1": {problem(inspect.NetworkPeer, "odd"), problem(inspect.NetworkPeer, "odd")},
		"real3": {
			problem(inspect.NetworkOffLink, "virtual"),
			problem(inspect.NetworkOffLink, "real1"),
			problem(inspect.NetworkCIDRs, "real1"), // no node speaks of another one's flags
			problem("unknown", "real3"),
		},
	}, came)
	want := []Finding{
		{Kind: inspect.NetworkPeer, Node: "odd", Text: "peer of odd", By: []string{"real1", "real2"}},
		{Kind: inspect.NetworkCIDRs, Node: "real2", Text: "cluster-cidrs of real2", By: []string{"real2"}},
		{Kind: inspect.NetworkOffLink, Node: "virtual", Text: "off-link of virtual", By: []string{"real3"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("findings\n%+v\nwant\n%+v", got, want)
	}
}

func TestMerge_Bounded(t *testing.T) {
	var long []inspect.NetworkProblem
	for i := range 10 * inspect.MaxNetworkProblems {
		long = append(long, inspect.NetworkProblem{
			Kind: inspect.NetworkPeer,
			Node: fmt.Sprint("n", i),
			Text: strings.Repeat("ü", 10_000),
		})
	}
	got := Merge(map[string][]inspect.NetworkProblem{"a": long}, func(string) bool { return true })
	if len(got) != inspect.MaxNetworkProblems {
		t.Errorf("%d findings of one node", len(got))
	}
	for _, f := range got {
		if len(f.Text) > 600 {
			t.Fatalf("a text of %d bytes", len(f.Text))
		}
	}
}

// Nodes with the same wrong flag are one sentence.
func TestSentences(t *testing.T) {
	var findings []Finding
	for _, node := range []string{"a", "b", "c", "d"} {
		findings = append(findings, Finding{Kind: inspect.NetworkCIDRs, Node: node, Text: "wrong", By: []string{node}})
	}
	odd := Finding{Kind: inspect.NetworkPeer, Node: "odd", Text: "no route", By: []string{"a", "b"}}
	findings = append(findings, odd)
	want := []string{"node a, b, c and 1 more: wrong", "Node odd: no route (reported by a, b)"}
	if got := Sentences(findings); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	findings = nil
	for i := range 100 {
		findings = append(findings, Finding{Kind: inspect.NetworkPeer, Node: fmt.Sprint(i), Text: "no route"})
	}
	if got := Sentences(findings); len(got) != 21 || got[20] != "and 80 more problems of the network" {
		t.Errorf("%d sentences: %q", len(got), got[len(got)-1])
	}
}

// nodes are those of a feed, with what each reports.
type nodes struct {
	list    []feed.NodeStatus
	reports map[string][]inspect.NetworkProblem
}

func (n *nodes) Nodes() []feed.NodeStatus { return n.list }

func (n *nodes) Query(_ context.Context, node string, _ []byte) ([]byte, error) {
	problems, ok := n.reports[node]
	if !ok {
		return nil, errors.New("it does not answer")
	}
	return json.Marshal(inspect.NodeStatus{Network: problems})
}

type conditions map[string]string

func (c conditions) Marked(context.Context) (out []string, err error) {
	for node := range c {
		out = append(out, node)
	}
	return out, nil
}

func (c conditions) Set(_ context.Context, node, reason, _ string) error {
	c[node] = reason
	return nil
}

// world is a watcher with what it reads and writes.
type world struct {
	*Watcher
	nodes      *nodes
	conditions conditions
	events     []string
	changes    uint64
}

func newWorld(names ...string) *world {
	w := &world{nodes: &nodes{reports: map[string][]inspect.NetworkProblem{}}, conditions: conditions{}}
	for _, name := range names {
		w.nodes.list = append(w.nodes.list, feed.NodeStatus{Name: name, Connected: true, Since: time.Now()})
		w.nodes.reports[name] = nil
	}
	w.Watcher = New(Config{
		Nodes:   w.nodes,
		Changes: func() uint64 { return w.changes },
		Emit: func(reason wellknown.EventReason, node, _ string) {
			w.events = append(w.events, fmt.Sprint(reason, " ", node))
		},
		Conditions: w.conditions,
		Logger:     slog.New(slog.DiscardHandler),
	})
	return w
}

// A problem is one Event and a condition, which goes with it. A condition of an earlier leader goes once all nodes have
// reported.
func TestWatcher_EventsAndConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a", "b")
		w.conditions["before"] = "FlowkeepNoRoute"
		w.readMarked(t.Context())
		delete(w.nodes.reports, "b") // it does not answer yet
		w.nodes.reports["a"] = []inspect.NetworkProblem{problem(inspect.NetworkPeer, "odd")}
		w.round(t.Context())
		if w.conditions["before"] == "" {
			t.Error("a condition was cleared though a node has not reported")
		}
		w.nodes.reports["b"] = []inspect.NetworkProblem{problem(inspect.NetworkCIDRs, "b")}
		for range 5 {
			w.round(t.Context())
		}
		want := conditions{"before": "", "odd": "FlowkeepNoRoute", "b": "FlowkeepClusterCIDRs"}
		if !reflect.DeepEqual(w.conditions, want) {
			t.Errorf("conditions %v, want %v", w.conditions, want)
		}
		if want := []string{"FlowkeepNoRoute odd", "FlowkeepClusterCIDRs b"}; !slices.Equal(w.events, want) {
			t.Errorf("events %q, want %q", w.events, want)
		}
		w.nodes.reports["a"], w.nodes.reports["b"] = nil, nil
		w.round(t.Context())
		if want := (conditions{"before": "", "odd": "", "b": ""}); !reflect.DeepEqual(w.conditions, want) {
			t.Errorf("conditions %v, want %v", w.conditions, want)
		}
	})
}

// A Node in another segment from which no netplugin comes is a problem after a while, one of a netplugin is none.
func TestWatcher_NodeWithoutNetplugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a", "far")
		w.nodes.reports["a"] = []inspect.NetworkProblem{
			problem(inspect.NetworkOffLink, "virtual"),
			problem(inspect.NetworkOffLink, "far"),
		}
		w.round(t.Context())
		if len(w.events) > 0 {
			t.Errorf("at once: %q", w.events)
		}
		time.Sleep(offLinkGrace)
		w.round(t.Context())
		if want := []string{"FlowkeepNoRoute virtual"}; !slices.Equal(w.events, want) {
			t.Errorf("events %q, want %q", w.events, want)
		}
	})
}

// Of many nodes a few are queried in a round: those that have just connected first, and all again after a change.
func TestWatcher_Rounds(t *testing.T) {
	var names []string
	for i := range 4 * perRound {
		names = append(names, fmt.Sprintf("n%03d", i))
	}
	w := newWorld(names...)
	for range 4 {
		w.round(t.Context())
	}
	if len(w.reports) != len(names) {
		t.Errorf("%d of %d nodes have reported", len(w.reports), len(names))
	}
	last := len(names) - 1
	w.nodes.list[last].Since = time.Now().Add(time.Hour)
	w.nodes.reports[names[last]] = []inspect.NetworkProblem{problem(inspect.NetworkAddress, names[last])}
	w.round(t.Context())
	if want := []string{"FlowkeepNodeAddress " + names[last]}; !slices.Equal(w.events, want) {
		t.Errorf("after a node has connected: events %q, want %q", w.events, want)
	}
	w.changes++
	w.nodes.reports[names[0]] = []inspect.NetworkProblem{problem(inspect.NetworkPeer, "odd")}
	w.round(t.Context())
	if n := len(w.events); n != 2 {
		t.Errorf("after a change of Nodes: events %q", w.events)
	}
}
