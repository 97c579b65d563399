package feed

import (
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// ForgetGone removes all state of nodes that are neither in the API nor connected, except what their pods require.
func (s *Server) ForgetGone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetGone()
	for name := range s.last {
		s.forgetNode(name)
	}
	for name := range s.refusals {
		s.forgetNode(name)
	}
	for name := range s.mirror.nodes {
		s.forgetNode(name)
	}
}

// forgetNode removes the state of a node that neither exists nor is connected.
func (s *Server) forgetNode(name string) {
	if s.isThere(name) {
		return
	}
	delete(s.last, name)
	delete(s.refusals, name)
	s.watches.changes.Add(1)
	if v := s.mirror.nodes[name]; v != nil && len(v.rules)+len(v.groups)+len(v.applied) == 0 {
		delete(s.mirror.nodes, name)
	}
}

// isThere reports whether a node is connected or in the API. While Nodes are unknown it returns true.
func (s *Server) isThere(name string) bool {
	if s.conns[name] != nil || s.infos == nil {
		return true
	}
	_, found := slices.BinarySearchFunc(s.infos, name,
		func(n policy.NodeInfo, name string) int { return strings.Compare(n.Name, name) })
	return found
}
