package server

import (
	"cmp"
	"context"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
)

const (
	// attachmentInterval is the time between looks for pods that are not attached.
	attachmentInterval = time.Second
	// attachmentShare limits the load: after a look, the next one is this multiple of its duration later, but never more
	// than maxAttachmentInterval.
	attachmentShare       = 20
	maxAttachmentInterval = 5 * time.Second
	// unannouncedAtATime is the number of pods read in one call on the owner goroutine: a millisecond of work.
	unannouncedAtATime = 2000
	// maxUnattachedLogged limits the log lines of one look.
	maxUnattachedLogged = 10
)

// newTracker returns the tracker of a term. A new leader begins when nodes connect to it.
func (s *server) newTracker() *attachment.Tracker {
	return attachment.NewTracker(cmp.Or(s.cfg.AttachmentGrace, attachment.Grace))
}

// watchAttachments keeps which running pods are not attached, until ctx ends.
func (s *server) watchAttachments(ctx context.Context, tracker *attachment.Tracker) {
	defer s.setUnattached(nil)
	select {
	case <-s.synced:
	case <-ctx.Done():
		return
	}
	connected := func(node string) bool { return s.feed.Node(node).Connected }
	for {
		began := time.Now()
		pods, err := s.readUnannounced(ctx)
		if err != nil {
			return
		}
		s.setUnattached(tracker.Update(pods, connected, began))
		pause := time.NewTimer(attachmentPause(time.Since(began)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
	}
}

// attachmentPause returns the time between a look of some duration and the next one.
func attachmentPause(spent time.Duration) time.Duration {
	return min(max(attachmentInterval, attachmentShare*spent), maxAttachmentInterval)
}

// readUnannounced returns the running pods that no node has announced. A pod that changes between two pieces may be
// missing or outdated until the next look.
func (s *server) readUnannounced(ctx context.Context) (all []resolve.UnannouncedPod, err error) {
	for cursor, more := uint32(0), true; more; more = cursor != 0 {
		err := s.Do(ctx, func(e *resolve.Engine) {
			var pods []resolve.UnannouncedPod
			pods, cursor = e.Unannounced(cursor, unannouncedAtATime)
			all = append(all, pods...)
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// setUnattached publishes which pods are unannounced, and logs those that are not enforced and were enforced before.
// A change invalidates cached responses, which depend on the set. None are kept while it is nil.
func (s *server) setUnattached(now *attachment.Set) {
	before := s.unattached.Swap(now)
	if before.IsKnown() && !now.Equal(before) {
		s.labels.Add(1) // after the swap: a response computed in between is not kept
	}
	s.metrics.notEnforced.Set(float64(now.Count()))
	for i, p := range now.NewlyNotEnforced(before) {
		if i == maxUnattachedLogged {
			s.log.Warn("more running pods are not attached by Flowkeep", "pods", now.Count())
			return
		}
		s.log.Warn("a running pod is not attached by Flowkeep: no policy that selects it is enforced there",
			"node", p.Node, "pod", p.ID(), "uid", p.UID, "remedy", attachment.Remedy)
	}
}
