package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Tier is a set of ClusterNetworkPolicies that is evaluated before or after NetworkPolicies.
type Tier uint8

// Tiers.
const (
	AdminTier    Tier = iota + 1 // before NetworkPolicies, which it overrides
	BaselineTier                 // after them, for pods that none of them isolates
)

func (t Tier) String() string {
	switch t {
	case AdminTier:
		return "Admin"
	case BaselineTier:
		return "Baseline"
	}
	return fmt.Sprintf("tier(%d)", uint8(t))
}

// Action is the effect of a rule of a ClusterNetworkPolicy on the packets that it matches.
type Action uint8

// Actions.
const (
	Accept Action = iota + 1 // allows; no further rule counts
	Deny                     // denies; no further rule counts
	Pass                     // skips the rest of the tier
)

func (a Action) String() string {
	switch a {
	case Accept:
		return "Accept"
	case Deny:
		return "Deny"
	case Pass:
		return "Pass"
	}
	return fmt.Sprintf("action(%d)", uint8(a))
}

// ClusterPolicy is a ClusterNetworkPolicy after validation.
type ClusterPolicy struct {
	Name string `json:"name"`
	Tier Tier   `json:"tier"`
	// Priority is 0 to 1000. The lowest is evaluated first.
	Priority uint16 `json:"priority"`
	// Subject selects the pods that the policy applies to. It has no Block.
	Subject Peer          `json:"subject"`
	Ingress []ClusterRule `json:"ingress,omitempty"`
	Egress  []ClusterRule `json:"egress,omitempty"`
}

// ClusterRule is one entry of ingress or egress. Its peers have no Block in ingress, and always Namespaces where they
// have none. A destinationNamedPort is an entry of Ports for each protocol. A rule with one and with Blocks or Nodes is
// invalid in the API, and replaced by FailClosed. The first rule of a tier that matches a packet decides.
type ClusterRule struct {
	Name   string `json:"name,omitempty"`
	Action Action `json:"action"`
	PolicyRule
	// Nodes are selectors of nodes whose addresses are peers too. Only egress rules have them.
	Nodes []Selector `json:"nodes,omitempty"`
}

// FailClosed returns the rule that replaces one of which a part is unknown or left out: an Accept that matches nothing,
// or a Deny of all packets for a Deny or a Pass (comments of ClusterNetworkPolicyIngressPeer in the API).
func (r *ClusterRule) FailClosed() ClusterRule {
	if r.Action == Accept {
		return ClusterRule{Name: r.Name, Action: Accept}
	}
	return ClusterRule{Name: r.Name, Action: Deny, PolicyRule: PolicyRule{AnyPeer: true, AnyPort: true}}
}

// Rules returns the rules of a direction.
func (p *ClusterPolicy) Rules(d Direction) []ClusterRule {
	if d == Egress {
		return p.Egress
	}
	return p.Ingress
}

// CompareClusterPolicies orders policies as they are evaluated. The API leaves open which of two policies of equal tier
// and priority comes first; here it is the one whose name sorts first, byte by byte.
func CompareClusterPolicies(a, b *ClusterPolicy) int {
	return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Priority, b.Priority), strings.Compare(a.Name, b.Name))
}

// ClusterOrigin is the place of a rule of a ClusterNetworkPolicy. The zero value is no rule.
type ClusterOrigin struct {
	Tier   Tier   `json:"tier"`
	Policy string `json:"policy"`
	Rule   int    `json:"rule"` // index in ingress or egress
}

// Node is a cluster's node as a peer of ClusterNetworkPolicies.
type Node struct {
	Labels map[string]string `json:"labels,omitempty"`
	// Addresses are all IP addresses of the Node's status.
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

// decide returns the verdict of a tier, which is that of its first rule that matches. A tier without such a rule, or in
// which it is a Pass, does not decide.
func (w *World) decide(t Tier, d Direction, e *Endpoint, p Packet) (v SideVerdict, decided bool) {
	for _, pol := range slices.SortedFunc(slices.Values(w.ClusterPolicies), CompareClusterPolicies) {
		if pol.Tier != t || !w.selects("", &pol.Subject, e) {
			continue
		}
		for i, r := range pol.Rules(d) {
			if w.clusterRuleMatches(&r, d, p) {
				v = SideVerdict{Allowed: r.Action == Accept, Cluster: ClusterOrigin{t, pol.Name, i}}
				return v, r.Action != Pass
			}
		}
	}
	return SideVerdict{}, false
}

func (w *World) clusterRuleMatches(r *ClusterRule, d Direction, p Packet) bool {
	if w.ruleMatches("", &r.PolicyRule, d, p) {
		return true
	}
	port := r.AnyPort || slices.ContainsFunc(r.Ports, func(pp PolicyPort) bool { return w.portMatches(pp, p) })
	return port && d == Egress && slices.ContainsFunc(w.Nodes, func(n Node) bool {
		return slices.Contains(n.Addresses, p.To) &&
			slices.ContainsFunc(r.Nodes, func(s Selector) bool { return s.Matches(n.Labels) })
	})
}
