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

// policy checks what can be told of a policy without the others, but for DNS.
func (k *checker) policy(pol *policy.Policy) {
	whole := at{policy: pol, field: "spec"}
	for _, p := range pol.Problems {
		field, _, _ := strings.Cut(p, ":")
		if !strings.HasPrefix(field, "spec") && !strings.HasPrefix(field, "metadata") {
			field = "spec"
		}
		k.find(NotUnderstood, at{policy: pol, field: field}, "correct it: what is not understood is left out, never widened", "%s", p)
	}
	if pol.Audit {
		k.find(OnlyDryRun, at{policy: pol, field: "metadata.annotations"}, "take the annotation flowkeep.io/enforcement away once netctl audit shows nothing that should pass",
			"it is a dry run: it isolates nobody and allows nothing")
	}
	if len(k.choose(pol.Namespace, &pol.AppliedTo)) == 0 {
		k.find(NobodyIsolated, whole.in(".podSelector"), "correct the selector or the pods' labels, or delete the policy", "it chooses no pod of namespace %s (%s)", pol.Namespace, pol.AppliedTo.String())
	}
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		rules := explain.RulesOf(pol, d)
		if len(rules) > 0 && !explain.IsolatesIn(pol, d) {
			k.find(RulesWithoutType, whole.in(".%s", d), fmt.Sprintf("add %s to policyTypes, or remove the rules", title(d)), "policyTypes does not name %s, so these rules do nothing", title(d))
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
	var means []*policy.Endpoint // pods whose ports a name may be of
	for i := range r.Peers {
		peer := &r.Peers[i]
		where := p.in("%s[%d]", side, i)
		if peer.Block != nil {
			k.block(where.in(".ipBlock"), peer.Block)
			continue
		}
		pods, namespaces := k.peers(p.policy, peer)
		means = append(means, pods...)
		switch {
		case namespaces == 0:
			k.find(NoNamespaceAtPeer, where.in(".namespaceSelector"), "correct the selector or the namespaces' labels", "it chooses no namespace (%s)", peer.Namespaces.String())
		case len(pods) == 0:
			k.find(NobodyAtPeer, where, "correct the selector or the pods' labels, or remove the peer", "it chooses no pod (%s)", peerText(p.policy, peer))
		}
	}
	switch {
	case p.direction == policy.Ingress:
		means = k.choose(p.policy.Namespace, &p.policy.AppliedTo)
	case r.AnyPeer:
		means = slices.Concat(values(k.pods)...)
	}
	k.ports(p, r, means)
}

func values(m map[string][]*policy.Endpoint) (out [][]*policy.Endpoint) {
	for _, v := range m {
		out = append(out, v)
	}
	return out
}

// nothing tells why a rule lets nothing through whatever there is; empty if it may.
func nothing(d policy.Direction, r *policy.PolicyRule) string {
	named := func(p policy.PolicyPort) bool { return p.Name != "" }
	switch {
	case !r.AnyPeer && len(r.Peers) == 0:
		return "none of its peers could be understood"
	case !r.AnyPort && len(r.Ports) == 0:
		return "none of its ports could be understood"
	case d == policy.Egress && !r.AnyPeer && !r.AnyPort && !slices.ContainsFunc(r.Peers, func(p policy.Peer) bool { return p.Block == nil }) &&
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
func (k *checker) ports(p at, r *policy.PolicyRule, of []*policy.Endpoint) {
	for i := range r.Ports {
		pp := &r.Ports[i]
		where := p.in(".ports[%d]", i)
		same := func(n *policy.NamedPort) bool {
			return pp.Name != "" && n.Name == pp.Name || pp.Name == "" && pp.First == pp.Last && n.Number == pp.First
		}
		has, other := false, policy.Protocol(0)
		for _, e := range of {
			for j := range e.Ports {
				if n := &e.Ports[j]; same(n) {
					has = has || n.Protocol == pp.Protocol
					other = n.Protocol
				}
			}
		}
		switch {
		case has || len(of) == 0:
		case other != 0 && pp.Name != "":
			k.find(OtherProtocol, where, "give the protocol; without one it is TCP", "port %q is %s there, not %s", pp.Name, other, pp.Protocol)
		case other != 0:
			k.find(OtherProtocol, where, "give the protocol if the other is meant; without one it is TCP", "pods declare port %d as %s, not %s", pp.First, other, pp.Protocol).Severity = Info
		case pp.Name != "":
			k.find(NoSuchPortName, where, "name a port as the pods do, or give its number", "no pod that it can be of has a port named %q", pp.Name)
		}
		if pp.Name == "" && pp.First == portDNS && pp.Last == portDNS && !slices.ContainsFunc(r.Ports, func(o policy.PolicyPort) bool { return o.Protocol != pp.Protocol && allowsDNS(&o, 0) }) {
			k.find(HalfDNS, where, "allow port 53 of UDP and of TCP: DNS uses both", "port 53 of %s only", pp.Protocol)
		}
	}
}

// allowsDNS tells whether a port can be 53 of a protocol; 0: TCP or UDP.
func allowsDNS(p *policy.PolicyPort, protocol policy.Protocol) bool {
	if p.Protocol != protocol && (protocol != 0 || p.Protocol == policy.SCTP) {
		return false
	}
	return p.Name != "" || p.First <= portDNS && portDNS <= p.Last
}

// block tells that an ipBlock has pods in it. It means them (docs/semantics.md), but by addresses, which go from pod to pod.
func (k *checker) block(p at, b *policy.IPBlock) {
	contains := func(outer, inner netip.Prefix) bool {
		return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
	}
	var all []netip.Prefix
	for _, cidr := range k.PodCIDRs {
		switch {
		case slices.ContainsFunc(b.Except, func(e netip.Prefix) bool { return contains(e, cidr) }):
		case contains(cidr, b.CIDR):
			k.find(BlockOfPods, p.in(".cidr"), "choose the pods by selectors", "%s is in the pod CIDR %s: it means whichever pods have these addresses", b.CIDR, cidr)
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
	k.find(BlockOfPods, p.in(".cidr"), "if the world outside is meant, name the pod CIDRs in except", "%s holds the pod CIDR %s%s: it means all these pods too, of every namespace", b.CIDR, all[0], more).Severity = Info
}

// dns tells of pods that the policy isolates for egress, and that may reach something, but no DNS.
func (k *checker) dns(pol *policy.Policy) {
	if !pol.IsolatesEgress {
		return
	}
	var without []string
	known := map[string]bool{}
	for _, e := range k.choose(pol.Namespace, &pol.AppliedTo) {
		labels := fmt.Sprint(e.Labels) // fmt prints a map in order
		lacks, seen := known[labels]
		if !seen {
			lacks = k.lacksDNS(e, pol.Audit)
			known[labels] = lacks
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
	k.find(NoDNS, at{policy: pol, field: "spec.egress"}, "allow egress to the cluster's DNS on port 53, UDP and TCP", "its pods may reach something, but no DNS: %s", names)
}

// lacksDNS tells whether a pod has egress, and none to port 53; with audit, whether it would have if dry runs were enforced.
func (k *checker) lacksDNS(e *policy.Endpoint, audit bool) bool {
	some := false
	for _, pol := range k.World.Policies {
		if pol.Audit && !audit || !pol.IsolatesEgress || pol.Namespace != e.Namespace || !pol.AppliedTo.Matches(e.Labels) {
			continue
		}
		for i := range pol.Egress {
			r := &pol.Egress[i]
			if nothing(policy.Egress, r) != "" {
				continue
			}
			if some = true; r.AnyPort || slices.ContainsFunc(r.Ports, func(p policy.PolicyPort) bool { return allowsDNS(&p, 0) }) {
				return false
			}
		}
	}
	return some
}
