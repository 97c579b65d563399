package webui

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// explained is an explanation in the same sentences as netctl's.
type explained struct {
	Revision uint64   `json:"revision"`
	From     string   `json:"from"`
	To       string   `json:"to"`
	Ways     []way    `json:"ways"`
	Problems []string `json:"problems"`
	// Service is the Service that the packets are sent to; empty if To is not one. Notes are further influences on
	// where packets go.
	Service string        `json:"service,omitempty"`
	Notes   []string      `json:"notes,omitempty"`
	Ports   []servicePort `json:"ports,omitempty"`
}

type way struct {
	Family  int    `json:"family"`
	From    end    `json:"from"`
	To      end    `json:"to"`
	Packet  string `json:"packet"`
	Allowed bool   `json:"allowed"`
	// Caveat is why the verdict is no fact; empty if it is one.
	Caveat string `json:"caveat,omitempty"`
	// Unproved: no switch was queried.
	Unproved    bool   `json:"unproved,omitempty"`
	PortChosen  bool   `json:"portChosen,omitempty"`
	Connections string `json:"connections"`
	// Always is why policies do not apply, if so.
	Always string `json:"always,omitempty"`
	// AsBefore reports whether the reasons equal those of the previous way.
	AsBefore      bool     `json:"asBefore,omitempty"`
	Sides         []side   `json:"sides"`
	Traces        []trace  `json:"traces"`
	Disagreements []string `json:"disagreements"`
}

type end struct {
	Name    string   `json:"name"`
	Address string   `json:"address"`
	Node    string   `json:"node,omitempty"`
	Labels  []string `json:"labels,omitempty"`
}

type side struct {
	Direction string         `json:"direction"`
	Allowed   bool           `json:"allowed"`
	Summary   string         `json:"summary"`
	Policies  []policyReport `json:"policies,omitempty"`
	More      int            `json:"more,omitempty"` // policies that are not listed
	Remedies  []string       `json:"remedies,omitempty"`
}

type policyReport struct {
	Policy string       `json:"policy"`
	Allows bool         `json:"allows"`
	Rules  []ruleReport `json:"rules"`
}

type ruleReport struct {
	Name    string  `json:"name"`
	Allows  bool    `json:"allows"`
	Entries []entry `json:"entries"`
}

// entry is a peer or port of a rule, and why it does not match.
type entry struct {
	Text    string `json:"text"`
	Matches bool   `json:"matches"`
	Why     string `json:"why,omitempty"`
}

type trace struct {
	Node    string `json:"node"`
	Passed  bool   `json:"passed"`
	Out     string `json:"out"`
	Problem string `json:"problem,omitempty"`
	Steps   []step `json:"steps"`
}

type step struct {
	Table string `json:"table"`
	Flow  string `json:"flow"`
	For   string `json:"for,omitempty"`
}

func explainedOf(x *inspect.Explained) explained {
	out := explained{
		Revision: x.Revision,
		From:     x.From,
		To:       x.To.Name,
		Ways:     []way{},
		Problems: append([]string{}, x.Problems...),
	}
	if svc := x.Service; svc != nil {
		out.Service, out.Notes, out.Ports = svc.Namespace+"/"+svc.Name, svc.Notes, portsOf(svc, x.Ways)
	}
	for i := range x.Ways {
		w := wayOf(&x.Ways[i])
		w.AsBefore = i > 0 && sameReasons(&x.Ways[i-1], &x.Ways[i])
		out.Ways = append(out.Ways, w)
	}
	return out
}

func wayOf(in *inspect.Way) way {
	out := way{
		Family:        4,
		From:          endOf(&in.From),
		To:            endOf(&in.To),
		Packet:        packetText(in.Protocol, in.Port),
		Allowed:       in.Allowed,
		Caveat:        strings.Join(in.Caveats(), "; "),
		Unproved:      in.Unproved,
		PortChosen:    in.PortChosen,
		Connections:   in.Connections.String(),
		Disagreements: append([]string{}, in.Disagreements...),
		Traces:        []trace{},
		Sides:         []side{},
	}
	if in.From.Address.Is6() {
		out.Family = 6
	}
	switch {
	case in.Self:
		out.Always = "a pod always reaches itself"
	case in.OfTheNode:
		out.Always = "a node always reaches its own pods"
	default:
		out.Sides = append(out.Sides, sideOf(in, policy.Egress),
			sideOf(in, policy.Ingress))
		if run := in.DryRun; run != nil {
			out.Sides[0].Summary += dryRunText(policy.Egress, out.From.Name, run.Egress)
			out.Sides[1].Summary += dryRunText(policy.Ingress, out.To.Name, run.Ingress)
		}
	}
	for i := range in.Traces {
		out.Traces = append(out.Traces, traceOf(&in.Traces[i]))
	}
	return out
}

func packetText(p policy.Protocol, port uint16) string {
	const icmp, icmpv6 = 1, 58
	if p == icmp || p == icmpv6 {
		return "ICMP"
	}
	return fmt.Sprintf("%s/%d", p, port)
}

func endOf(e *explain.End) end {
	out := end{Name: e.Address.String(), Address: e.Address.String(), Node: e.Node}
	if len(e.Pods) > 0 && e.Kind == explain.Pod {
		out.Name = e.Pods[0]
	}
	for k, v := range e.Labels {
		out.Labels = append(out.Labels, k+"="+v)
	}
	slices.Sort(out.Labels)
	return out
}

func sideOf(w *inspect.Way, d policy.Direction) side {
	e, in := &w.From, &w.Egress
	if d == policy.Ingress {
		e, in = &w.To, &w.Ingress
	}
	out := side{Direction: d.String(), Allowed: in.Allowed, Summary: summary(d, endOf(e).Name, in)}
	if !in.Allowed && !w.IsEnforced(e) {
		out.Summary = "not enforced, " + out.Summary
	}
	for i := range in.Policies {
		out.Policies = append(out.Policies, reportOf(d, &in.Policies[i]))
	}
	out.Policies, out.More = first(out.Policies, func(p policyReport) bool { return p.Allows })
	for _, r := range in.Remedies {
		out.Remedies = append(out.Remedies, r.String())
	}
	return out
}

func summary(d policy.Direction, who string, in *explain.Side) string {
	switch in.Reason {
	case explain.ReasonNotPod:
		return "open: policies select pods, and " + who + " is none"
	case explain.ReasonOpen:
		return "open: no policy isolates " + who
	case explain.ReasonAllowed:
		return fmt.Sprintf("allowed by %s; %s is isolated by %s", policy.OriginsText(d, in.Allowing()), who,
			strings.Join(in.Isolating(), ", "))
	}
	return fmt.Sprintf("denied: %s is isolated by %s, and no rule allows it", who, strings.Join(in.Isolating(), ", "))
}

// dryRunText returns a clause about dry runs, for an end that no enforced policy isolates.
func dryRunText(d policy.Direction, who string, in *explain.Side) string {
	switch {
	case in == nil:
		return ""
	case in.Allowed:
		return fmt.Sprintf("; in a dry run allowed by %s", policy.OriginsText(d, in.Allowing()))
	}
	return fmt.Sprintf("; in a dry run it would be denied: %s would be isolated by %s, and no rule would allow it",
		who, strings.Join(in.Isolating(), ", "))
}

func reportOf(d policy.Direction, in *explain.PolicyReport) policyReport {
	out := policyReport{Policy: in.Policy, Allows: in.Allows, Rules: []ruleReport{}}
	for i := range in.Rules {
		out.Rules = append(out.Rules, ruleOf(d, &in.Rules[i]))
	}
	var more int
	if out.Rules, more = first(out.Rules, func(r ruleReport) bool { return r.Allows }); more > 0 {
		out.Rules = append(out.Rules, ruleReport{Name: fmt.Sprintf("and %d more rules", more), Entries: []entry{}})
	}
	return out
}

// maxListedOf limits the listed policies, rules of a policy, and peers of a rule.
const maxListedOf = 50

// first returns the elements that matter, filled up with others to maxListedOf, and the number of the rest.
func first[T any](list []T, matters func(T) bool) (kept []T, more int) {
	if len(list) <= maxListedOf {
		return list, 0
	}
	slices.SortStableFunc(list, func(a, b T) int {
		switch x, y := matters(a), matters(b); {
		case x == y:
			return 0
		case x:
			return -1
		}
		return 1
	})
	return list[:maxListedOf], len(list) - maxListedOf
}

func ruleOf(d policy.Direction, in *explain.RuleReport) ruleReport {
	out := ruleReport{Name: fmt.Sprintf("%s[%d]", d, in.Rule), Allows: in.Allows, Entries: []entry{}}
	if in.AnyPeer {
		out.Entries = append(out.Entries, entry{Text: "everyone", Matches: true})
	}
	peers := make([]entry, 0, len(in.Peers))
	for _, p := range in.Peers {
		var why []string
		for _, f := range p.Failures {
			why = append(why, f.String())
		}
		peers = append(peers, entry{p.String(), p.Matches, strings.Join(why, "; ")})
	}
	peers, more := first(peers, func(e entry) bool { return e.Matches })
	if out.Entries = append(out.Entries, peers...); more > 0 {
		out.Entries = append(out.Entries,
			entry{Text: fmt.Sprintf("and %d more peers", more), Matches: peers[0].Matches})
	}
	if in.AnyPort {
		out.Entries = append(out.Entries, entry{Text: "all ports", Matches: true})
	}
	for _, p := range in.Ports {
		e := entry{Text: "port " + p.String(), Matches: p.Matches}
		if p.Failure != nil {
			e.Why = p.Failure.String()
		}
		out.Entries = append(out.Entries, e)
	}
	if !in.AnyPeer && len(in.Peers) == 0 || !in.AnyPort && len(in.Ports) == 0 {
		out.Entries = append(out.Entries, entry{Text: "nothing: all of its entries were refused"})
	}
	return out
}

func traceOf(in *inspect.Trace) trace {
	out := trace{Node: in.Node, Passed: in.Passed, Out: in.Out, Problem: in.Problem, Steps: []step{}}
	for i := range in.Steps {
		s := &in.Steps[i]
		flow := fmt.Sprintf("%s priority=%d", s.Match, s.Priority)
		if s.Missed {
			flow = "none matches"
		}
		out.Steps = append(out.Steps, step{s.TableName, strings.TrimSpace(flow), s.Note})
	}
	return out
}

// sameReasons compares the reasons of two address families.
func sameReasons(a, b *inspect.Way) bool {
	return a.Allowed == b.Allowed && a.Self == b.Self && a.OfTheNode == b.OfTheNode &&
		a.Protocol == b.Protocol && a.Port == b.Port &&
		a.Egress.Alike(&b.Egress) &&
		a.Ingress.Alike(&b.Ingress) &&
		a.DryRun.Alike(b.DryRun) &&
		a.EnforcedAlike(b)
}
