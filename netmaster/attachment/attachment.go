// Package attachment finds running pods that Flowkeep did not attach: another CNI plugin did, or they are older than
// the installation. No switch of Flowkeep has a port of such a pod, and no policy is enforced at its side.
//
// A node announces a pod before the pod's CNI ADD returns, and repeats all announcements when it connects. So a pod
// with a sandbox and a connected node is announced, if Flowkeep attached it.
package attachment

import (
	"time"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
)

// Grace is how long the node of a running pod may be connected without an announcement of the pod.
const Grace = 30 * time.Second

// Tracker keeps since when pods are unannounced. It has no clock. Use it from one goroutine.
type Tracker struct {
	grace     time.Duration
	sightings map[podKey]sighting
}

// NewTracker returns a tracker that knows no pods. The period is Grace, except in tests.
func NewTracker(grace time.Duration) *Tracker { return &Tracker{grace: grace} }

type podKey struct{ namespace, name, uid string }

// sighting is an unannounced pod on a node that is or was connected.
type sighting struct {
	since   time.Time
	overdue bool
}

// Update returns the unannounced pods, and which of them are not attached, given whether a node is connected and has
// announced its pods. The time is one before the pods were read. An overdue pod stays overdue while its node is away.
// The time of others starts again when their node has connected.
func (t *Tracker) Update(unannounced []resolve.UnannouncedPod, connected func(node string) bool, now time.Time) *Set {
	sightings, nodes := make(map[podKey]sighting, len(unannounced)), map[string]bool{}
	isUp := func(node string) bool {
		up, known := nodes[node]
		if !known {
			up = connected(node)
			nodes[node] = up
		}
		return up
	}
	pods := make([]Pod, 0, len(unannounced))
	for _, p := range unannounced {
		key := podKey{p.Namespace, p.Name, p.UID}
		seen, before := t.sightings[key]
		if seen.overdue || isUp(p.Node) {
			if !before {
				seen.since = now
			}
			seen.overdue = seen.overdue || now.Sub(seen.since) >= t.grace
			sightings[key] = seen
		}
		pods = append(pods, Pod{UnannouncedPod: p, Overdue: seen.overdue})
	}
	t.sightings = sightings
	set := NewSet(pods)
	set.asOf = now
	return set
}
