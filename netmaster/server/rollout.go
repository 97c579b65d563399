package server

import (
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/watch"
)

// aboutToChange notes what nodes hold of the policies that a batch changes, before it does. The time that a change took is
// known only of one that came while policies were watched.
func (s *server) aboutToChange(b *watch.Batch) []feed.PolicyChange {
	changes := make([]feed.PolicyChange, 0, len(b.Policies))
	for id := range b.Policies {
		c := feed.PolicyChange{ID: id}
		if !b.Complete {
			c.Received = b.Received[id]
		}
		if !s.isAllThereIs(b) {
			c.Before = s.engine.Extent(id)
		}
		changes = append(changes, c)
	}
	return changes
}

// isAllThereIs tells the first batch where the policy DB was empty: no node has been served.
func (s *server) isAllThereIs(b *watch.Batch) bool { return b.Complete && s.stored.Empty() }

// follow comes after what aboutToChange speaks of was published.
func (s *server) follow(b *watch.Batch, changes []feed.PolicyChange) {
	if len(changes) == 0 {
		return
	}
	for i := range changes {
		if !s.isAllThereIs(b) {
			changes[i].After = s.engine.Extent(changes[i].ID)
		}
	}
	s.feed.Follow(changes)
}
