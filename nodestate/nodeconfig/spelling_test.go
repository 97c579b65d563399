package nodeconfig

import (
	"testing"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
)

// TestSpellingsAreNoConflict: policies that want the same in other spellings agree.
func TestSpellingsAreNoConflict(t *testing.T) {
	a := policyOf(t, "a", `{match: [{name: eth1}], desiredState: {interfaces: [
  {mtu: "9000", ipv4: {enabled: "yes", address: [{ip: 192.0.2.1, prefix-length: "24"}]}},
  {name: bond0, type: bond, link-aggregation: {mode: 4, ports: [eth2]}}]}}`)
	b := policyOf(t, "b", `{match: [{name: eth1}], desiredState: {interfaces: [
  {mtu: 9000, ipv4: {enabled: true, address: [{ip: 192.0.2.1, prefix-length: 24}]}},
  {name: bond0, type: bond, link-aggregation: {mode: 802.3ad, port: [eth2]}}]}}`)
	o := stateObject(t, "node1", "", someNICs)
	last := ""
	for n, policies := range [][]*Policy{{a}, {a, b}, {b}} {
		d := NewRound(policies, nil).Decide(nodeOf(o))
		for _, p := range policies {
			if len(d.Conflicts[p.Name]) > 0 || d.Entries[p.Name].Phase == nmstatev1.PhaseConflict {
				t.Errorf("round %d: %s: %+v, %+v", n, p.Name, d.Entries[p.Name], d.Conflicts[p.Name])
			}
		}
		bring(t, o, policies...)
		if n > 0 && canon(t, o.Spec.DesiredState) != last {
			t.Errorf("round %d: %s, not %s", n, canon(t, o.Spec.DesiredState), last)
		}
		last = canon(t, o.Spec.DesiredState)
	}
}
