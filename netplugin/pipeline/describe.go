package pipeline

import (
	"cmp"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Note tells what a flow is for.
type Note struct {
	Kind    Kind
	Origins []policy.Origin // the first few (policy.BriefOrigins) of each rule that the flow serves; sorted
	// Rules are the resolved rules that it serves, Groups the groups that its class of addresses is in; sorted.
	Rules    []policy.Key
	Groups   []policy.Key
	Endpoint string // namespace/name, of a port's flows
	Text     string
}

// Serves reports whether the flow serves one of these rules.
func (n *Note) Serves(rules []policy.Key) bool {
	return slices.ContainsFunc(rules, func(k policy.Key) bool {
		_, found := slices.BinarySearchFunc(n.Rules, k, compareKeys)
		return found
	})
}

// Describe reads a flow as the switch holds it.
func (c *Compiler) Describe(f *ofctl.Flow) Note {
	kind, id, ok := ParseCookie(f.Cookie)
	if !ok {
		return Note{Text: "not Flowkeep's"}
	}
	n := Note{Kind: kind}
	if kind == KindDefaultDrop && judgesDryRuns(f.Table) {
		n.Kind = KindWouldDeny
	}
	var rules []*policy.Rule
	switch kind {
	case KindEndpoint:
		n.Endpoint = c.endpointAt(id)
		n.Text = "pod " + cmp.Or(n.Endpoint, "gone")
		switch {
		case f.Table == TableUnreachable && id == 0:
			n.Text = "leaves packets to a pod without a port unanswered"
		case f.Table == TableUnreachable:
			n.Text = "has packets to absent pods answered that come from " + n.Text
		case TellsOfDryRuns(f.Table):
			n.Text = "reports what a dry run would deny at " + n.Text
		case Tells(f.Table):
			n.Text = "reports what is denied at " + n.Text
		}
	case KindClause:
		for _, a := range f.Actions {
			rules = append(rules, c.ruleWithID(a.Value)...)
		}
		if f.Table == TablePorts {
			rules = c.rulesOfPort(portMatch{policy.Protocol(f.Match.IPProto), f.Match.TpDst})
		}
	case KindAllow:
		rules = c.ruleWithID(id)
	case KindFrontend, KindSlot, KindBackend:
		n.Text = kind.String() + " of Service " + cmp.Or(c.serviceOf(f), "gone")
		if to := c.leadsTo(f); to.IsValid() {
			n.Text += ", to " + to.String()
		}
	case KindApplied, KindPeer, KindBlock, KindAllowAll, KindDefaultDrop:
		rules = c.rulesOfClass(id, kind)
	}
	if cl := c.classByID[id]; cl != nil && kind != KindEndpoint && kind != KindAllow && kind < KindFrontend {
		n.Groups = slices.Clone(cl.keys)
	}
	n.explain(rules)
	return n
}

// explain fills in what follows from the rules that a flow serves.
func (n *Note) explain(rules []*policy.Rule) {
	for _, r := range rules {
		n.Origins = append(n.Origins, r.Origins...)
		n.Rules = append(n.Rules, r.Key)
	}
	slices.SortFunc(n.Origins, func(a, b policy.Origin) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Rule, b.Rule))
	})
	n.Origins = slices.Compact(n.Origins)
	slices.SortFunc(n.Rules, compareKeys)
	n.Rules = slices.Compact(n.Rules)
	switch {
	case n.Text != "":
	case len(rules) > 0:
		n.Text = n.Kind.String() + " " + policy.OriginsText(rules[0].Direction, n.Origins)
		if rules[0].DryRun {
			n.Text = "dry run: " + n.Text
		}
	case n.Kind == KindBlock:
		n.Text = "cidr in no ipBlock (an except)"
	}
}

func (c *Compiler) endpointAt(port uint32) string {
	for _, e := range c.endpoints {
		if e.Port == port {
			return e.ID
		}
	}
	return ""
}

func (c *Compiler) ruleWithID(id uint32) []*policy.Rule {
	if e := c.ruleByID[id]; e != nil {
		return []*policy.Rule{e.rule}
	}
	return nil
}

// rulesOfPort returns the rules that name a port.
func (c *Compiler) rulesOfPort(p portMatch) []*policy.Rule {
	var out []*policy.Rule
	for _, s := range c.sides {
		for _, e := range s.rules {
			if _, ok := e.ports[p]; ok {
				out = append(out, e.rule)
			}
		}
	}
	return out
}

// rulesOfClass returns the rules that a class of addresses counts for: for a default drop, those that isolate.
func (c *Compiler) rulesOfClass(id uint32, kind Kind) []*policy.Rule {
	cl := c.classByID[id]
	if cl == nil {
		return nil
	}
	var out []*policy.Rule
	for _, key := range cl.keys {
		u := cl.dimension.uses[key]
		if u == nil {
			continue
		}
		for e := range u.rules {
			if kind == KindDefaultDrop && (e.id != 0 || e.allowAll) || kind == KindAllowAll && !e.allowAll {
				continue
			}
			out = append(out, e.rule)
		}
	}
	return out
}
