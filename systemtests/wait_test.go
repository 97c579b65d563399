package systemtests

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// waited is what netctl policy wait tells.
type waited struct {
	Done       bool  `json:"done"`
	Wanted     int64 `json:"wanted"`
	Generation int64 `json:"generation"`
	Nodes      []struct {
		Name    string `json:"name"`
		State   string `json:"state"`
		Reason  string `json:"reason"`
		Leaving bool   `json:"leaving"`
	} `json:"nodes"`
}

// wait runs netctl policy wait and gives its exit code too.
func (w *world) wait(id string, args ...string) (out waited, code int, said string) {
	w.Helper()
	text, err := w.Netctl(w.ctx, append([]string{"policy", "wait", id, "-o", "json"}, args...)...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		w.must(err)
	}
	if text != "" {
		w.must(json.Unmarshal([]byte(text), &out))
	}
	return out, code, fmt.Sprintf("%s%v", text, err)
}

// now fails the test unless the expectations are met by the first packet.
func (w *world) now(lists ...[]cluster.Expectation) {
	w.Helper()
	for _, list := range lists {
		unmet, err := w.Check(w.ctx, cluster.Patience{Open: time.Second, Shut: time.Second}, list)
		w.must(err)
		if len(unmet) > 0 {
			w.Errorf("at once:\n%s", strings.Join(unmet, "\n"))
		}
	}
}

// What was waited for is in force for the very next packet; a node that is away is named; what is deleted is gone.
func TestPolicyWait(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	id := ns + "/b"
	w.settles(w.open("a", "b", "tcp", 80, "no policy"), w.open("c", "b", "tcp", 80, "no policy"))
	inForce := func(generation int64, args ...string) {
		w.Helper()
		began := time.Now()
		out, code, said := w.wait(id, args...)
		if code != 0 || !out.Done || out.Generation != generation || len(out.Nodes) != 1 || out.Nodes[0].State != "realised" {
			t.Fatalf("exit code %d: %s", code, said)
		}
		t.Logf("generation %d: waited %v", generation, time.Since(began))
	}
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}}`)
	inForce(1)
	w.now(w.shut("a", "b", "tcp", 80, "denied"), w.shut("c", "b", "udp", 80, "denied"))
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]}`)
	inForce(2)
	w.now(w.open("c", "b", "tcp", 80, "allowed"), w.shut("a", "b", "tcp", 80, "still denied"))

	node := w.pods["b"].Node
	w.again(node + "-netplugin")
	w.must(w.Kill(w.ctx, node+"-netplugin"))
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	if out, code, said := w.wait(id, "--timeout", "2s"); code != 3 || out.Done || out.Generation != 3 || len(out.Nodes) != 1 || out.Nodes[0].Name != node || out.Nodes[0].State != "away" || out.Nodes[0].Reason == "" {
		t.Errorf("with %s away: exit code %d: %s", node, code, said)
	}
	w.must(w.Start(w.ctx, node+"-netplugin"))
	inForce(3, "--timeout", "60s")
	w.now(w.open("a", "b", "tcp", 80, "allowed"), w.shut("c", "b", "tcp", 80, "no longer"))

	w.deletePolicy(ns, "b")
	if out, code, said := w.wait(id, "--for=delete"); code != 0 || !out.Done || len(out.Nodes) > 0 {
		t.Errorf("after it was deleted: exit code %d: %s", code, said)
	}
	w.now(w.open("a", "b", "tcp", 80, "no policy"), w.open("c", "b", "tcp", 80, "no policy"))
	if _, code, said := w.wait(id); code != 1 || !strings.Contains(said, "there is no NetworkPolicy "+id) {
		t.Errorf("of none: exit code %d: %s", code, said)
	}
	if n, err := w.Metric(w.ctx, "netmaster", "flowkeep_netmaster_policy_realised_seconds_count"); err != nil || n < 2 {
		t.Errorf("%v changes were measured: %v", n, err)
	}
}
