package history

import (
	"net/netip"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// State is a past state of the cluster. Its values are shared: do not modify them.
type State struct {
	Moment           // start of the state
	Until  time.Time // end of the state; zero: it is the present one
	// Missing are namespaces that exceeded their share of memory: the state contains nothing of them.
	Missing []string

	endpoints  []held
	policies   map[string]*policy.Policy
	namespaces map[string]*policy.Namespace
}

func (s *State) undo(step *step) {
	for _, was := range slices.Backward(step.endpoints) {
		s.endpoints[was.place] = was.held
	}
	for _, was := range slices.Backward(step.policies) {
		if was.policy == nil {
			delete(s.policies, was.id)
		} else {
			s.policies[was.id] = was.policy
		}
	}
	for _, was := range slices.Backward(step.namespaces) {
		if was.namespace == nil {
			delete(s.namespaces, was.name)
		} else {
			s.namespaces[was.name] = was.namespace
		}
	}
}

// Endpoint returns the pod that the API server had then, with its addresses.
func (s *State) Endpoint(id string) (resolve.EndpointView, bool) {
	for _, h := range s.endpoints {
		if h.endpoint == nil || h.orphan || h.endpoint.ID() != id {
			continue
		}
		v := resolve.EndpointView{Endpoint: h.endpoint, Node: h.endpoint.Node}
		if !h.endpoint.HostNetwork {
			v.Addresses = h.endpoint.Addresses
		}
		return v, true
	}
	return resolve.EndpointView{}, false
}

// World returns everything that verdicts depended on (resolve.Engine.World).
func (s *State) World() *policy.World {
	return s.world(func(*policy.Endpoint) bool { return true }, func(string) bool { return true })
}

// WorldOf returns the part of World that verdicts between these addresses depended on.
func (s *State) WorldOf(addresses ...netip.Addr) *policy.World {
	wanted := map[netip.Addr]bool{}
	for _, a := range addresses {
		wanted[a] = true
	}
	namespaces := map[string]bool{}
	return s.world(func(e *policy.Endpoint) bool {
		holds := !e.HostNetwork && slices.ContainsFunc(e.Addresses, func(a netip.Addr) bool { return wanted[a] })
		if holds {
			namespaces[e.Namespace] = true
		}
		return holds
	}, func(name string) bool { return namespaces[name] })
}

// world returns the selected parts. It calls endpoint for all endpoints before it calls namespace.
func (s *State) world(endpoint func(*policy.Endpoint) bool, namespace func(string) bool) *policy.World {
	w := &policy.World{}
	for _, h := range s.endpoints {
		if h.endpoint != nil && endpoint(h.endpoint) {
			w.Endpoints = append(w.Endpoints, h.endpoint)
		}
	}
	for name, ns := range s.namespaces {
		if namespace(name) {
			w.Namespaces = append(w.Namespaces, *ns)
		}
	}
	for _, p := range s.policies {
		if namespace(p.Namespace) {
			w.Policies = append(w.Policies, p)
		}
	}
	resolve.SortWorld(w)
	return w
}
