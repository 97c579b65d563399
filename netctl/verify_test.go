package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
)

func TestVerifyUsage(t *testing.T) {
	fine := inspect.NodeResult{Node: "node1", Fine: true, Flows: &inspect.NodeVerify{}, Problems: []string{}}
	b := newBench(t, map[string]any{inspect.AskVerify: inspect.Verified{Seed: 3, Nodes: []inspect.NodeResult{fine}}})
	b.prints(0, "verify", "RESULT", "node1", "fine", "seed 3")
	if q := b.asked.Verify; q == nil || q.Seed == 0 || q.Samples != 100 || len(q.Nodes) > 0 {
		t.Errorf("asked %+v", q)
	}
	b.prints(0, "verify node1 node2 --samples 0")
	b.prints(exitUsage, "verify --samples -1", "0 to 10000")
	b.prints(exitUsage, "verify --samples 10001", "0 to 10000")
	b.prints(exitUsage, "verify shop/db", "not the name of a node")
	b.prints(exitUsage, "verify --seed x", "--seed")
	b.prints(0, "verify --help", "Examples:", "netctl verify node1 node2 --samples 1000", "--seed")
	b.flags[1] = "127.0.0.1:1"
	b.prints(exitUnreachable, "verify", "netmaster does not answer")
}

// TestVerify_IndependentTables: the answer names the tables that were read and counts groups and meters; where an older
// netplugin reads none, it is named.
func TestVerify_IndependentTables(t *testing.T) {
	groups, meters := 8, 1
	read := &inspect.IndependentReading{Tables: []inspect.TableRead{{Table: 43, Name: "ingress-rules"}, {Table: 60}}}
	node := inspect.NodeResult{Node: "node1", Fine: true, Flows: &inspect.NodeVerify{Independent: read}}
	b := newBench(t, map[string]any{inspect.AskVerify: inspect.Verified{Nodes: []inspect.NodeResult{node}}})
	b.prints(0, "verify --independent", "libOpenflow read no groups and no meters, since netplugin is of an older version",
		"2 tables: 43 ingress-rules, 60")
	read.Groups, read.Meters = &groups, &meters
	b = newBench(t, map[string]any{inspect.AskVerify: inspect.Verified{Nodes: []inspect.NodeResult{node}}})
	b.prints(0, "verify --independent", "libOpenflow read 8 groups, 1 meter, and 2 tables: 43 ingress-rules, 60")
}

// A difference weighs more than what could not be looked at; netmaster's own problems are no success.
func TestVerifyExitCodes(t *testing.T) {
	away := inspect.NodeResult{Node: "node1", Problems: []string{"it is not connected"}}
	differs := inspect.NodeResult{Node: "node2", Flows: &inspect.NodeVerify{DriftCount: inspect.DriftCount{Extra: 1}}}
	fine := inspect.NodeResult{Node: "node3", Fine: true}
	for _, c := range []struct {
		v    inspect.Verified
		want error
	}{
		{inspect.Verified{Nodes: []inspect.NodeResult{fine}}, nil},
		{inspect.Verified{Nodes: []inspect.NodeResult{fine, away}}, errNotWhole},
		{inspect.Verified{Nodes: []inspect.NodeResult{away, differs, fine}}, errSwitchDiffers},
		{inspect.Verified{Nodes: []inspect.NodeResult{{Samples: inspect.SampleResults{Differing: 1}}}}, errSwitchDiffers},
		{inspect.Verified{Problems: []string{"the API server cannot be watched"}}, errNotWhole},
	} {
		if got := verdictOf(&c.v); !errors.Is(got, c.want) {
			t.Errorf("%+v: %v", c.v, got)
		}
	}
}

// What nodes say is one line each, and moves no cursor.
func TestVerify_EscapesControlCharacters(t *testing.T) {
	evil := "\x1b[2J\nnode9  96  0  0  0  fine"
	d := inspect.Difference{Kind: evil, Foreign: evil, Found: evil, Flow: inspect.Flow{TableName: evil, Match: evil, Actions: evil, Note: evil}}
	w := inspect.WrongSample{From: evil, To: evil, Policies: []string{evil}, Trace: inspect.Trace{Out: evil, Steps: []inspect.TraceStep{{TableName: evil, Match: evil, Actions: evil, Note: evil}}}}
	b := newBench(t, map[string]any{inspect.AskVerify: inspect.Verified{Problems: []string{evil}, Nodes: []inspect.NodeResult{{Node: evil, Problems: []string{evil},
		Flows: &inspect.NodeVerify{DriftCount: inspect.DriftCount{Extra: 1}, Differences: []inspect.Difference{d}}, Samples: inspect.SampleResults{Differing: 1, Wrong: []inspect.WrongSample{w}}}}}})
	out, _, _ := b.run("verify")
	if strings.Contains(out, "\x1b") || strings.Contains(out, "\nnode9") {
		t.Errorf("%q", out)
	}
}
