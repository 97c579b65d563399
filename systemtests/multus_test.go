package systemtests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/frame"
)

// attachment is the seed's; only the resource is the test's own.
const attachment = `{apiVersion: k8s.cni.cncf.io/v1, kind: NetworkAttachmentDefinition,
	metadata: {name: macvtap0, annotations: {k8s.v1.cni.cncf.io/resourceName: macvtap.network.kubevirt.io/dataplane}},
	spec: {config: '{"cniVersion": "0.3.1", "type": "macvtap", "mtu": 9000}'}}`

// From a policy to frames: the agent offers devices, the kubelet allocates one, multus hands its id to the CNI plugin, and a program without
// any privilege opens /dev/tapN and exchanges frames with the parent's peer and with its neighbour. A container that crashes, and a sandbox
// that does, have the device again without another allocation.
func TestMultus(t *testing.T) {
	t.Cleanup(func() { _ = theCluster.EndMultus(context.Background(), "node1") }) // after the namespace's pods are gone
	m := withMacvtap(t)
	m.must(m.UseMultus(m.ctx, m.node))
	_, err := m.Kubectl(m.ctx, "", "apply", "-f", "testdata/multus/crd.yaml")
	m.must(err)
	for _, link := range []string{"mv-p0", "mv-p1"} {
		m.ip("link", "set", link, "mtu", "9000")
	}
	m.must(m.Apply(m.ctx, m.ns, `{apiVersion: macvtap.network.kubevirt.io/v1alpha1, kind: MacvtapNetworkNodePolicy, metadata: {name: policy-1},
		spec: {parentSelector: [{parentIface: mv-p0, mode: bridge, quantity: 2, resourceName: dataplane}]}}`))
	m.must(cluster.Until(m.ctx, settling, func() error {
		_, err := m.Kubectl(m.ctx, attachment, "-n", m.ns, "apply", "-f", "-")
		return err
	}))
	m.offers("a policy", "dataplane=2")

	const mac = "02:00:00:00:aa:02"
	m.guest("first", `macvtap0`)
	m.guest("second", `[{"name": "macvtap0", "mac": "`+mac+`"}]`)
	first := m.claimant("first", "running", isReady(0))
	second := m.claimant("second", "running", isReady(0))
	if got := m.tapMAC("second"); got.String() != mac {
		t.Errorf("second asked for the MAC address %s and has %s", mac, got)
	}
	m.exchange("attached")
	before := m.attachments(2)
	m.shownByNetctl("first", "second")

	m.must(m.KillContainers(m.ctx, m.node, first.Metadata.UID, "container"))
	m.must(m.KillContainers(m.ctx, m.node, second.Metadata.UID, "sandbox"))
	m.claimant("first", "running again", isReady(1))
	m.claimant("second", "running again", isReady(1))
	m.exchange("after crashes")
	after := m.attachments(2)
	for id, a := range after {
		b := before[id]
		if a.Index != b.Index || a.Generation != b.Generation {
			t.Errorf("device %s was %+v and is %+v: it was allocated anew", id, b, a)
		}
	}
	if changed := len(after) - len(same(before, after)); changed != 1 {
		t.Errorf("%d pods have another sandbox, not one:\n%+v\n%+v", changed, before, after)
	}

	for _, pod := range []string{"first", "second"} {
		m.must(m.DeletePod(m.ctx, m.ns, pod))
	}
	m.attachments(0)
	if left, err := m.RunIn(m.ctx, m.NodeNS(m.node), "ip", "-o", "link", "show", "type", "macvtap"); err != nil || left != "" {
		t.Errorf("links are left on the node: %s (%v)", left, err)
	}
	m.tells("nobody has one", func(n macvtapNode) bool {
		return len(n.Status.Holders) == 0 && len(n.Status.Resources) == 1 && n.Status.Resources[0].InUse == 0
	})
}

func isReady(restarts int) func(p claimant) bool {
	return func(p claimant) bool {
		return p.Status.Phase == "Running" && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready &&
			p.Status.ContainerStatuses[0].RestartCount == restarts
	}
}

// guest is a pod that does as a virtual machine: what runs in it is an ordinary user's, and opens the device of net1.
func (m *tapped) guest(name, networks string) {
	m.Helper()
	m.must(m.Apply(m.ctx, m.ns, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s,
		annotations: {k8s.v1.cni.cncf.io/networks: '%s'}}, spec: {
		nodeSelector: {kubernetes.io/hostname: %s}, terminationGracePeriodSeconds: 0, automountServiceAccountToken: false,
		securityContext: {runAsUser: 107, runAsGroup: 107, runAsNonRoot: true},
		containers: [{name: probe, image: "flowkeep.local/probe:sandbox", imagePullPolicy: Never, args: [relay, net1],
			securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}, resources: {limits: {%sdataplane: 1}}}]}}`,
		name, networks, m.node, macvtapDomain)))
}

// tapMAC is what multus tells of a pod's net1.
func (m *tapped) tapMAC(pod string) net.HardwareAddr {
	m.Helper()
	var p struct {
		Metadata struct{ Annotations map[string]string }
	}
	m.must(m.Get(m.ctx, cluster.PathOf("Pod", m.ns, pod), &p))
	var networks []struct{ Interface, MAC string }
	m.must(json.Unmarshal([]byte(p.Metadata.Annotations["k8s.v1.cni.cncf.io/network-status"]), &networks))
	for _, n := range networks {
		if n.Interface == "net1" {
			mac, err := net.ParseMAC(n.MAC)
			m.must(err)
			return mac
		}
	}
	m.Fatalf("%s has no net1: %+v", pod, networks)
	return nil
}

// exchange sends frames from the parent's peer to the first pod, which sends them on to the second, and that back to the peer.
func (m *tapped) exchange(when string) {
	m.Helper()
	ns := m.NodeNS(m.node)
	peer, err := m.MAC(m.ctx, ns, "mv-p1")
	m.must(err)
	first, second := m.tapMAC("first"), m.tapMAC("second")
	for _, size := range []int{50, 8900} {
		m.must(cluster.Until(m.ctx, settling, func() error {
			tok := token()
			payload := slices.Concat([]byte{2}, second, peer, tok, make([]byte, size))
			heard := m.heardOn(ns, "mv-p1", tok, func() {
				m.must(m.SendFramesOn(m.ctx, ns, "mv-p1", 0, frame.Ether(peer, first, 0x88b5, payload)))
			}, nil)
			if len(heard) != 1 || len(heard[0]) < size || !slices.Equal(heard[0][:12], slices.Concat(peer, second)) {
				return fmt.Errorf("%s: a frame of %d bytes did not come back by %s and %s: %x", when, size, first, second, heard)
			}
			return nil
		}))
	}
}

type attached struct {
	ID, ContainerID   string
	Index, Generation int
}

// attachments waits until there are so many, each with its node, and no others' nodes.
func (m *tapped) attachments(count int) map[string]attached {
	m.Helper()
	found := map[string]attached{}
	m.must(cluster.Until(m.ctx, following, func() error {
		clear(found)
		state := m.MacvtapState(m.node)
		files, err := filepath.Glob(filepath.Join(state, "attached", "*"))
		nodes, failed := filepath.Glob(filepath.Join(state, "dev", "*"))
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		if len(files) != count || len(nodes) != count {
			return fmt.Errorf("attachments %v and nodes %v, not %d", files, nodes, count)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			var a attached
			if err := json.Unmarshal(text, &a); err != nil {
				return err
			}
			found[a.ID] = a
		}
		return nil
	}))
	return found
}

func same(a, b map[string]attached) (ids []string) {
	for id := range a {
		if a[id] == b[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

// shownByNetctl: both commands tell of the pods.
func (m *tapped) shownByNetctl(pods ...string) {
	m.Helper()
	m.must(cluster.Until(m.ctx, following, func() error {
		text, err := m.NetctlAs(m.ctx, "", "macvtap", "explain", m.node)
		if err != nil {
			return err
		}
		for i, pod := range pods {
			if device := fmt.Sprintf("dataplane:mv-p0:%d", i); !strings.Contains(text, m.ns+"/"+pod) || !strings.Contains(text, device) {
				return fmt.Errorf("netctl macvtap explain does not tell of %s or %s:\n%s", pod, device, text)
			}
		}
		text, err = m.NetctlAs(m.ctx, "", "macvtap", "ls")
		if err == nil && !slices.ContainsFunc(strings.Split(text, "\n"), func(line string) bool {
			return slices.Equal(strings.Fields(line), []string{m.node, "policies", "dataplane", "mv-p0", "bridge", "2", "2", "2"})
		}) {
			err = fmt.Errorf("netctl macvtap ls does not tell of two devices in use:\n%s", text)
		}
		return err
	}))
}
