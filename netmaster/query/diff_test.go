package query

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func trial(remove bool, policies ...string) inspect.Question {
	t := &inspect.Trial{Delete: remove, Connections: true}
	for _, p := range policies {
		t.Policies = append(t.Policies, json.RawMessage(p))
	}
	return inspect.Question{Kind: inspect.AskDiff, Diff: t}
}

func policyJSON(name, spec string) string {
	return `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"namespace": "shop", "name": "` + name + `"}, "spec": ` + spec + `}`
}

// What is tried is compared with the world in force, and the nodes tell which connections would be cut.
func TestDiff(t *testing.T) {
	p := twoNodes(t)
	count := func(from, to string, port uint16, n int) inspect.ConnectionCount {
		return inspect.ConnectionCount{Protocol: policy.TCP, From: netip.MustParseAddr(from), To: netip.MustParseAddr(to), Port: port, Connections: n, FromPort: 999}
	}
	p.nodes.answers = map[string]any{
		"node2": inspect.NodeConnections{Node: "node2", Counts: []inspect.ConnectionCount{count("10.0.0.2", "10.0.0.3", 81, 3), count("10.0.0.4", "10.0.0.3", 80, 2), count("10.0.0.9", "10.0.0.3", 81, 1),
			count("10.0.0.4", "10.0.0.2", 81, 5), count("192.0.2.77", "10.0.0.3", 22, 1)}, More: 4},
		"node1": errors.New("not asked"),
	}
	q := trial(false, policyJSON("api", `{"podSelector": {"matchLabels": {"app": "api"}}, "policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": 80}]}]}`))
	d, err := asked[inspect.Diff](p, q)
	if err != nil || len(d.Policies) != 1 || d.Policies[0].Action != "created" || d.Same() {
		t.Fatalf("%+v, %v", d, err)
	}
	rows := d.Rows()
	if len(rows) != 1 || rows[0].To[0] != "shop/api" || rows[0].What.String() != "all but TCP 80" || rows[0].Because[0] != "isolated for ingress by shop/api" {
		t.Errorf("%+v", rows)
	}
	if d.Live == nil || d.Live.Connections != 2 || len(d.Live.Cuts) != 1 || strings.Join(d.Live.Cuts[0].Examples, "|") != "TCP 10.0.0.9:999 → shop/api (10.0.0.3:81)|TCP 192.0.2.77:999 → shop/api "+
		"(10.0.0.3:22)" {
		t.Errorf("%+v", d.Live) // what shop/db sends its own policy denies already, what goes to shop/db its own node counts
	}
	if len(d.Live.Unknown) != 1 || !strings.Contains(d.Live.Unknown["node2"], "4 connections") {
		t.Errorf("%+v", d.Live.Unknown)
	}
	p.nodes.list = append([]feed.NodeStatus{{Name: "node2"}}, p.nodes.list[:1]...)
	if d, err = asked[inspect.Diff](p, q); err != nil || d.Live == nil || !strings.Contains(d.Live.Unknown["node2"], "not connected") {
		t.Errorf("%+v, %v", d.Live, err)
	}
	if d, err = asked[inspect.Diff](p, trial(true, policyJSON("db", `{}`), policyJSON("nobody", `7`))); err != nil || d.Same() || d.Live != nil || d.Policies[0].Action != "removed" || d.Policies[1].Action != "missing" {
		t.Errorf("%+v, %v", d, err) // nothing is lost
	}
}

func TestDiff_InvalidPolicies(t *testing.T) {
	p := twoNodes(t)
	for _, q := range []inspect.Question{{Kind: inspect.AskDiff}, trial(false), trial(false, `7`), trial(false, `{"kind": "Pod", "apiVersion": "v1"}`), trial(false, policyJSON("p", `{"ingress": [{"from": [{}]}]}`)),
		trial(false, policyJSON("p", `{"new": 1}`))} {
		if d, err := asked[inspect.Diff](p, q); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%+v: %+v, %v", q.Diff, d, err)
		}
	}
	p.owner.fault = errors.New("stopping")
	if _, err := asked[inspect.Diff](p, trial(false, policyJSON("p", `{}`))); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
}

// A connection between two nodes is known to both and counts once; one that leaves the cluster only its source's node knows.
func TestDiffCountsAConnectionOnce(t *testing.T) {
	p := twoNodes(t)
	within := inspect.ConnectionCount{Protocol: policy.TCP, From: netip.MustParseAddr("10.0.0.3"), To: netip.MustParseAddr("10.0.0.2"), Port: 5432, Connections: 2}
	out, hostile := within, within
	out.To, out.Connections = netip.MustParseAddr("198.51.100.9"), 1
	hostile.Connections = -7
	p.nodes.answers = map[string]any{"node1": inspect.NodeConnections{Counts: []inspect.ConnectionCount{within, hostile}, Problem: "a line is strange"}, "node2": inspect.NodeConnections{Counts: []inspect.ConnectionCount{within, out}}}
	d, err := asked[inspect.Diff](p, trial(false, policyJSON("api", `{"podSelector": {"matchLabels": {"app": "api"}}, "policyTypes": ["Egress"]}`)))
	if err != nil || d.Live == nil || d.Live.Connections != 3 || d.Live.Unknown["node1"] != "a line is strange" {
		t.Fatalf("%+v, %v", d.Live, err)
	}
	for _, q := range p.nodes.asked {
		if q.Connections == nil || len(q.Connections.From)+len(q.Connections.To) == 0 {
			t.Errorf("%+v", q)
		}
	}
}

// TestDiff_NotesAreNotCached: an answer that was cached before the API server went away lacks the note on that.
func TestDiff_NotesAreNotCached(t *testing.T) {
	p, why := newPlace(t), ""
	p.cfg.Unsynced = func() string { return why }
	q := trial(false, policyJSON("api", `{"podSelector": {"matchLabels": {"app": "api"}}, "policyTypes": ["Egress"]}`))
	for _, c := range []struct {
		why   string
		notes int
	}{{"", 0}, {"the API server is away", 1}, {"", 0}} {
		why = c.why
		if d, err := asked[inspect.Diff](p, q); err != nil || len(d.Notes) != c.notes {
			t.Errorf("%q: %v, %v", c.why, d.Notes, err)
		}
	}
}
