package controller

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// sync writes the works of a bundle that differ from the desired ones. It returns false if the bundle has to be synced
// again without another event.
func (c *controller) sync(ctx context.Context, b fleet.Source, begun time.Time) bool {
	start, before := time.Now(), c.known(b)
	c.world.mu.RLock()
	g := c.world.gatherer.gather(b)
	writes := c.world.planner.plan(b, g)
	asked := c.world.evidence.witnesses(b, writes)
	c.world.mu.RUnlock()
	c.metrics.decided(start)
	c.remember(b, g)
	c.world.bundles.looked(b)
	c.tellProblems(b, before.problems(), c.known(b).problems())
	if g.frozen != "" {
		return true
	}
	certain := len(writes) == 0 || c.confirmed(ctx, b, asked)
	if !certain {
		writes = slices.DeleteFunc(writes, func(w fleet.Write) bool { return len(w.Drops) > 0 })
	}
	done, refusals := c.carry(ctx, writes)
	c.setRefusals(b, refusals)
	if done && certain && len(writes) > 0 {
		c.metrics.latency.Observe(time.Since(begun).Seconds())
	}
	return done && certain
}

// planner finds the writes that bring a bundle to spokes. The world's mutex guards it.
type planner struct{ w *world }

// plan returns the writes of a bundle's works. Copies move between bundles, so those that hold something of this one,
// or want something that this one holds, are planned with it; their writes are left out.
func (pl *planner) plan(b fleet.Source, g gathered) []fleet.Write {
	if g.frozen != "" {
		return nil
	}
	desired, existing := g.bundle.Works(pl.w.controller), pl.existing(b)
	for _, other := range pl.neighbours(g.bundle, existing) {
		if o := pl.w.gatherer.gather(other); o.frozen == "" {
			desired = append(desired, o.bundle.Works(pl.w.controller)...)
		}
		existing = append(existing, pl.existing(other)...)
	}
	return slices.DeleteFunc(fleet.Plan(pl.w.controller, desired, existing), func(one fleet.Write) bool {
		return one.Bundle != b
	})
}

// existing are a bundle's works that are there.
func (pl *planner) existing(b fleet.Source) (all []*fleet.Existing) {
	for at := range pl.w.worksOf[b] {
		all = append(all, row[*work](pl.w, works, at).Existing)
	}
	return all
}

// neighbours are bundles that share sources with one: as it wants something that they hold, or holds something that they want. Those that
// hold a name that it wants are too, and those with policies that its gateway waits for, or of the gateways of a policy
// that gets another name.
func (pl *planner) neighbours(b *fleet.Bundle, existing []*fleet.Existing) []fleet.Source {
	found := map[fleet.Source]bool{}
	wants := map[fleet.Source]bool{}
	for i := range b.Clusters {
		for _, one := range b.Clusters[i].Copies {
			for _, s := range []fleet.Source{one.Source, nameSource(one.Key())} {
				if wants[s] || one.Orphan {
					continue
				}
				wants[s] = true
				for holder := range pl.w.holdersOf[s] {
					found[holder] = true
				}
			}
		}
	}
	selection := pl.w.gatherer.selections()
	for _, e := range existing {
		for i := range e.Sent {
			if s := e.Sent[i].Source; s.Kind != "" && !wants[s] {
				wants[s] = true
				maps.Copy(found, pl.wantedBy(s, selection))
			}
		}
	}
	for _, s := range b.Awaited(existing) {
		maps.Copy(found, pl.wantedBy(s, selection))
	}
	for _, g := range b.Beside(existing) {
		found[g] = true
	}
	delete(found, b.Source)
	return slices.SortedFunc(maps.Keys(found), fleet.Source.Compare)
}

// wantedBy are the bundles that a source belongs to now.
func (pl *planner) wantedBy(s fleet.Source, selection func(fleet.Name) fleet.Selection) map[fleet.Source]bool {
	found := map[fleet.Source]bool{}
	switch {
	case s.Group == gatewayv1.GroupName && s.Kind == "Gateway", s.Group == fleet.Group && s.Kind == fleetv1alpha1.KindSet:
	case s.Group == networkPolicyResource.Group && s.Kind == "NetworkPolicy":
		selected, _, _ := pl.w.gatherer.selectSets()
		for _, set := range selected {
			if slices.ContainsFunc(set.Policies, func(o fleet.Object) bool { return nameOf(o) == s.Name }) {
				found[fleet.SetSource(set.Name)] = true
			}
		}
	default:
		if id, watched := pl.w.hub.policyOf(s); watched {
			if a, _ := pl.w.hub.aim(id, selection); a != nil {
				found[a.Bundle()] = true
			}
		}
	}
	return found
}

// carry makes writes in parallel. Deletions in a cluster come last: what replaces a copy is there before the copy goes.
// They wait for writes there that may succeed when retried. They do not wait for refused ones, as the hub may refuse
// them for ever. What stays until a gateway is gone is no deletion of the plan yet (decision 017). It reports whether
// all writes are done, and what the hub refused.
func (c *controller) carry(ctx context.Context, writes []fleet.Write) (all bool, refusals []fleet.Problem) {
	removals := slices.IndexFunc(writes, func(w fleet.Write) bool { return w.Verb == fleet.Delete })
	if removals < 0 {
		removals = len(writes)
	}
	all = true
	waits := map[string]bool{} // clusters
	for i, r := range c.carryAll(ctx, writes[:removals]) {
		all = all && r.outcome == writeDone
		waits[writes[i].Cluster] = waits[writes[i].Cluster] || r.outcome == writeFailed
		if r.outcome == writeRefused {
			refusals = append(refusals, refusalsOf(&writes[i], r.err)...)
		}
	}
	for _, r := range c.carryAll(ctx, slices.DeleteFunc(slices.Clone(writes[removals:]), func(w fleet.Write) bool {
		return waits[w.Cluster]
	})) {
		all = all && r.outcome == writeDone
	}
	return all, refusals
}

// writeOutcome is the outcome of a write of a work.
type writeOutcome int

const (
	writeDone    writeOutcome = iota
	writeFailed               // a retry may succeed
	writeRefused              // a retry is likely to be refused too
)

// writeResult is the outcome of a write, with the error that led to it.
type writeResult struct {
	outcome writeOutcome
	err     error
}

// carryAll makes writes in parallel, and returns the result of each.
func (c *controller) carryAll(ctx context.Context, writes []fleet.Write) []writeResult {
	results := make([]writeResult, len(writes))
	var all sync.WaitGroup
	for i := range writes {
		all.Go(func() { results[i] = c.carryOne(ctx, &writes[i]) })
	}
	all.Wait()
	return results
}

// carryOne makes a write. One for a cluster without a ManagedCluster is done: its decision goes too.
func (c *controller) carryOne(ctx context.Context, w *fleet.Write) writeResult {
	at := fleet.Name{Namespace: w.Cluster, Name: w.Name}
	err := c.write(ctx, func() error {
		after, err := c.client.work(ctx, w, c.world.planner.annotated(at))
		if after != nil && err == nil {
			c.world.planner.wrote(at, w.ResourceVersion, after)
		}
		return err
	})
	if ctx.Err() != nil {
		return writeResult{writeFailed, err}
	}
	log := c.log.With("cluster", w.Cluster, "work", w.Name, "bundle", w.Bundle, "verb", w.Verb)
	switch c.metrics.work(string(w.Verb), err) {
	case written:
		log.Debug("work written")
		return writeResult{writeDone, nil}
	case gone:
		if c.world.park(w.Cluster, w.Bundle) {
			log.Warn("the ManagedCluster is gone, and its namespace too: nothing is sent there", "error", err)
			return writeResult{writeDone, err}
		}
		log.Warn("the cluster's namespace is missing, or is being deleted; retrying", "error", err)
		return writeResult{writeRefused, err}
	case conflict:
		log.Debug("conflict: the work has changed; retrying", "error", err)
		return writeResult{writeFailed, err}
	}
	if !errors.Is(err, context.Canceled) {
		log.Warn("could not write a ManifestWork; retrying", "error", err)
	}
	if isRefusal(err) {
		c.learn(err, w.Bytes())
		return writeResult{writeRefused, err}
	}
	return writeResult{writeFailed, err}
}

// annotated reports whether a work has annotations.
func (pl *planner) annotated(at fleet.Name) bool {
	pl.w.mu.RLock()
	defer pl.w.mu.RUnlock()
	one := row[*work](pl.w, works, at)
	return one != nil && one.annotated
}

// wrote takes a work up as it is after a write, so that it is not written once more before its event comes. If it is there no more, or in
// a newer version, the events have more than this.
func (pl *planner) wrote(at fleet.Name, before string, after *unstructured.Unstructured) {
	pl.w.mu.RLock()
	t := pl.w.current[works]
	pl.w.mu.RUnlock()
	if t == nil {
		return
	}
	written, ok := t.slim(after).(*work)
	if !ok {
		return
	}
	t.change(func() {
		if one, ok := t.rows[at].(*work); ok && (one.ResourceVersion == before || one.older(written)) {
			t.have(at, written)
		}
	})
}

// older reports whether a work's version is from before that of another: after a write was taken up, events from before
// it may come yet.
func (one *work) older(than *work) bool {
	order, err := resourceversion.CompareResourceVersion(one.ResourceVersion, than.ResourceVersion)
	return err == nil && order < 0
}
