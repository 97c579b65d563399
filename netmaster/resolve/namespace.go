package resolve

import (
	"slices"
)

type namespaceID uint32

type namespace struct {
	name     string
	labels   map[string]string
	known    bool
	classes  classID   // head of the list
	policies policyID  // head of the list
	cost     int       // of all policies, with a group counted once for each peer
	heavy    bool      // a budget may be exceeded
	groups   uint32    // number of groups of this namespace only
	always   []groupID // whose pod selector requires no label value
	covering []groupID // whose namespace selector matches this namespace
}

func (e *Engine) namespace(name string) (namespaceID, *namespace) {
	id := e.namespaceByName[name]
	if id != 0 {
		return id, e.namespaces.at(id)
	}
	id, ns := e.namespaces.take()
	ns.name = name
	e.namespaceByName[name] = id
	return id, ns
}

// putNamespace sets the labels of a namespace, or removes them if known is false.
func (e *Engine) putNamespace(name string, labels map[string]string, known bool) {
	id, ns := e.namespace(name)
	e.fileNamespace(id, ns, false)
	if ns.labels, ns.known = labels, known; !known {
		e.batch.leftNamespaces = append(e.batch.leftNamespaces, id)
	}
	e.fileNamespace(id, ns, true)
	before := ns.covering
	ns.covering = e.coveringOf(ns)
	if slices.Equal(before, ns.covering) {
		return
	}
	diffSorted(before, ns.covering, func(g groupID) { e.fileGroup(g, id, ns, false) },
		func(g groupID) { e.fileGroup(g, id, ns, true) })
	for c := ns.classes; c != 0; c = e.classes.at(c).next {
		e.regroup(c)
	}
}

// dropNamespaces deletes empty namespaces that the API server no longer has.
func (e *Engine) dropNamespaces() {
	for _, id := range e.batch.leftNamespaces {
		ns := e.namespaces.at(id)
		if !ns.known && ns.classes == 0 && ns.policies == 0 && ns.groups == 0 && e.namespaceByName[ns.name] == id {
			delete(e.namespaceByName, ns.name)
			e.namespaces.give(id)
		}
	}
}

// fileNamespace adds a namespace to the label index, or removes it.
func (e *Engine) fileNamespace(id namespaceID, ns *namespace, in bool) {
	for k, v := range ns.labels {
		if hash := e.hash.label(0, k, v); in {
			e.namespaceIndex.addObject(hash, id)
		} else {
			e.namespaceIndex.removeObject(hash, id)
		}
	}
}

// coveringOf returns the groups whose namespace selector matches this namespace, sorted.
func (e *Engine) coveringOf(ns *namespace) []groupID {
	if !ns.known {
		return nil
	}
	var out []groupID
	take := func(candidates []groupID) {
		for _, id := range candidates {
			if e.groups.at(id).matchesNamespace(ns.labels) {
				out = insert(out, id)
			}
		}
	}
	take(e.unanchored)
	for k, v := range ns.labels {
		if it := e.namespaceIndex.find(e.hash.label(0, k, v)); it != nil {
			var buf [1]groupID
			take(it.groups.all(&buf))
		}
	}
	return out
}
