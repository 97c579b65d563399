package lint

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// possible is what a selector leaves open of one label: whether it may be absent, and which values it may have.
type possible struct {
	absent bool
	only   []string // where listed: these values
	listed bool
	but    []string // else: all but these
}

func (p *possible) require(r *policy.Requirement) {
	switch r.Operator {
	case policy.In:
		p.absent = false
		if !p.listed {
			p.listed = true
			p.only = slices.DeleteFunc(slices.Clone(r.Values), func(v string) bool { return slices.Contains(p.but, v) })
			return
		}
		p.only = slices.DeleteFunc(p.only, func(v string) bool { return !slices.Contains(r.Values, v) })
	case policy.NotIn:
		p.but = append(p.but, r.Values...)
		p.only = slices.DeleteFunc(p.only, func(v string) bool { return slices.Contains(r.Values, v) })
	case policy.Exists:
		p.absent = false
	case policy.DoesNotExist:
		p.listed, p.only = true, nil
	}
}

// never reports whether no value of the label is possible.
func (p *possible) never() bool { return !p.absent && p.listed && len(p.only) == 0 }

// implies reports whether every possible value meets a requirement.
func (p *possible) implies(r *policy.Requirement) bool {
	switch r.Operator {
	case policy.In:
		return !p.absent && p.listed &&
			!slices.ContainsFunc(p.only, func(v string) bool { return !slices.Contains(r.Values, v) })
	case policy.NotIn:
		if p.listed {
			return !slices.ContainsFunc(p.only, func(v string) bool { return slices.Contains(r.Values, v) })
		}
		return !slices.ContainsFunc(r.Values, func(v string) bool { return !slices.Contains(p.but, v) })
	case policy.Exists:
		return !p.absent
	case policy.DoesNotExist:
		return p.listed && len(p.only) == 0
	}
	return false
}

// implies reports whether all labels that match a match b too. It is exact, except that it ignores the limits of label
// values.
func implies(a, b *policy.Selector) bool {
	open := map[string]*possible{}
	of := func(key string) *possible {
		if open[key] == nil {
			open[key] = &possible{absent: true}
		}
		return open[key]
	}
	for i := range a.Requirements {
		of(a.Requirements[i].Key).require(&a.Requirements[i])
	}
	for _, p := range open {
		if p.never() {
			return true
		}
	}
	for i := range b.Requirements {
		if !of(b.Requirements[i].Key).implies(&b.Requirements[i]) {
			return false
		}
	}
	return true
}

// nameLabel is on every namespace, with its name.
const nameLabel = "kubernetes.io/metadata.name"

func named(namespace string) *policy.Selector {
	return &policy.Selector{Requirements: []policy.Requirement{{Key: nameLabel, Operator: policy.In,
		Values: []string{namespace}}}}
}

// peerIn reports whether peer b includes peer a, both in a policy of the namespace, for all pods and namespaces.
func peerIn(namespace string, a, b *policy.Peer) bool {
	if a.Block != nil || b.Block != nil {
		return a.Block != nil && b.Block != nil && blockIn(a.Block, b.Block)
	}
	if a.Namespaces == nil && a.Pods == nil {
		return true // matches no pod
	}
	if b.Namespaces == nil && b.Pods == nil {
		return false
	}
	if a.Namespaces != nil || b.Namespaces != nil {
		in, of := a.Namespaces, b.Namespaces
		if in == nil {
			in = named(namespace)
		}
		if of == nil {
			of = named(namespace)
		}
		if !implies(in, of) {
			return false
		}
	}
	all := &policy.Selector{}
	pods, within := a.Pods, b.Pods
	if pods == nil {
		pods = all
	}
	if within == nil {
		within = all
	}
	return implies(pods, within)
}

// blockIn reports whether block b contains all addresses of block a.
func blockIn(a, b *policy.IPBlock) bool {
	if b.CIDR.Bits() > a.CIDR.Bits() || !b.CIDR.Contains(a.CIDR.Addr()) {
		return false
	}
	for _, e := range b.Except {
		if e.Overlaps(a.CIDR) &&
			!slices.ContainsFunc(a.Except,
				func(x netip.Prefix) bool { return x.Bits() <= e.Bits() && x.Contains(e.Addr()) }) {
			return false
		}
	}
	return true
}

// portsIn reports whether rule b has all ports of rule a, for all numbers that named ports can have.
func portsIn(a, b *ruleAt) bool {
	switch {
	case b.AnyPort:
		return true
	case a.AnyPort || !b.numbers.Covers(a.numbers):
		return false
	case !a.named:
		return true
	}
	for _, p := range a.Ports {
		if p.Name != "" && !slices.Contains(b.Ports, p) && !b.numbers.Covers(explain.Ports(p.Protocol, 0, 65535)) {
			return false
		}
	}
	return true
}

// covers reports whether rule b allows all that rule a allows, for all pods and namespaces. Both are rules of policies
// in one namespace; the result holds for pods that b's policy applies to.
func covers(b *ruleAt, namespace string, a *ruleAt) bool {
	if !portsIn(a, b) {
		return false
	}
	if b.AnyPeer || a.AnyPeer {
		return b.AnyPeer
	}
	for i := range a.Peers {
		if !slices.ContainsFunc(b.Peers, func(o policy.Peer) bool { return peerIn(namespace, &a.Peers[i], &o) }) {
			return false
		}
	}
	return true
}
