package resolve

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Counts is how much the engine holds. Nodes are those that pods are on.
type Counts struct{ Namespaces, Endpoints, Policies, Rules, Groups, Nodes int }

// Counts is how much the engine holds now.
func (e *Engine) Counts() Counts {
	c := Counts{Endpoints: e.endpointByName.n, Policies: e.policies.len(), Rules: e.rules.len(), Groups: e.groups.len(), Nodes: e.nodes.len()}
	if e.nodeByName[""] != 0 { // where pods wait for a node
		c.Nodes--
	}
	for id := namespaceID(1); id <= e.namespaces.last; id++ {
		if e.namespaces.at(id).known {
			c.Namespaces++
		}
	}
	return c
}

// Unpublished are the nodes of pods whose addresses nobody has told yet: their nodes may know them. It costs all endpoints.
func (e *Engine) Unpublished() map[string]struct{} {
	out := map[string]struct{}{}
	for _, s := range e.endpointByName.slots {
		if s.id == 0 {
			continue
		}
		ep := e.endpoints.at(s.id)
		if o := ep.obj; ep.announced == nil && o.Node != "" && len(o.Addresses) == 0 && ep.member() && !o.Terminating {
			out[o.Node] = struct{}{}
		}
	}
	return out
}

// DryRuns is how many of the policies are in one; it costs all policies.
func (e *Engine) DryRuns() (n int) {
	for _, s := range e.policyByName.slots {
		if s.id != 0 && e.policies.at(s.id).obj.Audit {
			n++
		}
	}
	return n
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
func (e *Engine) Policies() []string {
	out := make([]string, 0, e.policyByName.n)
	for _, s := range e.policyByName.slots {
		if s.id != 0 {
			out = append(out, e.policies.at(s.id).obj.ID())
		}
	}
	slices.Sort(out)
	return out
}

// Endpoints are the IDs of all endpoints, sorted.
func (e *Engine) Endpoints() []string {
	out := make([]string, 0, e.endpointByName.n)
	for _, s := range e.endpointByName.slots {
		if s.id != 0 {
			out = append(out, e.endpoints.at(s.id).obj.ID())
		}
	}
	slices.Sort(out)
	return out
}

// Policy shows one policy.
func (e *Engine) Policy(id string) (PolicyView, bool) {
	pid := e.policyOf(splitID(id))
	if pid == 0 {
		return PolicyView{}, false
	}
	p := e.policies.at(pid)
	v := PolicyView{Policy: p.obj}
	nodes := map[string]struct{}{}
	out := publisher{e: e, piece: 1}
	for _, ref := range p.refs {
		r := e.rules.at(ref.rule)
		target := e.groups.at(r.applied)
		rv := RuleView{Rule: *out.publish(r), Index: int(ref.index), Target: e.view(target)}
		var buf [1]groupID
		for _, g := range r.peers(&buf) {
			rv.Peers = append(rv.Peers, e.view(e.groups.at(g)))
		}
		for _, on := range target.appliedOn {
			nodes[e.nodes.at(on.node).name] = struct{}{}
		}
		v.Rules = append(v.Rules, rv)
		if ref.index < 0 {
			v.AppliedTo = rv.Target.Members
		}
	}
	v.Nodes = slices.Sorted(maps.Keys(nodes))
	return v, true
}

// Group shows one group.
func (e *Engine) Group(key policy.Key) (GroupView, bool) {
	id := e.groupOf(key)
	if id == 0 {
		return GroupView{}, false
	}
	return e.view(e.groups.at(id)), true
}

func (e *Engine) view(g *group) GroupView {
	v := GroupView{Key: g.key, Text: e.text(g)}
	var buf [1]classID
	for _, c := range g.classes.all(&buf) {
		v.Members = e.membersOf(c, v.Members)
	}
	slices.Sort(v.Members)
	return v
}

// membersOf appends the IDs of a class's endpoints.
func (e *Engine) membersOf(c classID, out []string) []string {
	for id := e.classes.at(c).endpoints; id != 0; {
		ep := e.endpoints.at(id)
		out = append(out, ep.obj.ID())
		id = ep.next
	}
	return out
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
	Foreign   []netip.Addr // that it has besides, and that count on its node only
}

// Endpoint shows one endpoint.
func (e *Engine) Endpoint(id string) (EndpointView, bool) {
	eid := e.endpointOf(splitID(id))
	if eid == 0 {
		return EndpointView{}, false
	}
	ep := e.endpoints.at(eid)
	v := EndpointView{Endpoint: ep.obj, Node: ep.nodeName(), Announced: ep.announced != nil}
	for _, a := range ep.addresses() {
		if ep.foreign().has(a) {
			v.Foreign = append(v.Foreign, a)
			continue
		}
		v.Addresses = append(v.Addresses, a)
		if e.isContested(a) && e.holding(a).n > 1 {
			v.Contested = append(v.Contested, a)
		}
	}
	for _, g := range e.classes.at(ep.class).groups {
		for id := e.groups.at(g).applied; id != 0; id = e.rules.at(id).next {
			if r := e.rules.at(id); !r.audit {
				v.isolate(e, r)
			}
		}
	}
	slices.Sort(v.Ingress)
	slices.Sort(v.Egress)
	return v, true
}

// isolate notes the policies whose isolation a rule is.
func (v *EndpointView) isolate(e *Engine, r *rule) {
	out := &v.Ingress
	if r.direction == policy.Egress {
		out = &v.Egress
	}
	p := publisher{e: e, piece: 1}
	for _, o := range p.publish(r).Origins {
		if o.Rule < 0 {
			*out = append(*out, o.Policy)
		}
	}
}

// Select finds the endpoints that a group would have, as the engine would fill it.
func (e *Engine) Select(want policy.GroupSpec) []string {
	var out []string
	for id := namespaceID(1); id <= e.namespaces.last; id++ {
		ns := e.namespaces.at(id)
		chosen := ns.name == want.Namespace
		if want.Namespace == "" {
			chosen = ns.known && want.Namespaces.Matches(ns.labels)
		}
		if !chosen {
			continue
		}
		for cid := ns.classes; cid != 0; cid = e.classes.at(cid).next {
			c := e.classes.at(cid)
			if c.member && want.Pods.Matches(c.labels) && (want.Port == nil || slices.Contains(c.ports(), *want.Port)) {
				out = e.membersOf(cid, out)
			}
		}
	}
	slices.Sort(out)
	return out
}
