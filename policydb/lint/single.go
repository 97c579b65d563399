package lint

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

const portDNS = 53

// policy checks a policy by itself, except for DNS.
func (k *checker) policy(pol *policy.Policy) {
	whole := at{policy: pol, field: "spec"}
	for _, p := range pol.Problems {
		field, _, _ := strings.Cut(p, ":")
		if !strings.HasPrefix(field, "spec") && !strings.HasPrefix(field, "metadata") {
			field = "spec"
		}
		k.find(NotUnderstood, at{policy: pol, field: field},
			"correct it: an invalid part is ignored and allows nothing", "%s", p)
	}
	if pol.DryRun {
		k.find(OnlyDryRun, at{policy: pol, field: "metadata.annotations"},
			"take the annotation flowkeep.io/enforcement away once netctl dry-run shows nothing that should pass",
			"it is a dry run: it isolates no pod and allows nothing")
	}
	if len(k.choose(pol.Namespace, &pol.AppliedTo)) == 0 {
		k.find(NobodyIsolated, whole.in(".podSelector"),
			"correct the selector or the pods' labels, or delete the policy", "it chooses no pod of namespace %s (%s)",
			pol.Namespace, pol.AppliedTo.String())
	}
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		rules := explain.RulesOf(pol, d)
		if len(rules) > 0 && !explain.IsolatesIn(pol, d) {
			k.find(RulesWithoutType, whole.in(".%s", d),
				fmt.Sprintf("add %s to policyTypes, or remove the rules", title(d)),
				"policyTypes does not name %s, so these rules do nothing", title(d))
			continue
		}
		for i := range rules {
			k.rule(at{policy: pol, direction: d, rule: i, field: fmt.Sprintf("spec.%s[%d]", d, i)}, &rules[i])
		}
	}
	k.dns(pol)
}

func title(d policy.Direction) string {
	if d == policy.Egress {
		return "Egress"
	}
	return "Ingress"
}

func (k *checker) rule(p at, r *policy.PolicyRule) {
	side := ".from"
	if p.direction == policy.Egress {
		side = ".to"
	}
	if why := nothing(p.direction, r); why != "" {
		k.find(NothingPasses, p, "correct it or remove it", "it lets nothing through: %s", why)
		return
	}
	var means []*declared // of the pods whose ports a name may be of
	for i := range r.Peers {
		peer := &r.Peers[i]
		where := p.in("%s[%d]", side, i)
		if peer.Block != nil {
			k.block(where.in(".ipBlock"), peer.Block)
			continue
		}
		chosen := k.peers(p.policy, peer)
		means = append(means, chosen)
		switch {
		case chosen.namespaces == 0:
			k.find(NoNamespaceAtPeer, where.in(".namespaceSelector"), "correct the selector or the namespaces' labels",
				"it chooses no namespace (%s)", peer.Namespaces.String())
		case chosen.pods == 0:
			k.find(NobodyAtPeer, where, "correct the selector or the pods' labels, or remove the peer",
				"it chooses no pod (%s)", peerText(p.policy, peer))
		}
	}
	switch {
	case p.direction == policy.Ingress:
		means = []*declared{k.chosenPorts(p.policy.Namespace, &p.policy.AppliedTo)}
	case r.AnyPeer:
		means = []*declared{k.everyone()}
	}
	k.ports(p, r, means)
}

// nothing returns the reason why a rule can never allow anything, or "" if it can.
func nothing(d policy.Direction, r *policy.PolicyRule) string {
	named := func(p policy.PolicyPort) bool { return p.Name != "" }
	switch {
	case !r.AnyPeer && len(r.Peers) == 0:
		return "none of its peers could be understood"
	case !r.AnyPort && len(r.Ports) == 0:
		return "none of its ports could be understood"
	case d == policy.Egress && !r.AnyPeer && !r.AnyPort &&
		!slices.ContainsFunc(r.Peers, func(p policy.Peer) bool { return p.Block == nil }) &&
		!slices.ContainsFunc(r.Ports, func(p policy.PolicyPort) bool { return !named(p) }):
		return "its ports are names, which only pods have, and it names addresses only"
	}
	return ""
}

func peerText(pol *policy.Policy, p *policy.Peer) string {
	pods := "all pods"
	if p.Pods != nil && len(p.Pods.Requirements) > 0 {
		pods = "pods " + p.Pods.String()
	}
	switch {
	case p.Namespaces == nil:
		return pods + " of namespace " + pol.Namespace
	case len(p.Namespaces.Requirements) == 0:
		return pods + " of all namespaces"
	}
	return pods + " of namespaces " + p.Namespaces.String()
}

// ports looks at the names, and at numbers that only another protocol has, on the pods that they can be of.
func (k *checker) ports(p at, r *policy.PolicyRule, of []*declared) {
	pods := 0
	for _, d := range of {
		pods += d.pods
	}
	dns := map[policy.Protocol]bool{} // that the rule allows DNS with
	for i := range r.Ports {
		for _, protocol := range []policy.Protocol{policy.TCP, policy.UDP} {
			dns[protocol] = dns[protocol] || allowsDNS(&r.Ports[i], protocol)
		}
	}
	for i := range r.Ports {
		pp := &r.Ports[i]
		where := p.in(".ports[%d]", i)
		if !k.effort.step(1 + len(of)) {
			return
		}
		has, other := false, policy.Protocol(0)
		for _, d := range of {
			for _, protocol := range d.of(pp) {
				has = has || protocol == pp.Protocol
				other = max(other, protocol)
			}
		}
		switch {
		case has || pods == 0:
		case other != 0 && pp.Name != "":
			k.find(OtherProtocol, where, "set the protocol; the default is TCP", "port %q is %s there, not %s",
				pp.Name, other, pp.Protocol)
		case other != 0:
			found := k.find(OtherProtocol, where, "set the protocol if the other one is meant; the default is TCP",
				"pods declare port %d as %s, not %s", pp.First, other, pp.Protocol)
			found.Severity = Info
		case pp.Name != "":
			k.find(NoSuchPortName, where, "name a port as the pods do, or give its number",
				"no pod that it can be of has a port named %q", pp.Name)
		}
		only53 := pp.Name == "" && pp.First == portDNS && pp.Last == portDNS
		both := dns[policy.TCP] && pp.Protocol != policy.TCP || dns[policy.UDP] && pp.Protocol != policy.UDP
		if only53 && !both {
			k.find(HalfDNS, where, "allow port 53 of UDP and of TCP: DNS uses both", "port 53 of %s only", pp.Protocol)
		}
	}
}

// allowsDNS reports whether a port includes port 53 of a protocol; protocol 0 is TCP or UDP.
func allowsDNS(p *policy.PolicyPort, protocol policy.Protocol) bool {
	if p.Protocol != protocol && (protocol != 0 || p.Protocol == policy.SCTP) {
		return false
	}
	return p.Name != "" || p.First <= portDNS && portDNS <= p.Last
}

// block reports an ipBlock that contains pod addresses. It applies to these pods (docs/semantics.md), but an address
// can belong to another pod later.
func (k *checker) block(p at, b *policy.IPBlock) {
	if !k.effort.step(len(k.PodCIDRs) * (1 + len(b.Except))) {
		return
	}
	contains := func(outer, inner netip.Prefix) bool {
		return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
	}
	var all []netip.Prefix
	for _, cidr := range k.PodCIDRs {
		switch {
		case slices.ContainsFunc(b.Except, func(e netip.Prefix) bool { return contains(e, cidr) }):
		case contains(cidr, b.CIDR):
			k.find(BlockOfPods, p.in(".cidr"), "choose the pods by selectors",
				"%s is in the pod CIDR %s: it matches all pods that have these addresses", b.CIDR, cidr)
			return
		case contains(b.CIDR, cidr):
			all = append(all, cidr)
		}
	}
	if len(all) == 0 {
		return
	}
	more := ""
	if len(all) > 1 {
		more = fmt.Sprintf(" and %d more", len(all)-1)
	}
	found := k.find(BlockOfPods, p.in(".cidr"), "list the pod CIDRs in except if only external addresses are meant",
		"%s contains the pod CIDR %s%s: it matches all these pods too, of every namespace", b.CIDR, all[0], more)
	found.Severity = Info
}

// dns reports pods that the policy isolates for egress and that may send to other destinations, but not to DNS.
func (k *checker) dns(pol *policy.Policy) {
	if !pol.IsolatesEgress {
		return
	}
	var without []string
	for _, e := range k.choose(pol.Namespace, &pol.AppliedTo) {
		if !k.effort.step(10) {
			return
		}
		key := fmt.Sprint(e.Namespace, pol.DryRun, e.Labels) // fmt prints a map in order
		lacks, seen := k.lacks[key]
		if !seen {
			lacks = k.lacksDNS(e, pol.DryRun)
			k.lacks[key] = lacks
		}
		if lacks {
			without = append(without, e.Name)
		}
	}
	if len(without) == 0 {
		return
	}
	slices.Sort(without)
	names := strings.Join(without[:min(3, len(without))], ", ")
	if n := len(without) - 3; n > 0 {
		names += fmt.Sprintf(" and %d more", n)
	}
	k.find(NoDNS, at{policy: pol, field: "spec.egress"}, "allow egress to the cluster's DNS on port 53, UDP and TCP",
		"its pods may connect to some destinations, but not to DNS: %s", names)
}

// lacksDNS reports whether a pod may send, but not to port 53; with dryRun, as if dry runs were enforced.
func (k *checker) lacksDNS(e *policy.Endpoint, dryRun bool) bool {
	some := false
	for _, pol := range k.egress[e.Namespace] {
		if !k.effort.step(1+len(pol.Egress)) || pol.DryRun && !dryRun || !pol.AppliedTo.Matches(e.Labels) {
			continue
		}
		for i := range pol.Egress {
			r := &pol.Egress[i]
			if nothing(policy.Egress, r) != "" {
				continue
			}
			if some = true; r.AnyPort ||
				slices.ContainsFunc(r.Ports, func(p policy.PolicyPort) bool { return allowsDNS(&p, 0) }) {
				return false
			}
		}
	}
	return some
}
