package systemtests

import (
	"encoding/json"
	"slices"
	"testing"
)

// lint is what is found in a namespace, as "CODE FIELD", and whether the exit code says that there is something to look at.
func (w *world) lint(namespace string) (found []string, fine bool) {
	w.Helper()
	text, err := w.Netctl(w.ctx, "lint", "-n", namespace, "-o", "json")
	var all struct {
		Findings []struct{ Code, Field string }
	}
	if jsonErr := json.Unmarshal([]byte(text), &all); jsonErr != nil {
		w.Fatalf("%v, %v: %s", err, jsonErr, text)
	}
	for _, f := range all.Findings {
		found = append(found, f.Code+" "+f.Field)
	}
	return found, err == nil
}

// What is found to be needless can go, and packets meet the same; a peer that chooses nobody lets nobody in.
func TestLint(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	ways := func() {
		w.settles(w.open("a", "b", "tcp", 80, "allowed"), w.shut("a", "b", "tcp", 81, "another port"), w.shut("c", "b", "tcp", 80, "the peer that is meant has another label"))
	}
	w.policy(ns, "db", `{podSelector: {matchLabels: {app: b}}, ingress: [
		{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: web}, {port: 80}]},
		{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}]},
		{from: [{podSelector: {matchLabels: {app: see}}}]}]}`)
	w.policy(ns, "deny", `{podSelector: {matchLabels: {app: b}}}`)
	ways()
	found, fine := w.lint(ns)
	if want := []string{"FK008 spec.ingress[1]", "FK002 spec.ingress[2].from[0]", "FK010 spec"}; fine || !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
	w.deletePolicy(ns, "deny")
	w.policy(ns, "db", `{podSelector: {matchLabels: {app: b}}, ingress: [
		{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: web}, {port: 80}]}, {from: [{podSelector: {matchLabels: {app: see}}}]}]}`)
	ways()
	w.policy(ns, "db", `{podSelector: {matchLabels: {app: b}}, ingress: [
		{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: web}, {port: 80}]}, {from: [{podSelector: {matchLabels: {app: c}}}], ports: [{port: 80}]}]}`)
	w.settles(w.open("a", "b", "tcp", 80, "allowed"), w.open("c", "b", "tcp", 80, "the label is mended"))
	if found, fine = w.lint(ns); !fine || len(found) > 0 {
		t.Errorf("found %q, though all is mended", found)
	}
}
