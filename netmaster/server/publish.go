package server

import (
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// publish sends changes to nodes, including those about unknown pods.
func (s *server) publish(changes *policy.Changes, before uint64) {
	if len(s.unknownPods.due) == 0 {
		s.feed.Publish(changes)
		return
	}
	more, found := s.unknownPods.changes(s.engine)
	if len(more) == 0 {
		s.feed.Publish(changes)
		return
	}
	s.logUnknown(found)
	all := *changes
	all.Rules = append(slices.Clone(all.Rules), unknownPodsRules()...)
	all.Nodes = append(slices.Clone(all.Nodes), more...)
	if all.Revision == before {
		s.engine.Advance(before + 1)
		all.Revision = before + 1
	}
	s.feed.Publish(&all)
}
