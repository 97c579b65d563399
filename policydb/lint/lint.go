// Package lint finds what in policies is probably not what their writers meant: selectors that choose nobody, ports' names that no
// pod has, rules that others cover, policies without effect. It is pure: a function of the policies and of what is there.
//
// docs/lint.md lists the codes. What a finding says of pods and namespaces is as of now; what it says of a rule that is covered
// always holds whatever pods there are.
package lint

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Severity is how much a finding matters.
type Severity string

// Severities.
const (
	Info    Severity = "info"    // may well be meant
	Warning Severity = "warning" // is probably not meant
	Error   Severity = "error"   // is not enforced as it is written
)

var ranks = map[Severity]int{Info: 1, Warning: 2, Error: 3}

// AtLeast tells whether it matters as much as another.
func (s Severity) AtLeast(o Severity) bool { return ranks[s] >= ranks[o] }

// Codes of findings.
const (
	NobodyIsolated    = "FK001"
	NobodyAtPeer      = "FK002"
	NoNamespaceAtPeer = "FK003"
	NoSuchPortName    = "FK004"
	OtherProtocol     = "FK005"
	NothingPasses     = "FK006"
	RulesWithoutType  = "FK007"
	CoveredAlways     = "FK008"
	CoveredNow        = "FK009"
	PolicyNoEffect    = "FK010"
	BlockOfPods       = "FK011"
	NoDNS             = "FK012"
	HalfDNS           = "FK013"
	NotUnderstood     = "FK014"
	OnlyDryRun        = "FK015"
	NotCompared       = "FK099"
)

var severities = map[string]Severity{
	NobodyIsolated: Warning, NobodyAtPeer: Warning, NoNamespaceAtPeer: Warning, NoSuchPortName: Warning, OtherProtocol: Warning, NothingPasses: Warning,
	RulesWithoutType: Warning, CoveredAlways: Warning, CoveredNow: Info, PolicyNoEffect: Warning, BlockOfPods: Warning, NoDNS: Warning, HalfDNS: Info,
	NotUnderstood: Error, OnlyDryRun: Info, NotCompared: Info,
}

// Finding is one thing in one policy.
type Finding struct {
	Code     string   `json:"code"`
	Severity Severity `json:"severity"`
	Policy   string   `json:"policy"` // namespace/name; empty: of all
	Field    string   `json:"field"`  // such as spec.ingress[0].from[1].podSelector
	Message  string   `json:"message"`
	Remedy   string   `json:"remedy"`
	// By are the rules that cover the one found, as "NAMESPACE/NAME ingress[0]".
	By []string `json:"by,omitempty"`
	// Direction and Rule are of the rule found; Rule is -1 where it is about no rule.
	Direction string `json:"direction,omitempty"`
	Rule      int    `json:"rule"`
}

// Cluster is what policies are looked at in.
type Cluster struct {
	World *policy.World
	// PodCIDRs are those of all nodes.
	PodCIDRs []netip.Prefix
	// Namespace is the one whose policies are looked at; empty: all.
	Namespace string
	// most bounds the comparisons; 0: mostCompared.
	most int
}

// Check finds all there is, by policy and field. The world must not change meanwhile; it is not changed.
func Check(c *Cluster) []Finding {
	k := newChecker(c)
	for _, pol := range c.World.Policies {
		if c.Namespace == "" || pol.Namespace == c.Namespace {
			k.policy(pol)
		}
	}
	k.redundant()
	order := map[string]int{policy.Ingress.String(): 1, policy.Egress.String(): 2}
	slices.SortStableFunc(k.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(order[a.Direction], order[b.Direction]), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Field, b.Field))
	})
	return k.findings
}

// checker holds what the checks have in common.
type checker struct {
	*Cluster
	pods     map[string][]*policy.Endpoint // that are not finished nor of the host's network, by namespace
	chosen   map[string][]*policy.Endpoint // by namespace and selector
	findings []Finding
}

func newChecker(c *Cluster) *checker {
	k := &checker{Cluster: c, pods: map[string][]*policy.Endpoint{}, chosen: map[string][]*policy.Endpoint{}}
	for _, e := range c.World.Endpoints {
		if !e.HostNetwork && !e.Finished {
			k.pods[e.Namespace] = append(k.pods[e.Namespace], e)
		}
	}
	return k
}

// at is a place in a policy.
type at struct {
	policy    *policy.Policy
	direction policy.Direction // 0: of the whole policy
	rule      int
	field     string
}

func (p at) in(format string, args ...any) at {
	p.field += fmt.Sprintf(format, args...)
	return p
}

func (p at) String() string {
	if p.direction == 0 {
		return p.policy.ID()
	}
	return fmt.Sprintf("%s %s[%d]", p.policy.ID(), p.direction, p.rule)
}

func (k *checker) find(code string, p at, remedy, format string, args ...any) *Finding {
	f := Finding{Code: code, Severity: severities[code], Policy: p.policy.ID(), Field: p.field, Message: fmt.Sprintf(format, args...), Remedy: remedy, Rule: -1}
	if p.direction != 0 {
		f.Direction, f.Rule = p.direction.String(), p.rule
	}
	k.findings = append(k.findings, f)
	return &k.findings[len(k.findings)-1]
}

// choose are the pods of a namespace that a selector chooses.
func (k *checker) choose(namespace string, s *policy.Selector) []*policy.Endpoint {
	key := namespace + "|" + s.Canonical()
	list, known := k.chosen[key]
	if !known {
		for _, e := range k.pods[namespace] {
			if s.Matches(e.Labels) {
				list = append(list, e)
			}
		}
		k.chosen[key] = list
	}
	return list
}

// peers are the pods that a peer's selectors choose, and how many namespaces they choose.
func (k *checker) peers(pol *policy.Policy, p *policy.Peer) (pods []*policy.Endpoint, namespaces int) {
	inside := p.Pods
	if inside == nil {
		inside = &policy.Selector{}
	}
	if p.Namespaces == nil {
		return k.choose(pol.Namespace, inside), 1
	}
	for i := range k.World.Namespaces {
		if ns := &k.World.Namespaces[i]; p.Namespaces.Matches(ns.Labels) {
			namespaces++
			pods = append(pods, k.choose(ns.Name, inside)...)
		}
	}
	return pods, namespaces
}
