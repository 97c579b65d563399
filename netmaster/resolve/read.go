package resolve

import (
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Counts is the number of objects in the engine. Nodes counts those with pods.
type Counts struct{ Namespaces, Endpoints, Policies, Rules, Groups, Nodes int }

// Counts returns the present number of objects.
func (e *Engine) Counts() Counts {
	c := Counts{
		Endpoints: e.endpointByName.n,
		Policies:  e.policies.len(),
		Rules:     e.rules.len(),
		Groups:    e.groups.len(),
		Nodes:     e.nodes.len(),
	}
	if e.nodeByName[""] != 0 { // of unbound pods
		c.Nodes--
	}
	for id := namespaceID(1); id <= e.namespaces.last; id++ {
		if e.namespaces.at(id).known {
			c.Namespaces++
		}
	}
	return c
}

// Unpublished returns the nodes of pods without a known address, which only their nodes may know. The cost is
// proportional to all endpoints.
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

// DryRuns returns the number of policies in a dry run. The cost is proportional to all policies.
func (e *Engine) DryRuns() (n int) {
	for _, s := range e.policyByName.slots {
		if s.id != 0 && e.policies.at(s.id).obj.DryRun {
			n++
		}
	}
	return n
}

// PolicyView is a policy with its resolved rules.
type PolicyView struct {
	Policy    *policy.Policy
	AppliedTo []string // endpoint IDs
	MorePods  int      // number of pods that are not listed
	Rules     []RuleView
	Nodes     []string // that need it
}

// RuleView is a resolved rule of a policy.
type RuleView struct {
	Rule   policy.Rule
	Index  int // in ingress or egress; -1: the isolation
	Peers  []GroupView
	Target GroupView
}

// GroupView is a group and its members.
type GroupView struct {
	Key     policy.Key
	Text    string
	Members []string // endpoint IDs
	More    int      // number of members that are not listed
}

// Policies returns the IDs of all policies, sorted.
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

// Endpoints returns the IDs of all endpoints, sorted.
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

// Policy returns a policy with all members of its groups.
func (e *Engine) Policy(id string) (PolicyView, bool) {
	return e.PolicyUpTo(id, math.MaxInt, math.MaxInt)
}

// PolicyUpTo returns a policy with at most pods selected pods, and at most members members of each peer.
func (e *Engine) PolicyUpTo(id string, pods, members int) (PolicyView, bool) {
	pid := e.policyOf(splitID(id))
	if pid == 0 {
		return PolicyView{}, false
	}
	p := e.policies.at(pid)
	v := PolicyView{Policy: p.inForce()}
	nodes := map[string]struct{}{}
	out := publisher{e: e, piece: 1}
	var shown *group
	var applied GroupView
	for _, ref := range p.refs {
		r := e.rules.at(ref.rule)
		target := e.groups.at(r.applied)
		if target != shown {
			shown, applied = target, e.view(target, pods)
		}
		rv := RuleView{Rule: *out.publish(r), Index: int(ref.index), Target: applied}
		var buf [1]groupID
		for _, g := range r.peers(&buf) {
			rv.Peers = append(rv.Peers, e.view(e.groups.at(g), members))
		}
		for _, on := range target.appliedOn {
			nodes[e.nodes.at(on.node).name] = struct{}{}
		}
		v.Rules = append(v.Rules, rv)
		if ref.index < 0 {
			v.AppliedTo, v.MorePods = rv.Target.Members, rv.Target.More
		}
	}
	v.Nodes = slices.Sorted(maps.Keys(nodes))
	return v, true
}

// Members returns at most limit members of a group, sorted.
func (e *Engine) Members(key policy.Key, limit int) []string {
	id := e.groupOf(key)
	if id == 0 {
		return nil
	}
	return e.view(e.groups.at(id), limit).Members
}

// view returns a group with at most so many of its members.
func (e *Engine) view(g *group, members int) GroupView {
	v := GroupView{Key: g.key, Text: e.text(g)}
	var buf [1]classID
	for _, c := range g.classes.all(&buf) {
		v.Members = e.membersOf(c, v.Members, members)
	}
	v.More = int(g.members) - len(v.Members)
	slices.Sort(v.Members)
	return v
}

// membersOf appends the IDs of a class's endpoints, until the list has limit elements.
func (e *Engine) membersOf(c classID, out []string, limit int) []string {
	for id := e.classes.at(c).endpoints; id != 0 && len(out) < limit; {
		ep := e.endpoints.at(id)
		out = append(out, ep.obj.ID())
		id = ep.next
	}
	return out
}

// EndpointView is an endpoint with its policies.
type EndpointView struct {
	Endpoint  *policy.Endpoint
	Addresses []netip.Addr // effective addresses
	Node      string
	Announced bool
	Ingress   []string // policies that isolate it
	Egress    []string
	Contested []netip.Addr
	Foreign   []netip.Addr // other addresses, effective only on its node
}

// Endpoint returns an endpoint.
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
			if r := e.rules.at(id); !r.dryRun {
				v.isolate(e, r)
			}
		}
	}
	slices.Sort(v.Ingress)
	slices.Sort(v.Egress)
	return v, true
}

// isolate adds the policies that an isolation rule stems from.
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

// Select returns the endpoints that match a group's spec, unordered.
func (e *Engine) Select(want policy.GroupSpec) (out []*policy.Endpoint) {
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
			if !c.member || !want.Pods.Matches(c.labels) ||
				want.Port != nil && !slices.Contains(c.ports(), *want.Port) {
				continue
			}
			for id := c.endpoints; id != 0; id = e.endpoints.at(id).next {
				out = append(out, e.endpoints.at(id).obj)
			}
		}
	}
	return out
}
