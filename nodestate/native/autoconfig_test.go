package native

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/flowkeep/flowkeep/nodestate/nodeconfig"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// guideLabels are the labels that the policies of the guides select nodes by.
var guideLabels = map[string]string{"example.org/storage": "true", "example.org/site": "east"}

// byPolicy returns what a policy makes of a node.
func byPolicy(t *testing.T, current nmstate.State, spec string) nmstate.State {
	t.Helper()
	raw, err := json.Marshal(current)
	if err != nil {
		t.Fatal(err)
	}
	p := &nmstatev1.NodeNetworkConfigurationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 1}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	o := &nmstatev1.NodeNetworkState{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	o.Spec.NodeName, o.Status.CurrentState = "node1", &nmstatev1.State{Raw: raw}
	n := &nodeconfig.Node{
		Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Labels: guideLabels}},
		State:  nodeconfig.ReadState(o),
	}
	d := nodeconfig.Decide(n, []*nodeconfig.Policy{nodeconfig.NewPolicy(p)}, nil)
	if d.Write == nil {
		t.Fatalf("%s wants nothing: %+v", spec, d.Entries)
	}
	return d.Write.Desired
}

var autoConfigs = []string{
	`{match: [{name: "card[12]"}],
 autoConfig: {bonding: {mode: 802.3ad, options: {lacp_rate: "1", miimon: "140"}}, vlan: {ids: [10, 20]}}}`,
	`{match: [{name: "card[12]"}], autoConfig: {bonding: {mode: "1"}},
 desiredState: {interfaces: [{name: bond0, mtu: 1400}]}}`,
	`{match: [{name: "card*"}], autoConfig: {vlan: {id: 30}}}`,
}

// cards has two, one of which is down.
const cards = "interfaces: [{name: card1, type: dummy, state: up}, {name: card2, type: dummy, state: down}]"

// autoConfigured applies what each autoConfig makes: it is in sync, all that it made and its ports are up, and a roll-back
// restores the cards.
func autoConfigured(t *testing.T, b *bench) {
	t.Helper()
	b.apply(cards)
	before := b.show()
	for _, spec := range autoConfigs {
		desired := byPolicy(t, before, spec)
		c, err := b.Apply(b.ctx(), desired, volatile)
		if err != nil {
			t.Fatalf("%s: %v\n%q", spec, err, c.Steps)
		}
		b.inSync(desired)
		after := b.show()
		for _, i := range desired.Interfaces() {
			if have, _ := after.Interface(i.Name()); have.State() != nmstate.Up {
				t.Errorf("%s: %s is %s", spec, i.Name(), have.State())
			}
		}
		for _, card := range []string{"card1", "card2"} {
			if have, _ := after.Interface(card); have.State() != nmstate.Up {
				t.Errorf("%s: %s is %s", spec, card, have.State())
			}
		}
		b.rolledBack(c, before)
	}
}

func TestAutoConfig(t *testing.T) { autoConfigured(t, &bench{onFake(newFake()), t}) }

// TestKernelAutoConfig needs a kernel with bonds, VLANs and dummies.
func TestKernelAutoConfig(t *testing.T) {
	netns.New(t).Enter(t)
	bond := netlink.NewLinkBond(attrs("probe"))
	bond.Mode = netlink.BOND_MODE_ACTIVE_BACKUP
	needKind(t, bond)
	if err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs("probe")}); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no dummies")
	}
	autoConfigured(t, newBench(t, Config{}))
}
