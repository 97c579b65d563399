package explain

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Explanation is why a packet may pass or not.
type Explanation struct {
	From     End             `json:"from"`
	To       End             `json:"to"`
	Protocol policy.Protocol `json:"protocol"`
	Port     uint16          `json:"port"`
	Allowed  bool            `json:"allowed"`
	// Self: both ends are one pod, which always reaches itself.
	Self    bool `json:"self,omitempty"`
	Egress  Side `json:"egress"`
	Ingress Side `json:"ingress"`
	// DryRun is what policies in a dry run would say of a packet that is allowed; nil where none would isolate an end
	// that is not isolated.
	DryRun *DryRun `json:"dryRun,omitempty"`
}

// EndKind is the kind of owner that an address has.
type EndKind string

// Kinds of ends. Only of pods do policies isolate any, or selectors choose any.
const (
	Pod         EndKind = "pod"
	HostNetwork EndKind = "hostNetwork" // a node's address, known by the hostNetwork pods that share it
	Finished    EndKind = "finished"    // a finished pod had it; it is no pod's now
	Outside     EndKind = "outside"     // no pod's, for all the model knows
)

// End is one end of a packet.
type End struct {
	Kind    EndKind    `json:"kind"`
	Address netip.Addr `json:"address"`
	// Pods are the pod, or the hostNetwork or finished pods that carry the address: namespace/name.
	Pods []string `json:"pods,omitempty"`
	Node string   `json:"node,omitempty"`
	// Contested are other pods that claim the pod's address. The model, as the oracle, takes the first for the owner;
	// enforcement isolates such an address by the policies of all of them, and lets no selector choose it.
	Contested []string `json:"contested,omitempty"`
	// Labels and NamespaceLabels are those of the pod and of its namespace.
	Labels          map[string]string `json:"labels,omitempty"`
	NamespaceLabels map[string]string `json:"namespaceLabels,omitempty"`
}

// Reason is why a side of a packet allows it or not.
type Reason string

// Reasons.
const (
	ReasonSelf     Reason = "self"     // a pod reaches itself
	ReasonNotPod   Reason = "notPod"   // no policy selects an end that is no pod of its own
	ReasonOpen     Reason = "open"     // no policy isolates the pod
	ReasonAllowed  Reason = "allowed"  // a rule of an isolating policy allows
	ReasonIsolated Reason = "isolated" // policies isolate the pod, and none of their rules allows
)

// Side is one end's say: egress at the source, ingress at the destination.
type Side struct {
	Allowed bool   `json:"allowed"`
	Reason  Reason `json:"reason"`
	// Policies are those that isolate the pod, in the world's order.
	Policies []PolicyReport `json:"policies,omitempty"`
	// Remedies would each let the packet pass on this side, the smallest first; none where it passes.
	Remedies []Remedy `json:"remedies,omitempty"`
}

// PolicyReport is what a policy that isolates says. Without rules it allows nothing.
type PolicyReport struct {
	Policy string       `json:"policy"` // namespace/name
	Allows bool         `json:"allows"`
	Rules  []RuleReport `json:"rules,omitempty"`
}

// RuleReport is what a rule says of the packet: it allows if a peer and a port match.
type RuleReport struct {
	Rule   int  `json:"rule"` // the index in ingress or egress
	Allows bool `json:"allows"`
	// AnyPeer and AnyPort: the rule asks for none. A rule that asks, and has no entries, matches nothing: all of its
	// entries were refused.
	AnyPeer bool         `json:"anyPeer,omitempty"`
	Peers   []PeerReport `json:"peers,omitempty"`
	AnyPort bool         `json:"anyPort,omitempty"`
	Ports   []PortReport `json:"ports,omitempty"`
}

// PeerReport is how an entry of from or to matches the other end.
type PeerReport struct {
	Peer    policy.Peer `json:"peer"`
	Matches bool        `json:"matches"`
	// Failures are all that doesn't hold.
	Failures []PeerFailure `json:"failures,omitempty"`
}

// PortReport is how an entry of ports matches the packet.
type PortReport struct {
	Port    policy.PolicyPort `json:"port"`
	Matches bool              `json:"matches"`
	Failure *PortFailure      `json:"failure,omitempty"`
}

// Explain returns why a packet is allowed or denied. The verdict and the allowing rules are those of policy.Allowed.
func (m *Model) Explain(p policy.Packet) Explanation {
	x := Explanation{From: m.describe(p.From), To: m.describe(p.To), Protocol: p.Protocol, Port: p.Port}
	from, to := m.end(p.From), m.end(p.To)
	if from.pod != nil && from.pod == to.pod {
		self := Side{Allowed: true, Reason: ReasonSelf}
		x.Allowed, x.Self, x.Egress, x.Ingress = true, true, self, self
		return x
	}
	egress, ingress := view{m, policy.Egress, from, to, p}, view{m, policy.Ingress, to, from, p}
	x.Egress, x.Ingress = egress.explain(), ingress.explain()
	x.Allowed = x.Egress.Allowed && x.Ingress.Allowed
	x.DryRun = x.dryRun(egress, ingress)
	return x
}

func (m *Model) describe(a netip.Addr) End {
	live := func(e *policy.Endpoint) bool { return !e.HostNetwork && !e.Finished }
	host := func(e *policy.Endpoint) bool { return e.HostNetwork && !e.Finished }
	x := End{Kind: Outside, Address: a}
	if pod := m.owners[a]; pod != nil {
		x.Kind, x.Pods, x.Node, x.Labels = Pod, []string{pod.ID()}, pod.Node, pod.Labels
		if ns := m.namespaces[pod.Namespace]; ns != nil {
			x.NamespaceLabels = ns.Labels
		}
		x.Contested, _ = m.carrying(a, live)
	} else if pods, node := m.carrying(a, host); pods != nil {
		x.Kind, x.Pods, x.Node = HostNetwork, pods, node
	} else if pods, _ := m.carrying(a, func(*policy.Endpoint) bool { return true }); pods != nil {
		x.Kind, x.Pods = Finished, pods
	}
	return x
}

// carrying returns the IDs of the matching pods that use an address that does not belong to them, and the node of the
// first one.
func (m *Model) carrying(a netip.Addr, which func(*policy.Endpoint) bool) (ids []string, node string) {
	for _, e := range m.others[a] {
		if !which(e) {
			continue
		}
		if ids == nil {
			node = e.Node
		}
		ids = append(ids, e.ID())
	}
	return ids, node
}

// view is one side of a packet.
type view struct {
	m           *Model
	direction   policy.Direction
	self, other end
	packet      policy.Packet
}

// to returns the pod that the packet goes to, or nil.
func (v *view) to() *policy.Endpoint {
	if v.direction == policy.Egress {
		return v.other.pod
	}
	return v.self.pod
}

func (v *view) explain() Side {
	policies := v.m.isolating(v.direction, v.self.pod)
	switch {
	case v.self.pod == nil:
		return Side{Allowed: true, Reason: ReasonNotPod}
	case len(policies) == 0:
		return Side{Allowed: true, Reason: ReasonOpen}
	}
	return v.side(policies)
}

// side returns the verdict of isolating policies.
func (v *view) side(policies []*policy.Policy) Side {
	side := Side{Reason: ReasonIsolated}
	for _, pol := range policies {
		report := v.policy(pol)
		side.Allowed = side.Allowed || report.Allows
		side.Policies = append(side.Policies, report)
	}
	if side.Allowed {
		side.Reason = ReasonAllowed
	} else {
		side.Remedies = v.remedies(policies)
	}
	return side
}

func (v *view) policy(pol *policy.Policy) PolicyReport {
	report := PolicyReport{Policy: pol.ID()}
	rules := rulesOf(pol, v.direction)
	for i := range rules {
		r := v.rule(pol, &rules[i], i)
		report.Allows = report.Allows || r.Allows
		report.Rules = append(report.Rules, r)
	}
	return report
}

func (v *view) rule(pol *policy.Policy, r *policy.PolicyRule, index int) RuleReport {
	report := RuleReport{Rule: index, AnyPeer: r.AnyPeer, AnyPort: r.AnyPort}
	by := v.m.match(pol, r, v.other)
	report.Allows = by.portsAllow(r, v.direction, v.to(), v.packet)
	if !r.AnyPeer {
		for i := range r.Peers {
			failures := v.peerFailures(pol, &r.Peers[i])
			report.Peers = append(report.Peers, PeerReport{r.Peers[i], len(failures) == 0, failures})
		}
	}
	if !r.AnyPort {
		names := by == 0 || by.names(v.direction)
		for _, pp := range r.Ports {
			failure := v.portFailure(pp, names)
			report.Ports = append(report.Ports, PortReport{pp, failure == nil, failure})
		}
	}
	return report
}

// Allowing returns the allowing rules of all policies.
func (s *Side) Allowing() (list []policy.Origin) {
	for _, p := range s.Policies {
		for _, r := range p.Rules {
			if r.Allows {
				list = append(list, policy.Origin{Policy: p.Policy, Rule: r.Rule})
			}
		}
	}
	return list
}

// Alike reports whether two sides have the same verdict for the same reasons; either may be nil.
func (s *Side) Alike(o *Side) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.Reason == o.Reason && slices.Equal(s.Allowing(), o.Allowing()) &&
		slices.Equal(s.Isolating(), o.Isolating())
}

// Isolating returns the IDs of the policies that isolate the pod.
func (s *Side) Isolating() []string {
	list := make([]string, len(s.Policies))
	for i, p := range s.Policies {
		list[i] = p.Policy
	}
	return slices.Clip(list)
}
