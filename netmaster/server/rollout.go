package server

import (
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/watch"
)

// beforeChange returns the nodes and rules of the policies in a batch, before it is applied. The start of a rollout
// is known only for policies that changed while they were watched.
func (s *server) beforeChange(b *watch.Batch) []feed.PolicyChange {
	changes := make([]feed.PolicyChange, 0, len(b.Policies))
	for id := range b.Policies {
		c := feed.PolicyChange{ID: id}
		if !b.Complete {
			c.Received = b.Received[id]
		}
		if !s.isInitialLoad(b) {
			c.Before = s.engine.Extent(id)
		}
		changes = append(changes, c)
	}
	return changes
}

// isInitialLoad reports whether this is the first batch and the policy DB was empty, so that no node has been served.
func (s *server) isInitialLoad(b *watch.Batch) bool { return b.Complete && s.stored.Empty() }

// afterChange starts tracking the rollout of changes that have been published.
func (s *server) afterChange(b *watch.Batch, changes []feed.PolicyChange) {
	if len(changes) == 0 {
		return
	}
	for i := range changes {
		if !s.isInitialLoad(b) {
			changes[i].After = s.engine.Extent(changes[i].ID)
		}
	}
	s.feed.Follow(changes)
}
