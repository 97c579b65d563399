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

// never tells that no object can have the label so.
func (p *possible) never() bool { return !p.absent && p.listed && len(p.only) == 0 }

// implies tells whether all that is possible fulfils a requirement.
func (p *possible) implies(r *policy.Requirement) bool {
	switch r.Operator {
	case policy.In:
		return !p.absent && p.listed && !slices.ContainsFunc(p.only, func(v string) bool { return !slices.Contains(r.Values, v) })
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

// implies tells whether whatever labels fulfil a fulfil b too. It is exact, but for labels' values being limited.
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
	return &policy.Selector{Requirements: []policy.Requirement{{Key: nameLabel, Operator: policy.In, Values: []string{namespace}}}}
}

// peerIn tells whether all that a is, of a policy of the namespace, b is too, whatever pods and namespaces there are.
func peerIn(namespace string, a, b *policy.Peer) bool {
	if a.Block != nil || b.Block != nil {
		return a.Block != nil && b.Block != nil && blockIn(a.Block, b.Block)
	}
	if a.Namespaces == nil && a.Pods == nil {
		return true // nobody
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

// blockIn tells whether b holds all addresses of a.
func blockIn(a, b *policy.IPBlock) bool {
	if b.CIDR.Bits() > a.CIDR.Bits() || !b.CIDR.Contains(a.CIDR.Addr()) {
		return false
	}
	for _, e := range b.Except {
		if e.Overlaps(a.CIDR) && !slices.ContainsFunc(a.Except, func(x netip.Prefix) bool { return x.Bits() <= e.Bits() && x.Contains(e.Addr()) }) {
			return false
		}
	}
	return true
}

// portsIn tells whether b's ports are all of a's, whatever names stand for.
func portsIn(a, b *policy.PolicyRule) bool {
	if b.AnyPort {
		return true
	}
	if a.AnyPort {
		return false
	}
	var have explain.Connections
	for _, p := range b.Ports {
		if p.Name == "" {
			have = have.Union(explain.Ports(p.Protocol, p.First, p.Last))
		}
	}
	for _, p := range a.Ports {
		want := explain.Ports(p.Protocol, p.First, p.Last)
		if p.Name != "" {
			if slices.Contains(b.Ports, p) {
				continue
			}
			want = explain.Ports(p.Protocol, 0, 65535)
		}
		if !want.Minus(have).IsNone() {
			return false
		}
	}
	return true
}

// covers tells whether rule b lets through all that a does, both of policies of one namespace, whatever pods and namespaces there
// are; where b's policy applies, of course.
func covers(b *policy.PolicyRule, namespace string, a *policy.PolicyRule) bool {
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
