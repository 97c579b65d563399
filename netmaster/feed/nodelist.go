package feed

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// nodeList is the list of all nodes that is sent to streams. Server.mu guards it.
type nodeList struct {
	keyedSet
	whole *feed.MasterMessage // for nodes older than version 5; nil: not built yet
}

// set updates the list, and reports whether it changed. Both arguments are sorted by name.
func (l *nodeList) set(before, now []policy.NodeInfo) (changed bool, err error) {
	for len(before)+len(now) > 0 {
		var order int
		switch {
		case len(before) == 0:
			order = 1
		case len(now) == 0:
			order = -1
		default:
			order = strings.Compare(before[0].Name, now[0].Name)
		}
		if order < 0 {
			changed = l.source.Remove(before[0].Name) || changed
			before = before[1:]
			continue
		}
		if order > 0 || !reflect.DeepEqual(before[0], now[0]) {
			value, err := wire.NodeValue(&now[0])
			if err != nil {
				return changed, fmt.Errorf("node %s: %w", now[0].Name, err)
			}
			changed = l.source.Put(now[0].Name, value) || changed
		}
		if order == 0 {
			before = before[1:]
		}
		now = now[1:]
	}
	if changed {
		l.whole = nil
		l.forget()
	}
	return changed, nil
}

// SetNodes sets the list of all nodes, and sends changes to every node.
func (s *Server) SetNodes(infos []policy.NodeInfo) {
	infos = slices.Clone(infos)
	slices.SortFunc(infos, func(a, b policy.NodeInfo) int { return strings.Compare(a.Name, b.Name) })
	s.mu.Lock()
	defer s.mu.Unlock()
	changed, err := s.nodes.set(s.infos, infos)
	if err != nil {
		s.cfg.Logger.Error("the list of nodes cannot be encoded", "error", err)
	}
	s.infos = infos
	s.forgetGone()
	if !changed { // as after a restart that changed nothing
		return
	}
	for _, c := range s.conns {
		wake(c.nodes.changed)
	}
}

// SetLinks sets the links of a node, and sends changes to every node.
func (s *Server) SetLinks(node string, links *policy.Links) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, there := slices.BinarySearchFunc(s.infos, node, func(n policy.NodeInfo, name string) int {
		return strings.Compare(n.Name, name)
	})
	if !there {
		return
	}
	before := []policy.NodeInfo{s.infos[i]}
	now := []policy.NodeInfo{s.infos[i]}
	now[0].Links = links
	changed, err := s.nodes.set(before, now)
	if err != nil {
		s.cfg.Logger.Error("a node's segments cannot be encoded", "node", node, "error", err)
	}
	if !changed {
		return
	}
	s.infos = slices.Clone(s.infos)
	s.infos[i] = now[0]
	for _, c := range s.conns {
		wake(c.nodes.changed)
	}
}

// nodesFor returns the part of the node list that a node lacks.
func (s *Server) nodesFor(spoken uint32, n *keyedSent) ([]*feed.MasterMessage, keyed.Cursor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if spoken >= feed.KeyedSets {
		return s.nodes.next(n)
	}
	if s.nodes.whole == nil {
		m, err := wire.Packed(wire.FromNodes(s.infos))
		if err != nil {
			return nil, 0, err
		}
		s.nodes.whole = m
	}
	return []*feed.MasterMessage{s.nodes.whole}, 0, nil
}
