package macvtap

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fate is what became of a link: the resources that have devices on it, or why none has.
type Fate struct {
	Link      *Link
	Resources []string // sorted
	Why       string   // also, of a link that is exposed, which entries do not count for it
}

// KindName is what the link is, in a word.
func (l *Link) KindName() string {
	switch {
	case l.Loopback:
		return "loopback"
	case l.Kind != "":
		return l.Kind
	case l.Physical:
		return "device"
	}
	return "virtual device"
}

// Fates returns for each link of the input its result of Select: links that are exposed first, then devices and bonds,
// then all others, by name.
func Fates(in Input, e Exposure) (fates []Fate) {
	uses := map[string][]string{}
	for _, r := range e.Resources {
		for _, p := range r.Parents {
			uses[p.Link] = append(uses[p.Link], r.Name)
		}
	}
	c := newChooser(in)
	var entries []fitting
	if e.Source == FromPolicies {
		for _, p := range c.selecting(in.Policies) {
			entries = append(entries, c.fitting(e, p)...)
		}
	}
	lost := map[string][]Conflict{}
	for _, conflict := range e.Conflicts {
		lost[conflict.Parent] = append(lost[conflict.Parent], conflict)
	}
	for i := range in.Links {
		l := &in.Links[i]
		f := Fate{Link: l, Resources: uses[l.Name]}
		f.Why = strings.Join(c.whyNot(l, e, lost[l.Name], entries, len(f.Resources) > 0), "; ")
		fates = append(fates, f)
	}
	class := func(f Fate) int {
		switch {
		case len(f.Resources) > 0:
			return 0
		case f.Link.isDevice(in.Also):
			return 1
		}
		return 2
	}
	slices.SortFunc(fates, func(a, b Fate) int { return cmp.Or(class(a)-class(b), strings.Compare(a.Link.Name, b.Link.Name)) })
	return fates
}

// whyNot has the reasons that a link is not exposed, or not by each entry that it fits.
func (c *chooser) whyNot(l *Link, e Exposure, lost []Conflict, entries []fitting, exposed bool) (reasons []string) {
	for _, c := range lost {
		reasons = append(reasons, fmt.Sprintf("%s does not count for resource %s: %s says %s", c.Loser, c.Resource, c.Winner, c.About))
	}
	for _, entry := range entries {
		if why := c.passedOver(l, entry); why != "" {
			reasons = append(reasons, why)
		}
	}
	if len(reasons) > 0 || exposed {
		return reasons
	}
	for _, entry := range entries {
		if _, found := slices.BinarySearch(entry.found, l.Name); found {
			reasons = append(reasons, fmt.Sprintf("%s finds it, and is refused (see the problems)", entry.origin))
		}
	}
	switch {
	case len(reasons) > 0:
		return reasons
	case l.Loopback:
		return []string{"a loopback device carries no macvtap devices"}
	case e.Source == FromConfig:
		return []string{"the explicit configuration does not have it"}
	case e.Source == FromPolicies:
		return []string{"none of the policies that select the node has it: " + strings.Join(e.Policies, ", ")}
	case !l.isDevice(c.in.Also):
		return []string{"of itself the node exposes devices and bonds, and this is a " + l.KindName()}
	case l.isPort():
		return []string{"it is a port of a " + l.masterKind()}
	}
	return []string{CheckResource(l.Name)}
}

// fitting is a good entry of a policy, and the links that it finds.
type fitting struct {
	Entry
	origin   Origin
	found    []string
	resource string // the policy's, and the parent that it chose
	chosen   string
}

func (c *chooser) fitting(e Exposure, p *Policy) (entries []fitting) {
	chosen := chosenBy(e, p)
	for i, entry := range p.Entries {
		if entry.wrong(p.Resource != "") == "" {
			found := c.parents(cmp.Or(p.Resource, entry.Resource), entry.Parent)
			entries = append(entries, fitting{entry, Origin{FromPolicies, p.String(), i}, found, p.Resource, chosen})
		}
	}
	return entries
}

// passedOver returns why an entry leaves a link out that fits it: a glob for what it is, a list of one resource for an
// earlier parent.
func (c *chooser) passedOver(l *Link, e fitting) string {
	if l.Loopback || !matches(e.Parent, l.Name) {
		return ""
	}
	_, found := slices.BinarySearch(e.found, l.Name)
	switch {
	case !found && l.isDevice(c.in.Also):
		return fmt.Sprintf("%s is a glob, which does not take it in: it is a port of a %s", e.origin, l.masterKind())
	case !found:
		return fmt.Sprintf("%s is a glob, which takes in devices and bonds: a %s must be named", e.origin, l.KindName())
	case e.chosen != "" && e.chosen != l.Name:
		return fmt.Sprintf("%s comes after %s, on which resource %s is", e.origin, e.chosen, e.resource)
	}
	return ""
}

// chosenBy is the parent that a policy with one resource chose.
func chosenBy(e Exposure, p *Policy) string {
	for _, r := range e.Resources {
		if r.Name != p.Resource {
			continue
		}
		for _, parent := range r.Parents {
			if parent.From(p.String()) {
				return parent.Link
			}
		}
	}
	return ""
}

// Found are the links, sorted, that entries of a policy fit on the node, whatever came of them.
func Found(in Input, p *Policy) (links []string) {
	c := newChooser(in)
	for _, e := range p.Entries {
		if e.wrong(p.Resource != "") != "" {
			continue
		}
		for _, name := range c.parents(cmp.Or(p.Resource, e.Resource), e.Parent) {
			if c.links[name] != nil {
				links = append(links, name)
			}
		}
	}
	slices.Sort(links)
	return slices.Compact(links)
}

// Selects reports whether the policy selects a node of these labels.
func (p *Policy) Selects(labels map[string]string) bool {
	return p.Invalid == "" && p.Nodes.Matches(labels)
}
