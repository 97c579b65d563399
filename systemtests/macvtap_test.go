package systemtests

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// following is how long a kubelet may take to show what is exposed: the goal is 15 s, of which it waits up to 10 s to write its Node.
const following = 45 * time.Second

const (
	macvtapDomain   = "macvtap.network.kubevirt.io/"
	macvtapNodes    = "/apis/macvtap.network.kubevirt.io/v1alpha1/macvtapnodes/"
	macvtapPolicies = "/apis/macvtap.network.kubevirt.io/v1alpha1/namespaces/%s/macvtapnetworknodepolicies/%s"
)

// macvtapNode is a MacvtapNode's status as tests look at it.
type macvtapNode struct {
	Metadata struct{ ResourceVersion string }
	Status   struct {
		Source, Summary string
		Conditions      []struct{ Type, Status, Message string }
		Resources       []struct {
			Name                     string
			Capacity, Healthy, InUse int
		}
		Holders []struct{ Resource, Device, Namespace, Pod string }
	}
}

func (n macvtapNode) condition(kind string) string {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c.Status + ": " + c.Message
		}
	}
	return ""
}

// tapped is node1 with a macvtap agent, and links mv-p0 and mv-p1 that are each other's peers.
type tapped struct {
	*world
	node, ns, kubeconfig, config string
}

func withMacvtap(t *testing.T) *tapped {
	t.Helper()
	w := setup(t)
	w.whole("this sandbox schedules no pods")
	w.applyCRDs()
	user := "macvtap-" + w.id
	w.bind("clusterrolebinding", user, "--clusterrole=flowkeep-macvtap", "--user="+user)
	m := &tapped{world: w, node: "node1", kubeconfig: w.person(user), config: filepath.Join(t.TempDir(), "config.json")}
	m.ns = w.namespace("taps", nil)
	m.Cleanup(m.tidy)
	m.ip("link", "add", "mv-p0", "type", "veth", "peer", "name", "mv-p1")
	m.ip("link", "set", "mv-p0", "up")
	m.ip("link", "set", "mv-p1", "up")
	m.must(m.StartMacvtap(m.ctx, m.node, m.kubeconfig, "--also-expose", "mv-p0", "--config", m.config))
	return m
}

func (m *tapped) tidy() {
	ctx := context.Background()
	if m.Failed() {
		log, _ := m.LogText(m.node + "-macvtap")
		lines := strings.Split(strings.TrimSpace(log), "\n")
		m.Logf("last lines of the agent on %s:\n%s", m.node, strings.Join(lines[max(0, len(lines)-25):], "\n"))
		text, err := m.Kubectl(ctx, "", "get", "macvtapnode", m.node, "-o", "yaml")
		m.Logf("%v\n%s", err, text)
	}
	_ = m.Start(ctx, m.node+"-kubelet")
	_ = m.Patch(ctx, "/api/v1/nodes/"+m.node, `{"metadata": {"labels": {"macvtapAware": null}}}`)
	_ = m.EndMacvtap(ctx, m.node)
	_, _ = m.RunIn(ctx, m.NodeNS(m.node), "ip", "link", "del", "mv-p0")
	_ = m.Delete(ctx, macvtapNodes+m.node, settling)
}

func (m *tapped) ip(args ...string) {
	m.Helper()
	_, err := m.RunIn(m.ctx, m.NodeNS(m.node), append([]string{"ip"}, args...)...)
	m.must(err)
}

// allocatable are the node's macvtap devices that can be given out, by resource.
func (m *tapped) allocatable() (map[string]string, error) {
	var node struct {
		Status struct{ Allocatable map[string]string }
	}
	if err := m.Get(m.ctx, "/api/v1/nodes/"+m.node, &node); err != nil {
		return nil, err
	}
	found := map[string]string{}
	for name, n := range node.Status.Allocatable {
		if resource, ok := strings.CutPrefix(name, macvtapDomain); ok && n != "0" {
			found[resource] = n
		}
	}
	return found, nil
}

// offers waits until exactly this is allocatable: "mv-p0=100".
func (m *tapped) offers(what, want string) {
	m.Helper()
	began := time.Now()
	m.must(cluster.Until(m.ctx, following, func() error {
		found, err := m.allocatable()
		if err != nil {
			return err
		}
		var list []string
		for name, n := range found {
			list = append(list, name+"="+n)
		}
		if got := strings.Join(list, " "); got != want {
			return fmt.Errorf("%s: %q is allocatable, not %q", what, got, want)
		}
		return nil
	}))
	m.Logf("%s: allocatable after %v", what, time.Since(began).Round(100*time.Millisecond))
}

func (m *tapped) tells(what string, is func(n macvtapNode) bool) (n macvtapNode) {
	m.Helper()
	m.must(cluster.Until(m.ctx, following, func() error {
		n = macvtapNode{}
		err := m.Get(m.ctx, macvtapNodes+m.node, &n)
		if err == nil && !is(n) {
			err = fmt.Errorf("not told: %s: %+v", what, n)
		}
		return err
	}))
	return n
}

// claim makes a pod that asks for a device, and leaves it to the scheduler.
func (m *tapped) claim(name, resource string) {
	m.Helper()
	m.must(m.Apply(m.ctx, m.ns, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {
		nodeSelector: {kubernetes.io/hostname: %s}, terminationGracePeriodSeconds: 0, automountServiceAccountToken: false,
		containers: [{name: probe, image: "flowkeep.local/probe:sandbox", imagePullPolicy: Never, args: [serve, "80"], resources: {limits: {%s%s: 1}}}]}}`,
		name, m.node, macvtapDomain, resource)))
}

type claimant struct {
	Metadata struct{ Name, UID string }
	Status   struct {
		Phase, Reason     string
		Conditions        []struct{ Type, Status, Message string }
		ContainerStatuses []struct {
			RestartCount int
			Ready        bool
		}
	}
}

func (m *tapped) claimant(name, what string, is func(p claimant) bool) (p claimant) {
	m.Helper()
	m.must(cluster.Until(m.ctx, following, func() error {
		p = claimant{}
		err := m.Get(m.ctx, cluster.PathOf("Pod", m.ns, name), &p)
		if err == nil && !is(p) {
			err = fmt.Errorf("%s is not %s: %+v", name, what, p.Status)
		}
		return err
	}))
	return p
}

// taps returns the devices in the node's network namespace: name, index and MAC address of each.
func (m *tapped) taps() []string {
	m.Helper()
	out, err := m.RunIn(m.ctx, m.NodeNS(m.node), "ip", "-json", "link", "show", "type", "macvtap")
	m.must(err)
	var links []struct {
		IfName, Address string
		IfIndex         int
	}
	m.must(json.Unmarshal([]byte(out), &links))
	var found []string
	for _, l := range links {
		if strings.HasPrefix(l.IfName, "fktap") {
			found = append(found, fmt.Sprint(l.IfName, " ", l.IfIndex, " ", l.Address))
		}
	}
	return found
}

// end deletes pods and waits until their devices are gone from the node. The kubelet lists them no more, and the agent
// waits 30 s for that to last.
func (m *tapped) end(names ...string) {
	m.Helper()
	for _, name := range names {
		m.must(m.Delete(m.ctx, cluster.PathOf("Pod", m.ns, name), settling))
	}
	m.must(cluster.Until(m.ctx, 3*following, func() error {
		nodes, err := filepath.Glob(filepath.Join(m.MacvtapState(m.node), "dev", "*"))
		if found := m.taps(); len(found)+len(nodes) > 0 {
			return fmt.Errorf("links %v and device nodes %v are left on the node", found, nodes)
		}
		return err
	}))
}

// What is exposed, by whom, follows links, labels, policies and configuration, as a real kubelet sees it; pods that have devices keep them.
func TestMacvtap(t *testing.T) {
	m := withMacvtap(t)
	m.offers("of itself", "mv-p0=100")
	n := m.tells("implicit exposure", func(n macvtapNode) bool {
		return n.Status.Source == "implicit" && strings.HasPrefix(n.condition("Registered"), "True")
	})
	if !strings.HasPrefix(n.condition("PoliciesKnown"), "True") || !strings.HasPrefix(n.condition("InUseKnown"), "True") {
		m.Errorf("%+v", n)
	}
	m.must(m.Apply(m.ctx, m.ns, `{apiVersion: macvtap.network.kubevirt.io/v1alpha1, kind: MacvtapNetworkNodePolicy, metadata: {name: policy-1},
		spec: {nodeSelector: {matchLabels: {macvtapAware: "true"}}, parentSelector: [{parentIface: mv-p0, mode: bridge, quantity: 1, resourceName: dataplane}, {parentIface: none}]}}`))
	m.label(`"true"`)
	m.offers("labelled", "dataplane=1")

	m.claim("first", "dataplane") // it has no attachment by the CNI plugin
	first := m.claimant("first", "running", func(p claimant) bool { return p.Status.Phase == "Running" })
	taps := m.taps()
	if len(taps) != 1 {
		m.Errorf("a pod has one device, and on the node are %v", taps)
	}
	m.claim("second", "dataplane")
	m.claimant("second", "waiting for a device", func(p claimant) bool {
		return p.Status.Phase == "Pending" && len(p.Status.Conditions) == 1 && strings.Contains(p.Status.Conditions[0].Message, "Insufficient "+macvtapDomain+"dataplane")
	})
	m.tells("who has it", func(n macvtapNode) bool {
		return len(n.Status.Holders) == 1 && n.Status.Holders[0].Pod == "first" && n.Status.Resources[0].InUse == 1
	})
	m.policyTells("first")
	m.idle()

	m.restartKubelet()
	m.ip("link", "set", "mv-p0", "down")
	m.offers("the parent is down", "")
	m.ip("link", "set", "mv-p0", "up")
	m.offers("the parent is up", "dataplane=1")
	m.label("null")
	m.offers("the label is taken away", "mv-p0=100")
	m.withoutTheAPIServer()
	m.must(os.WriteFile(m.config, []byte(`[{"name": "conf", "lowerDevice": "mv-p1", "mode": "private", "capacity": 7}]`), 0o644))
	m.offers("an explicit configuration", "conf=7")
	m.must(os.Remove(m.config))
	m.offers("none again", "mv-p0=100")
	last := m.claimant("first", "running", func(p claimant) bool { return p.Status.Phase == "Running" })
	if last.Metadata.UID != first.Metadata.UID || last.Status.ContainerStatuses[0].RestartCount != 0 {
		m.Errorf("the pod that has a device was disturbed: %+v", last)
	}
	if now := m.taps(); !slices.Equal(now, taps) {
		m.Errorf("on the node were %v, and are %v", taps, now)
	}
	m.claim("last", "mv-p0")
	m.claimant("last", "running", func(p claimant) bool { return p.Status.Phase == "Running" })
	// The present kubelet lists both pods.
	m.tells("both pods have one", func(n macvtapNode) bool { return len(n.Status.Holders) == 2 })
	m.end("first", "last")
}

func (m *tapped) label(value string) {
	m.Helper()
	m.must(m.Patch(m.ctx, "/api/v1/nodes/"+m.node, `{"metadata": {"labels": {"macvtapAware": `+value+`}}}`))
}

// policyTells: the node's entry of the policy says what came of it, the parent that isn't there too.
func (m *tapped) policyTells(pod string) {
	m.Helper()
	m.must(cluster.Until(m.ctx, following, func() error {
		var p struct {
			Status struct {
				Nodes []struct {
					Node, State string
					Resources   []struct{ Capacity, InUse int }
					Problems    []struct{ From, Message string }
				}
			}
		}
		err := m.Get(m.ctx, fmt.Sprintf(macvtapPolicies, m.ns, "policy-1"), &p)
		if n := p.Status.Nodes; err == nil && (len(n) != 1 || n[0].Node != m.node || n[0].State != "Exposed" || len(n[0].Resources) != 1 || n[0].Resources[0].InUse != 1 ||
			len(n[0].Problems) != 1 || !strings.Contains(n[0].Problems[0].Message, "no interface none")) {
			err = fmt.Errorf("the policy does not tell of %s: %+v", pod, p)
		}
		return err
	}))
}

// idle fails the test unless there comes a time in which nothing is written. What came before may be written late; an
// agent that writes again and again never rests.
func (m *tapped) idle() {
	m.Helper()
	m.must(cluster.Until(m.ctx, following, func() error {
		before := m.tells("anything", func(macvtapNode) bool { return true })
		end := time.Now().Add(12 * time.Second) // the agent queries the kubelet meanwhile
		for time.Now().Before(end) {
			now := m.tells("anything", func(macvtapNode) bool { return true })
			if now.Metadata.ResourceVersion != before.Metadata.ResourceVersion {
				return fmt.Errorf("written although nothing changed:\n%+v\n%+v", before, now)
			}
			time.Sleep(time.Second)
		}
		return nil
	}))
}

// restartKubelet: it wipes its directory, and is registered with again within 5 s of its being there.
func (m *tapped) restartKubelet() {
	m.Helper()
	count := func() float64 {
		n, err := m.MacvtapMetric(m.ctx, m.node, "flowkeep_macvtap_registrations_total", `resource="dataplane"`)
		m.must(err)
		return n
	}
	before := count()
	socket := filepath.Join(m.Dir, m.node, "kubelet", "device-plugins", "kubelet.sock")
	old, err := os.Stat(socket)
	m.must(err)
	m.must(m.Kill(m.ctx, m.node+"-kubelet"))
	m.must(m.Start(m.ctx, m.node+"-kubelet"))
	m.must(cluster.Until(m.ctx, following, func() error {
		now, err := os.Stat(socket)
		if err == nil && now.ModTime().Equal(old.ModTime()) {
			err = fmt.Errorf("the kubelet has not begun")
		}
		return err
	}))
	began := time.Now()
	m.must(cluster.Until(m.ctx, following, func() error {
		if up, err := m.MacvtapMetric(m.ctx, m.node, "flowkeep_macvtap_registered", `resource="dataplane"`); err != nil || up != 1 || count() == before {
			return fmt.Errorf("not registered again (%v, %w)", up, err)
		}
		return nil
	}))
	m.within(5*time.Second, time.Since(began), began, "registered again after the kubelet made its socket")
	m.offers("the kubelet was restarted", "dataplane=1")
}

// withoutTheAPIServer: a restart of the agent exposes what was exposed before, and says so when it can.
func (m *tapped) withoutTheAPIServer() {
	m.Helper()
	m.must(m.Stop(m.ctx, "apiserver"))
	defer func() { _ = m.Start(context.Background(), "apiserver") }()
	m.must(m.Kill(m.ctx, m.node+"-macvtap"))
	m.must(m.Start(m.ctx, m.node+"-macvtap"))
	m.must(cluster.Until(m.ctx, following, func() error {
		up, err := m.MacvtapMetric(m.ctx, m.node, "flowkeep_macvtap_registered", `resource="mv-p0"`)
		if err == nil && up != 1 {
			err = fmt.Errorf("the resource is not registered")
		}
		return err
	}))
	m.must(cluster.Until(m.ctx, following, func() error {
		known, err := m.MacvtapMetric(m.ctx, m.node, "flowkeep_macvtap_policies_known")
		if err == nil && known != 0 {
			err = fmt.Errorf("it does not say that the policies are not known")
		}
		return err
	}))
	m.must(m.Start(m.ctx, "apiserver"))
	m.served(m.ctx)
	m.must(m.WatchAnew(m.ctx))
	m.offers("the API server is back", "mv-p0=100")
	m.tells("that it knows the policies", func(n macvtapNode) bool { return strings.HasPrefix(n.condition("PoliciesKnown"), "True") })
}
