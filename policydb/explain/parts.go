package explain

import (
	"net/netip"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Kinds are the pods that have an address of their own, those together that no policy can tell apart; in the world's order.
func (m *Model) Kinds() (kinds [][]*policy.Endpoint) {
	at := map[string]int{}
	for _, e := range m.endpoints {
		if e.HostNetwork || e.Finished || !m.addressable(e) {
			continue
		}
		class := m.class(e)
		i, known := at[class]
		if !known {
			i = len(kinds)
			at[class] = i
			kinds = append(kinds, nil)
		}
		kinds[i] = append(kinds[i], e)
	}
	return kinds
}

// Outside are addresses that are no pod's, one for all that no ipBlock can tell apart.
func (m *Model) Outside() (list []netip.Addr) {
	for _, a := range outside(m) {
		list = append(list, a.sample)
	}
	return list
}

// AddressOf is the pod's own of a family; invalid if it has none.
func (m *Model) AddressOf(e *policy.Endpoint, six bool) netip.Addr { return m.address(e, six) }

// Isolating are the policies in force that isolate a pod in a direction.
func (m *Model) Isolating(d policy.Direction, e *policy.Endpoint) []*policy.Policy {
	return m.isolating(d, e)
}

// Part is what one rule of a policy, which isolates the pod self in the direction, lets through between it and another address.
func (m *Model) Part(pol *policy.Policy, r *policy.PolicyRule, d policy.Direction, self *policy.Endpoint, other netip.Addr) Connections {
	far := m.end(other)
	to := self
	if d == policy.Egress {
		to = far.pod
	}
	return m.match(pol, r, far).connections(r, d, to)
}

// RulesOf are the rules of a policy for a direction.
func RulesOf(pol *policy.Policy, d policy.Direction) []policy.PolicyRule { return rulesOf(pol, d) }

// IsolatesIn tells whether a policy isolates in a direction.
func IsolatesIn(pol *policy.Policy, d policy.Direction) bool { return isolates(pol, d) }
