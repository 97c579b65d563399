package resolve

import (
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

type classID uint32

// class is the set of endpoints of a namespace with equal labels and named ports, which are in the same groups. An
// empty class is deleted at once.
type class struct {
	labels    map[string]string
	named     *[]policy.NamedPort
	groups    []groupID // sorted; elements stay unchanged until the end of a batch
	ns        namespaceID
	next      classID // in the namespace's list
	previous  classID
	endpoints endpointID // head of the list
	size      uint32     // number of endpoints
	addressed uint32     // number of endpoints with an address
	member    bool       // can be in groups
}

func (c *class) ports() []policy.NamedPort {
	if c.named == nil {
		return nil
	}
	return *c.named
}

// label is a label of an endpoint, in a list that is cheaper to walk than a map.
type label struct{ key, value string }

func (c *class) is(ns namespaceID, labels []label, ports []policy.NamedPort, member bool) bool {
	if c.ns != ns || c.member != member || len(c.labels) != len(labels) || !slices.Equal(c.ports(), ports) {
		return false
	}
	for _, l := range labels {
		if v, ok := c.labels[l.key]; !ok || v != l.value {
			return false
		}
	}
	return true
}

func (e *Engine) listLabels(labels map[string]string) []label {
	list := e.batch.labels[:0]
	for k, v := range labels {
		list = append(list, label{k, v})
	}
	e.batch.labels = list
	return list
}

func (e *Engine) classHash(ns namespaceID, labels []label, ports []policy.NamedPort) uint32 {
	var sum uint64
	for _, l := range labels {
		sum += mix(e.hash.text(l.key), e.hash.text(l.value))
	}
	for i := range ports {
		sum = mix(sum+e.hash.text(ports[i].Name), uint64(ports[i].Protocol)<<16|uint64(ports[i].Number))
	}
	return e.hash.fold(mix(sum, uint64(ns)))
}

// class returns the class of an endpoint. It creates one if necessary.
func (e *Engine) class(ns namespaceID, ep *endpoint) classID {
	labels, ports, member := ep.obj.Labels, ep.obj.Ports, ep.member()
	if !member {
		labels, ports = nil, nil
	}
	list := e.listLabels(labels)
	if ep.class != 0 && e.classes.at(ep.class).is(ns, list, ports, member) {
		return ep.class
	}
	hash := e.classHash(ns, list, ports)
	for id := range e.classByContent.each(hash) {
		if e.classes.at(id).is(ns, list, ports, member) {
			return id
		}
	}
	id, c := e.classes.take()
	c.ns, c.labels, c.member = ns, labels, member
	if len(ports) > 0 {
		named := ports
		c.named = &named
	}
	e.classByContent.add(hash, id)
	e.linkClass(id, c)
	for _, l := range list {
		e.pods.addObject(e.hash.label(ns, l.key, l.value), id)
	}
	e.filePorts(id, c, true)
	c.groups = e.groupsOf(c)
	for _, g := range c.groups {
		e.join(g, id, c)
	}
	return id
}

func (e *Engine) linkClass(id classID, c *class) {
	ns := e.namespaces.at(c.ns)
	if c.next = ns.classes; c.next != 0 {
		e.classes.at(c.next).previous = id
	}
	ns.classes = id
}

func (e *Engine) unlinkClass(c *class) {
	if c.next != 0 {
		e.classes.at(c.next).previous = c.previous
	}
	if c.previous != 0 {
		e.classes.at(c.previous).next = c.next
	} else {
		e.namespaces.at(c.ns).classes = c.next
	}
}

// groupsOf returns the groups that match a class, sorted.
func (e *Engine) groupsOf(c *class) []groupID {
	if !c.member {
		return nil
	}
	found := e.batch.found[:0]
	take := func(candidates []groupID) {
		for _, id := range candidates {
			if g := e.groups.at(id); e.covers(g, id, c.ns) && g.chooses(c) {
				found = append(found, id)
			}
		}
	}
	take(e.namespaces.at(c.ns).always)
	for k, v := range c.labels {
		for _, ns := range []namespaceID{c.ns, 0} {
			if it := e.pods.find(e.hash.label(ns, k, v)); it != nil {
				var buf [1]groupID
				take(it.groups.all(&buf))
			}
		}
	}
	for _, port := range c.ports() {
		take(e.portUses[portName{port.Name, port.Protocol}].groups)
	}
	e.batch.found = found
	slices.Sort(found)
	return append([]groupID(nil), slices.Compact(found)...)
}

// regroup updates the groups of a class.
func (e *Engine) regroup(id classID) {
	c := e.classes.at(id)
	before, after := c.groups, e.groupsOf(c)
	if slices.Equal(before, after) {
		return
	}
	for ep := c.endpoints; ep != 0; ep = e.endpoints.at(ep).next {
		e.touch(ep)
	}
	c.groups = after
	diffSorted(before, after, func(g groupID) { e.part(g, id, c) }, func(g groupID) { e.join(g, id, c) })
}

// join and part update a group for a class that enters or leaves it.
func (e *Engine) join(id groupID, cid classID, c *class) {
	g := e.groups.at(id)
	g.classes.insert(cid)
	e.resize(g, int(c.size))
	if c.addressed > 0 {
		e.countPorts(g, c, +1)
	}
}

func (e *Engine) part(id groupID, cid classID, c *class) {
	g := e.groups.at(id)
	g.classes.remove(cid)
	e.resize(g, -int(c.size))
	if c.addressed > 0 {
		e.countPorts(g, c, -1)
	}
}

func (e *Engine) dropClass(id classID, c *class) {
	for _, g := range c.groups {
		e.part(g, id, c)
	}
	for k, v := range c.labels {
		e.pods.removeObject(e.hash.label(c.ns, k, v), id)
	}
	e.filePorts(id, c, false)
	e.unlinkClass(c)
	e.batch.leftNamespaces = append(e.batch.leftNamespaces, c.ns)
	e.classByContent.remove(e.classHash(c.ns, e.listLabels(c.labels), c.ports()), id)
	e.classes.give(id)
}

// attach and detach maintain the list of a class's endpoints.
func (e *Engine) attach(id endpointID, ep *endpoint, cid classID) {
	c := e.classes.at(cid)
	ep.class, ep.next, ep.previous = cid, c.endpoints, 0
	if ep.next != 0 {
		e.endpoints.at(ep.next).previous = id
	}
	c.endpoints = id
	c.size++
	e.resizeAll(c.groups, +1)
}

// renew replaces references to a replaced object, if the class has no other endpoint.
func (c *class) renew(id endpointID, ep *endpoint) {
	if !c.member || c.endpoints != id || ep.next != 0 {
		return
	}
	c.labels = ep.obj.Labels
	if c.named != nil {
		*c.named = ep.obj.Ports
	}
}

func (e *Engine) detach(ep *endpoint) {
	e.countAddress(ep, false)
	c := e.classes.at(ep.class)
	c.size--
	e.resizeAll(c.groups, -1)
	if ep.next != 0 {
		e.endpoints.at(ep.next).previous = ep.previous
	}
	if ep.previous != 0 {
		e.endpoints.at(ep.previous).next = ep.next
	} else {
		c.endpoints = ep.next
	}
	if c.endpoints == 0 {
		e.dropClass(ep.class, c)
	}
	ep.class = 0
}
