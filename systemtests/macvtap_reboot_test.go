package systemtests

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// TestNodeReboots_MacvtapPods powers a node off and on that has a macvtap pod without an owner and one of a ReplicaSet.
// First the agent starts after the kubelet, as a pod does, and the kubelet rejects both. Then it starts before the
// kubelet, as a service of the host does.
func TestNodeReboots_MacvtapPods(t *testing.T) {
	if !*everyDisturbance {
		t.Skip("the gate leaves it out: make test-full PART=disturbances")
	}
	m := withMacvtap(t)
	for _, name := range []string{"containerd", "proxy", "vswitchd", "netplugin"} {
		m.Cleanup(func() { _ = m.Start(context.Background(), m.node+"-"+name) })
	}
	m.offers("of itself", "mv-p0=100")
	m.claim("alone", "mv-p0")
	m.must(m.Apply(m.ctx, m.ns, fmt.Sprintf(`{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: owner}, spec: {
		replicas: 1, selector: {matchLabels: {app: owned}}, template: {metadata: {labels: {app: owned}}, spec: {
		nodeSelector: {kubernetes.io/hostname: %s}, terminationGracePeriodSeconds: 0, automountServiceAccountToken: false,
		containers: [{name: probe, image: "flowkeep.local/probe:sandbox", imagePullPolicy: Never, args: [serve, "80"], resources: {limits: {%smv-p0: 1}}}]}}}}`,
		m.node, macvtapDomain)))
	m.Cleanup(func() { // it would replace the pods that the namespace's end deletes
		m.must(m.Delete(context.Background(), "/apis/apps/v1/namespaces/"+m.ns+"/replicasets/owner", settling))
	})
	alone := m.claimant("alone", "running", isReady(0))
	owned := m.owned("")
	m.onNode(2)

	m.must(m.PowerOff(m.ctx, m.node))
	m.must(m.PowerOn(m.ctx, m.node))
	for _, pod := range []claimant{alone, owned} {
		m.claimant(pod.Metadata.Name, "rejected", func(p claimant) bool { return p.Metadata.UID == pod.Metadata.UID && isRejected(p) })
	}
	began := time.Now()
	m.must(m.Start(m.ctx, m.node+"-macvtap"))
	m.must(cluster.Until(m.ctx, following, func() error {
		up, err := m.MacvtapMetric(m.ctx, m.node, "flowkeep_macvtap_registered", `resource="mv-p0"`)
		if err == nil && up != 1 {
			err = fmt.Errorf("the resource is not registered")
		}
		return err
	}))
	m.within(5*time.Second, time.Since(began), began, "registered after the agent's start")
	owned = m.owned(owned.Metadata.UID)
	m.onNode(1)
	if p := m.claimant("alone", "there", func(claimant) bool { return true }); p.Metadata.UID != alone.Metadata.UID || !isRejected(p) {
		t.Errorf("nothing owns the pod, and it is %+v", p)
	}
	m.must(m.DeletePod(m.ctx, m.ns, "alone"))
	m.claim("alone", "mv-p0")
	alone = m.claimant("alone", "running", isReady(0))
	m.onNode(2)
	m.agentFirst(alone, owned)
}

// agentFirst powers the node off and on, and starts the agent before the kubelet. Each pod runs again, or is rejected.
// Where both run again they have devices with the names and indexes that they had.
func (m *tapped) agentFirst(pods ...claimant) {
	m.Helper()
	before := m.taps()
	m.must(m.PowerOff(m.ctx, m.node))
	if left := m.taps(); len(left) > 0 {
		m.Fatalf("devices outlive the reboot: %v", left)
	}
	m.must(m.Start(m.ctx, m.node+"-macvtap"))
	m.must(m.PowerOn(m.ctx, m.node))
	m.must(m.AwaitReady(m.ctx, m.node+"-netplugin", time.Minute))
	running := 0
	for _, pod := range pods {
		p := m.claimant(pod.Metadata.Name, "running again or rejected", func(p claimant) bool {
			return isRejected(p) || len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready &&
				p.Status.ContainerStatuses[0].RestartCount > 0
		})
		if !isRejected(p) {
			running++
		}
		m.Logf("the agent starts first: pod %s is %s %s", pod.Metadata.Name, p.Status.Phase, p.Status.Reason)
	}
	if running != len(pods) {
		return
	}
	m.onNode(running)
	after := m.taps()
	m.Logf("devices %v before, %v after", before, after)
	index := func(tap string) string { return strings.Join(strings.Fields(tap)[:2], " ") }
	if !slices.EqualFunc(before, after, func(a, b string) bool { return index(a) == index(b) }) {
		m.Errorf("on the node were %v, and are %v", before, after)
	}
}

func isRejected(p claimant) bool {
	return p.Status.Phase == "Failed" && p.Status.Reason == "UnexpectedAdmissionError"
}

// owned waits until a pod of the ReplicaSet is ready that has not the given UID, and returns it.
func (m *tapped) owned(not string) (found claimant) {
	m.Helper()
	m.must(cluster.Until(m.ctx, 2*following, func() error {
		var list struct{ Items []claimant }
		if err := m.Get(m.ctx, cluster.PathOf("Pod", m.ns, "")+"?labelSelector=app%3Downed", &list); err != nil {
			return err
		}
		for _, p := range list.Items {
			if p.Metadata.UID != not && isReady(0)(p) {
				found = p
				m.Logf("the ReplicaSet has %d pods", len(list.Items))
				return nil
			}
		}
		return fmt.Errorf("no pod of the ReplicaSet is ready: %+v", list.Items)
	}))
	return found
}

// onNode waits until so many devices, each with a device node, are on the node.
func (m *tapped) onNode(count int) {
	m.Helper()
	m.must(cluster.Until(m.ctx, following, func() error {
		nodes, err := filepath.Glob(filepath.Join(m.MacvtapState(m.node), "dev", "*"))
		if found := m.taps(); len(found) != count || len(nodes) != count {
			return fmt.Errorf("on the node are the links %v and the device nodes %v, not %d of each", found, nodes, count)
		}
		return err
	}))
}
