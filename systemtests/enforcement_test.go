package systemtests

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// enforcement is what a NetworkPolicyEnforcement was answered.
type enforcement struct {
	Metadata struct{ ResourceVersion string }
	Status   struct {
		PolicyGeneration, Nodes, NodesEnforcing int64
		Copy                                    string
		Conditions                              []struct{ Type, Status, Reason, Message string }
	}
}

func (e *enforcement) String() string {
	s := &e.Status
	text := fmt.Sprintf("generation %d, copy %q, %d of %d nodes", s.PolicyGeneration, s.Copy, s.NodesEnforcing, s.Nodes)
	for _, c := range s.Conditions {
		text += fmt.Sprintf(": %s %s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	return text
}

const enforcementPath = "/apis/fleet.flowkeep.io/v1alpha1/namespaces/%s/networkpolicyenforcements/%s"

// answers waits until an object is answered like this.
func (w *world) answers(namespace, name string, limit time.Duration, want string) enforcement {
	w.Helper()
	var e enforcement
	began := time.Now()
	err := cluster.Until(w.ctx, limit, func() error {
		e = enforcement{}
		if err := w.Get(w.ctx, fmt.Sprintf(enforcementPath, namespace, name), &e); err != nil {
			return err
		}
		if text := e.String(); !strings.Contains(text, want) {
			return fmt.Errorf("%s/%s tells %s, and not yet %s", namespace, name, text, want)
		}
		return nil
	})
	w.must(err)
	w.Logf("after %v: %s", time.Since(began).Round(time.Millisecond), &e)
	return e
}

// What a hub reads of a NetworkPolicy's enforcement is what nodes have in force: of each version, with a node that is away, and after its end.
func TestEnforcementReports(t *testing.T) {
	w := setup(t)
	w.applyCRDs()
	ns := threePods(w)
	policy := func(hash, from string) {
		w.Helper()
		w.apply(ns, fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, annotations: {fleet.flowkeep.io/copy: %s}},
			spec: {podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: %s}}}]}]}}`, hash, from))
	}
	w.apply(ns, `{apiVersion: fleet.flowkeep.io/v1alpha1, kind: NetworkPolicyEnforcement, metadata: {name: p}, spec: {policy: p}}`)
	w.answers(ns, "p", settling, `generation 0, copy "", 0 of 0 nodes: Enforced Unknown NoPolicy: there is no NetworkPolicy `+ns+`/p`)
	policy("one", "a")
	w.answers(ns, "p", settling, `generation 1, copy "one", 1 of 1 nodes: Enforced True InForce: in force on 1 node`)
	w.now(w.open("a", "b", "tcp", 80, "allowed"), w.shut("c", "b", "tcp", 80, "denied"))
	policy("two", "c")
	w.answers(ns, "p", settling, `generation 2, copy "two", 1 of 1 nodes: Enforced True InForce`)
	w.now(w.open("c", "b", "tcp", 80, "allowed"), w.shut("a", "b", "tcp", 80, "denied"))
	policy("three", "c") // another copy of the same generation
	before := w.answers(ns, "p", settling, `generation 2, copy "three", 1 of 1 nodes: Enforced True InForce`)

	node := w.pods["b"].Node
	w.again(node + "-netplugin")
	w.must(w.Kill(w.ctx, node+"-netplugin"))
	policy("four", "a")
	away := w.answers(ns, "p", settling, `generation 3, copy "four", 0 of 1 nodes: Enforced Unknown NodesAway: 1 of 1 node is not connected: `+node+" (")
	if away.Metadata.ResourceVersion == before.Metadata.ResourceVersion {
		t.Error("nothing was written")
	}
	w.must(w.Start(w.ctx, node+"-netplugin"))
	w.answers(ns, "p", 60*time.Second, `generation 3, copy "four", 1 of 1 nodes: Enforced True InForce`)
	w.now(w.open("a", "b", "tcp", 80, "allowed"), w.shut("c", "b", "tcp", 80, "denied"))

	w.apply(ns, `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p}, spec: {podSelector: {matchLabels: {app: nobody}}}}`)
	w.answers(ns, "p", settling, `Enforced True NoPods: it selects no pods`)
	w.deletePolicy(ns, "p")
	w.answers(ns, "p", settling, `generation 0, copy "", 0 of 0 nodes: Enforced Unknown NoPolicy`)
}

// The role that netmaster is given lets it answer, and write nothing else of those objects.
func TestNetmasterMayReport(t *testing.T) {
	w := setup(t)
	w.withRBAC()
	w.applyCRDs()
	user := "netmaster-" + w.id
	w.bind("clusterrolebinding", user, "--clusterrole=flowkeep-netmaster", "--user="+user)
	for _, c := range []struct {
		verb, resource, more, want string
	}{
		{"list", "networkpolicyenforcements.fleet.flowkeep.io", "", "yes"},
		{"watch", "networkpolicyenforcements.fleet.flowkeep.io", "", "yes"},
		{"update", "networkpolicyenforcements.fleet.flowkeep.io", "--subresource=status", "yes"},
		{"update", "networkpolicyenforcements.fleet.flowkeep.io", "", "no"},
		{"create", "networkpolicyenforcements.fleet.flowkeep.io", "", "no"},
		{"delete", "networkpolicyenforcements.fleet.flowkeep.io", "", "no"},
		{"list", "policyoverrides.fleet.flowkeep.io", "", "no"},
	} {
		args := []string{"auth", "can-i", c.verb, c.resource, "-A", "--as=" + user}
		if c.more != "" {
			args = append(args, c.more)
		}
		if text, _ := w.Kubectl(w.ctx, "", args...); !strings.HasPrefix(strings.TrimSpace(text), c.want) {
			t.Errorf("%s %s %s: %s", c.verb, c.resource, c.more, text)
		}
	}
}
