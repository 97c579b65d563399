package controller

import (
	"maps"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	clusterv1beta1 "open-cluster-management.io/api/cluster/v1beta1"
)

// DefaultGrace is the default grace period of a cluster that leaves a Placement.
const DefaultGrace = 10 * time.Minute

// minGrace is the shortest grace period. The decisions of a Placement are several objects, which are written one after
// the other: a cluster that moves from one to another is in neither for a moment.
const minGrace = 3 * time.Second

// graceOf returns the grace period that a configured one stands for.
func graceOf(configured time.Duration) time.Duration { return max(configured, minGrace) }

// departures keeps the clusters that Placements name no more until their grace periods are over. The world's mutex
// guards it.
type departures struct {
	w *world
	// leaving holds, by Placement, the clusters that its decisions name no more, and the begin of their grace periods.
	leaving map[fleet.Name]fleet.Left
	// resumed has the inputs of which the clusters that works record as left are in leaving.
	resumed map[*input]bool
}

// leave notes which of the clusters that a decision named are named no more.
func (dp *departures) leave(placement fleet.Name, clusters []string) {
	chosen := dp.decided(placement)
	for _, c := range clusters {
		if !slices.Contains(chosen, c) {
			dp.leaves(placement, c, time.Now())
		}
	}
}

// decided returns the clusters that a Placement's decisions name.
func (dp *departures) decided(placement fleet.Name) []string {
	var chosen []*clusterv1beta1.PlacementDecision
	for d := range dp.w.decisionsOf[placement] {
		chosen = append(chosen, row[*clusterv1beta1.PlacementDecision](dp.w, decisions, d))
	}
	return fleet.DecidedClusters(chosen)
}

// leaves sets the begin of the grace period of a cluster that leaves a Placement. Works record whole seconds,
// so it is rounded up to one.
func (dp *departures) leaves(placement fleet.Name, cluster string, begin time.Time) {
	if dp.leaving[placement] == nil {
		dp.leaving[placement] = fleet.Left{}
	}
	begin = begin.Add(time.Second - 1).Truncate(time.Second)
	dp.leaving[placement][cluster] = begin
	time.AfterFunc(max(time.Until(begin.Add(dp.w.grace)), 0), func() {
		dp.w.mu.Lock()
		defer dp.w.mu.Unlock()
		dp.left(placement)
	})
}

// availabilityChanged takes up that a cluster is unavailable, or available again, or gone. One that is available again
// could not take anything up before, and a Placement that passed it by for its taint has yet to choose it: its grace
// periods start again.
func (dp *departures) availabilityChanged(name string, before, after *fleet.Cluster) {
	gone := after == nil || !after.Known
	if !gone && before != nil && before.Away() == after.Away() {
		return
	}
	for placement, of := range dp.leaving {
		if _, leaves := of[name]; !leaves {
			continue
		}
		if !gone && before != nil && before.Away() {
			dp.leaves(placement, name, time.Now())
		}
		dp.left(placement)
	}
}

// left marks what a Placement sent, as a grace period may be over, and deletes the clusters that are chosen again or
// gone. Others stay in leaving: what they have goes when it is certain that it may, and until then they may become
// unavailable.
func (dp *departures) left(placement fleet.Name) {
	chosen := dp.decided(placement)
	maps.DeleteFunc(dp.leaving[placement], func(cluster string, _ time.Time) bool {
		return slices.Contains(chosen, cluster) || !dp.w.hub.clusterOf(cluster).Known
	})
	if len(dp.leaving[placement]) == 0 {
		delete(dp.leaving, placement)
	}
	dp.w.touchPlacement(placement)
}

// kept returns the clusters that leave a Placement and have works of a bundle, which they keep.
func (dp *departures) kept(bundle fleet.Source, placement fleet.Name) fleet.Left {
	now, of := time.Now(), dp.leaving[placement]
	if len(of) == 0 {
		return nil
	}
	left := fleet.Left{}
	for at := range dp.w.worksOf[bundle] {
		begin, leaves := of[at.Namespace]
		c := dp.w.hub.clusterOf(at.Namespace)
		switch {
		case !leaves || !c.Known || row[*work](dp.w, works, at).Deleting:
		case c.Away():
			left[at.Namespace] = time.Time{}
		case now.Before(begin.Add(dp.w.grace)):
			left[at.Namespace] = begin
		}
	}
	return left
}

// takeOver replaces the grace periods with those that works record: another instance may have written them.
func (dp *departures) takeOver() {
	dp.w.mu.Lock()
	defer dp.w.mu.Unlock()
	dp.leaving, dp.resumed = map[fleet.Name]fleet.Left{}, map[*input]bool{}
	dp.w.touchAll()
}

// resume goes on with the grace periods of the clusters that have works and are not chosen, when all inputs have been
// read for the first time.
func (dp *departures) resume() {
	dp.resumeAll(gateways, fleet.GatewaySource(fleet.Name{}), func(name fleet.Name, row any) (fleet.Source, fleet.Name) {
		return fleet.GatewaySource(name), fleet.PlacementOf(row.(*object).Object)
	})
	dp.resumeAll(sets, fleet.SetSource(fleet.Name{}), func(name fleet.Name, row any) (fleet.Source, fleet.Name) {
		placement := row.(*networkPolicySet).typed.Spec.Placement
		return fleet.SetSource(name), fleet.Name{Namespace: name.Namespace, Name: placement}
	})
}

func (dp *departures) resumeAll(in *input, of fleet.Source, placed func(fleet.Name, any) (fleet.Source, fleet.Name)) {
	if dp.resumed[in] || dp.w.current[in] == nil || dp.w.hub.lacks(of) != "" {
		return
	}
	dp.resumed[in] = true
	recorded := map[fleet.Name]fleet.Left{}
	dp.w.eachRow(in, func(name fleet.Name, row any) {
		if bundle, placement := placed(name, row); placement.Name != "" {
			dp.readLeft(bundle, placement, recorded)
		}
	})
	for placement, of := range recorded {
		for cluster, begin := range of {
			dp.leaves(placement, cluster, dp.resumedAt(cluster, begin, time.Now()))
		}
	}
}

// readLeft adds what works of a bundle record of clusters that its Placement does not choose. Of several begins the
// latest counts.
func (dp *departures) readLeft(bundle fleet.Source, placement fleet.Name, recorded map[fleet.Name]fleet.Left) {
	chosen := dp.decided(placement)
	for at := range dp.w.worksOf[bundle] {
		if _, leaves := dp.leaving[placement][at.Namespace]; leaves || slices.Contains(chosen, at.Namespace) {
			continue
		}
		if recorded[placement] == nil {
			recorded[placement] = fleet.Left{}
		}
		if begin := row[*work](dp.w, works, at).LeftAt(); !begin.Before(recorded[placement][at.Namespace]) {
			recorded[placement][at.Namespace] = begin
		}
	}
}

// resumedAt returns the begin of a grace period by its record: now where there is none, as the cluster left while
// policy-sync did not run, and never before the cluster became available.
func (dp *departures) resumedAt(cluster string, recorded, now time.Time) time.Time {
	if since := dp.w.hub.clusterOf(cluster).Since; !recorded.IsZero() && recorded.Before(since) {
		recorded = since
	}
	if recorded.IsZero() || recorded.After(now) {
		return now
	}
	return recorded
}
