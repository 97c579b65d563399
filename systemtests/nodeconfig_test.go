package systemtests

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/nodestate/native/lldp/lldptest"
	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

const configsPath = "/apis/nmstate.io/v1/nodenetworkconfigurationpolicies/"

// nodePolicy is a NodeNetworkConfigurationPolicy as tests look at it.
type nodePolicy struct {
	Status struct {
		Conditions []struct{ Type, Status string }
		Nodes      []struct {
			Node, Reason, Phase, Message string
			Matched                      bool
			Interfaces                   []string
			ObservedGeneration           int64
		}
		Conflicts []struct{ Node, Path, Winner, WinnerValue, Loser, LoserValue string }
	}
	Metadata struct{ Generation int64 }
}

func (p nodePolicy) phase(node string) string {
	for _, n := range p.Status.Nodes {
		if n.Node == node && n.ObservedGeneration == p.Metadata.Generation {
			return n.Phase
		}
	}
	return ""
}

// configured is two nodes with agents, and policies for them.
type configured struct {
	*world
	one, two *stateful
	link     string // of this test, on both nodes
}

// policiesOn starts agents on both nodes; each has a veth called after the test, which the policies are about.
func policiesOn(t *testing.T) *configured {
	t.Helper()
	w, kubeconfig := withNodeStates(t)
	c := &configured{world: w, link: "c" + w.id}
	for n, s := range []**stateful{&c.one, &c.two} {
		*s = &stateful{w, fmt.Sprintf("node%d", n+1), kubeconfig, []string{"--poll-interval", "2s"}}
		(*s).plug(c.link)
		(*s).begin()
	}
	return c
}

// plug makes an interface, as if it was plugged in.
func (s *stateful) plug(link string) {
	s.Helper()
	s.ip("link", "add", link, "type", "veth", "peer", "name", "p"+link)
	s.clears(link)
}

// want applies a policy called after the test; {link} is the test's interface.
func (c *configured) want(name, spec string) {
	c.Helper()
	name += "-" + c.id
	c.Cleanup(func() { _ = c.Delete(context.Background(), configsPath+name, enforcing) })
	c.must(c.Apply(c.ctx, "", fmt.Sprintf("{apiVersion: nmstate.io/v1, kind: NodeNetworkConfigurationPolicy, metadata: {name: %s}, spec: %s}", name, strings.ReplaceAll(spec, "{link}", c.link))))
}

func (c *configured) unwant(name string) {
	c.Helper()
	c.must(c.Delete(c.ctx, configsPath+name+"-"+c.id, enforcing))
}

// stands waits until a policy's status is as it should be.
func (c *configured) stands(name, what string, is func(p nodePolicy) bool) (p nodePolicy) {
	c.Helper()
	c.must(cluster.Until(c.ctx, 2*enforcing, func() error {
		p = nodePolicy{}
		err := c.Get(c.ctx, configsPath+name+"-"+c.id, &p)
		if err == nil && !is(p) {
			text, _ := json.Marshal(p.Status)
			err = fmt.Errorf("policy %s: not %s: %.3000s", name, what, text)
		}
		return err
	}))
	return p
}

// everywhere waits until a policy is in this phase on both nodes.
func (c *configured) everywhere(name, phase string) nodePolicy {
	c.Helper()
	return c.stands(name, phase+" on both nodes", func(p nodePolicy) bool { return p.phase("node1") == phase && p.phase("node2") == phase })
}

func (c *configured) hasMTU(s *stateful, link, mtu string) {
	c.Helper()
	c.must(cluster.Until(c.ctx, enforcing, func() error {
		if got := s.mtu(link); got != mtu {
			return fmt.Errorf("%s has MTU %s on %s, not %s", link, got, s.node, mtu)
		}
		return nil
	}))
}

func mtuFor(mtu int, more string) string {
	return fmt.Sprintf(`{match: [{name: "{link}*", type: veth}], desiredState: {interfaces: [{mtu: %d}]}%s}`, mtu, more)
}

// A policy reaches the nodes, also an interface that is plugged in later; what was set by hand wins, and stays when the policy goes.
func TestPolicyReachesNodes(t *testing.T) {
	c := policiesOn(t)
	hand := c.link + "h"
	c.one.clears(hand)
	c.one.desire(fmt.Sprintf(`{interfaces: [{name: %s, type: veth, state: up, mtu: 1300, veth: {peer: p%[1]s}}]}`, hand))
	c.one.synced()
	before, err := c.one.object()
	c.must(err)
	c.want("a", mtuFor(1400, ""))
	c.hasMTU(c.two, c.link, "1400")
	c.hasMTU(c.one, c.link, "1400")
	p := c.stands("a", "in force, and overruled by hand", func(p nodePolicy) bool {
		return p.phase("node1") == "Conflict" && p.phase("node2") == "Applied"
	})
	if len(p.Status.Conflicts) != 1 || p.Status.Conflicts[0].Winner != "(by hand)" || p.Status.Conflicts[0].WinnerValue != "1300" {
		c.Errorf("%+v", p.Status.Conflicts)
	}
	c.hasMTU(c.one, hand, "1300")

	later := c.link + "l"
	c.two.plug(later)
	c.hasMTU(c.two, later, "1400")
	c.stands("a", "told of the new interface", func(p nodePolicy) bool {
		return slices.ContainsFunc(p.Status.Nodes, func(n struct {
			Node, Reason, Phase, Message string
			Matched                      bool
			Interfaces                   []string
			ObservedGeneration           int64
		}) bool {
			return n.Node == "node2" && slices.Equal(n.Interfaces, []string{c.link, later}) && n.Phase == "Applied"
		})
	})

	c.unwant("a")
	left := func(s *stateful, want map[string]any) {
		s.becomes("what was set by hand", func(o nodeState) bool {
			got, _ := json.Marshal(o.Spec.DesiredState)
			wanted, _ := json.Marshal(want)
			return string(got) == string(wanted)
		})
	}
	left(c.one, before.Spec.DesiredState)
	left(c.two, nil)
	c.one.synced()
	c.two.synced()
	c.one.unchanged(5*time.Second, "nothing more happens")
}

// The higher priority wins whichever comes first, and both policies tell of it.
func TestPoliciesDisagree(t *testing.T) {
	c := policiesOn(t)
	c.want("a", mtuFor(1410, ", priority: 5"))
	c.everywhere("a", "Applied")
	c.want("b", mtuFor(1420, ""))
	for _, name := range []string{"a", "b"} {
		p := c.stands(name, "told of conflicts on both nodes", func(p nodePolicy) bool { return len(p.Status.Conflicts) == 2 })
		for _, q := range p.Status.Conflicts {
			if q.Winner != "a-"+c.id || q.Loser != "b-"+c.id || q.Path != "interfaces["+c.link+"].mtu" || q.WinnerValue != "1410" || q.LoserValue != "1420" {
				c.Errorf("policy %s: %+v", name, q)
			}
		}
	}
	c.everywhere("b", "Conflict")
	c.hasMTU(c.one, c.link, "1410")
	c.unwant("a")
	c.everywhere("b", "Applied")
	c.hasMTU(c.one, c.link, "1420")
	c.hasMTU(c.two, c.link, "1420")
}

const (
	unasked  = "has not been asked"
	changing = "changes"
	changed  = "has changed"
)

// standing tells how far a node has come with an MTU that a policy wants.
func (s *stateful) standing(mtu int) string {
	s.Helper()
	o, err := s.object()
	s.must(err)
	desire, _ := json.Marshal(o.Spec.DesiredState)
	switch {
	case !strings.Contains(string(desire), fmt.Sprint(mtu)):
		return unasked
	case strings.HasPrefix(o.inSync(), "True") && o.Status.ObservedGeneration == o.Metadata.Generation:
		return changed
	}
	return changing
}

// With maxUnavailable 1 the second node changes when the first is done.
func TestPolicyOneNodeAfterTheOther(t *testing.T) {
	c := policiesOn(t)
	for _, mtu := range []int{1430, 1440} {
		c.want("a", mtuFor(mtu, ", maxUnavailable: 1"))
		c.must(cluster.Until(c.ctx, 2*enforcing, func() error {
			one, two := c.one.standing(mtu), c.two.standing(mtu)
			if one == changing && two == changing && c.one.standing(mtu) == changing { // also after the second was seen so
				c.Fatal("both nodes change at once")
			}
			if one != changed || two != changed {
				return fmt.Errorf("%s %s, %s %s", c.one.node, one, c.two.node, two)
			}
			return nil
		}))
		c.everywhere("a", "Applied")
	}
}

// What cannot be fails on one node, and the other does not try it. Mended, it goes on by itself.
func TestFailingNodeStopsRollOut(t *testing.T) {
	c := policiesOn(t)
	upper := c.link + "m"
	c.one.clears(upper)
	c.two.clears(upper)
	spec := `{maxUnavailable: 1, match: [{name: "{link}"}], desiredState: {interfaces: [{name: {link}m, type: mac-vlan, state: up, mac-vlan: {base-iface: %s, mode: bridge}}]}}`
	c.want("a", fmt.Sprintf(spec, "no-such"))
	var bad, other *stateful
	c.stands("a", "stopped", func(p nodePolicy) bool {
		bad, other = c.one, c.two
		if p.phase("node2") == "Failing" {
			bad, other = c.two, c.one
		}
		return p.phase(bad.node) == "Failing" && p.phase(other.node) == "Waiting"
	})
	other.unchanged(5*time.Second, "the roll-out stopped")
	if o, err := other.object(); err != nil || len(o.Spec.DesiredState) != 0 {
		c.Errorf("%s was to change too: %v, %v", other.node, o.Spec.DesiredState, err)
	}
	c.want("a", fmt.Sprintf(spec, "{link}"))
	c.everywhere("a", "Applied")
}

// TestPolicySelectsNodes by labels, affinity and taints, with the API server's own objects. The taint keeps no pod of
// another test away: tests place their pods by nodeName, and it evicts none.
func TestPolicySelectsNodes(t *testing.T) {
	c := policiesOn(t)
	key := "example.org/" + c.id
	node := func(args ...string) {
		c.Helper()
		_, err := c.Kubectl(c.ctx, "", args...)
		c.must(err)
	}
	c.Cleanup(func() {
		_, _ = c.Kubectl(context.Background(), "", "taint", "node", "node2", key+"-")
		_, _ = c.Kubectl(context.Background(), "", "label", "node", "node2", key+"-")
	})
	only := func(name, why string) {
		c.Helper()
		c.stands(name, "on node2 alone", func(p nodePolicy) bool {
			return p.phase("node2") == "Applied" && p.excludes("node1", why)
		})
	}
	const affinity = `affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution:
		{nodeSelectorTerms: [{matchExpressions: [{key: %s, operator: In, values: [east, west]}]}]}}}`
	spec := func(more string, mtu int) string { return "{" + more + ", " + strings.TrimPrefix(mtuFor(mtu, ""), "{") }
	c.want("a", spec(fmt.Sprintf(affinity, key), 1410))
	c.stands("a", "on no node", func(p nodePolicy) bool {
		return p.excludes("node1", "do not fit nodeSelector and affinity") && p.excludes("node2", "do not fit")
	})
	node("label", "node", "node2", key+"=east")
	only("a", "do not fit nodeSelector and affinity")
	c.hasMTU(c.two, c.link, "1410")
	c.unwant("a")
	c.want("b", spec(fmt.Sprintf("nodeSelector: {%s: east}", key), 1420))
	only("b", "do not fit nodeSelector and affinity")
	c.hasMTU(c.two, c.link, "1420")
	c.unwant("b")

	node("taint", "node", "node2", key+"=storage:NoSchedule")
	c.want("c", mtuFor(1430, ""))
	c.stands("c", "on node1 alone", func(p nodePolicy) bool {
		return p.phase("node1") == "Applied" && p.excludes("node2", "the taint "+key+"=storage:NoSchedule is not tolerated")
	})
	c.want("c", spec(fmt.Sprintf("tolerations: [{key: %s, operator: Exists, effect: NoSchedule}]", key), 1430))
	c.everywhere("c", "Applied")
	c.hasMTU(c.two, c.link, "1430")
}

// excludes reports whether the policy is not for the node, for the reason.
func (p nodePolicy) excludes(node, why string) bool {
	for _, n := range p.Status.Nodes {
		if n.Node == node && n.ObservedGeneration == p.Metadata.Generation {
			return !n.Matched && strings.Contains(n.Reason+n.Message, why)
		}
	}
	return false
}

// While there is an instance for all nodes, those of the nodes leave it to it; when it ends they go on.
func TestCentralizedTakesOver(t *testing.T) {
	c := policiesOn(t)
	name := "node-config-" + c.id
	c.bind("clusterrolebinding", name, "--clusterrole=flowkeep-node-config", "--user="+name)
	_, err := c.Kubectl(c.ctx, "", "-n", "kube-system", "create", "rolebinding", name, "--role=flowkeep-node-config", "--user="+name)
	c.must(err)
	c.Cleanup(func() {
		_, _ = c.Kubectl(context.Background(), "", "-n", "kube-system", "delete", "rolebinding", name, "--ignore-not-found")
		_ = c.EndNodeConfig(context.Background(), name)
		if c.Failed() {
			log, _ := c.LogText(name)
			c.Logf("log of %s:\n%.4000s", name, log)
		}
	})
	c.must(c.StartNodeConfig(c.ctx, name, c.person(name), "9446"))
	c.must(cluster.Until(c.ctx, enforcing, func() error {
		_, err := c.RunIn(c.ctx, c.ControlPlaneNS(), c.Bin+"/probe", "get", "http://127.0.0.1:9446/readyz")
		return err
	}))
	written := func(s *stateful) float64 {
		n, err := s.NodeStateMetric(c.ctx, s.node, "flowkeep_node_config_writes_total", `outcome="written"`)
		if err != nil && !strings.Contains(err.Error(), "no sample") {
			c.Fatal(err)
		}
		return n
	}
	one, two := written(c.one), written(c.two)
	c.want("a", mtuFor(1450, ""))
	c.everywhere("a", "Applied")
	c.hasMTU(c.two, c.link, "1450")
	if written(c.one) != one || written(c.two) != two {
		c.Error("the nodes' handlers wrote too")
	}
	command := fmt.Sprintf("%s/flowkeep/bin/netmaster node-config --once --identity once --kubeconfig %s 2>&1", c.Dir, c.person(name))
	once, err := c.RunIn(c.ctx, c.ControlPlaneNS(), "sh", "-c", command)
	if err != nil || !strings.Contains(once, "nothing was written") {
		c.Errorf("one pass while a daemon runs: %v: %s", err, once)
	}
	c.must(c.EndNodeConfig(c.ctx, name))
	c.want("a", mtuFor(1460, ""))
	c.everywhere("a", "Applied")
	c.hasMTU(c.one, c.link, "1460")
	if written(c.one)+written(c.two) == one+two {
		c.Error("the nodes' handlers wrote nothing")
	}
}

// A policy finds an interface by what the switch behind it tells by LLDP, loses it when the switch leaves, and neither a switch that repeats
// itself nor a restart of the agent is any change.
func TestPolicyFindsNeighbours(t *testing.T) {
	c := policiesOn(t)
	name := "tor-" + c.id
	tells := func(s *stateful, port string, ttl time.Duration) {
		c.Helper()
		c.must(c.SendFramesOn(c.ctx, c.NodeNS(s.node), "p"+c.link, 0, lldptest.Switch(name, port, 1, ttl)))
	}
	for _, s := range []*stateful{c.one, c.two} {
		s.ip("link", "set", "p"+c.link, "up")
		s.desire(fmt.Sprintf(`{interfaces: [{name: %s, type: veth, state: up, lldp: {enabled: true}}]}`, c.link))
		s.synced()
	}
	c.want("a", fmt.Sprintf(`{match: [{lldp: {systemName: "%s", portID: "Ethernet1/*"}}], desiredState: {interfaces: [{mtu: 1400}]}}`, name))
	c.everywhere("a", "NoMatch")
	tells(c.one, "Ethernet1/7", time.Hour)
	tells(c.two, "Ethernet2/7", time.Hour)
	c.stands("a", "applied where the neighbour is", func(p nodePolicy) bool { return p.phase("node1") == "Applied" && p.phase("node2") == "NoMatch" })
	c.hasMTU(c.one, c.link, "1400")
	c.hasMTU(c.two, c.link, "1500")
	heard := func(o nodeState) bool {
		lldp, _ := json.Marshal(o.link(c.link)["lldp"])
		return strings.Contains(string(lldp), `"system-name":"`+name+`"`)
	}
	c.two.becomes("telling of the neighbour", heard)

	c.one.synced()
	tells(c.one, "Ethernet1/7", time.Hour)
	c.one.unchanged(3*time.Second, "the neighbour told the same again")
	c.must(c.Kill(c.ctx, "node1-node-state"))
	c.must(c.Start(c.ctx, "node1-node-state"))
	c.one.becomes("managed again", func(o nodeState) bool {
		if !heard(o) {
			c.Error("a restart forgets the neighbour")
		}
		return len(o.Status.History) > 0 && slices.Contains(o.Status.History[0].Changes, "enable lldp on "+c.link) && o.inSync() == "True InSync: the node is as desired"
	})

	tells(c.one, "Ethernet1/7", 0)
	c.everywhere("a", "NoMatch")
	c.hasMTU(c.one, c.link, "1400") // what leaves is the wish
}
