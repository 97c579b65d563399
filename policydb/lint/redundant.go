package lint

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// maxCompared is how many peers and ports of rules are looked at for kinds of pods and their peers, maxHeld how many
// ranges of ports are kept for that.
const (
	maxCompared = 10_000_000
	maxHeld     = 500_000
)

// redundancy looks for what could go without a change of any verdict: first policies, then rules. What was found
// counts as gone for what comes after, so that all of it could go together.
type redundancy struct {
	*checker
	inForce []*policy.Policy // dry runs have no part in verdicts
	model   *explain.Model
	rules   []ruleAt
	first   map[*policy.Policy]int // of its rules; those of both directions follow
	pairs   []pair                 // of which no two are alike
	known   map[string]bool        // keys of pairs
	in      [][]int                // of each rule: the pairs where it lets something through
	of      map[*policy.Policy][]int
	group   map[groupKey][]int // rules that may cover each other
	wider   map[[2]*policy.Policy]bool
	budget  budget
	gone    map[*policy.Policy]bool
}

// budget is what is left of the comparisons.
type budget struct {
	all, own int // of rules with each other: of a namespace, and of a policy
	help     int // of parts that may cover another
	held     int // of ranges in pairs
	short    bool
}

type groupKey struct {
	namespace string
	direction policy.Direction
}

type ruleAt struct {
	at
	*policy.PolicyRule
	gone    bool
	named   bool                // a port is a name
	numbers explain.Connections // all that is no name
	ports   ports               // of the numbers
}

// pair is a kind of pods in one direction and an address: which policies isolate, and what each rule lets through.
type pair struct {
	isolating []*policy.Policy
	parts     []part // by rule
	covered   *coverage
}

type part struct {
	rule    int
	through ports
}

func (k *checker) redundant() {
	most := cmp.Or(k.most, maxCompared)
	r := &redundancy{
		checker: k,
		model:   explain.NewModel(k.World),
		first:   map[*policy.Policy]int{},
		known:   map[string]bool{},
		of:      map[*policy.Policy][]int{},
		group:   map[groupKey][]int{},
		wider:   map[[2]*policy.Policy]bool{},
		budget:  budget{all: most, own: most, help: maxCompared, held: maxHeld},
		gone:    map[*policy.Policy]bool{},
	}
	r.inForce = slices.DeleteFunc(slices.Clone(k.World.Policies), func(pol *policy.Policy) bool { return pol.DryRun })
	for _, pol := range r.inForce {
		r.addRules(pol)
	}
	r.in = make([][]int, len(r.rules))
	compared := r.compare(most)
	for _, pol := range slices.Backward(r.inForce) {
		if compared && k.ours(pol) && k.effort.step(1+len(r.of[pol])) && r.withoutEffect(pol) {
			r.gone[pol] = true
			r.reportNoEffect(pol)
			for i := r.first[pol]; i < len(r.rules) && r.rules[i].policy == pol; i++ {
				r.remove(i)
			}
		}
	}
	for i := range slices.Backward(r.rules) {
		if rule := &r.rules[i]; !rule.gone && k.ours(rule.policy) && k.effort.step(1) {
			r.judge(i, compared)
		}
	}
	if (!compared || r.budget.short) && len(r.inForce) > 0 {
		k.notCompared("there are too many pods and policies to find all the rules that others cover")
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
			r.rules = append(r.rules, newRuleAt(p.in("spec.%s[%d]", d, i), &rules[i]))
		}
	}
}

func newRuleAt(p at, rule *policy.PolicyRule) ruleAt {
	out := ruleAt{at: p, PolicyRule: rule, gone: nothing(p.direction, rule) != "", numbers: explain.All()}
	if !rule.AnyPort {
		var ranges []policy.PortRange
		for _, pp := range rule.Ports {
			if pp.Name != "" {
				out.named = true
				continue
			}
			ranges = append(ranges, policy.PortRange{Protocol: pp.Protocol, First: pp.First, Last: pp.Last})
		}
		out.numbers = explain.Union(ranges)
	}
	out.ports = portsOf(out.numbers)
	return out
}

// cost returns what it takes to compare a rule with a pod.
func (r *ruleAt) cost() int {
	if r.named {
		return 1 + len(r.Peers) + len(r.Ports)
	}
	return 1 + len(r.Peers)
}

// compare fills the pairs; false: there would be too many.
func (r *redundancy) compare(most int) bool {
	kinds, outside := r.model.Kinds(), r.model.Outside()
	for i, kind := range kinds {
		if r.Namespace != "" && kind[0].Namespace != r.Namespace {
			continue
		}
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			isolating := r.model.Isolating(d, kind[0])
			if len(isolating) == 0 {
				continue
			}
			cost := 1
			for _, pol := range isolating {
				for i, end := r.rulesIn(pol, d); i < end; i++ {
					cost += r.rules[i].cost()
				}
			}
			cost *= 2*len(kinds) + len(outside)
			if most -= cost; most < 0 || !r.effort.step(cost) {
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
			if r.budget.held < 0 {
				return false
			}
		}
	}
	for i := range r.pairs {
		p := &r.pairs[i]
		lists := make([]ports, len(p.parts))
		for n := range p.parts {
			lists[n] = p.parts[n].through
		}
		p.covered = newCoverage(lists)
	}
	return r.effort.step(1)
}

// rulesIn returns the numbers of a policy's rules in a direction.
func (r *redundancy) rulesIn(pol *policy.Policy, d policy.Direction) (first, end int) {
	first = r.first[pol]
	if d == policy.Egress && pol.IsolatesIngress {
		first += len(pol.Ingress)
	}
	return first, first + len(explain.RulesOf(pol, d))
}

func (r *redundancy) addPair(d policy.Direction, self *policy.Endpoint, isolating []*policy.Policy, other netip.Addr) {
	if !other.IsValid() || !r.model.AddressOf(self, other.Is6()).IsValid() {
		return
	}
	p := pair{isolating: isolating}
	key := []byte(d.String())
	for _, pol := range isolating {
		first, end := r.rulesIn(pol, d)
		key = binary.LittleEndian.AppendUint32(append(key, '|'), uint32(r.first[pol]))
		key = append(key, pol.Name...)
		for i := first; i < end; i++ {
			rule := &r.rules[i]
			through := rule.ports
			switch {
			case rule.named:
				through = portsOf(r.model.Part(pol, rule.PolicyRule, d, self, other))
			case !explain.Matches(r.model, pol, rule.PolicyRule, other):
				continue
			}
			if len(through) == 0 {
				continue
			}
			p.parts = append(p.parts, part{i, through})
			key = binary.LittleEndian.AppendUint32(append(key, 0), uint32(i))
			for _, one := range through {
				if rule.named {
					key = binary.LittleEndian.AppendUint64(key, uint64(one.first)<<32|uint64(one.last))
				}
			}
		}
	}
	sum := sha256.Sum256(key)
	if r.known[string(sum[:])] || r.budget.held < 0 {
		return
	}
	r.known[string(sum[:])] = true
	number := len(r.pairs)
	r.pairs = append(r.pairs, p)
	for _, one := range p.parts {
		r.budget.held -= 1 + len(one.through)
		r.in[one.rule] = append(r.in[one.rule], number)
	}
	for _, pol := range isolating {
		r.budget.held--
		r.of[pol] = append(r.of[pol], number)
	}
}

// partsOf returns those of a policy's rules.
func (r *redundancy) partsOf(p *pair, pol *policy.Policy) []part {
	from, _ := slices.BinarySearchFunc(p.parts, r.first[pol],
		func(one part, rule int) int { return cmp.Compare(one.rule, rule) })
	to := from
	for to < len(p.parts) && r.rules[p.parts[to].rule].policy == pol {
		to++
	}
	return p.parts[from:to]
}

// remove takes a rule away.
func (r *redundancy) remove(i int) {
	if r.rules[i].gone {
		return
	}
	r.rules[i].gone = true
	for _, n := range r.in[i] {
		r.pairs[n].covered.add(r.pairs[n].partOf(i), -1)
	}
}

// partOf returns what a rule lets through.
func (p *pair) partOf(rule int) ports {
	i, found := slices.BinarySearchFunc(p.parts, rule,
		func(one part, rule int) int { return cmp.Compare(one.rule, rule) })
	if !found {
		return nil
	}
	return p.parts[i].through
}

// withoutEffect reports whether removing a policy that isolates pods would change nothing, given that the removed
// rules and policies are absent.
func (r *redundancy) withoutEffect(pol *policy.Policy) bool {
	for _, n := range r.of[pol] {
		if !r.withoutEffectIn(&r.pairs[n], pol) {
			return false
		}
	}
	return len(r.of[pol]) > 0
}

func (r *redundancy) withoutEffectIn(p *pair, pol *policy.Policy) bool {
	isolatesToo := func(o *policy.Policy) bool { return o != pol && !r.gone[o] }
	if !slices.ContainsFunc(p.isolating, isolatesToo) {
		return p.covered.over(everywhere) > 0
	}
	own := r.partsOf(p, pol)
	if !r.effort.step(1 + len(own)) {
		return false
	}
	for _, one := range own {
		p.covered.add(one.through, -1)
	}
	same := !slices.ContainsFunc(own, func(one part) bool { return p.covered.over(one.through) < 1 })
	for _, one := range own {
		p.covered.add(one.through, 1)
	}
	return same
}

// reportNoEffect reports a policy without effect. It is an info if pods created later may need the policy, such as a
// default deny that policies of all existing pods repeat.
func (r *redundancy) reportNoEffect(pol *policy.Policy) {
	where, remedy := at{policy: pol, field: "spec"}, "delete it, or correct its rules"
	if r.needless(pol) {
		r.find(PolicyNoEffect, where, remedy,
			"it changes nothing for any pods: other policies isolate the same pods and allow all that it allows")
		return
	}
	found := r.find(PolicyNoEffect, where, "keep it if it is for future pods, or delete it",
		"it changes nothing for the existing pods: without it, the same connections are allowed and denied")
	found.Severity = Info
}

// needless reports whether remaining policies isolate and allow all that a policy does, for all pods.
func (r *redundancy) needless(pol *policy.Policy) bool {
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		isolates := explain.IsolatesIn(pol, d)
		if isolates && !slices.ContainsFunc(r.inForce, func(o *policy.Policy) bool {
			return r.effort.step(1) && o != pol && !r.gone[o] && o.Namespace == pol.Namespace &&
				explain.IsolatesIn(o, d) && r.isWider(o, pol)
		}) {
			return false
		}
	}
	for i := r.first[pol]; i < len(r.rules) && r.rules[i].policy == pol; i++ {
		rule := &r.rules[i]
		if !rule.gone &&
			!slices.ContainsFunc(r.candidates(rule),
				func(j int) bool { o := &r.rules[j]; return o.policy != pol && r.covers(o, rule) }) {
			return false
		}
	}
	return true
}

// covers reports whether a remaining rule allows all that another one allows, for all pods.
func (r *redundancy) covers(o, rule *ruleAt) bool {
	return !o.gone && r.isWider(o.policy, rule.policy) && r.effort.step(len(o.Peers)*len(rule.Peers)+len(rule.Ports)) &&
		covers(o, rule.policy.Namespace, rule)
}

// judge reports a rule that is covered: by one other rule for all pods, or by all other rules for the existing pods.
func (r *redundancy) judge(i int, compared bool) {
	rule := &r.rules[i]
	const remedy = "remove it, or correct its peers and ports"
	for _, j := range r.candidates(rule) {
		o := &r.rules[j]
		if j != i && r.covers(o, rule) {
			r.remove(i)
			found := r.find(CoveredAlways, rule.at, remedy, "%s allows all that it allows", o.at)
			found.By = []string{o.String()}
			return
		}
	}
	if !compared || len(r.in[i]) == 0 {
		return // it allows nothing at present, which other findings report
	}
	if by, covered := r.covered(i); covered {
		r.remove(i)
		found := r.find(CoveredNow, rule.at, remedy, "for the existing pods, other rules allow all that it allows: %s",
			strings.Join(by[:min(3, len(by))], ", "))
		found.By = by
	}
}

// candidates returns the numbers of the rules that may cover a rule: those of its namespace or, if these exceed the
// budget, those of its policy.
func (r *redundancy) candidates(rule *ruleAt) []int {
	all := r.group[groupKey{rule.policy.Namespace, rule.direction}]
	if len(all) <= r.budget.all {
		r.budget.all -= len(all)
		return all
	}
	first, end := r.rulesIn(rule.policy, rule.direction)
	if r.budget.own -= end - first; r.budget.own < 0 {
		r.budget.short = true
		return nil
	}
	at, _ := slices.BinarySearch(all, first)
	return all[at : at+end-first]
}

// isWider reports whether the first policy's selector selects all pods that the second one's selects.
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

// covered reports whether the other rules let all of a rule through, and which of them some of it, as far as the budget
// goes.
func (r *redundancy) covered(i int) (by []string, covered bool) {
	for _, n := range r.in[i] {
		if p := &r.pairs[n]; !r.effort.step(1) || p.covered.over(p.partOf(i)) < 2 {
			return nil, false
		}
	}
	helps := map[int]bool{}
	for _, n := range r.in[i] {
		left := r.pairs[n].partOf(i)
		for _, one := range r.pairs[n].parts {
			if one.rule == i || r.rules[one.rule].gone {
				continue
			}
			if r.budget.help -= 1 + len(left); len(left) == 0 || r.budget.help < 0 {
				break
			}
			rest, less := left.minus(one.through)
			if less {
				helps[one.rule] = true
			}
			left = rest
		}
	}
	for _, j := range slices.Sorted(maps.Keys(helps)) {
		by = append(by, r.rules[j].String())
	}
	return by, true
}
