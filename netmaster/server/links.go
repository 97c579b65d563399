package server

import (
	"net/netip"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// segments holds the links that nodes announced, and the nodes' addresses, which validate them. It belongs to the
// owner.
type segments struct {
	announced map[string]*policy.Links
	addresses map[string][]netip.Addr // granted to the nodes
}

// setNodes sets the addresses of all nodes, and drops links of other nodes.
func (s *segments) setNodes(granted []policy.NodeInfo) {
	before := s.announced
	s.announced, s.addresses = map[string]*policy.Links{}, make(map[string][]netip.Addr, len(granted))
	for i := range granted {
		name := granted[i].Name
		s.addresses[name] = granted[i].Addresses
		if l := before[name]; l != nil {
			s.announced[name] = l
		}
	}
}

// announce sets the links of a node; nil: none.
func (s *segments) announce(node string, l *policy.Links) {
	if l == nil {
		l = &policy.Links{}
	}
	if s.announced == nil {
		s.announced = map[string]*policy.Links{}
	}
	s.announced[node] = l
}

// granted returns the valid links of a node; nil if it has announced none since netmaster started.
func (s *segments) granted(node string) *policy.Links {
	return s.announced[node].Grant(s.addresses[node])
}

// setLinks sets the links of a node, and sends them to all nodes.
func (s *server) setLinks(node string, l *policy.Links) {
	s.segments.announce(node, l)
	s.feed.SetLinks(node, s.segments.granted(node))
}
