package resolve

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Counts is how much the engine holds.
type Counts struct{ Namespaces, Endpoints, Policies, Rules, Groups, Nodes int }

// Counts is how much the engine holds now.
func (e *Engine) Counts() Counts {
	c := Counts{Endpoints: len(e.endpoints), Policies: len(e.policies), Rules: len(e.rules), Groups: len(e.groups), Nodes: len(e.nodes)}
	for _, ns := range e.namespaces {
		if ns.known {
			c.Namespaces++
		}
	}
	return c
}

// PolicyView is a policy with what became of it.
type PolicyView struct {
	Policy    *policy.Policy
	AppliedTo []string // endpoint IDs
	Rules     []RuleView
	Nodes     []string // in whose span it is
}

// RuleView is a resolved rule of a policy.
type RuleView struct {
	Rule   policy.Rule
	Index  int // in ingress or egress; -1: the isolation
	Peers  []GroupView
	Target GroupView
}

// GroupView is a group's content.
type GroupView struct {
	Key     policy.Key
	Text    string
	Members []string // endpoint IDs
}

// Policies are the IDs of all policies, sorted.
func (e *Engine) Policies() []string { return sortedKeys(e.policies) }

// Endpoints are the IDs of all endpoints, sorted.
func (e *Engine) Endpoints() []string { return sortedKeys(e.endpoints) }

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// Policy shows one policy.
func (e *Engine) Policy(id string) (PolicyView, bool) {
	p := e.policies[id]
	if p == nil {
		return PolicyView{}, false
	}
	v := PolicyView{Policy: p.obj}
	nodes := map[string]bool{}
	for _, ref := range p.refs {
		rv := RuleView{Rule: *ref.rule.publish(), Index: ref.origin.Rule, Target: view(ref.rule.applied)}
		for _, g := range ref.rule.peers {
			rv.Peers = append(rv.Peers, view(g))
		}
		for n := range ref.rule.applied.appliedOn {
			nodes[n.name] = true
		}
		v.Rules = append(v.Rules, rv)
		if ref.origin.Rule < 0 {
			v.AppliedTo = rv.Target.Members
		}
	}
	v.Nodes = sortedKeys(nodes)
	return v, true
}

// Group shows one group.
func (e *Engine) Group(key policy.Key) (GroupView, bool) {
	g := e.groups[key]
	if g == nil {
		return GroupView{}, false
	}
	return view(g), true
}

func view(g *group) GroupView {
	v := GroupView{Key: g.key, Text: g.spec.String()}
	for _, ep := range g.members {
		v.Members = append(v.Members, ep.obj.ID())
	}
	slices.Sort(v.Members)
	return v
}

// EndpointView is an endpoint with what applies to it.
type EndpointView struct {
	Endpoint  *policy.Endpoint
	Addresses []netip.Addr // that it has in force
	Node      string
	Announced bool
	Ingress   []string // policies that isolate it
	Egress    []string
	Contested []netip.Addr
}

// Endpoint shows one endpoint.
func (e *Engine) Endpoint(id string) (EndpointView, bool) {
	ep := e.endpoints[id]
	if ep == nil {
		return EndpointView{}, false
	}
	v := EndpointView{Endpoint: ep.obj, Addresses: ep.addresses(), Node: ep.node(), Announced: ep.announced != nil}
	for _, a := range v.Addresses {
		if len(e.holders(a)) > 1 {
			v.Contested = append(v.Contested, a)
		}
	}
	for _, g := range ep.groups {
		for r := range g.appliedOf {
			for _, o := range r.origins {
				if o.Rule >= 0 {
					continue
				}
				if r.body.Direction == policy.Ingress {
					v.Ingress = append(v.Ingress, o.Policy)
				} else {
					v.Egress = append(v.Egress, o.Policy)
				}
			}
		}
	}
	slices.Sort(v.Ingress)
	slices.Sort(v.Egress)
	return v, true
}

// Select finds the endpoints that a group would have, as the engine would fill it.
func (e *Engine) Select(spec policy.GroupSpec) []string {
	var out []string
	g := &group{spec: spec}
	for _, ns := range e.namespaces {
		if !g.covers(ns) {
			continue
		}
		for _, ep := range ns.endpoints {
			if ep.member() && g.chooses(ep) {
				out = append(out, ep.obj.ID())
			}
		}
	}
	slices.Sort(out)
	return out
}
