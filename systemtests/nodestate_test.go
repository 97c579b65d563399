package systemtests

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// enforcing is how long a desire may take until it is enforced and reported.
const enforcing = time.Minute

// bareHost is the last part of a bare node's address: beyond those of the nodes.
const bareHost = 200

// nodeState is a NodeNetworkState as tests look at it.
type nodeState struct {
	Metadata struct {
		UID, ResourceVersion string
		Generation           int64
	}
	Spec struct {
		Managed      *bool
		DesiredState map[string]any
	}
	Status struct {
		CurrentState struct {
			Interfaces []map[string]any
		}
		Conditions         []struct{ Type, Status, Reason, Message string }
		ObservedGeneration int64
		LastSuccess        string
		Backend            string
		Attempt            int
		NextAttempt        string
		History            []struct {
			Outcome, Message string
			Changes          []string
		}
	}
}

func (s nodeState) link(name string) map[string]any {
	for _, i := range s.Status.CurrentState.Interfaces {
		if i["name"] == name {
			return i
		}
	}
	return nil
}

// inSync is the condition: "True InSync: the node is as desired".
func (s nodeState) inSync() string {
	for _, c := range s.Status.Conditions {
		if c.Type == "InSync" {
			return c.Status + " " + c.Reason + ": " + c.Message
		}
	}
	return ""
}

// stateful is a node with an agent.
type stateful struct {
	*world
	node, kubeconfig string
	flags            []string
}

const statesPath = "/apis/nmstate.io/v1/nodenetworkstates/"

// withNodeStates has the API server know the CRDs, and gives a user who may do what an agent must, and nothing else.
func withNodeStates(t *testing.T) (w *world, kubeconfig string) {
	t.Helper()
	w = setup(t)
	w.applyCRDs()
	user := "node-state-" + w.id
	w.bind("clusterrolebinding", user, "--clusterrole=flowkeep-node-state", "--user="+user)
	return w, w.person(user)
}

// agentOn starts one on a node of the cluster.
func agentOn(t *testing.T, node string, flags ...string) *stateful {
	t.Helper()
	w, kubeconfig := withNodeStates(t)
	s := &stateful{w, node, kubeconfig, flags}
	s.begin()
	return s
}

// agentAlone starts one on a node of its own, which can be cut off without harm to anybody.
func agentAlone(t *testing.T, flags ...string) *stateful {
	t.Helper()
	s := bareNode(t, flags...)
	s.begin()
	return s
}

func bareNode(t *testing.T, flags ...string) *stateful {
	t.Helper()
	w, kubeconfig := withNodeStates(t)
	s := &stateful{w, "x" + w.id, kubeconfig, flags}
	w.Cleanup(func() { _ = w.EndBareNode(context.Background(), s.node) })
	w.must(w.MakeBareNode(w.ctx, s.node, bareHost))
	return s
}

// begin starts the agent without an object, and waits for its first report.
func (s *stateful) begin() {
	s.Helper()
	s.Cleanup(func() {
		ctx := context.Background()
		if s.Failed() {
			log, _ := s.LogText(s.node + "-node-state")
			lines := strings.Split(strings.TrimSpace(log), "\n")
			s.Logf("last lines of the agent on %s:\n%s", s.node, strings.Join(lines[max(0, len(lines)-25):], "\n"))
		}
		_ = s.EndNodeState(ctx, s.node)
		_ = s.Delete(ctx, statesPath+s.node, enforcing)
	})
	s.must(s.Delete(s.ctx, statesPath+s.node, enforcing))
	s.must(s.StartNodeState(s.ctx, s.node, s.kubeconfig, s.flags...))
	s.becomes("created", func(o nodeState) bool { return len(o.Status.CurrentState.Interfaces) > 0 })
}

func (s *stateful) object() (o nodeState, err error) {
	err = s.Get(s.ctx, statesPath+s.node, &o)
	return o, err
}

// becomes waits until the object is as it should be, and gives it.
func (s *stateful) becomes(what string, is func(o nodeState) bool) (o nodeState) {
	s.Helper()
	s.must(cluster.Until(s.ctx, enforcing, func() (err error) {
		if o, err = s.object(); err == nil && !is(o) {
			text, _ := json.Marshal(o.Status)
			err = fmt.Errorf("%s is not %s: %.3000s", s.node, what, text)
		}
		return err
	}))
	return o
}

// synced waits until the object's desire is enforced and reported.
func (s *stateful) synced() nodeState {
	s.Helper()
	return s.becomes("in sync", func(o nodeState) bool {
		return strings.HasPrefix(o.inSync(), "True InSync") && o.Status.ObservedGeneration == o.Metadata.Generation
	})
}

// desire has desiredState be this, in YAML's flow style.
func (s *stateful) desire(state string) {
	s.Helper()
	s.must(s.Apply(s.ctx, "", fmt.Sprintf(`{apiVersion: nmstate.io/v1, kind: NodeNetworkState, metadata: {name: %s,
		annotations: {flowkeep.io/allow-volatile: "true"}}, spec: {nodeName: %[1]s, managed: true, desiredState: %s}}`,
		s.node, state)))
}

// ip runs the program in the node's network namespace.
func (s *stateful) ip(args ...string) string {
	s.Helper()
	text, err := s.RunIn(s.ctx, s.NodeNS(s.node), append([]string{"ip"}, args...)...)
	s.must(err)
	return text
}

func (s *stateful) mtu(link string) string {
	s.Helper()
	_, after, _ := strings.Cut(s.ip("link", "show", "dev", link), " mtu ")
	mtu, _, _ := strings.Cut(after, " ")
	return mtu
}

// clears takes links away, also when the test fails.
func (s *stateful) clears(links ...string) {
	s.Cleanup(func() {
		for _, l := range links {
			_, _ = s.RunIn(context.Background(), s.NodeNS(s.node), "ip", "link", "del", l)
		}
	})
}

func TestNodeStateIsCreatedAndEnforced(t *testing.T) {
	s := agentOn(t, "node1")
	s.clears("ns-v0", "ns-br0")
	first, err := s.object()
	s.must(err)
	if len(first.Spec.DesiredState) != 0 || first.link("eth0") == nil || first.Status.Backend != "native" || !strings.HasPrefix(first.inSync(), "True") {
		s.Fatalf("%+v", first)
	}
	s.desire(`{interfaces: [
		{name: ns-v0, type: veth, state: up, mtu: 1400, veth: {peer: ns-v1}, ipv4: {enabled: true, address: [{ip: 198.51.100.1, prefix-length: 24}]}},
		{name: ns-v1, type: veth, state: up, mtu: 1400},
		{name: ns-br0, type: linux-bridge, state: up, bridge: {port: [{name: ns-v1}]}}],
		routes: {config: [{destination: 203.0.113.0/24, next-hop-interface: ns-v0, next-hop-address: 198.51.100.9}]}}`)
	o := s.synced()
	if s.mtu("ns-v0") != "1400" || !strings.Contains(s.ip("link", "show", "dev", "ns-v1"), "master ns-br0") || !strings.Contains(s.ip("route"), "203.0.113.0/24 via 198.51.100.9 dev ns-v0") {
		s.Errorf("%s%s", s.ip("addr"), s.ip("route"))
	}
	if o.link("ns-br0") == nil || o.Status.History[0].Outcome != "Applied" || len(o.Status.History[0].Changes) == 0 || o.Status.LastSuccess == "" {
		s.Errorf("%+v", o.Status)
	}
	// An edit is enforced again: of what it doesn't name nothing changes.
	s.desire(`{interfaces: [{name: ns-v0, mtu: 1300}]}`)
	s.synced()
	if s.mtu("ns-v0") != "1300" || s.mtu("ns-v1") != "1400" {
		s.Errorf("%s", s.ip("link"))
	}
	s.desire(`{interfaces: [{name: ns-v0, state: absent}, {name: ns-br0, state: absent}]}`)
	s.synced()
	if text := s.ip("link"); strings.Contains(text, "ns-") {
		s.Errorf("%s", text)
	}
}

func TestNodeStateDriftIsMended(t *testing.T) {
	s := agentAlone(t)
	s.clears("ns-v0")
	s.desire(`{interfaces: [{name: ns-v0, type: veth, state: up, mtu: 1400, veth: {peer: ns-v1}}]}`)
	s.synced()
	for _, drift := range [][]string{{"link", "set", "ns-v0", "mtu", "1500"}, {"link", "set", "ns-v0", "down"}, {"link", "del", "ns-v0"}} {
		s.ip(drift...)
		s.must(cluster.Until(s.ctx, enforcing, func() error {
			text, err := s.RunIn(s.ctx, s.NodeNS(s.node), "ip", "link", "show", "dev", "ns-v0")
			if err == nil && (!strings.Contains(text, "mtu 1400") || !strings.Contains(text, ",UP")) {
				err = fmt.Errorf("after ip %v: %s", drift, text)
			}
			return err
		}))
	}
	s.synced()
	if n, err := s.NodeStateMetric(s.ctx, s.node, "flowkeep_nodestate_drifts_total"); err != nil || n < 3 {
		s.Errorf("%v drifts counted: %v", n, err)
	}
}

func TestNodeStateDeletedIsCreatedAgain(t *testing.T) {
	s := agentAlone(t)
	s.clears("ns-v0")
	s.desire(`{interfaces: [{name: ns-v0, type: veth, state: up, mtu: 1400, veth: {peer: ns-v1}}]}`)
	old := s.synced()
	api, err := s.API(s.ctx)
	s.must(err)
	s.must(api.Do(s.ctx, http.MethodDelete, statesPath+s.node, nil))
	o := s.becomes("created again", func(o nodeState) bool {
		return o.Metadata.UID != old.Metadata.UID && len(o.Status.CurrentState.Interfaces) > 0
	})
	if len(o.Spec.DesiredState) != 0 || o.link("ns-v0") == nil || len(o.Status.History) != 0 {
		s.Errorf("%+v", o)
	}
	s.ip("link", "del", "ns-v0") // nobody wants it any more
	o = s.becomes("without the link", func(o nodeState) bool { return o.link("ns-v0") == nil })
	if len(o.Status.History) != 0 {
		s.Errorf("%+v", o.Status.History)
	}
}

var idleFor = flag.Duration("idle", 20*time.Second, "how long nodes with node-state agents are idle, and write nothing")

// Nodes that are as desired, by hand and by policy, write nothing: not the agents, not the handler of policies within them. The API server
// counts it, and etcd.
func TestNodeStateIdleWritesNothing(t *testing.T) {
	c := policiesOn(t)
	c.one.clears("ns-v0")
	c.one.desire(`{interfaces: [{name: ns-v0, type: veth, state: up, mtu: 1300, veth: {peer: ns-v1}}]}`)
	c.want("idle", mtuFor(1400, ""))
	c.everywhere("idle", "Applied")
	c.one.synced()
	c.two.synced()
	before := c.written()
	c.one.unchanged(*idleFor, "idle")
	after := c.written()
	for what, count := range after {
		if count != before[what] {
			c.Errorf("%s: %v, and %v after %v of idleness", what, before[what], count, *idleFor)
		}
	}
	c.Logf("in %v nothing was written; seen: %v", *idleFor, after)
}

// written are the versions of all node states and policies, and who counted how many writes of them.
func (c *configured) written() map[string]any {
	c.Helper()
	seen := map[string]any{}
	for _, kind := range []string{"nodenetworkstates", "nodenetworkconfigurationpolicies"} {
		var list struct {
			Items []struct {
				Metadata struct{ Name, ResourceVersion string }
			}
		}
		c.must(c.Get(c.ctx, "/apis/nmstate.io/v1/"+kind, &list))
		for _, o := range list.Items {
			seen[kind+"/"+o.Metadata.Name] = o.Metadata.ResourceVersion
		}
	}
	text, err := c.Kubectl(c.ctx, "", "get", "--raw", "/metrics")
	c.must(err)
	for line := range strings.Lines(text) {
		reads := strings.Contains(line, `"GET"`) || strings.Contains(line, `"LIST"`) || strings.Contains(line, `"WATCH"`) || strings.Contains(line, `operation="get`) || strings.Contains(line, `operation="list`)
		counts := strings.HasPrefix(line, "apiserver_request_total{") || strings.HasPrefix(line, "etcd_requests_total{")
		if counts && !reads && (strings.Contains(line, "nodenetworkstates") || strings.Contains(line, "nodenetworkconfigurationpolicies")) {
			at := strings.LastIndexByte(line, ' ')
			seen[line[:at]] = strings.TrimSpace(line[at:])
		}
	}
	if len(seen) < 5 {
		c.Errorf("the API server counts nothing: %v", seen)
	}
	for _, s := range []*stateful{c.one, c.two} {
		for _, metric := range []string{"flowkeep_nodestate_status_writes_total", "flowkeep_node_config_writes_total"} {
			count, err := c.NodeStateMetric(c.ctx, s.node, metric)
			c.must(err)
			seen[s.node+" "+metric] = count
		}
	}
	return seen
}

// An unmanaged node's object stays the very same, whatever happens on it.
func TestNodeStateUnmanagedWritesNothing(t *testing.T) {
	s := agentOn(t, "node1", "--poll-interval", "1s")
	s.clears("ns-v0")
	s.desire(`{interfaces: [{name: ns-v0, type: veth, state: up, mtu: 1400, veth: {peer: ns-v1}}]}`)
	s.synced()

	// The base does not exist: it is tried again and again.
	s.desire(`{interfaces: [{name: ns-m0, type: mac-vlan, state: up, mac-vlan: {base-iface: ns-none, mode: bridge}}]}`)
	s.becomes("failing", func(o nodeState) bool { return o.Status.Attempt >= 1 && o.Status.NextAttempt != "" })
	s.must(s.Patch(s.ctx, statesPath+s.node, `{"spec": {"managed": false}}`))
	s.ip("link", "del", "ns-v0")
	s.unchanged(15*time.Second, "unmanaged")
	s.ip("link", "add", "ns-none", "type", "veth", "peer", "ns-v0")
	s.unchanged(5*time.Second, "unmanaged, and what was missing is there")
	if text := s.ip("link"); strings.Contains(text, "ns-m0") {
		s.Errorf("an unmanaged node was changed: %s", text)
	}
	s.must(s.Patch(s.ctx, statesPath+s.node, `{"spec": {"managed": true}}`))
	s.synced()
	s.ip("link", "del", "ns-m0")
}

// unchanged watches the object's resourceVersion.
func (s *stateful) unchanged(long time.Duration, why string) {
	s.Helper()
	before, err := s.object()
	s.must(err)
	end := time.Now().Add(long)
	for time.Now().Before(end) {
		now, err := s.object()
		s.must(err)
		if now.Metadata.ResourceVersion != before.Metadata.ResourceVersion {
			s.Fatalf("%s, but the object was written:\n%+v\n%+v", why, before, now)
		}
		time.Sleep(250 * time.Millisecond)
	}
}

// 200 veths to other network namespaces are pods': not reported, no drift, no writes.
func TestNodeStateLeavesPodsLinksAlone(t *testing.T) {
	s := agentAlone(t, "--poll-interval", "1s")
	s.desire(`{interfaces: [{name: ns-v0, type: veth, state: up, mtu: 1400, veth: {peer: ns-v1}}]}`)
	s.synced()
	pods := "p" + s.id
	s.Cleanup(func() { _ = s.EndBareNode(context.Background(), pods) })
	s.must(s.MakeBareNode(s.ctx, pods, bareHost+1))
	before, err := s.object()
	s.must(err)
	var batch strings.Builder
	for i := range 200 {
		fmt.Fprintf(&batch, "link add veth%08x type veth peer name p%d netns fk-%s-%s\nlink set veth%08x up\n", i, i, s.Name, pods, i)
	}
	cmd := exec.CommandContext(s.ctx, "nsenter", "--net="+s.NodeNS(s.node), "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("%v: %s", err, out)
	}
	s.must(cluster.Until(s.ctx, enforcing, func() error { // until it has read them
		n, err := s.NodeStateMetric(s.ctx, s.node, "flowkeep_nodestate_show_seconds_count")
		if err == nil && n < 5 {
			err = errors.New("the agent has not looked again")
		}
		return err
	}))
	s.unchanged(5*time.Second, "200 pods' links came")
	now, err := s.object()
	s.must(err)
	if before.Metadata.ResourceVersion != now.Metadata.ResourceVersion {
		s.Errorf("200 pods' links came, and the object was written: %+v", now.Status)
	}
}

// reach is by what the node reaches others.
func (s *stateful) reach() string {
	s.Helper()
	return s.ip("-br", "addr", "show", "dev", "eth0", "scope", "global") + s.ip("route") + s.ip("-6", "route", "show", "default")
}

// cutOff leaves eth0 without the address by which the API server is reached.
const cutOff = `{interfaces: [{name: eth0, ipv4: {enabled: true, address: [{ip: 198.51.100.77, prefix-length: 24}]}, ipv6: {enabled: false}}]}`

func TestNodeStateCutOffRollsBack(t *testing.T) {
	s := agentAlone(t, "--revert-timeout", "8s")
	before := s.reach()
	s.desire(cutOff)
	o := s.becomes("rolled back", func(o nodeState) bool { return strings.HasPrefix(o.inSync(), "False RolledBack") })
	if after := s.reach(); after != before {
		s.Errorf("before:\n%safter:\n%s", before, after)
	}
	if !strings.Contains(o.inSync(), "the API server") || o.Status.NextAttempt == "" || o.Status.History[0].Outcome != "RolledBack" {
		s.Errorf("%+v", o.Status)
	}
	s.must(cluster.Until(s.ctx, enforcing, func() error {
		text, err := s.Kubectl(s.ctx, "", "get", "events", "-n", "default", "--field-selector", "involvedObject.name="+s.node, "-o", "wide")
		if err == nil && !strings.Contains(text, "RolledBack") {
			err = fmt.Errorf("no Event tells of it: %s", text)
		}
		return err
	}))
	s.desire(`{interfaces: [{name: eth0, mtu: 1400}]}`) // starts afresh
	s.synced()
}

func TestNodeStateKilledWithinAChange(t *testing.T) {
	s := agentAlone(t, "--revert-timeout", "10m")
	before := s.reach()
	s.desire(cutOff)
	s.must(cluster.Until(s.ctx, enforcing, func() error {
		if text := s.ip("addr", "show", "dev", "eth0"); !strings.Contains(text, "198.51.100.77") || strings.Contains(text, "172.31.") {
			return fmt.Errorf("the change is not made: %s", text)
		}
		return nil
	}))
	s.must(s.Kill(s.ctx, s.node+"-node-state"))
	s.must(s.Start(s.ctx, s.node+"-node-state"))
	o := s.becomes("recovered", func(o nodeState) bool {
		return strings.HasPrefix(o.inSync(), "False RolledBack") && len(o.Status.History) > 0 && o.Status.History[0].Outcome == "Recovered"
	})
	if after := s.reach(); after != before {
		s.Errorf("before:\n%safter:\n%s%+v", before, after, o.Status)
	}
	s.desire(`{interfaces: [{name: eth0, mtu: 1400}]}`)
	s.synced()
}

func TestNodeStateOnce(t *testing.T) {
	s := bareNode(t)
	s.Cleanup(func() { _ = s.Delete(context.Background(), statesPath+s.node, enforcing) })
	once := func() error {
		_, err := s.NodeStateOnce(s.ctx, s.node, s.kubeconfig)
		return err
	}
	s.must(once())
	if o, err := s.object(); err != nil || o.link("eth0") == nil || len(o.Spec.DesiredState) != 0 {
		s.Fatalf("%v: %+v", err, o)
	}
	s.desire(`{interfaces: [{name: ns-v0, type: veth, state: up, mtu: 1400, veth: {peer: ns-v1}}]}`)
	s.must(once())
	if o, err := s.object(); err != nil || !strings.HasPrefix(o.inSync(), "True InSync") || s.mtu("ns-v0") != "1400" {
		s.Errorf("%v: %+v", err, o)
	}
	s.desire(`{interfaces: [{name: x0, type: infiniband, state: up}]}`)
	if err := once(); err == nil || !strings.Contains(err.Error(), "infiniband") {
		s.Errorf("an impossible desire: %v", err)
	}
	if o, err := s.object(); err != nil || !strings.HasPrefix(o.inSync(), "False Failing") {
		s.Errorf("%v: %+v", err, o)
	}
}

// seedExample is the first example that this was designed by, to the letter.
const seedExample = `apiVersion: nmstate.io/v1
kind: NodeNetworkState
metadata:
  name: node1
spec:
  desiredState:
    interfaces:
    - name: dummy0
      state: up
      type: dummy
      mtu: 1450
  managed: true
  nodeName: node1
status:
  currentState:
    capabilities: null
    interfaces: null
`

func TestNodeStateExample(t *testing.T) {
	s := agentOn(t, "node1")
	s.clears("dummy0")
	if _, err := s.RunIn(s.ctx, s.NodeNS("node1"), "ip", "link", "add", "dummy0", "type", "dummy"); err != nil {
		s.Skipf("this kernel has no dummy links: %v", err)
	}
	s.ip("link", "set", "dummy0", "up")
	_, err := s.Kubectl(s.ctx, seedExample, "apply", "-f", "-")
	s.must(err)
	o := s.becomes("as the example says", func(o nodeState) bool { return fmt.Sprint(o.link("dummy0")["mtu"]) == "1450" })
	if s.mtu("dummy0") != "1450" {
		s.Errorf("%s%+v", s.ip("link"), o)
	}
	text, err := s.Kubectl(s.ctx, "", "get", "nodenetworkstate", "node1", "-o", "yaml")
	if err != nil || !strings.Contains(text, "name: dummy0") {
		s.Errorf("%v: %s", err, text)
	}
}
