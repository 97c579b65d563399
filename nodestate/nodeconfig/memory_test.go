package nodeconfig

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// history is a node and policies to which this and that happens.
type history struct {
	*rand.Rand
	t        testing.TB
	state    *nmstatev1.NodeNetworkState
	node     *corev1.Node
	policies []*nmstatev1.NodeNetworkConfigurationPolicy
	made     map[*nmstatev1.NodeNetworkConfigurationPolicy]*Policy
	phases   map[string]nmstatev1.Phase // of another node, by policy
	told     map[string]nmstatev1.PolicyNode
}

func newHistory(t testing.TB, seed uint64) *history {
	r, o, _ := drawWorld(t, seed)
	h := &history{
		Rand: r, t: t, state: o, node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}},
		made: map[*nmstatev1.NodeNetworkConfigurationPolicy]*Policy{}, phases: map[string]nmstatev1.Phase{}, told: map[string]nmstatev1.PolicyNode{},
	}
	for range 4 {
		h.edit(len(h.policies))
	}
	return h
}

func (h *history) one(of ...string) string { return of[h.IntN(len(of))] }

// edit draws a policy anew, or a new one.
func (h *history) edit(n int) {
	rule := func() string {
		return h.one(`{name: "eth*"}`, `{name: eth1}`, `{name: "e[t]h?"}`, `{type: ethernet, driver: ixgbe}`, `{mac: "52:54:00:00:00:01"}`, `{vlanID: 7}`,
			`{lldp: {systemName: "tor-*"}}`, `{lldp: {systemName: tor-1}}`, `{name: "eth*", type: vlan}`, `{name: "Ethernet1/*"}`, `{name: "br?", type: linux-bridge}`)
	}
	spec := fmt.Sprintf(`{priority: %d, match: [%s, %s], maxUnavailable: %s, affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: rack, operator: %s}]}]}}}, tolerations: [%s], `,
		h.IntN(3), rule(), rule(), h.one("1", "1", "100%"), h.one("Exists", "DoesNotExist", "DoesNotExist", "DoesNotExist"), h.one("", "{key: t, operator: Exists}"))
	if h.IntN(4) == 0 {
		spec += h.one(`autoConfig: {vlan: {ids: [7, 8]}}}`, `autoConfig: {bonding: {}}}`, `autoConfig: {bonding: {name: br0}, vlan: {id: 7}}}`)
	} else {
		spec += "desiredState: " + jsonOf(draw(h.Rand, true)) + "}"
	}
	o := policyObject(h.t, fmt.Sprintf("p%d", h.IntN(100)), spec)
	switch {
	case n < len(h.policies):
		o.Name, o.Generation = h.policies[n].Name, h.policies[n].Generation+1
		h.policies[n] = o
	case !slices.ContainsFunc(h.policies, func(other *nmstatev1.NodeNetworkConfigurationPolicy) bool { return other.Name == o.Name }):
		h.policies = append(h.policies, o)
	}
}

// step is that something happens.
func (h *history) step(d Decision) {
	switch n := h.IntN(len(h.policies) + 1); h.IntN(10) {
	case 0, 1:
		h.edit(n)
	case 2:
		if n < len(h.policies) {
			h.policies = slices.Delete(h.policies, n, n+1)
		}
	case 3:
		h.state.Status.CurrentState = docOf(h.t, h.report())
		h.state.Status.Truncated = h.IntN(4) == 0
	case 4:
		h.state.Spec.DesiredState, h.state.Spec.FromPolicies = docOf(h.t, jsonOf(draw(h.Rand, false))), nil
	case 5:
		h.node = h.node.DeepCopy() // as the API server sends it, though mostly nothing is different
		h.node.Labels = []map[string]string{nil, {"rack": "a"}, {"other": "a"}}[h.IntN(3)]
		h.node.Spec.Taints = [][]corev1.Taint{nil, {{Key: "t", Effect: corev1.TaintEffectNoSchedule}}}[h.IntN(2)]
	case 6:
		h.state.Status.Attempt++
		observe(h.state, metav1.ConditionStatus(h.one("True", "False")), nmstatev1.ReasonFailing, "interfaces[eth1]: no such device")
	case 7:
		if n < len(h.policies) {
			h.phases[h.policies[n].Name] = nmstatev1.Phase(h.one("Applying", "Applied", "Failing"))
		}
	default:
		if d.Write != nil {
			d.Write.Set(&h.state.Spec)
			h.state.Generation++
		}
		maps.Copy(h.told, d.Entries)
	}
}

func (h *history) report() string {
	var list []string
	for _, i := range []string{
		`{name: eth0, type: ethernet, mac-address: "52:54:00:00:00:00", driver: virtio_net}`, `{name: eth1, type: ethernet, mac-address: "52:54:00:00:00:0%d", driver: virtio_net}`,
		`{name: eth2, type: ethernet, permanent-mac-address: "52:54:00:00:00:0%d", mac-address: "52:54:00:00:00:01", driver: ixgbe}`,
		`{name: eth0.7, type: vlan, vlan: {id: %d}}`, `{name: br0, type: linux-bridge}`, `{name: br0, type: ovs-bridge}`, `{name: Ethernet1/%d, type: ethernet}`,
		`{name: eth3, type: ethernet, lldp: {neighbors: [[{system-name: tor-1}], [{port-id: "%d"}]]}}`,
	} {
		if h.IntN(3) > 0 {
			if strings.Contains(i, "%d") {
				i = fmt.Sprintf(i, 1+6*h.IntN(2))
			}
			list = append(list, i)
		}
	}
	return "{interfaces: [" + strings.Join(list, ", ") + "]}"
}

// understood is the policies in order, each understood once, and where they stand.
func (h *history) understood() (policies []*Policy, standings map[string]Standing) {
	standings = map[string]Standing{}
	for _, o := range h.policies {
		if h.made[o] == nil {
			h.made[o] = NewPolicy(o)
		}
		policies = append(policies, h.made[o])
		stored := o.DeepCopy()
		for _, e := range []nmstatev1.PolicyNode{h.told[o.Name], {Node: "node2", Phase: h.phases[o.Name], ObservedGeneration: o.Generation}} {
			if e.Phase != "" {
				stored.Status.Nodes = append(stored.Status.Nodes, e)
			}
		}
		standings[o.Name] = StandingOf(stored)
	}
	Sort(policies)
	return policies, standings
}

// TestMemoryChangesNoDecision: whatever happens, one that remembers all of it decides like one that has just begun.
func TestMemoryChangesNoDecision(t *testing.T) {
	waited, wrote, found := 0, 0, 0
	for seed := range uint64(200) {
		h := newHistory(t, seed)
		memory := NewMemory()
		for step := range 25 {
			policies, standings := h.understood()
			fast := Decide(&Node{Object: h.node, State: memory.ReadState(h.state), Memory: memory}, policies, standings)
			slow := Decide(&Node{Object: h.node, State: ReadState(h.state)}, policies, standings)
			if !reflect.DeepEqual(slow, fast) { // much quicker than to look for what differs
				if diff := cmp.Diff(slow, fast); diff != "" {
					t.Fatalf("seed %d, step %d: %s", seed, step, diff)
				}
			}
			if fast.Write != nil {
				wrote++
			}
			waited += len(fast.Blockers)
			found += len(fast.Conflicts)
			h.step(fast)
		}
	}
	if waited < 100 || wrote < 1000 || found < 1000 {
		t.Errorf("%d times a policy waited, %d times the node was written, %d times there was a conflict: these histories say little", waited, wrote, found)
	}
}

// TestAggregateIsPlain holds what is merged part by part to what comes of laying whole documents.
func TestAggregateIsPlain(t *testing.T) {
	for seed := range uint64(400) {
		h := newHistory(t, seed)
		h.state.Status.CurrentState = docOf(t, h.report())
		policies, _ := h.understood()
		n := &Node{Object: h.node, State: ReadState(h.state)}
		plain, wants := newPlainLayers(), n.Memory.wantsOf(n, policies)
		got := aggregateOf(n, policies, wants, nil, nil)
		for by, w := range wants {
			if !w.matched {
				continue
			}
			for _, one := range w.contribution {
				plain.layDocument(together(pieces{{one.place, maps.Clone(one.content)}}), by)
			}
		}
		plain.layDocument(nmstate.Canonical(n.hand), got.handBy())
		record := plain.document(func(by int) bool { return by < got.handBy() })
		if diff := cmp.Diff(jsonOf(record), jsonOf(got.record())); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
		if diff := cmp.Diff(plain.disputes(), got.disputes(), cmp.AllowUnexported(dispute{})); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
	}
}

// TestCandidates: where a rule looks for interfaces are all that match it.
func TestCandidates(t *testing.T) {
	for seed := range uint64(500) {
		h := newHistory(t, seed)
		current, err := newReport(docOf(t, h.report()), false, nil)
		if err != nil {
			t.Fatal(err)
		}
		policies, _ := h.understood()
		for _, p := range policies {
			for _, r := range p.rules {
				matching := func(among []*nic) (found []*nic) {
					for _, i := range among {
						if r.matches(i) {
							found = append(found, i)
						}
					}
					slices.SortFunc(found, func(a, b *nic) int { return strings.Compare(a.name+a.typ, b.name+b.typ) })
					return found
				}
				if !slices.Equal(matching(current.byName), matching(current.candidates(r))) {
					t.Fatalf("seed %d: %v of %v", seed, current.candidates(r), r)
				}
			}
		}
	}
}
