package resolve

import (
	"iter"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// isUnannounced reports whether the API server has the endpoint as a running pod and its node has not announced it. A
// pod that the node withdrew counts if the status has another address: the pod has a new sandbox then. With the
// withdrawn address it counts while the kubelet reports a sandbox, except if it terminates: the status of a pod that
// ends is outdated for some time.
func (ep *endpoint) isUnannounced() bool {
	o := ep.obj
	return ep.announced == nil && o.Node != "" && len(o.Addresses) > 0 && !o.HostNetwork && !o.Finished &&
		!o.NoSandbox && (!ep.withdrawn || ep.readdressed || o.HasSandbox && !o.Terminating)
}

// isReaddressed reports whether the status in the API server has an address that was not announced. The order of
// addresses does not matter, and the status may lack some. A repeated withdrawal changes nothing.
func (ep *endpoint) isReaddressed() bool {
	if ep.announced == nil {
		return ep.readdressed
	}
	return slices.ContainsFunc(ep.obj.Addresses, func(a netip.Addr) bool {
		return !slices.Contains(ep.announced.Addresses, a)
	})
}

// put replaces the pod of an endpoint.
func (ep *endpoint) put(obj *policy.Endpoint) {
	if len(obj.Addresses) > 0 && !slices.Equal(obj.Addresses, ep.obj.Addresses) {
		ep.readdressed = ep.withdrawn
	}
	ep.obj, ep.orphan = obj, false
}

// endpointSet is a set of endpoints, one bit each.
type endpointSet []uint64

// set adds an endpoint, or removes it.
func (s *endpointSet) set(id endpointID, in bool) {
	word, bit := int(id/64), uint64(1)<<(id%64)
	switch {
	case in:
		for len(*s) <= word {
			*s = append(*s, 0)
		}
		(*s)[word] |= bit
	case word < len(*s):
		(*s)[word] &^= bit
	}
}

// has reports whether an endpoint is in the set.
func (s endpointSet) has(id endpointID) bool {
	return int(id/64) < len(s) && s[id/64]&(1<<(id%64)) != 0
}

// from returns the endpoints in the set from an ID on, in order.
func (s endpointSet) from(first endpointID) iter.Seq[endpointID] {
	return func(yield func(endpointID) bool) {
		for word := int(first / 64); word < len(s); word++ {
			left := s[word]
			if word == int(first/64) {
				left &= ^uint64(0) << (first % 64)
			}
			for ; left != 0; left &= left - 1 {
				if !yield(endpointID(word*64 + bits.TrailingZeros64(left))) {
					return
				}
			}
		}
	}
}

// UnannouncedPod is a running pod that its node has not announced.
type UnannouncedPod struct {
	*policy.Endpoint
	Selected bool // by a policy that is enforced, in any direction
}

// Unannounced returns at most limit unannounced pods. The first call has the cursor 0, and each further one the cursor
// that the last returned; at the end that is 0. The cost is proportional to the result, to a sixty-fourth of all
// endpoints, to the groups of each class in the result, and to the dry-run rules that apply to each of these groups.
func (e *Engine) Unannounced(cursor uint32, limit int) (pods []UnannouncedPod, next uint32) {
	return e.unannouncedPods(cursor, limit, newSelection(e))
}

func (e *Engine) unannouncedPods(cursor uint32, limit int, s *selection) (pods []UnannouncedPod, next uint32) {
	for id := range e.unannounced.from(endpointID(cursor)) {
		if len(pods) == limit {
			return pods, uint32(id)
		}
		ep := e.endpoints.at(id)
		pods = append(pods, UnannouncedPod{ep.obj, s.hasClass(ep.class)})
	}
	return pods, 0
}

// HasUnannounced reports whether a policy selects an unannounced pod. The cost is proportional to the pods of its
// namespace, and to a sixty-fourth of all endpoints.
func (e *Engine) HasUnannounced(policy string) bool {
	pid := e.policyOf(splitID(policy))
	if pid == 0 || !slices.ContainsFunc(e.unannounced, func(word uint64) bool { return word != 0 }) {
		return false
	}
	obj := e.policies.at(pid).obj
	for c := e.namespaces.at(e.namespaceByName[obj.Namespace]).classes; c != 0; c = e.classes.at(c).next {
		for id := e.classes.at(c).endpoints; id != 0; id = e.endpoints.at(id).next {
			if e.unannounced.has(id) && obj.AppliedTo.Matches(e.endpoints.at(id).obj.Labels) {
				return true
			}
		}
	}
	return false
}

// selection is a cache of the classes and groups that enforced policies select. It is valid until the next batch.
type selection struct {
	e       *Engine
	classes map[classID]bool
	groups  map[groupID]bool
	steps   int // groups and rules examined
}

func newSelection(e *Engine) *selection {
	return &selection{e: e, classes: map[classID]bool{}, groups: map[groupID]bool{}}
}

// hasClass reports whether a policy that is not in a dry run selects a class.
func (s *selection) hasClass(id classID) bool {
	in, known := s.classes[id]
	if !known {
		in = slices.ContainsFunc(s.e.classes.at(id).groups, s.hasGroup)
		s.classes[id] = in
	}
	return in
}

// hasGroup reports whether a rule that is not in a dry run applies to a group.
func (s *selection) hasGroup(id groupID) bool {
	s.steps++
	in, known := s.groups[id]
	if known || s.e.groups.at(id).applied == 0 {
		return in
	}
	for r := s.e.groups.at(id).applied; r != 0 && !in; r = s.e.rules.at(r).next {
		s.steps++
		in = !s.e.rules.at(r).dryRun
	}
	s.groups[id] = in
	return in
}
