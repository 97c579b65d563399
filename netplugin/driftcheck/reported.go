package driftcheck

import (
	"slices"
	"sync"

	"github.com/flowkeep/flowkeep/netplugin/datapath"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
)

// changes are what a switch has reported of changes by other programs.
type changes struct {
	flows []ofctl.Update // the last update of each flow; up to MaxFindings
	whole bool           // the whole switch must be compared
}

// reported collects changes until they are taken. It is safe for concurrent use.
type reported struct {
	translates bool
	flowsDue   chan struct{} // has an element while there are changed flows
	wholeDue   chan struct{} // has an element while the whole switch must be compared

	mu      sync.Mutex
	changes changes
	index   map[datapath.Key]int // of flows
	foreign bool                 // another program has changed something since the updates were last resumed
}

func newReported(translates bool) *reported {
	return &reported{
		translates: translates,
		flowsDue:   make(chan struct{}, 1),
		wholeDue:   make(chan struct{}, 1),
		index:      map[datapath.Key]int{},
	}
}

// Observe takes updates of the switch's flow monitor, in their order, and reports whether another program may have
// caused one. It does not block and is safe for concurrent use.
func (c *Checker) Observe(list []ofctl.Update) (foreign bool) {
	n := c.reported.add(list)
	c.metrics.updates.Add(float64(n))
	return n > 0
}

// add adds the updates that another program may have caused, and returns their number.
func (r *reported) add(list []ofctl.Update) (added int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range list {
		if r.addOne(&list[i]) {
			added++
		}
	}
	r.signal()
	return added
}

// signal makes due what there is. Call it with the lock.
func (r *reported) signal() {
	if len(r.changes.flows) > 0 {
		offer(r.flowsDue)
	}
	if r.changes.whole {
		offer(r.wholeDue)
	}
}

// offer adds an element to a channel that has none.
func offer(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// addWhole makes a comparison of the whole switch due.
func (r *reported) addWhole() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes.whole = true
	r.signal()
}

// addOne adds an update and returns true, unless the switch or this program caused it.
func (r *reported) addOne(u *ofctl.Update) bool {
	switch u.Kind {
	case ofctl.OwnChange, ofctl.UpdatesPaused:
		return false
	case ofctl.UpdatesResumed:
		return r.resumed()
	}
	if r.translates && pipeline.IsLearned(&u.Flow) {
		return false
	}
	r.foreign = true
	switch u.Kind {
	case ofctl.GroupChanged, ofctl.MeterChanged, ofctl.UpdateUnreadable:
		r.changes.whole = true
	default:
		r.addFlow(u)
	}
	return true
}

// resumed notes the end of a pause and returns true where the whole switch must be compared: Open vSwitch does not
// report a flow that was replaced and then deleted in the pause. Pods can cause pauses where the switch learns flows,
// without another program's change; these are left to the periodic drift check.
func (r *reported) resumed() bool {
	compare := r.foreign || !r.translates
	r.foreign = false
	r.changes.whole = r.changes.whole || compare
	return compare
}

// addFlow adds the update of a flow. A flow that no flow mod can name is repaired by a comparison of the whole switch.
// So is one that named a group, which may be deleted too: Open vSwitch does not report the groups that it deletes with
// all flows, after a change of fail_mode.
func (r *reported) addFlow(u *ofctl.Update) {
	if datapath.Nameless(u.Unknown) || u.Kind == ofctl.FlowRemoved && slices.ContainsFunc(u.Flow.Actions, namesGroup) {
		r.changes.whole = true
		return
	}
	key := datapath.KeyOf(&u.Flow)
	if i, again := r.index[key]; again {
		r.changes.flows[i] = *u
		return
	}
	if len(r.changes.flows) == MaxFindings {
		r.changes.whole = true
		return
	}
	r.index[key] = len(r.changes.flows)
	r.changes.flows = append(r.changes.flows, *u)
}

func namesGroup(a ofctl.Action) bool { return a.Kind == ofctl.Group }

// takeFlows returns the changed flows and removes them.
func (r *reported) takeFlows() []ofctl.Update {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.changes.flows
	r.changes.flows = nil
	clear(r.index)
	return taken
}

// takeWhole notes that a comparison of the whole switch begins.
func (r *reported) takeWhole() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes.whole = false
}
