package lint

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// mostCompared is how many times a rule is looked at for a kind of pods and one of their peers: a few seconds' work.
const mostCompared = 4_000_000

// redundancy looks for what could go without a change of any verdict: first policies, then rules. What was found counts as gone
// for what comes after, so that all of it could go together.
type redundancy struct {
	*checker
	inForce []*policy.Policy // dry runs have no part in verdicts
	model   *explain.Model
	rules   []ruleAt
	first   map[*policy.Policy]int // of its rules; those of both directions follow
	pairs   []pair
	in      [][]int // of each rule: the pairs where it lets something through
	of      map[*policy.Policy][]int
	group   map[groupKey][]int // rules that may cover each other
	wider   map[[2]*policy.Policy]bool
	left    int // of the comparisons of rules with each other
}

type groupKey struct {
	namespace string
	direction policy.Direction
}

type ruleAt struct {
	at
	*policy.PolicyRule
	gone bool
}

// pair is a kind of pods in one direction and an address: which policies isolate, and what each rule lets through.
type pair struct {
	isolating []*policy.Policy
	parts     []part
}

type part struct {
	rule    int
	through explain.Connections
}

func (k *checker) redundant() {
	r := &redundancy{checker: k, model: explain.NewModel(k.World), first: map[*policy.Policy]int{}, of: map[*policy.Policy][]int{},
		group: map[groupKey][]int{}, wider: map[[2]*policy.Policy]bool{}, left: cmp.Or(k.most, mostCompared)}
	r.inForce = slices.DeleteFunc(slices.Clone(k.World.Policies), func(pol *policy.Policy) bool { return pol.Audit })
	for _, pol := range r.inForce {
		r.addRules(pol)
	}
	r.in = make([][]int, len(r.rules))
	compared := r.compare()
	gone := map[*policy.Policy]bool{}
	for _, pol := range slices.Backward(r.inForce) {
		if compared && k.ours(pol) && r.withoutEffect(pol, gone) {
			gone[pol] = true
			r.tellNoEffect(pol, gone)
			for i := range r.rules {
				r.rules[i].gone = r.rules[i].gone || r.rules[i].policy == pol
			}
		}
	}
	for i := range slices.Backward(r.rules) {
		if rule := &r.rules[i]; !rule.gone && k.ours(rule.policy) {
			r.judge(i, compared)
		}
	}
	if !compared && len(r.inForce) > 0 {
		k.findings = append(k.findings, Finding{Code: NotCompared, Severity: Info, Field: "spec", Rule: -1,
			Message: "there are too many pods and policies to find the rules that others cover with the pods that there are", Remedy: "look at one namespace at a time"})
	}
}

func (k *checker) ours(pol *policy.Policy) bool {
	return k.Namespace == "" || pol.Namespace == k.Namespace
}

func (r *redundancy) addRules(pol *policy.Policy) {
	r.first[pol] = len(r.rules)
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		if !explain.IsolatesIn(pol, d) {
			continue
		}
		rules := explain.RulesOf(pol, d)
		for i := range rules {
			p, key := at{policy: pol, direction: d, rule: i}, groupKey{pol.Namespace, d}
			r.group[key] = append(r.group[key], len(r.rules))
			r.rules = append(r.rules, ruleAt{at: p.in("spec.%s[%d]", d, i), PolicyRule: &rules[i], gone: nothing(d, &rules[i]) != ""})
		}
	}
}

// compare fills the pairs; false: there would be too many.
func (r *redundancy) compare() bool {
	kinds, outside := r.model.Kinds(), r.model.Outside()
	budget := cmp.Or(r.most, mostCompared)
	for i, kind := range kinds {
		if r.Namespace != "" && kind[0].Namespace != r.Namespace {
			continue
		}
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			isolating := r.model.Isolating(d, kind[0])
			if len(isolating) == 0 {
				continue
			}
			rules := 0
			for _, pol := range isolating {
				rules += len(explain.RulesOf(pol, d))
			}
			if budget -= (2*len(kinds) + len(outside)) * (rules + 1); budget < 0 {
				return false
			}
			for j, other := range kinds {
				if i == j && len(kind) == 1 {
					continue // a pod and itself are not judged
				}
				for _, six := range []bool{false, true} {
					r.addPair(d, kind[0], isolating, r.model.AddressOf(other[len(other)-1], six))
				}
			}
			for _, a := range outside {
				r.addPair(d, kind[0], isolating, a)
			}
		}
	}
	return true
}

func (r *redundancy) addPair(d policy.Direction, self *policy.Endpoint, isolating []*policy.Policy, other netip.Addr) {
	if !other.IsValid() || !r.model.AddressOf(self, other.Is6()).IsValid() {
		return
	}
	p := pair{isolating: isolating}
	number := len(r.pairs)
	for _, pol := range isolating {
		index := r.first[pol]
		if d == policy.Egress && pol.IsolatesIngress {
			index += len(pol.Ingress)
		}
		for i := range explain.RulesOf(pol, d) {
			rule := &r.rules[index+i]
			through := r.model.Part(pol, rule.PolicyRule, d, self, other)
			if through.IsNone() {
				continue
			}
			p.parts = append(p.parts, part{index + i, through})
			r.in[index+i] = append(r.in[index+i], number)
		}
		r.of[pol] = append(r.of[pol], number)
	}
	r.pairs = append(r.pairs, p)
}

// withoutEffect tells whether a policy that isolates somebody changes nothing, when those that are gone are not there.
func (r *redundancy) withoutEffect(pol *policy.Policy, gone map[*policy.Policy]bool) bool {
	for _, n := range r.of[pol] {
		p := &r.pairs[n]
		without := explain.Connections{}
		if !slices.ContainsFunc(p.isolating, func(o *policy.Policy) bool { return o != pol && !gone[o] }) {
			without = explain.All()
		}
		with := explain.Connections{}
		for _, one := range p.parts {
			switch rule := &r.rules[one.rule]; {
			case rule.policy == pol:
				with = with.Union(one.through)
			case !gone[rule.policy]:
				with, without = with.Union(one.through), without.Union(one.through)
			}
		}
		if !with.Equal(without) {
			return false
		}
	}
	return len(r.of[pol]) > 0
}

// tellNoEffect tells it as an info where other pods may make it needed, such as a default deny that policies of all pods repeat.
func (r *redundancy) tellNoEffect(pol *policy.Policy, gone map[*policy.Policy]bool) {
	where, remedy := at{policy: pol, field: "spec"}, "delete it, or correct what it is to do"
	if r.needless(pol, gone) {
		r.find(PolicyNoEffect, where, remedy, "it changes nothing, whatever pods there are: others isolate its pods too, and let all through that it does")
		return
	}
	r.find(PolicyNoEffect, where, "keep it if it is for pods that may come, or delete it", "with the pods that there are it changes nothing: without it, the same would pass and the same be denied").Severity = Info
}

// needless tells whether others that are not gone isolate and let through all that a policy does, whatever pods there are.
func (r *redundancy) needless(pol *policy.Policy, gone map[*policy.Policy]bool) bool {
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		isolates := explain.IsolatesIn(pol, d)
		if isolates && !slices.ContainsFunc(r.inForce, func(o *policy.Policy) bool {
			return o != pol && !gone[o] && o.Namespace == pol.Namespace && explain.IsolatesIn(o, d) && r.isWider(o, pol)
		}) {
			return false
		}
	}
	for i := range r.rules {
		rule := &r.rules[i]
		if rule.policy == pol && !rule.gone && !slices.ContainsFunc(r.candidates(rule), func(j int) bool { o := &r.rules[j]; return o.policy != pol && r.covers(o, rule) }) {
			return false
		}
	}
	return true
}

// covers tells whether a rule that is not gone lets all of another through, whatever pods there are.
func (r *redundancy) covers(o, rule *ruleAt) bool {
	return !o.gone && r.isWider(o.policy, rule.policy) && covers(o.PolicyRule, rule.policy.Namespace, rule.PolicyRule)
}

// judge tells whether a rule is covered: by one other whatever pods there are, or by all others with those that there are.
func (r *redundancy) judge(i int, compared bool) {
	rule := &r.rules[i]
	const remedy = "remove it, or correct what it is to allow"
	for _, j := range r.candidates(rule) {
		o := &r.rules[j]
		if j != i && r.covers(o, rule) {
			rule.gone = true
			r.find(CoveredAlways, rule.at, remedy, "whatever it lets through, %s does too", o.at).By = []string{o.String()}
			return
		}
	}
	if !compared || len(r.in[i]) == 0 {
		return // it lets nothing through now: of that other findings speak
	}
	if by, covered := r.covered(i); covered {
		rule.gone = true
		r.find(CoveredNow, rule.at, remedy, "with the pods that there are, others let all of it through too: %s", strings.Join(by[:min(3, len(by))], ", ")).By = by
	}
}

// candidates are the rules that may cover one, by their numbers: of the namespace or, where that were too many, of the policy.
func (r *redundancy) candidates(rule *ruleAt) []int {
	if all := r.group[groupKey{rule.policy.Namespace, rule.direction}]; len(all) <= r.left {
		r.left -= len(all)
		return all
	}
	own := r.first[rule.policy]
	var out []int // of the same policy
	for i := own; i < len(r.rules) && r.rules[i].policy == rule.policy; i++ {
		if r.rules[i].direction == rule.direction {
			out = append(out, i)
		}
	}
	return out
}

// isWider tells whether one policy applies to all pods of the namespace that another does, whatever they are.
func (r *redundancy) isWider(wide, narrow *policy.Policy) bool {
	if wide == narrow {
		return true
	}
	key := [2]*policy.Policy{wide, narrow}
	is, known := r.wider[key]
	if !known {
		is = implies(&narrow.AppliedTo, &wide.AppliedTo)
		r.wider[key] = is
	}
	return is
}

// covered tells whether the other rules let all of a rule through, and which of them some of it.
func (r *redundancy) covered(i int) (by []string, covered bool) {
	helps := map[int]bool{}
	for _, n := range r.in[i] {
		var left explain.Connections
		for _, one := range r.pairs[n].parts {
			if one.rule == i {
				left = one.through
			}
		}
		for _, one := range r.pairs[n].parts {
			if one.rule == i || r.rules[one.rule].gone || left.IsNone() {
				continue
			}
			rest := left.Minus(one.through)
			if !rest.Equal(left) {
				helps[one.rule] = true
			}
			left = rest
		}
		if !left.IsNone() {
			return nil, false
		}
	}
	for j := range r.rules {
		if helps[j] {
			by = append(by, r.rules[j].String())
		}
	}
	return by, true
}
