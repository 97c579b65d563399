package pipeline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Note tells what a flow is for.
type Note struct {
	Kind    Kind
	Origins []policy.Origin // the policies' rules that the flow serves; sorted
	Text    string
}

// Of tells whether the flow serves a policy, namespace/name.
func (n *Note) Of(id string) bool {
	return slices.ContainsFunc(n.Origins, func(o policy.Origin) bool { return o.Policy == id })
}

// Describe reads a flow as the switch holds it.
func (c *Compiler) Describe(f *ofctl.Flow) Note {
	kind, id, ok := ParseCookie(f.Cookie)
	if !ok {
		return Note{Text: "not Flowkeep's"}
	}
	n := Note{Kind: kind}
	var rules []*policy.Rule
	switch kind {
	case KindEndpoint:
		n.Text = "pod " + c.endpointAt(id)
	case KindClause:
		for _, a := range f.Actions {
			rules = append(rules, c.ruleWithID(f.Table, a.Value)...)
		}
	case KindAllow:
		rules = c.ruleWithID(f.Table, id)
	case KindApplied, KindPeer, KindBlock, KindAllowAll, KindDefaultDrop:
		rules = c.rulesOfClass(f.Table, id, kind)
	}
	for _, r := range rules {
		n.Origins = append(n.Origins, r.Origins...)
	}
	slices.SortFunc(n.Origins, func(a, b policy.Origin) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Rule, b.Rule))
	})
	n.Origins = slices.Compact(n.Origins)
	if n.Text == "" && len(rules) > 0 {
		n.Text = kind.String() + " " + originsText(rules[0].Direction, n.Origins)
	}
	return n
}

func originsText(d policy.Direction, origins []policy.Origin) string {
	const most = 3
	var parts []string
	for _, o := range origins[:min(len(origins), most)] {
		if o.Rule < 0 {
			parts = append(parts, fmt.Sprintf("%s %s", o.Policy, d))
		} else {
			parts = append(parts, fmt.Sprintf("%s %s[%d]", o.Policy, d, o.Rule))
		}
	}
	if len(origins) > most {
		parts = append(parts, fmt.Sprintf("and %d more", len(origins)-most))
	}
	return strings.Join(parts, ", ")
}

func (c *Compiler) endpointAt(port uint32) string {
	for _, e := range c.endpoints {
		if e.Port == port {
			return e.ID
		}
	}
	return "gone"
}

func (c *Compiler) sideOf(table uint8) *side {
	if table >= TableIngress {
		return c.sides[policy.Ingress]
	}
	return c.sides[policy.Egress]
}

func (c *Compiler) ruleWithID(table uint8, id uint32) []*policy.Rule {
	for e := range c.sideOf(table).chunks[id/ChunkSize] {
		if e.id == id {
			return []*policy.Rule{e.rule}
		}
	}
	return nil
}

// rulesOfClass are the rules that a class of addresses counts for: for a default drop, those that isolate.
func (c *Compiler) rulesOfClass(table uint8, id uint32, kind Kind) []*policy.Rule {
	var out []*policy.Rule
	for _, d := range c.sideOf(table).dimensions() {
		for _, cl := range d.classes {
			if cl.id != id {
				continue
			}
			for _, key := range cl.keys {
				for e := range d.uses[key].rules {
					if kind == KindDefaultDrop && (e.id != 0 || e.allowAll) || kind == KindAllowAll && !e.allowAll {
						continue
					}
					out = append(out, e.rule)
				}
			}
		}
	}
	return out
}
