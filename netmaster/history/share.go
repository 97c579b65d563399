package history

import "slices"

// shares is the number of parts of the memory. A namespace may use one, so that its changes do not displace others.
const shares = 8

// share returns how many bytes a namespace may use.
func (h *History) share() int { return h.cfg.Bytes / shares }

// charge adds an entry of a step to its namespace's memory.
func (h *History) charge(s *step, namespace string, bytes int) {
	s.bytes += bytes
	h.used[namespace] += bytes
	s.namespacesOf = append(s.namespacesOf, namespace)
}

// uncharge subtracts dropped entries of a namespace.
func (h *History) uncharge(namespace string, bytes int) {
	h.bytes -= bytes
	if h.used[namespace] -= bytes; h.used[namespace] == 0 {
		delete(h.used, namespace)
	}
}

// release subtracts the entries of a dropped step.
func (h *History) release(s *step) {
	for i := range s.endpoints {
		h.uncharge(s.endpoints[i].namespace, sizeOfEndpoint(s.endpoints[i].endpoint))
	}
	for i := range s.policies {
		h.uncharge(namespaceOf(s.policies[i].id), sizeOfPolicy(s.policies[i].policy))
	}
	for i := range s.namespaces {
		h.uncharge(s.namespaces[i].name, sizeOfNamespace(s.namespaces[i].namespace))
	}
}

// curtail drops the oldest entries of namespaces above their share, down to half of it.
func (h *History) curtail(namespaces []string) {
	for _, ns := range namespaces {
		if h.used[ns] <= h.share() {
			continue
		}
		for i := 0; i < len(h.steps) && h.used[ns] > h.share()/2; i++ {
			if n := h.steps[i].leave(ns); n > 0 {
				h.steps[i].bytes -= n
				h.uncharge(ns, n)
				h.gaps[ns] = h.steps[i].number
			}
		}
	}
}

// leave drops a step's entries of a namespace, and returns their bytes. It replaces slices, which states share.
func (s *step) leave(namespace string) (bytes int) {
	s.endpoints = without(s.endpoints, &bytes, func(e *endpointWas) (bool, int) {
		return e.namespace == namespace, sizeOfEndpoint(e.endpoint)
	})
	s.policies = without(s.policies, &bytes, func(p *policyWas) (bool, int) {
		return namespaceOf(p.id) == namespace, sizeOfPolicy(p.policy)
	})
	s.namespaces = without(s.namespaces, &bytes, func(n *namespaceWas) (bool, int) {
		return n.name == namespace, sizeOfNamespace(n.namespace)
	})
	return bytes
}

// without returns a list without some entries, and adds their bytes.
func without[T any](list []T, bytes *int, goes func(*T) (bool, int)) (out []T) {
	for i := range list {
		if going, n := goes(&list[i]); going {
			*bytes += n
		} else {
			out = append(out, list[i])
		}
	}
	return out
}

// forgetGaps removes gaps whose steps were dropped.
func (h *History) forgetGaps() {
	for ns, number := range h.gaps {
		if len(h.steps) == 0 || number < h.steps[0].number {
			delete(h.gaps, ns)
		}
	}
}

// missing returns the namespaces whose state before these steps is incomplete, sorted.
func (h *History) missing(undo []step) (list []string) {
	for ns, number := range h.gaps {
		if len(undo) > 0 && undo[0].number <= number {
			list = append(list, ns)
		}
	}
	slices.Sort(list)
	return list
}

// leaveOut removes namespaces with incomplete states.
func (s *State) leaveOut(namespaces []string) {
	if s.Missing = namespaces; len(namespaces) == 0 {
		return
	}
	gone := func(namespace string) bool { _, found := slices.BinarySearch(namespaces, namespace); return found }
	for i, h := range s.endpoints {
		if h.endpoint != nil && gone(h.endpoint.Namespace) {
			s.endpoints[i] = held{}
		}
	}
	for id := range s.policies {
		if gone(namespaceOf(id)) {
			delete(s.policies, id)
		}
	}
	for _, ns := range namespaces {
		delete(s.namespaces, ns)
	}
}
