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
// that the last returned; at the end that is 0. The cost is proportional to the result, and to a sixty-fourth of all
// endpoints.
func (e *Engine) Unannounced(cursor uint32, limit int) (pods []UnannouncedPod, next uint32) {
	for id := range e.unannounced.from(endpointID(cursor)) {
		if len(pods) == limit {
			return pods, uint32(id)
		}
		ep := e.endpoints.at(id)
		pods = append(pods, UnannouncedPod{ep.obj, e.isSelected(ep)})
	}
	return pods, 0
}

// isSelected reports whether a policy that is not in a dry run selects an endpoint.
func (e *Engine) isSelected(ep *endpoint) bool {
	return slices.ContainsFunc(e.classes.at(ep.class).groups, func(g groupID) bool {
		for id := e.groups.at(g).applied; id != 0; id = e.rules.at(id).next {
			if !e.rules.at(id).dryRun {
				return true
			}
		}
		return false
	})
}
