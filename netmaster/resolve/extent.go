package resolve

import (
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Extent returns the rules, groups and nodes of a policy; empty if it does not exist. The cost is proportional to
// the result.
func (e *Engine) Extent(id string) policy.Extent {
	pid := e.policyOf(splitID(id))
	if pid == 0 {
		return policy.Extent{}
	}
	var out policy.Extent
	var peers, applied []groupID
	for _, ref := range e.policies.at(pid).refs {
		r := e.rules.at(ref.rule)
		out.Rules = append(out.Rules, r.key)
		applied = append(applied, r.applied)
		var buf [1]groupID
		peers = append(peers, r.peers(&buf)...)
	}
	out.Peers, out.Applied = e.keysOf(peers), e.keysOf(applied)
	var nodes []nodeID
	for _, g := range distinct(applied) {
		for _, on := range e.groups.at(g).appliedOn {
			nodes = append(nodes, on.node)
		}
	}
	for _, n := range distinct(nodes) {
		out.Nodes = append(out.Nodes, e.nodes.at(n).name)
	}
	slices.Sort(out.Nodes)
	return out
}

func (e *Engine) keysOf(groups []groupID) (out []policy.Key) {
	for _, g := range distinct(groups) {
		out = append(out, e.groups.at(g).key)
	}
	return out
}

// distinct sorts a list and removes duplicates.
func distinct[T ~uint32](list []T) []T {
	slices.Sort(list)
	return slices.Compact(list)
}

// PolicyObject returns a policy as enforced; nil if it does not exist.
func (e *Engine) PolicyObject(id string) *policy.Policy {
	if pid := e.policyOf(splitID(id)); pid != 0 {
		return e.policies.at(pid).inForce()
	}
	return nil
}

// PolicyAsPut returns a policy with the parts that exceed budgets.
func (e *Engine) PolicyAsPut(id string) (obj *policy.Policy, ok bool) {
	pid := e.policyOf(splitID(id))
	if pid == 0 {
		return nil, false
	}
	return e.policies.at(pid).obj, true
}

// RuleRef is a resolved rule of a policy, and the policy rule that it results from.
type RuleRef struct {
	Key       policy.Key
	Direction policy.Direction
	Index     int // in ingress or egress; -1: the isolation
}

// RuleRefs returns the resolved rules of a policy; none if it does not exist.
func (e *Engine) RuleRefs(id string) []RuleRef {
	pid := e.policyOf(splitID(id))
	if pid == 0 {
		return nil
	}
	var out []RuleRef
	for _, ref := range e.policies.at(pid).refs {
		r := e.rules.at(ref.rule)
		out = append(out, RuleRef{r.key, r.direction, int(ref.index)})
	}
	return out
}

// RulesOnNodes returns the number of rules of a policy, each counted once for each node; 0 if it does not exist.
func (e *Engine) RulesOnNodes(id string) (n int) {
	pid := e.policyOf(splitID(id))
	if pid == 0 {
		return 0
	}
	for _, ref := range e.policies.at(pid).refs {
		n += len(e.groups.at(e.rules.at(ref.rule).applied).appliedOn)
	}
	return n
}

// PodExtent returns the number of labels of a pod in the engine, and of groups that it is in. Of an unknown pod it
// returns the number of groups that may choose any pod of its namespace.
func (e *Engine) PodExtent(id string) (labels, groups int) {
	namespace, name := splitID(id)
	if ep := e.endpointOf(namespace, name); ep != 0 {
		c := e.classes.at(e.endpoints.at(ep).class)
		return len(c.labels), len(c.groups)
	}
	if ns := e.namespaceByName[namespace]; ns != 0 {
		groups = len(e.namespaces.at(ns).always)
	}
	return 0, groups
}
