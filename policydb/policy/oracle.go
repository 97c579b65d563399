package policy

import (
	"net/netip"
	"slices"
)

// World is everything a verdict depends on.
type World struct {
	Namespaces []Namespace
	Endpoints  []*Endpoint
	Policies   []*Policy
	// ClusterPolicies are in any order. Nodes are peers of theirs only.
	ClusterPolicies []*ClusterPolicy
	Nodes           []Node
}

// Packet is the first packet of a connection, addressed to the pod itself (after any Service translation). Protocol is
// IANA's number; Port counts for TCP, UDP and SCTP.
type Packet struct {
	From     netip.Addr `json:"from"`
	To       netip.Addr `json:"to"`
	Protocol Protocol   `json:"protocol"`
	Port     uint16     `json:"port,omitempty"`
}

// Verdict is whether a packet may pass, and why.
type Verdict struct {
	Allowed bool
	Egress  SideVerdict
	Ingress SideVerdict
}

// SideVerdict is the verdict at one end. An end that no policy isolates or decides on allows.
type SideVerdict struct {
	Allowed  bool
	Isolated []string // policies, namespace/name
	By       []Origin // rules that allow
	// Cluster is the rule of a ClusterNetworkPolicy that decided. If it is one of the Admin tier, NetworkPolicies were
	// not evaluated; if it is one of the Baseline tier, none isolates.
	Cluster ClusterOrigin
}

// Allowed returns the verdict for a packet. It is the specification that all other implementations are compared with,
// so it is slow and simple. It follows the NetworkPolicy v1 API; docs in k8s.io/api/networking/v1. For
// ClusterNetworkPolicies it follows sigs.k8s.io/network-policy-api/apis/v1beta1.
func Allowed(w *World, p Packet) Verdict {
	from, to := w.owner(p.From), w.owner(p.To)
	if from != nil && from == to {
		return Verdict{true, SideVerdict{Allowed: true}, SideVerdict{Allowed: true}}
	}
	v := Verdict{Egress: w.evaluate(Egress, from, p), Ingress: w.evaluate(Ingress, to, p)}
	v.Allowed = v.Egress.Allowed && v.Ingress.Allowed
	return v
}

// DryRun returns the verdict that all policies in a dry run (Policy.DryRun) together with those in force would give to
// a packet that Allowed allows. An end is not Allowed if they would deny it there; its Isolated and By list policies
// in a dry run only. Policies can only add permissions, so at an end that a policy in force isolates a dry run cannot
// deny more. Nor can it at an end that the Admin tier accepts.
func DryRun(w *World, p Packet) Verdict {
	now := Allowed(w, p)
	v := Verdict{Allowed: true, Egress: SideVerdict{Allowed: true}, Ingress: SideVerdict{Allowed: true}}
	from, to := w.owner(p.From), w.owner(p.To)
	if !now.Allowed || from != nil && from == to {
		return v
	}
	if len(now.Egress.Isolated) == 0 && now.Egress.Cluster.Tier != AdminTier {
		v.Egress = w.judge(Egress, from, p, true)
	}
	if len(now.Ingress.Isolated) == 0 && now.Ingress.Cluster.Tier != AdminTier {
		v.Ingress = w.judge(Ingress, to, p, true)
	}
	v.Allowed = v.Egress.Allowed && v.Ingress.Allowed
	return v
}

// owner returns the pod that has an address, or nil.
func (w *World) owner(a netip.Addr) *Endpoint {
	for _, e := range w.Endpoints {
		if !e.HostNetwork && !e.Finished && slices.Contains(e.Addresses, a) {
			return e
		}
	}
	return nil
}

// evaluate returns the verdict at one end: that of the Admin tier, of the policies in force, or of the Baseline tier.
// Each is evaluated if those before it decided nothing.
func (w *World) evaluate(d Direction, e *Endpoint, p Packet) SideVerdict {
	if e == nil {
		return SideVerdict{Allowed: true}
	}
	if v, decided := w.decide(AdminTier, d, e, p); decided {
		return v
	}
	if v := w.judge(d, e, p, false); len(v.Isolated) > 0 {
		return v
	}
	if v, decided := w.decide(BaselineTier, d, e, p); decided {
		return v
	}
	return SideVerdict{Allowed: true}
}

// judge returns the verdict of the policies in force, or of those in a dry run.
func (w *World) judge(d Direction, e *Endpoint, p Packet, dryRun bool) SideVerdict {
	v := SideVerdict{}
	if e == nil {
		return SideVerdict{Allowed: true}
	}
	for _, pol := range w.Policies {
		rules, isolates := pol.Ingress, pol.IsolatesIngress
		if d == Egress {
			rules, isolates = pol.Egress, pol.IsolatesEgress
		}
		if pol.DryRun != dryRun || !isolates || pol.Namespace != e.Namespace || !pol.AppliedTo.Matches(e.Labels) {
			continue
		}
		v.Isolated = append(v.Isolated, pol.ID())
		for i := range rules {
			if w.ruleMatches(pol.Namespace, &rules[i], d, p) {
				v.By = append(v.By, Origin{pol.ID(), i})
			}
		}
	}
	v.Allowed = len(v.Isolated) == 0 || len(v.By) > 0
	return v
}

// ruleMatches reports whether a rule of a policy in a namespace matches a packet. ClusterNetworkPolicies are in none.
func (w *World) ruleMatches(namespace string, r *PolicyRule, d Direction, p Packet) bool {
	other := p.From
	if d == Egress {
		other = p.To
	}
	for _, block := range []bool{false, true} {
		peer := r.AnyPeer || slices.ContainsFunc(r.Peers, func(peer Peer) bool {
			return (peer.Block != nil) == block && w.peerMatches(namespace, &peer, other)
		})
		port := r.AnyPort || slices.ContainsFunc(r.Ports, func(pp PolicyPort) bool {
			// a port's name belongs to pods that a selector chose; with an ipBlock it stands for nothing
			meaningless := d == Egress && block && !r.AnyPeer && pp.Name != ""
			return !meaningless && w.portMatches(pp, p)
		})
		if peer && port {
			return true
		}
	}
	return false
}

func (w *World) peerMatches(namespace string, peer *Peer, a netip.Addr) bool {
	if peer.Block != nil {
		in := func(c netip.Prefix) bool { return c.Contains(a) }
		return in(peer.Block.CIDR) && !slices.ContainsFunc(peer.Block.Except, in)
	}
	e := w.owner(a)
	return e != nil && w.selects(namespace, peer, e)
}

// selects reports whether the selectors of a peer choose a pod.
func (w *World) selects(namespace string, peer *Peer, e *Endpoint) bool {
	if peer.Namespaces == nil {
		return peer.Pods != nil && e.Namespace == namespace && peer.Pods.Matches(e.Labels)
	}
	return w.namespaceMatches(peer.Namespaces, e.Namespace) && peer.podsMatch(e)
}

// podsMatch reports whether a peer's selector of pods chooses a pod; one without chooses every pod.
func (p *Peer) podsMatch(e *Endpoint) bool {
	if p.Pods == nil {
		return (&Selector{}).Matches(e.Labels)
	}
	return p.Pods.Matches(e.Labels)
}

func (w *World) namespaceMatches(s *Selector, name string) bool {
	for _, ns := range w.Namespaces {
		if ns.Name == name {
			return s.Matches(ns.Labels)
		}
	}
	return false
}

// portMatches resolves a named port on the pod that the packet goes to, whichever the direction.
func (w *World) portMatches(pp PolicyPort, p Packet) bool {
	if pp.Protocol != p.Protocol {
		return false
	}
	if pp.Name == "" {
		return pp.First <= p.Port && p.Port <= pp.Last
	}
	to := w.owner(p.To)
	return to != nil && slices.Contains(to.Ports, NamedPort{pp.Name, pp.Protocol, p.Port})
}
