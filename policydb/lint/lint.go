// Package lint finds probable mistakes in policies: selectors that match no pod, named ports that no pod has, rules
// that other rules cover, policies without effect. Its result depends on its arguments only: the policies and the
// existing objects.
//
// docs/lint.md lists the codes. Findings about pods and namespaces describe the current state. Findings about covered
// rules hold for all pods that may be created.
package lint

import (
	"cmp"
	"context"
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

// AtLeast reports whether the severity is at least another one.
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
	NobodyIsolated: Warning, NobodyAtPeer: Warning, NoNamespaceAtPeer: Warning, NoSuchPortName: Warning,
	OtherProtocol: Warning, NothingPasses: Warning,
	RulesWithoutType: Warning, CoveredAlways: Warning, CoveredNow: Info, PolicyNoEffect: Warning, BlockOfPods: Warning,
	NoDNS: Warning, HalfDNS: Info,
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
	list, _ := CheckWithin(context.Background(), c)
	return list
}

// CheckWithin finds the same within a context, which its error is of. What would take too long is left out, with a
// finding.
func CheckWithin(ctx context.Context, c *Cluster) ([]Finding, error) {
	k := newChecker(c)
	k.effort.ctx = ctx
	for _, pol := range c.World.Policies {
		if pol.Name == policy.OverBudgetPolicy { // netmaster's own
			continue
		}
		if (c.Namespace == "" || pol.Namespace == c.Namespace) && k.effort.step(1) {
			k.policy(pol)
		}
	}
	k.redundant()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if k.effort.ended {
		k.notCompared("there are too many pods, policies and ports to look at all of them")
	}
	order := map[string]int{policy.Ingress.String(): 1, policy.Egress.String(): 2}
	slices.SortStableFunc(k.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(order[a.Direction], order[b.Direction]),
			cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Field, b.Field))
	})
	return k.findings, nil
}

// notCompared says that not all was looked at, once.
func (k *checker) notCompared(why string) {
	if slices.ContainsFunc(k.findings, func(f Finding) bool { return f.Code == NotCompared }) {
		return
	}
	k.findings = append(k.findings, Finding{
		Code:     NotCompared,
		Severity: severities[NotCompared],
		Field:    "spec",
		Rule:     -1,
		Message:  why,
		Remedy:   "look at one namespace at a time",
	})
}

// checker holds what the checks have in common.
type checker struct {
	*Cluster
	pods     map[string][]*policy.Endpoint // that are not finished nor of the host's network, by namespace
	chosen   map[string][]*policy.Endpoint // by namespace and selector
	declared map[string]*declared          // by whom a port may be of
	egress   map[string][]*policy.Policy   // that isolate for egress, by namespace
	lacks    map[string]bool               // whether pods have no DNS, by namespace, labels and dry run
	effort   effort
	findings []Finding
}

func newChecker(c *Cluster) *checker {
	k := &checker{
		Cluster:  c,
		pods:     map[string][]*policy.Endpoint{},
		chosen:   map[string][]*policy.Endpoint{},
		declared: map[string]*declared{},
		egress:   map[string][]*policy.Policy{},
		lacks:    map[string]bool{},
		effort:   effort{ctx: context.Background(), left: maxSteps},
	}
	for _, pol := range c.World.Policies {
		if pol.IsolatesEgress {
			k.egress[pol.Namespace] = append(k.egress[pol.Namespace], pol)
		}
	}
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
	f := Finding{
		Code:     code,
		Severity: severities[code],
		Policy:   p.policy.ID(),
		Field:    p.field,
		Message:  fmt.Sprintf(format, args...),
		Remedy:   remedy,
		Rule:     -1,
	}
	if p.direction != 0 {
		f.Direction, f.Rule = p.direction.String(), p.rule
	}
	if k.effort.ended {
		return &f // it may be of what was not looked at
	}
	k.findings = append(k.findings, f)
	return &k.findings[len(k.findings)-1]
}

// choose returns the pods of a namespace that a selector selects.
func (k *checker) choose(namespace string, s *policy.Selector) []*policy.Endpoint {
	key := namespace + "|" + s.Canonical()
	list, known := k.chosen[key]
	if !known {
		for _, e := range k.pods[namespace] {
			if k.effort.step(1+len(s.Requirements)) && s.Matches(e.Labels) {
				list = append(list, e)
			}
		}
		k.chosen[key] = list
	}
	return list
}

// peers returns the ports of those that a peer's selectors choose.
func (k *checker) peers(pol *policy.Policy, p *policy.Peer) *declared {
	inside := p.Pods
	if inside == nil {
		inside = &policy.Selector{}
	}
	if p.Namespaces == nil {
		return k.chosenPorts(pol.Namespace, inside)
	}
	key := p.Namespaces.Canonical() + "|" + inside.Canonical()
	d, known := k.declared[key]
	if known {
		return d
	}
	d = newDeclared()
	k.declared[key] = d
	for i := range k.World.Namespaces {
		ns := &k.World.Namespaces[i]
		if k.effort.step(1) && p.Namespaces.Matches(ns.Labels) {
			d.namespaces++
			d.add(&k.effort, k.choose(ns.Name, inside))
		}
	}
	return d
}

// chosenPorts returns those of the pods of a namespace that a selector chooses.
func (k *checker) chosenPorts(namespace string, s *policy.Selector) *declared {
	key := "=" + namespace + "|" + s.Canonical()
	d, known := k.declared[key]
	if !known {
		d = newDeclared()
		d.namespaces = 1
		d.add(&k.effort, k.choose(namespace, s))
		k.declared[key] = d
	}
	return d
}

// everyone returns the ports of all pods.
func (k *checker) everyone() *declared {
	d, known := k.declared[""]
	if !known {
		d = newDeclared()
		for _, pods := range k.pods {
			d.add(&k.effort, pods)
		}
		k.declared[""] = d
	}
	return d
}
