package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/lint"
)

// counting is what netmaster answers to top, unused and lint.
func counting() map[string]any {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	early, late := noon.Add(-30*24*time.Hour), noon.Add(-time.Minute)
	nodes := []inspect.CountingNode{{Name: "node1", Since: early}, {Name: "node2", Problem: "node node2 is not connected"}, {Name: "node3", Since: noon.Add(-time.Hour)}}
	return map[string]any{
		inspect.AskCounters: inspect.Counters{Time: noon, Nodes: nodes, Counters: []inspect.Counter{
			{Policy: "shop/db", Direction: "ingress", Rule: 0, Count: inspect.Count{Packets: 1200, Bytes: 1 << 40, Connections: 60}, Rate: inspect.Rate{Packets: 12.34, Bytes: 123456789, Connections: 0.1}, Nodes: 2, Last: &late},
			{Policy: "shop/db", Direction: "ingress", Rule: 1, Nodes: 2},
			{Policy: "shop/db", Direction: "ingress", Rule: inspect.Isolation, Count: inspect.Count{Packets: 7, Bytes: 420}, Rate: inspect.Rate{Packets: 99}, Nodes: 2, Last: &late}}},
		inspect.AskUnused: inspect.Unused{Time: noon, Since: noon.Add(-7 * 24 * time.Hour), Nodes: nodes, Used: 4,
			Rules:  []inspect.UnusedRule{{Policy: "shop/db", Direction: "ingress", Rule: 1, Counted: early, Why: []string{"FK002 it chooses no pod (app=wbe)"}}, {Policy: "shop/db", Direction: "egress", Rule: 0, Counted: early, Last: &early}},
			Unsure: []inspect.UnusedRule{{Policy: "shop/web", Direction: "ingress", Rule: 0, Unsure: []string{"node node2 is not connected"}}}},
		inspect.AskLint: inspect.Lint{Revision: 90, Policies: 2, Findings: []lint.Finding{
			{Code: lint.NobodyAtPeer, Severity: lint.Warning, Policy: "shop/db", Field: "spec.ingress[1].from[0]", Message: "it chooses no pod (app=wbe)", Remedy: "correct the selector", Direction: "ingress", Rule: 1},
			{Code: lint.CoveredNow, Severity: lint.Info, Policy: "shop/web", Field: "spec.ingress[0]", Message: "others let all of it through too", Remedy: "remove it", By: []string{"shop/db ingress[0]"}, Direction: "ingress"}}},
	}
}

// Every form, as it was looked at and found good: go test ./netctl -update writes the file anew.
func TestCountingOutputs(t *testing.T) {
	const path = "testdata/counting.txt"
	b := newBench(t, counting())
	var all strings.Builder
	for _, command := range []string{"top", "top --by drops", "top --limit 1", "unused", "lint", "lint --severity warning"} {
		for _, form := range outputs {
			out, errOut, code := b.run(append(strings.Fields(command), "-o", form)...)
			if code != exitFailed {
				t.Errorf("%s -o %s: exit code %d", command, form, code)
			}
			all.WriteString("$ netctl " + command + " -o " + form + "\n" + out + errOut + "\n")
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || string(want) != all.String() {
		t.Errorf("%s (%v) is not what is printed:\n%s", path, err, all.String())
	}
}

// TestExitCode_WithoutProblems: nothing to complain of.
func TestExitCode_WithoutProblems(t *testing.T) {
	answers := counting()
	answers[inspect.AskCounters] = inspect.Counters{}
	answers[inspect.AskLint] = inspect.Lint{Findings: []lint.Finding{{Severity: lint.Info}}}
	answers[inspect.AskUnused] = inspect.Unused{}
	b := newBench(t, answers)
	b.prints(0, "top", "there are no policies in force")
	b.prints(0, "unused", "0 rules matched nothing")
	b.prints(0, "lint", "1 finding in 0 policies")
}

// TestWrongUsage is said before anybody is asked.
func TestWrongUsageOfCounting(t *testing.T) {
	b := newBench(t, counting())
	b.fail(errors.New("asked"))
	for _, args := range []string{"top --by x", "top --limit -1", "top --interval 10ms", "top shop", "unused --since x", "unused --since 0s", "unused --since -1h", "unused --since 7", "unused --since 99999w",
		"unused --since d", "unused --since 4096w", "unused --since 1e3d", "lint --severity loud", "lint x"} {
		if _, errOut, code := b.run(strings.Fields(args)...); code != exitUsage || strings.Contains(errOut, "asked") {
			t.Errorf("netctl %s: exit code %d: %s", args, code, errOut)
		}
	}
	if _, errOut, code := b.run("unused", "--since", ""); code != exitUsage {
		t.Errorf("unused --since '': exit code %d: %s", code, errOut)
	}
	for text, want := range map[string]time.Duration{"7d": 168 * time.Hour, "4w": 672 * time.Hour, "90m": 90 * time.Minute, "1h30m": 90 * time.Minute} {
		if got, err := parseSince(text); got != want || err != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

// TestLintOfManifests asks nobody.
func TestLintOfManifests(t *testing.T) {
	b := newBench(t, nil)
	cluster := file(t, "cluster.yaml", "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n---\n{apiVersion: v1, kind: Node, metadata: {name: node1}, spec: {podCIDR: 10.244.0.0/24}}\n---\n"+
		"{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {containers: [{name: db, image: db}]}}\n")
	policy := "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop}, spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{ipBlock: {cidr: %s}}], ports: [{port: 80}]}]}}\n"
	b.prints(exitFailed, "lint -f "+cluster+" -f "+file(t, "bad.yaml", strings.ReplaceAll(policy, "%s", "10.244.0.7/32")), "1 finding in 1 policy", "FK011", "warning", "shop/db", "spec.ingress[0].from[0].ipBlock.cidr")
	b.prints(0, "lint -f "+cluster+" -f "+file(t, "good.yaml", strings.ReplaceAll(policy, "%s", "192.0.2.0/24")), "0 findings in 1 policy")
	b.prints(exitFailed, "lint -f "+file(t, "alone.yaml", strings.ReplaceAll(policy, "%s", "192.0.2.0/24")), "no pods in what was given", "FK001")
	b.prints(exitUsage, "lint -f /nowhere.yaml", "nowhere.yaml")
	b.prints(exitUsage, "lint -f "+file(t, "strange.yaml", "x: ["), "strange.yaml")
}
