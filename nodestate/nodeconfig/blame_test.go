package nodeconfig

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestJudge(t *testing.T) {
	whole := evidence{whole: true}
	for _, c := range []struct {
		name string
		s    suspect
		e    evidence
		o    others
		want verdict
	}{
		{"it changed the node, and nothing is named", suspect{inForce: true, changed: true}, evidence{}, others{}, guilty},
		{"it has left the node, and made it fail with that", suspect{changed: true}, evidence{}, others{}, guilty},
		{"it was in force before", suspect{inForce: true}, evidence{}, others{}, innocent},
		{"it is not in force", suspect{}, evidence{}, others{}, innocent},
		{"it changed the node, and is named", suspect{inForce: true, changed: true, named: true}, whole, others{changedNamed: true}, guilty},
		{"it changed the node, and others are named", suspect{inForce: true, changed: true}, whole, others{}, bystander},
		{"it was blamed, and now others are named", suspect{inForce: true, changed: true, blamed: true}, whole, others{}, bystander},
		{"it changed the node, and not all is told", suspect{inForce: true, changed: true}, evidence{}, others{changedNamed: true}, guilty},
		{"it was in force before, and is named", suspect{inForce: true, named: true}, whole, others{}, guilty},
		{"it was in force before, and is named with one that changed the node", suspect{inForce: true, named: true}, whole, others{changedNamed: true}, innocent},
		{"it came to a node that another had made fail", suspect{inForce: true, changed: true}, evidence{}, others{blamed: true}, bystander},
		{"both are blamed already", suspect{inForce: true, changed: true, blamed: true}, evidence{}, others{blamed: true}, guilty},
		{"what is named is not wanted any more", suspect{named: true}, whole, others{}, innocent},
	} {
		if got := judge(c.s, c.e, c.o); got != c.want {
			t.Errorf("%s: %d, not %d", c.name, got, c.want)
		}
	}
}

// failingNode has eth0 of policy a, eth1's mtu and a route of b, a bond over eth2 of c, and by hand eth1's MAC address and eth3.
func failingNode(t *testing.T) (*nmstatev1.NodeNetworkState, []*Policy) {
	o := stateObject(t, "node1", `{interfaces: [{name: eth1, mac-address: "52:54:00:00:00:77"}, {name: eth3, mtu: 1400}]}`, someNICs)
	policies := []*Policy{
		policyOf(t, "a", `{desiredState: {interfaces: [{name: eth0, mtu: 1400}]}}`),
		policyOf(t, "b", `{desiredState: {interfaces: [{name: eth1, mtu: 1400}], routes: {config: [{destination: 198.51.100.0/24, next-hop-interface: eth5.7}]}}}`),
		policyOf(t, "c", `{match: [{name: eth2}], autoConfig: {bonding: {}}}`),
	}
	bring(t, o, policies...)
	return o, policies
}

func standAs(p *Policy, node string, phase nmstatev1.Phase) Standing {
	return Standing{entries: map[string]nmstatev1.PolicyNode{node: {Node: node, Matched: true, Phase: phase, ObservedGeneration: p.Generation}}}
}

func TestWhoIsBlamed(t *testing.T) {
	const step, rolledBack = nmstatev1.ReasonFailing, nmstatev1.ReasonRolledBack
	for _, c := range []struct {
		message string
		changed string // policies that have the node's turn
		want    string // those that are failing then
	}{
		{"interfaces[eth0] cannot be up", "", "a"},
		{"rolled back: set mtu of eth0 to 1400: invalid argument", "", "a"},
		{"rolled back: set mtu of eth1 to 1400: invalid argument", "", "b"},
		{"rolled back: set mac-address of eth1 to 52:54:00:00:00:77: busy", "", ""},
		{"rolled back: set mac-address of eth1 to 52:54:00:00:00:77: busy", "b", ""},
		{"interfaces[eth1]: no such device", "", "b"},
		{"set mtu of eth3 to 1400: invalid argument", "abc", ""},
		{"add route 198.51.100.0/24 dev eth5.7: network is down", "", "b"},
		{"add route 198.51.100.0/24 dev eth5.7: network is down", "ac", "b"},
		{"attach eth2 to bond0: busy", "ab", "c"},
		{"cannot create eth1.7: there is no interface eth1", "a", "b"},
		{"the device eth11 is gone", "a", "a"},
		{"no space left on device", "", ""},
		{"no space left on device", "b", "b"},
		{"no space left on device", "ab", "ab"},
		{"rolled back: read back, it differs: interfaces[eth0].mtu: is 1500, not 1400", "b", "a"},
		{"rolled back: read back, it differs: interfaces[eth0].mtu: is 1500, not 1400; and 3 more", "b", "ab"},
		{"rolled back: " + nmstatev1.ProbesBroken + ": the default gateway: 192.0.2.1 on eth0 does not answer", "b", "b"},
		{"rolled back: " + nmstatev1.ProbesBroken + ": the default gateway: 192.0.2.1 on eth0 does not answer", "", ""},
	} {
		for _, reason := range []string{step, rolledBack} {
			o, policies := failingNode(t)
			observe(o, metav1.ConditionFalse, reason, c.message)
			standings := map[string]Standing{}
			for _, p := range policies {
				phase := nmstatev1.PhaseApplied
				if slices.Contains([]byte(c.changed), p.Name[0]) {
					phase = nmstatev1.PhaseApplying
				}
				standings[p.Name] = standAs(p, "node1", phase)
			}
			d := NewRound(policies, standings).Decide(nodeOf(o))
			got := ""
			for _, p := range policies {
				if d.Entries[p.Name].Phase == nmstatev1.PhaseFailing {
					got += p.Name
				} else if changed := slices.Contains([]byte(c.changed), p.Name[0]); changed != holdsTurn(d.Entries[p.Name]) {
					t.Errorf("%q with turns of %q: %s is %s", c.message, c.changed, p.Name, d.Entries[p.Name].Phase)
				}
			}
			if got != c.want {
				t.Errorf("%q with turns of %q: %q are failing, not %q", c.message, c.changed, got, c.want)
			}
		}
	}
}

// TestOnlyWhoMayHaveDoneItIsBlamed: of random policies on a failing node none fails that neither changed it nor is named; where nothing
// is named, one of those that changed it does, so that no roll-out goes on; and who has the turn keeps it.
func TestOnlyWhoMayHaveDoneItIsBlamed(t *testing.T) {
	blamed, free := 0, 0
	for seed := range uint64(500) {
		_, o, policies := drawWorld(t, seed)
		r := rand.New(rand.NewPCG(seed, 9))
		bring(t, o, policies...)
		state := ReadState(o)
		message, key := "no space left on device", ""
		if keys := state.desiredLayers.interfaces(); len(keys) > 0 && r.IntN(3) > 0 {
			key = keys[r.IntN(len(keys))]
			message = fmt.Sprintf("interfaces[%s]: no such device", interfaceOf([]string{key}))
		}
		observe(o, metav1.ConditionFalse, nmstatev1.ReasonFailing, message)
		standings := map[string]Standing{}
		changed := map[string]bool{}
		for _, p := range policies {
			phase := nmstatev1.PhaseApplied
			if r.IntN(3) == 0 {
				phase, changed[p.Name] = nmstatev1.PhaseApplying, true
			}
			standings[p.Name] = standAs(p, o.Name, phase)
		}
		d := NewRound(policies, standings).Decide(nodeOf(o))
		failing := 0
		for _, p := range policies {
			phase := d.Entries[p.Name].Phase
			if changed[p.Name] && phase != nmstatev1.PhaseFailing && phase != nmstatev1.PhaseApplying {
				t.Fatalf("seed %d: %s lost its turn: %s", seed, p.Name, phase)
			}
			if phase != nmstatev1.PhaseFailing {
				continue
			}
			failing++
			if key == "" && !changed[p.Name] {
				t.Fatalf("seed %d: %q is laid to %s, which did not change the node", seed, message, p.Name)
			}
			if w := p.wants(nodeOf(o), nil); key != "" && !speaksOf(w.contribution, interfaceOf([]string{key})) {
				t.Fatalf("seed %d: %q is laid to %s, which does not speak of it", seed, message, p.Name)
			}
		}
		if key == "" && len(changed) > 0 && failing == 0 {
			t.Fatalf("seed %d: nobody is blamed of %v", seed, changed)
		}
		if failing > 0 {
			blamed++
		} else {
			free++
		}
	}
	if blamed < 50 || free < 50 {
		t.Errorf("%d times somebody is blamed, %d times nobody: the worlds are not as they should be", blamed, free)
	}
}

func speaksOf(c pieces, name string) bool {
	names := map[string]bool{name: true}
	return slices.ContainsFunc(c, func(p piece) bool {
		return p.section() == interfaces && interfaceOf([]string{p.key()}) == name || mentions("", p.content, names)
	})
}

// TestOverruledBeyondTheLimit: a policy that wins more than its status shows, and loses one more, is not said to be in force as a whole.
func TestOverruledBeyondTheLimit(t *testing.T) {
	low, mid, high := `{desiredState: {interfaces: [`, `{priority: 1, desiredState: {interfaces: [`, `{priority: 2, desiredState: {interfaces: [{name: z, mtu: 3}]}}`
	for n := range nmstatev1.ConflictsLimit {
		low += fmt.Sprintf("{name: e%d, mtu: 1}, ", n)
		mid += fmt.Sprintf("{name: e%d, mtu: 2}, ", n)
	}
	policies := []*Policy{policyOf(t, "low", low+"]}}"), policyOf(t, "mid", mid+"{name: z, mtu: 2}]}}"), policyOf(t, "high", high)}
	o := stateObject(t, "node1", "", someNICs)
	bring(t, o, policies...)
	d := NewRound(policies, nil).Decide(nodeOf(o))
	if got := d.Entries["mid"].Phase; got != nmstatev1.PhaseConflict || len(d.Conflicts["mid"]) != nmstatev1.ConflictsLimit {
		t.Errorf("%s, with %d conflicts", got, len(d.Conflicts["mid"]))
	}
}

// interfaces are the keys of those in a document.
func (l layers) interfaces() (keys []string) {
	for at := range l {
		if at.section() == interfaces {
			keys = append(keys, at.key())
		}
	}
	slices.Sort(keys)
	return keys
}
