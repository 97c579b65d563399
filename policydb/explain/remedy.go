package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// MaxRemedies is how many remedies a side has at most.
const MaxRemedies = 16

// ChangeKind is the kind of a change.
type ChangeKind string

// Kinds of changes; earlier ones come first among remedies of one size.
const (
	SetLabel             ChangeKind = "setLabel"             // on a pod
	RemoveLabel          ChangeKind = "removeLabel"          // from a pod
	SetNamespaceLabel    ChangeKind = "setNamespaceLabel"    // on a namespace
	RemoveNamespaceLabel ChangeKind = "removeNamespaceLabel" // from a namespace
	UsePort              ChangeKind = "usePort"              // another port that the rule lets through
	AddRulePort          ChangeKind = "addRulePort"          // the packet's port in the rule's ports
	// all of them: only a rule without ports allows ICMP and its like
	RemoveRulePorts ChangeKind = "removeRulePorts"
	AddRulePeer     ChangeKind = "addRulePeer" // the other end in the rule's peers
	AddPolicy       ChangeKind = "addPolicy"   // a policy that allows this
)

var changeOrder = []ChangeKind{SetLabel, RemoveLabel, SetNamespaceLabel, RemoveNamespaceLabel, UsePort, AddRulePort,
	RemoveRulePorts, AddRulePeer, AddPolicy}

// Change is one thing to do.
type Change struct {
	Kind ChangeKind `json:"kind"`
	// Subject is the pod (namespace/name) or the namespace whose label is meant; the peer (pod or address) to allow for
	// AddRulePeer and AddPolicy.
	Subject string `json:"subject,omitempty"`
	Key     string `json:"key,omitempty"`
	// Value is the label's.
	Value string `json:"value,omitempty"`
	// Policy, Direction ("ingress" or "egress") and Rule name the rule to change.
	Policy    string `json:"policy,omitempty"`
	Direction string `json:"direction,omitempty"`
	Rule      int    `json:"rule"`
	// Pod is the isolated pod that AddPolicy should select.
	Pod string `json:"pod,omitempty"`
	// Protocol and Port are the port to use or to allow.
	Protocol policy.Protocol `json:"protocol,omitempty"`
	Port     uint16          `json:"port,omitempty"`
}

// String returns the change as an instruction for a person.
func (c Change) String() string {
	port := portText(c.Protocol, c.Port)
	rule := fmt.Sprintf("rule %s %s[%d]", c.Policy, c.Direction, c.Rule)
	switch c.Kind {
	case SetLabel:
		return fmt.Sprintf("label %s=%s on pod %s", c.Key, c.Value, c.Subject)
	case RemoveLabel:
		return fmt.Sprintf("no label %s on pod %s", c.Key, c.Subject)
	case SetNamespaceLabel:
		return fmt.Sprintf("label %s=%s on namespace %s", c.Key, c.Value, c.Subject)
	case RemoveNamespaceLabel:
		return fmt.Sprintf("no label %s on namespace %s", c.Key, c.Subject)
	case UsePort:
		return "use port " + port
	case AddRulePort:
		return rule + " with port " + port
	case RemoveRulePorts:
		return rule + " without ports"
	case AddRulePeer:
		return rule + " with peer " + c.Subject
	}
	preposition := "from"
	if c.Direction == policy.Egress.String() {
		preposition = "to"
	}
	return fmt.Sprintf("a policy that allows pod %s %s %s %s at %s", c.Pod, c.Direction, preposition, c.Subject, port)
}

// Remedy is a set of changes that together let a packet pass on one side.
type Remedy struct {
	// Rule is the rule that will allow; nil for AddPolicy.
	Rule    *policy.Origin `json:"rule,omitempty"`
	Changes []Change       `json:"changes"`
}

// String joins the changes with "and".
func (r Remedy) String() string {
	texts := make([]string, len(r.Changes))
	for i, c := range r.Changes {
		texts[i] = c.String()
	}
	return strings.Join(texts, " and ")
}

// remedies returns the smallest sets of changes that would allow the packet on a side that denies it, sorted; the last
// one is a new policy, which is always possible. Only conditions that the rule fails on are changed, never the labels
// that select the isolated pod.
func (v *view) remedies(policies []*policy.Policy) []Remedy {
	if v.self.pod.LabelsLeftOut > 0 || v.other.pod != nil && v.other.pod.LabelsLeftOut > 0 {
		return nil // no policy permits anything of such a pod
	}
	var list []Remedy
	for _, pol := range policies {
		rules := rulesOf(pol, v.direction)
		for i := range rules {
			list = append(list, v.ruleRemedies(pol, &rules[i], policy.Origin{Policy: pol.ID(), Rule: i})...)
		}
	}
	return append(smallest(list, MaxRemedies-1), v.newPolicy())
}

func (v *view) newPolicy() Remedy {
	return Remedy{Changes: []Change{{
		Kind: AddPolicy, Subject: v.otherName(), Pod: v.self.pod.ID(), Direction: v.direction.String(),
		Protocol: v.packet.Protocol, Port: v.packet.Port,
	}}}
}

func (v *view) otherName() string {
	if v.other.pod != nil {
		return v.other.pod.ID()
	}
	return v.other.addr.String()
}

// ruleRemedies combine each way for a peer to match with each way for a port to match under that peer.
func (v *view) ruleRemedies(pol *policy.Policy, r *policy.PolicyRule, origin policy.Origin) (list []Remedy) {
	by := v.m.match(pol, r, v.other)
	for _, peer := range v.peerFixes(pol, r, by) {
		names := (by | peer.by).names(v.direction)
		for _, port := range v.portFixes(r, names, origin) {
			list = append(list, Remedy{&origin, slices.Concat(peer.changes, port)})
		}
	}
	if by != 0 || !v.portsFit(r) {
		return list
	}
	peer := Change{
		Kind:      AddRulePeer,
		Subject:   v.otherName(),
		Policy:    origin.Policy,
		Direction: v.direction.String(),
		Rule:      origin.Rule,
	}
	return append(list, Remedy{&origin, []Change{peer}})
}

// portsFit reports whether the rule would allow the packet's port to a peer that is added for the other end.
func (v *view) portsFit(r *policy.PolicyRule) bool {
	by := bySelector
	if v.other.pod == nil {
		by = byBlock
	}
	return by.portsAllow(r, v.direction, v.to(), v.packet)
}

// peerFix is what makes a peer match, and how it matches then.
type peerFix struct {
	by      match
	changes []Change
}

func (v *view) peerFixes(pol *policy.Policy, r *policy.PolicyRule, by match) (fixes []peerFix) {
	if by != 0 {
		fixes = append(fixes, peerFix{by: by})
	}
	if by&(byAny|bySelector) != 0 {
		return fixes
	}
	for i := range r.Peers {
		if changes, ok := v.labelFixes(pol, &r.Peers[i]); ok {
			fixes = append(fixes, peerFix{bySelector, changes})
		}
	}
	return fixes
}

// labelFixes returns the label changes that make a peer with selectors match; ok is false if none can.
func (v *view) labelFixes(pol *policy.Policy, peer *policy.Peer) (changes []Change, ok bool) {
	for _, f := range v.peerFailures(pol, peer) {
		if f.Kind != PodLabel && f.Kind != NamespaceLabel {
			return nil, false
		}
	}
	if peer.Block != nil {
		return nil, false
	}
	pod := v.other.pod
	if peer.Namespaces != nil {
		ns := v.m.namespaces[pod.Namespace]
		changes, ok = satisfy(peer.Namespaces, ns.Labels, Change{Kind: SetNamespaceLabel, Subject: ns.Name})
		if !ok {
			return nil, false
		}
	}
	if peer.Pods == nil {
		return changes, true
	}
	pods, ok := satisfy(peer.Pods, pod.Labels, Change{Kind: SetLabel, Subject: pod.ID()})
	return append(pods, changes...), ok
}

// nameLabel is the label that Kubernetes itself gives each namespace, and keeps.
const nameLabel = "kubernetes.io/metadata.name"

// satisfy returns the labels to set or remove so that the selector matches, sorted by key. ok is false for a selector
// that contradicts itself.
func satisfy(s *policy.Selector, labels map[string]string, like Change) (changes []Change, ok bool) {
	for _, r := range s.Requirements {
		if meets(&r, labels) || slices.ContainsFunc(changes, func(c Change) bool { return c.Key == r.Key }) {
			continue
		}
		c, ok := satisfyKey(s, r.Key, like)
		if !ok || like.Kind == SetNamespaceLabel && r.Key == nameLabel {
			return nil, false
		}
		changes = append(changes, c)
	}
	slices.SortFunc(changes, func(a, b Change) int { return cmp.Compare(a.Key, b.Key) })
	return changes, true
}

// satisfyKey finds a value for a key, or its absence, that all requirements on that key accept: first a value that one
// of them names, then none at all, then any other.
func satisfyKey(s *policy.Selector, key string, like Change) (Change, bool) {
	var on policy.Selector
	var candidates []string
	for _, r := range s.Requirements {
		if r.Key != key {
			continue
		}
		on.Requirements = append(on.Requirements, r)
		if r.Operator == policy.In {
			candidates = append(candidates, r.Values...)
		}
	}
	slices.Sort(candidates)
	like.Key = key
	for _, value := range candidates {
		if on.Matches(map[string]string{key: value}) {
			like.Value = value
			return like, true
		}
	}
	if on.Matches(nil) {
		like.Kind = removal(like.Kind)
		return like, true
	}
	like.Value = unused(on.Requirements)
	return like, on.Matches(map[string]string{key: like.Value})
}

func removal(set ChangeKind) ChangeKind {
	if set == SetNamespaceLabel {
		return RemoveNamespaceLabel
	}
	return RemoveLabel
}

// unused returns a value that no requirement has.
func unused(requirements []policy.Requirement) string {
	value := "true"
	named := func(r policy.Requirement) bool { return slices.Contains(r.Values, value) }
	for n := 1; slices.ContainsFunc(requirements, named); n++ {
		value = fmt.Sprintf("true-%d", n)
	}
	return value
}

// portFixes returns the alternatives for a port to match: no change, another port to use, or adding the packet's port
// to the rule.
func (v *view) portFixes(r *policy.PolicyRule, names bool, origin policy.Origin) (fixes [][]Change) {
	to := v.to()
	matches := func(pp policy.PolicyPort) bool { return portMatches(pp, names, to, v.packet) }
	if r.AnyPort || slices.ContainsFunc(r.Ports, matches) {
		return [][]Change{nil}
	}
	for _, pp := range r.Ports {
		if port, ok := v.usable(pp, names); ok {
			fixes = append(fixes, []Change{{Kind: UsePort, Protocol: pp.Protocol, Port: port}})
		}
	}
	kind := AddRulePort
	if !hasPorts(v.packet.Protocol) {
		kind = RemoveRulePorts
	}
	return append(fixes, []Change{{
		Kind: kind, Policy: origin.Policy, Direction: v.direction.String(), Rule: origin.Rule,
		Protocol: v.packet.Protocol, Port: v.packet.Port,
	}})
}

// usable returns the port of an entry that is closest to the packet's.
func (v *view) usable(pp policy.PolicyPort, names bool) (port uint16, ok bool) {
	if pp.Name == "" {
		return max(pp.First, min(pp.Last, v.packet.Port)), true
	}
	numbers := numbersOf(pp, v.to())
	if !names || len(numbers) == 0 {
		return 0, false
	}
	return numbers[0], true
}

// smallest sorts remedies, leaves out those that contain all changes of another, and keeps the first so many.
func smallest(list []Remedy, most int) (kept []Remedy) {
	slices.SortStableFunc(list, compareRemedies)
	for _, r := range list {
		if len(kept) < most &&
			!slices.ContainsFunc(kept, func(k Remedy) bool { return containsAll(r.Changes, k.Changes) }) {
			kept = append(kept, r)
		}
	}
	return kept
}

func compareRemedies(a, b Remedy) int {
	if c := cmp.Compare(len(a.Changes), len(b.Changes)); c != 0 {
		return c
	}
	for i := range a.Changes {
		x, y := a.Changes[i], b.Changes[i]
		if c := cmp.Compare(slices.Index(changeOrder, x.Kind), slices.Index(changeOrder, y.Kind)); c != 0 {
			return c
		}
	}
	return cmp.Compare(a.String(), b.String())
}

func containsAll(set, part []Change) bool {
	return !slices.ContainsFunc(part, func(c Change) bool { return !slices.Contains(set, c) })
}
