package nodeconfig

import (
	"strings"
	"testing"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const someState = `, desiredState: {interfaces: [{name: eth0, mtu: 1400}]}}`

func terms(list string) string {
	return `{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [` + list + `]}}}` + someState
}

func TestChooses(t *testing.T) {
	taint := func(key, value string, effect corev1.TaintEffect) corev1.Taint {
		return corev1.Taint{Key: key, Value: value, Effect: effect}
	}
	labels := map[string]string{"rack": "a", "cores": "16"}
	for _, c := range []struct {
		spec   string
		taints []corev1.Taint
		why    string // empty: chosen
	}{
		{spec: `{priority: 0` + someState},
		{spec: `{nodeSelector: {rack: a}` + someState},
		{spec: `{nodeSelector: {rack: a, cores: "8"}` + someState, why: "nodeSelector"},
		{spec: `{nodeSelector: {rack: a}, ` + terms(`{matchExpressions: [{key: rack, operator: In, values: [b]}]}`)[1:], why: "nodeSelector"},
		{spec: terms(`{matchExpressions: [{key: rack, operator: In, values: [a, b]}]}`)},
		{spec: terms(`{matchExpressions: [{key: rack, operator: In, values: [b]}]}`), why: "affinity"},
		{spec: terms(`{matchExpressions: [{key: rack, operator: NotIn, values: [b]}]}`)},
		{spec: terms(`{matchExpressions: [{key: gpu, operator: NotIn, values: [b]}]}`)},
		{spec: terms(`{matchExpressions: [{key: rack, operator: Exists}]}`)},
		{spec: terms(`{matchExpressions: [{key: rack, operator: DoesNotExist}]}`), why: "affinity"},
		{spec: terms(`{matchExpressions: [{key: cores, operator: Gt, values: ["8"]}, {key: cores, operator: Lt, values: ["32"]}]}`)},
		{spec: terms(`{matchExpressions: [{key: cores, operator: Gt, values: ["16"]}]}`), why: "affinity"},
		{spec: terms(`{matchExpressions: [{key: rack, operator: In, values: [a]}, {key: gpu, operator: Exists}]}`), why: "affinity"},
		{spec: terms(`{matchExpressions: [{key: gpu, operator: Exists}]}, {matchExpressions: [{key: rack, operator: Exists}]}`)},
		{spec: terms(`{matchFields: [{key: metadata.name, operator: In, values: [node1]}]}`)},
		{spec: terms(`{matchFields: [{key: metadata.name, operator: NotIn, values: [node1]}]}`), why: "affinity"},
		{spec: terms(`{matchFields: [{key: metadata.name, operator: In, values: [node1]}], matchExpressions: [{key: gpu, operator: Exists}]}`), why: "affinity"},
		{spec: terms(`{}`), why: "affinity"},
		{spec: `{affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: gpu, operator: Exists}]}}]}}` + someState},
		{spec: `{priority: 0` + someState, taints: []corev1.Taint{taint("only", "db", corev1.TaintEffectNoSchedule)}, why: "only=db:NoSchedule"},
		{spec: `{priority: 0` + someState, taints: []corev1.Taint{taint("only", "db", corev1.TaintEffectNoExecute)}, why: "only=db:NoExecute"},
		{spec: `{priority: 0` + someState, taints: []corev1.Taint{taint("only", "db", corev1.TaintEffectPreferNoSchedule)}},
		{spec: `{tolerations: [{key: only, value: db}]` + someState, taints: []corev1.Taint{taint("only", "db", corev1.TaintEffectNoSchedule)}},
		{spec: `{tolerations: [{key: only, value: web}]` + someState, taints: []corev1.Taint{taint("only", "db", corev1.TaintEffectNoSchedule)}, why: "only=db"},
		{spec: `{tolerations: [{key: only, operator: Exists, effect: NoExecute}]` + someState, taints: []corev1.Taint{taint("only", "db", corev1.TaintEffectNoSchedule)}, why: "only=db"},
		{spec: `{tolerations: [{operator: Exists}]` + someState, taints: []corev1.Taint{taint("only", "db", corev1.TaintEffectNoSchedule), taint("x", "", corev1.TaintEffectNoExecute)}},
		// What Kubernetes says of a node in trouble takes no network apart.
		{spec: `{priority: 0` + someState, taints: []corev1.Taint{taint(corev1.TaintNodeNotReady, "", corev1.TaintEffectNoExecute), taint(corev1.TaintNodeUnschedulable, "", corev1.TaintEffectNoSchedule)}},
	} {
		p := policyOf(t, "p", c.spec)
		why, ok := p.selector.chooses(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Labels: labels}, Spec: corev1.NodeSpec{Taints: c.taints}})
		if ok != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s, taints %v: %v, %q", c.spec, c.taints, ok, why)
		}
	}
}

func TestMatches(t *testing.T) {
	const current = `{interfaces: [
		{name: eth0, type: ethernet, mac-address: "52:54:00:00:00:0A", driver: virtio_net, lldp: {neighbors: [[{type: 5, system-name: leaf-1}, {type: 4, chassis-id: "00:AA:BB:00:00:01"}, {type: 6, port-id: Eth1/7}]]}},
		{name: eth1, type: ethernet, mac-address: "52:54:00:00:00:ff", permanent-mac-address: "52:54:00:00:00:0b", driver: ixgbe},
		{name: bond0, type: bond, mac-address: "52:54:00:00:00:ff"},
		{name: eth0.7, type: vlan, vlan: {base-iface: eth0, id: 7}}]}`
	n := nodeOf(stateObject(t, "node1", "", current))
	for match, want := range map[string]string{
		`[{name: "eth?"}]`:                              "eth0 eth1",
		`[{name: "eth*"}]`:                              "eth0 eth0.7 eth1",
		`[{name: "eth[^0]"}]`:                           "eth1",
		`[{name: eth0.7}]`:                              "eth0.7",
		`[{name: "eth*", type: vlan}, {type: bond}]`:    "bond0 eth0.7",
		`[{vlanID: 7}]`:                                 "eth0.7",
		`[{vlanID: 8}]`:                                 "",
		`[{mac: "52-54-00-00-00-0a"}]`:                  "eth0",
		`[{mac: "52:54:00:00:00:0B"}]`:                  "eth1",
		`[{mac: "52:54:00:00:00:ff"}]`:                  "bond0",
		`[{driver: ixgbe}]`:                             "eth1",
		`[{driver: ixgbe, name: eth0}]`:                 "",
		`[{lldp: {systemName: "leaf-*"}}]`:              "eth0",
		`[{lldp: {systemName: "spine-*"}}]`:             "",
		`[{lldp: {chassisID: "00:aa:bb:00:00:01"}}]`:    "eth0",
		`[{lldp: {portID: "eth1/7", systemName: "*"}}]`: "eth0",
		`[{lldp: {portID: "eth1/8", systemName: "*"}}]`: "",
	} {
		p := policyOf(t, "p", `{match: `+match+someState)
		if got := strings.Join(p.namesOf(p.find(n.current, nil)), " "); got != want {
			t.Errorf("%s matches %q, not %q", match, got, want)
		}
	}
}

// TestWhatCannotBeUnderstood says so in the words of the policy, and nodes keep what they have.
func TestWhatCannotBeUnderstood(t *testing.T) {
	for spec, want := range map[string]string{
		`{match: [{name: "eth["}]` + someState:                                       `match[0].name: "eth[" is no pattern`,
		`{match: [{name: eth0}, {}]` + someState:                                     "match[1].name: the rule is empty",
		`{match: [{mac: "52:54"}]` + someState:                                       "match[0].mac",
		`{match: [{lldp: {portID: "["}}]` + someState:                                "match[0].lldp.portID",
		`{maxUnavailable: "a lot"` + someState:                                       `maxUnavailable: a lot is neither`,
		terms(`{matchExpressions: [{key: a, operator: Like}]}`):                      "affinity",
		terms(`{matchFields: [{key: metadata.name, operator: In, values: [a, b]}]}`): "affinity",
		`{desiredState: {interfaces: [{mtu: 1400}]}}`:                                "needs match",
		`{match: [{name: eth0}], desiredState: {interfaces: [{type: ovs-bridge}]}}`:  "an OVS bridge needs a name",
		`{desiredState: {interfaces: [{name: eth0, mtu: lots}]}}`:                    "desiredState: interfaces[eth0].mtu",
		`{match: [{name: eth0}]}`:                                                    "wants nothing",
		`{autoConfig: {bonding: {}}}`:                                                "autoConfig needs match",
		`{match: [{name: eth0}], autoConfig: {}}`:                                    "give bonding, vlan or both",
		`{match: [{name: eth0}], autoConfig: {vlan: {}}}`:                            "give id or ids",
		`{match: [{name: eth0}], autoConfig: {vlan: {id: 4095}}}`:                    "4095 is no VLAN's id",
		`{match: [{name: eth0}], autoConfig: {bonding: {name: "a b"}}}`:              "autoConfig.bonding",
		`{capture: {a: b}` + someState:                                               "capture is not supported: match finds interfaces",
	} {
		p := NewPolicy(policyObject(t, "p", spec))
		if p.Err == nil || !strings.Contains(p.Err.Error(), want) {
			t.Errorf("%s: %v, not %s", spec, p.Err, want)
		}
	}
}

// TestBrokenEditKeepsWhatNodesHave: neither a policy that cannot be understood any more nor one that makes a name that is too long
// takes from a node what it has.
func TestBrokenEditKeepsWhatNodesHave(t *testing.T) {
	o := stateObject(t, "node1", "", `{interfaces: [{name: a-name-of-13., type: ethernet}, {name: eth1, type: ethernet}]}`)
	good := policyOf(t, "p", `{match: [{name: eth1}], autoConfig: {vlan: {id: 7}}}`)
	bring(t, o, good)
	before := canon(t, o.Spec.DesiredState)
	for _, spec := range []string{`{match: [{name: "eth["}], autoConfig: {vlan: {id: 8}}}`, `{match: [{name: "a*"}], autoConfig: {vlan: {id: 1000}}}`} {
		edited := policyObject(t, "p", spec)
		edited.Generation = 2
		d := NewRound([]*Policy{NewPolicy(edited)}, nil).Decide(nodeOf(o))
		if e := d.Entries["p"]; d.Write != nil || e.Phase != nmstatev1.PhaseFailing || e.Message == "" {
			t.Errorf("%s: %+v, %+v", spec, d.Write, e)
		}
	}
	bring(t, o)
	if o.Spec.DesiredState != nil || !strings.Contains(before, "eth1.7") {
		t.Errorf("%s, then %v", before, o.Spec.DesiredState)
	}
}

// TestNothingIsDecidedInTheDark: a node that reports nothing, or whose desire cannot be read, keeps what it has.
func TestNothingIsDecidedInTheDark(t *testing.T) {
	p := policyOf(t, "p", `{match: [{name: eth1}], desiredState: {interfaces: [{mtu: 1400}]}}`)
	dark := stateObject(t, "node1", "", someNICs)
	bring(t, dark, p)
	no := false
	for what, change := range map[string]func(o *nmstatev1.NodeNetworkState){
		"no current state":    func(o *nmstatev1.NodeNetworkState) { o.Status.CurrentState = nil },
		"a desire of no form": func(o *nmstatev1.NodeNetworkState) { o.Spec.DesiredState = docOf(t, `{interfaces: [{name: 1}]}`) },
		"unmanaged":           func(o *nmstatev1.NodeNetworkState) { o.Spec.Managed = &no },
	} {
		o := dark.DeepCopy()
		change(o)
		d := NewRound(nil, nil).Decide(nodeOf(o))
		with := NewRound([]*Policy{p}, nil).Decide(nodeOf(o))
		if e := with.Entries["p"]; d.Write != nil || with.Write != nil || e.Reason == "" || e.Phase != nmstatev1.PhaseWaiting && e.Phase != nmstatev1.PhaseUnmanaged {
			t.Errorf("%s: %+v, %+v, %+v", what, d.Write, with.Write, e)
		}
	}
}
