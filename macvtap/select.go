package macvtap

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Select decides what a node exposes: what the explicit configuration lists; without one, what the policies that select the node
// list, all together; without those, all devices and bonds. The order of policies, links and known parents does not matter.
func Select(in Input) Exposure {
	c := newChooser(in)
	switch selecting := c.selecting(in.Policies); {
	case in.Config != nil:
		c.Source = FromConfig
		c.config(in.Config)
	case len(selecting) > 0:
		c.Source = FromPolicies
		for _, p := range selecting {
			c.Policies = append(c.Policies, p.String())
			c.policy(p)
		}
	default:
		c.Source = Implicit
		c.implicit()
	}
	c.settle()
	return c.Exposure
}

// wish is that a parent be exposed. Those of one node are in order of rank: the first wins.
type wish struct {
	resource, link string
	mode           Mode
	capacity       int
	origin         Origin
	also           []Origin
}

// chooser gathers wishes.
type chooser struct {
	Exposure
	in     Input
	links  map[string]*Link
	names  []string // of links and known parents, sorted
	known  map[knownParent]bool
	wishes []wish
}

type knownParent struct{ resource, link string }

func newChooser(in Input) *chooser {
	c := &chooser{in: in, links: make(map[string]*Link, len(in.Links)), known: map[knownParent]bool{}}
	for i := range in.Links {
		c.links[in.Links[i].Name] = &in.Links[i]
	}
	names := maps.Clone(c.links)
	for resource, parents := range in.Known {
		for _, name := range parents {
			names[name] = nil
			c.known[knownParent{resource, name}] = true
		}
	}
	c.names = slices.Sorted(maps.Keys(names))
	return c
}

// selecting are the policies that select the node, the oldest first. Those that can't be understood select none, and
// are reported.
func (c *chooser) selecting(policies []Policy) (selecting []*Policy) {
	for i := range policies {
		switch p := &policies[i]; {
		case p.Invalid != "":
			c.refuse(Origin{FromPolicies, p.String(), -1}, p.Invalid)
		case p.Selects(c.in.Labels):
			selecting = append(selecting, p)
		}
	}
	slices.SortFunc(c.Problems, func(a, b Problem) int { return strings.Compare(a.Origin.Policy, b.Origin.Policy) })
	slices.SortFunc(selecting, func(a, b *Policy) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return selecting
}

func (c *chooser) refuse(o Origin, why string) {
	if why != "" {
		c.Problems = append(c.Problems, Problem{o, why})
	}
}

func (c *chooser) config(config *Config) {
	c.Problems = append(c.Problems, config.Problems...)
	for _, e := range config.Entries {
		o := Origin{Source: FromConfig, Entry: e.Entry}
		if !c.named(e.Name, e.LowerDevice) {
			c.absent(o, e.LowerDevice)
			continue
		}
		c.wishes = append(c.wishes, wish{e.Name, e.LowerDevice, e.Mode, e.Capacity, o, nil})
	}
}

func (c *chooser) implicit() {
	for _, name := range c.names {
		if !c.offered(name, name) {
			continue
		}
		o := Origin{Source: Implicit}
		if why := CheckResource(name); why != "" {
			c.refuse(o, why)
			continue
		}
		c.wishes = append(c.wishes, wish{name, name, DefaultMode, DefaultCapacity, o, nil})
	}
}

func (c *chooser) policy(p *Policy) {
	if p.Resource != "" {
		if why := CheckResource(p.Resource); why != "" {
			c.refuse(Origin{FromPolicies, p.String(), -1}, why)
			return
		}
	}
	var perEntry [][]wish
	for i, e := range p.Entries {
		o := Origin{FromPolicies, p.String(), i}
		if why := e.wrong(p.Resource != ""); why != "" {
			c.refuse(o, why)
			continue
		}
		perEntry = append(perEntry, c.entry(o, e, p.Resource))
	}
	if p.Resource == "" {
		c.wishes = append(c.wishes, slices.Concat(perEntry...)...)
		return
	}
	c.wishes = append(c.wishes, c.first(slices.Concat(perEntry...))...)
}

// first is the first whose parent is there, or, while none is, the first.
func (c *chooser) first(wishes []wish) []wish {
	if len(wishes) == 0 {
		return nil
	}
	i := max(0, slices.IndexFunc(wishes, func(w wish) bool { return c.links[w.link] != nil }))
	return wishes[i : i+1]
}

// wrong returns the fault of an entry; resource reports whether its policy has a resource of its own.
func (e *Entry) wrong(resource bool) string {
	if why := CheckParent(e.Parent); why != "" {
		return why
	}
	if e.Mode != "" {
		if why := checkMode(e.Mode); why != "" {
			return why
		}
	}
	if e.Quantity != nil {
		if why := checkCapacity("quantity", *e.Quantity); why != "" {
			return why
		}
	}
	switch {
	case e.Resource == "":
		return ""
	case resource:
		return "the policy has a resourceName for all of its parents: an entry can't have one too"
	}
	return CheckResource(e.Resource)
}

// entry makes the wishes of a good entry, by name of the link.
func (c *chooser) entry(o Origin, e Entry, resource string) (wishes []wish) {
	resource = cmp.Or(resource, e.Resource)
	mode, capacity := cmp.Or(e.Mode, DefaultMode), DefaultCapacity
	if e.Quantity != nil {
		capacity = *e.Quantity
	}
	if mode == Passthru {
		if e.Quantity != nil && capacity > 1 {
			c.refuse(o, fmt.Sprintf("passthru gives the whole parent to one pod: quantity is 1, not %d", capacity))
		}
		capacity = 1
	}
	links := c.parents(resource, e.Parent)
	if len(links) == 0 {
		c.absent(o, e.Parent)
	}
	for _, link := range links {
		w := wish{cmp.Or(resource, link), link, mode, capacity, o, nil}
		if why := CheckResource(w.resource); why != "" {
			c.refuse(o, why+"; give the entry a resourceName")
			continue
		}
		wishes = append(wishes, w)
	}
	return wishes
}

func (c *chooser) absent(o Origin, parent string) {
	if link := c.links[parent]; link != nil && link.Loopback {
		c.refuse(o, parent+" is a loopback device, which carries no macvtap devices")
		return
	}
	c.Absent = append(c.Absent, Absence{o, parent})
}

// parents are the links, sorted, that a name or glob stands for; without a resource each is a resource of its own name.
func (c *chooser) parents(resource, pattern string) (links []string) {
	if !IsGlob(pattern) {
		if c.named(cmp.Or(resource, pattern), pattern) {
			return []string{pattern}
		}
		return nil
	}
	for _, name := range c.names {
		if matches(pattern, name) && c.offered(cmp.Or(resource, name), name) {
			links = append(links, name)
		}
	}
	return links
}

// named reports whether a link that an entry names is exposed: any that carries macvtap devices.
func (c *chooser) named(resource, name string) bool {
	if l := c.links[name]; l != nil {
		return !l.Loopback
	}
	return c.known[knownParent{resource, name}]
}

// offered reports whether a link that no entry names is exposed: devices and bonds that are not ports of something.
func (c *chooser) offered(resource, name string) bool {
	l, known := c.links[name], c.known[knownParent{resource, name}]
	if l == nil {
		return known
	}
	return l.isDevice(c.in.Also) && (!l.isPort() || known)
}

// had is the exposed part of a resource.
type had struct {
	wishes  []wish
	devices int
	byLink  map[string]int // places in wishes
}

// settle makes resources of wishes; of two that can't both be had the first wins.
func (c *chooser) settle() {
	resources := map[string]*had{}
	byLink := map[string][]wish{}
	for _, w := range c.wishes {
		r := resources[w.resource]
		if r == nil {
			r = &had{byLink: map[string]int{}}
			resources[w.resource] = r
		}
		i, found := r.byLink[w.link]
		if found && r.wishes[i].same(w) {
			r.wishes[i].also = append(r.wishes[i].also, w.origin)
			continue
		}
		rivals := byLink[w.link]
		if !found {
			rivals = slices.Concat(r.wishes[:min(1, len(r.wishes))], rivals) // all of a resource are of one mode
		}
		if lost := slices.IndexFunc(rivals, func(won wish) bool { return won.against(w) != "" }); lost >= 0 {
			won := rivals[lost]
			c.Conflicts = append(c.Conflicts, Conflict{w.resource, w.link, won.origin, w.origin, won.against(w)})
			continue
		}
		if r.devices += w.capacity; r.devices > MaxDevices {
			r.devices -= w.capacity
			c.refuse(w.origin, fmt.Sprintf("resource %s would have more than %d devices with the %d on %s: kubelets do not accept so many", w.resource, MaxDevices, w.capacity, w.link))
			continue
		}
		r.byLink[w.link] = len(r.wishes)
		r.wishes = append(r.wishes, w)
		byLink[w.link] = append(byLink[w.link], w)
	}
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		if wishes := resources[name].wishes; len(wishes) > 0 {
			c.Resources = append(c.Resources, c.resource(name, wishes))
		}
	}
}

func (w wish) same(other wish) bool { return w.mode == other.mode && w.capacity == other.capacity }

// against returns why the other can't be exposed with this one; "" if it can.
func (w wish) against(other wish) string {
	switch sameParent := w.link == other.link; {
	case w.resource == other.resource && w.mode != other.mode:
		return fmt.Sprintf("mode %s, not %s", w.mode, other.mode)
	case w.resource == other.resource && sameParent && w.capacity != other.capacity:
		return fmt.Sprintf("%d devices, not %d", w.capacity, other.capacity)
	case w.resource != other.resource && sameParent && w.mode == Passthru:
		return fmt.Sprintf("resource %s has %s for itself (passthru)", w.resource, w.link)
	case w.resource != other.resource && sameParent && other.mode == Passthru:
		return fmt.Sprintf("resource %s has devices on %s, which passthru would have for itself", w.resource, w.link)
	}
	return ""
}

func (c *chooser) resource(name string, wishes []wish) Resource {
	r := Resource{Name: name}
	for _, w := range wishes {
		healthy, why := c.links[w.link].Health()
		r.Parents = append(r.Parents, Parent{w.link, w.mode, w.capacity, healthy, why, w.origin, w.also})
	}
	slices.SortFunc(r.Parents, func(a, b Parent) int { return strings.Compare(a.Link, b.Link) })
	return r
}
