package nodeconfig

import (
	"slices"
	"strings"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
)

// evidence has the interfaces and attributes that a failing node's agent names.
type evidence struct {
	// named are the layers that want what the message names.
	named map[int]bool
	// whole: the message names something that is desired, and leaves nothing out. Who is not named then, is not at fault.
	whole bool
}

// evidenceOf looks for desired interfaces in the agent's message, and where it names attributes of theirs too, for
// those alone. Results of probes are no evidence: a change of one interface may cut off what another reaches.
func evidenceOf(message string, desired *aggregate) evidence {
	e := evidence{named: map[int]bool{}}
	if strings.Contains(message, nmstatev1.ProbesBroken) {
		return e
	}
	names, words := namesIn(message), wordsIn(message)
	closer := map[int]bool{}
	desired.visit(func(path []string, value any, by int) {
		if !names[interfaceOf(path)] && !mentions(path[len(path)-1], value, names) {
			return
		}
		e.named[by] = true
		for _, attribute := range path[1:] {
			if words[attribute] {
				closer[by] = true
			}
		}
	})
	if len(closer) > 0 {
		e.named = closer
	}
	cut := strings.HasSuffix(message, " more") || strings.HasSuffix(message, "…") // as agents end what is too long
	e.whole = len(e.named) > 0 && !cut
	return e
}

// visit visits all that is set: below an interface's key the names of its attributes; routes and rules by their section alone.
func (a *aggregate) visit(visit func(path []string, value any, by int)) {
	for _, p := range a.parts {
		at, m := p.place, p.merged
		for key, kid := range m.kids {
			path := []string{at.key(), key}
			if at.isList() {
				path = []string{at.section()}
			}
			kid.visit(path, func(path []string, is *entry) { visit(path, is.value, m.owners[is.by]) })
		}
	}
}

func (e *entry) visit(path []string, visit func(path []string, is *entry)) {
	if e.set {
		visit(path, e)
	}
	for key, kid := range e.kids {
		kid.visit(append(path[:len(path):len(path)], key), visit)
	}
}

// interfaceOf returns the name in an interface's key.
func interfaceOf(path []string) string {
	name, _, _ := strings.Cut(path[0], " ")
	return name
}

// plain are the attributes whose values are words of every message, and no names.
var plain = []string{"state", "type", "mode"}

// mentions reports whether the value of an attribute has a name in it: that of a port, a base or a next hop, or an
// address.
func mentions(attribute string, value any, names map[string]bool) bool {
	switch value := value.(type) {
	case string:
		return names[value] && !slices.Contains(plain, attribute)
	case []any:
		return slices.ContainsFunc(value, func(one any) bool { return mentions(attribute, one, names) })
	case map[string]any:
		for key, one := range value {
			if mentions(key, one, names) {
				return true
			}
		}
	}
	return false
}

// namesIn are the parts of a text that may be interfaces' names, which may have dots in them: "interfaces[eth1.7].mtu", "of eth1.7: busy".
func namesIn(text string) map[string]bool {
	found := map[string]bool{}
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\r\n[](){},;'\"", r) }) {
		found[part] = true
		found[strings.Trim(part, ".:")] = true
	}
	delete(found, "")
	return found
}

// wordsIn are the parts of a text that may be attributes' names.
func wordsIn(text string) map[string]bool {
	found := map[string]bool{}
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\r\n[](){},;'\".:", r) }) {
		found[part] = true
	}
	return found
}

// suspect is a policy on a failing node.
type suspect struct {
	inForce bool // it selects the node, and something of it matches there
	changed bool // it has the node's turn: the node has not been well since it changed
	blamed  bool // it is said to be failing already
	named   bool // by the agent
}

// others is what is known of the other policies there.
type others struct {
	changedNamed bool // one of those that changed the node is named
	blamed       bool // one is said to be failing, and nothing speaks against it
}

// verdict is what a failure says of a policy.
type verdict int

const (
	innocent  verdict = iota
	bystander         // it changes the node, but it was not what made it fail
	guilty
)

// judge goes by what the agent names; where it names nothing, by who has changed the node since it was well. Those that came to a
// node that another had made fail, or that were in force while the node was well, have not made it fail.
func judge(s suspect, e evidence, o others) verdict {
	if s.changed {
		switch {
		case e.whole && !s.named, o.blamed && !s.blamed:
			return bystander
		}
		return guilty
	}
	if s.inForce && s.named && !o.changedNamed {
		return guilty
	}
	return innocent
}

// judge returns the verdict about a policy from the node's failure, and for a bystander the reason.
func (d *decider) judge(by int, inForce bool) (v verdict, why string) {
	own := d.entryOf(by)
	s := suspect{inForce: inForce, changed: holdsTurn(own), blamed: own.Phase == nmstatev1.PhaseFailing, named: d.evidence.named[by]}
	o, culprit := d.othersThan(by)
	v = judge(s, d.evidence, o)
	if v == bystander {
		why = "the node is failing for another reason: " + d.node.message
		if culprit != "" {
			why = "the node has been failing before, because of policy " + culprit
		}
	}
	return v, why
}

func (d *decider) othersThan(by int) (o others, culprit string) {
	for other, p := range d.policies {
		e := d.entryOf(other)
		if other == by || !holdsTurn(e) {
			continue
		}
		named := d.evidence.named[other]
		o.changedNamed = o.changedNamed || named
		if e.Phase == nmstatev1.PhaseFailing && (named || !d.evidence.whole) && !o.blamed {
			o.blamed, culprit = true, p.Name
		}
	}
	return o, culprit
}

// entryOf is what the policy's status says of the node.
func (d *decider) entryOf(by int) nmstatev1.PolicyNode {
	return d.standings[d.policies[by].Name].entries[d.node.Object.Name]
}
