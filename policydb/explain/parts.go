package explain

import (
	"context"
	"net/netip"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Kinds returns the pods that have an address of their own, grouped by what policies can distinguish, in the world's
// order.
func (m *Model) Kinds() (kinds [][]*policy.Endpoint) {
	at := map[string]int{}
	w := newWork(context.Background(), Bounds{})
	for _, e := range m.endpoints {
		if e.HostNetwork || e.Finished || !m.addressable(e) {
			continue
		}
		class := string(appendClass(m, nil, e, w))
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

// Outside returns addresses that belong to no pod, one for each area that no ipBlock divides.
func (m *Model) Outside() (list []netip.Addr) {
	for _, a := range outside(m) {
		list = append(list, a.sample)
	}
	return list
}

// AddressOf returns the address of a family that belongs to the pod, or an invalid one.
func (m *Model) AddressOf(e *policy.Endpoint, six bool) netip.Addr { return m.address(e, six) }

// Isolating returns the policies in force that isolate a pod in a direction.
func (m *Model) Isolating(d policy.Direction, e *policy.Endpoint) []*policy.Policy {
	return m.isolating(d, e)
}

// Part returns what one rule of a policy allows between the pod self, which the policy isolates in the direction, and
// another address.
func (m *Model) Part(
	pol *policy.Policy, r *policy.PolicyRule, d policy.Direction, self *policy.Endpoint, other netip.Addr,
) Connections {
	far := m.end(other)
	to := self
	if d == policy.Egress {
		to = far.pod
	}
	return m.match(pol, r, far).connections(r, d, to)
}

// Matches reports whether the peers of a rule match an address.
func Matches(m *Model, pol *policy.Policy, r *policy.PolicyRule, other netip.Addr) bool {
	return m.match(pol, r, m.end(other)) != 0
}

// RulesOf returns the rules of a policy for a direction.
func RulesOf(pol *policy.Policy, d policy.Direction) []policy.PolicyRule { return rulesOf(pol, d) }

// IsolatesIn reports whether a policy isolates in a direction.
func IsolatesIn(pol *policy.Policy, d policy.Direction) bool { return isolates(pol, d) }
