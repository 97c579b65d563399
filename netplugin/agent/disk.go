package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/cni"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
)

// disk is what the owner knows of the rule set's way to the disk.
type disk struct {
	saver  *saver
	writes *writes
	// updates of this stream that are not on disk, oldest first
	updates []savedUpdate
	saved   uint64 // revision of the last update of this stream that is on disk; 0: none
	problem string // logged last
}

// savedUpdate is an update on its way to the disk.
type savedUpdate struct {
	number, revision uint64
	acknowledge      func([]wire.RuleError) // nil: it was called
	early            bool                   // it was called before the update was on disk
}

// openSaver starts the writing of the rule set. Where the mark exists, the rules of before the restart are not trusted.
func (a *agent) openSaver() {
	mark := readMark(markPath(&a.cfg))
	if mark.exists && a.rules.known {
		a.metrics.stateStale.Inc()
		a.log.Error("the rule set on disk misses changes that were in force; "+
			"pods keep their flows until netmaster sends the rules", "mark", mark.path)
		a.rules.known = false
		a.rules.revision = max(a.rules.revision, mark.held.Revision)
		a.setReady("rules", "the rule set on disk is not the last one; netmaster has not sent the rules yet")
	}
	a.rules.epoch = max(a.rules.epoch, mark.held.Epoch)
	a.disk.writes = newWrites()
	if a.cfg.Registerer != nil {
		a.cfg.Registerer.MustRegister(a.disk.writes.collector())
	}
	a.disk.saver = &saver{
		file:     a.state,
		snapshot: a.snapshot,
		writes:   a.disk.writes,
		onError:  a.metrics.stateErrors.Inc,
		mark:     mark,
	}
	a.disk.saver.start()
}

func (a *agent) setReady(part, reason string) {
	if a.cfg.Health != nil {
		a.cfg.Health.SetReady(part, reason)
	}
}

// closeState closes the file of the rule set. While a write hangs it stays open: closing would wait for it.
func (a *agent) closeState() error {
	if !a.disk.saver.close() {
		return a.disk.writes.problem()
	}
	return a.state.close()
}

// snapshot returns the whole rule set and the number of the last change in it.
func (a *agent) snapshot(ctx context.Context) (c change, number uint64, err error) {
	err = a.do(ctx, func() {
		nodes := a.rules.nodes
		c = change{whole: true, ids: a.compiler.Assignments(), epoch: a.rules.epoch, nodes: &nodes}
		if a.rules.known {
			u := a.rules.asUpdate()
			c.update = &u
		}
		number = a.disk.saver.snapshotTaken()
	})
	return c, number, err
}

// save queues a change for the disk and returns its number. It comes before the change reaches the switch.
func (a *agent) save(c change) uint64 {
	m := marked{Epoch: a.rules.epoch, Revision: a.rules.revision}
	return a.disk.saver.add(c, a.rules.known, m)
}

// diskChanged follows the writes: it acknowledges what is in force and on disk, and reports what is not.
func (a *agent) diskChanged() {
	a.logDisk()
	saved, problem := a.disk.saver.progress()
	a.metrics.unsaved.Set(0)
	if problem != nil {
		a.metrics.unsaved.Set(1)
	}
	a.finishPods()
	if a.acknowledge(saved, problem) {
		a.sendReport(a.notInForce())
	}
	a.report()
}

// logDisk logs what is wrong with the disk, once, and sets readiness.
func (a *agent) logDisk() {
	_, problem := a.disk.saver.progress()
	text := ""
	if err := errors.Join(problem, a.disk.writes.problem(), a.disk.saver.markProblem()); err != nil {
		text = err.Error()
	}
	if text == a.disk.problem {
		return
	}
	a.disk.problem = text
	a.setReady("disk", text)
	if text == "" {
		a.log.Info("the state directory is written again")
		return
	}
	a.log.Error("the state directory cannot be written; policies are enforced, "+
		"but no change is reported as in force and no pod starts", "error", text)
}

// acknowledge acknowledges the updates that are on disk. With a problem it acknowledges the others too, with what is
// wrong: when they are on disk later, a report is due.
func (a *agent) acknowledge(saved uint64, problem error) (reportDue bool) {
	var waiting []savedUpdate
	for _, u := range a.disk.updates {
		onDisk := u.number <= saved
		reportDue = reportDue || onDisk && u.early
		if u.acknowledge != nil && (onDisk || problem != nil) {
			a.wrong.told = a.notInForce()
			u.acknowledge(a.wrong.told)
			u.acknowledge, u.early = nil, !onDisk
		}
		if onDisk {
			a.disk.saved = u.revision
		} else {
			waiting = append(waiting, u)
		}
	}
	if problem != nil && len(waiting) > 1 { // the list is bounded while the disk is not
		waiting = waiting[len(waiting)-1:]
	}
	a.disk.updates = waiting
	return reportDue
}

// diskProblem returns why pods would wait for the disk, or be attached without their rules on disk.
func (a *agent) diskProblem() error {
	_, problem := a.disk.saver.progress()
	if problem == nil {
		problem = a.disk.writes.problem()
	}
	if problem == nil {
		return nil
	}
	return fmt.Errorf("no pod starts while the node's disk is not written: %w", problem)
}

// finishPods answers for pods that wait: for those with their rules in force and on disk, and with a problem for all.
func (a *agent) finishPods() {
	saved, _ := a.disk.saver.progress()
	problem := a.diskProblem()
	for _, p := range a.pods {
		switch {
		case problem != nil:
			p.finish(problem)
		case p.settled && a.session != nil && p.number <= saved:
			p.finish(nil)
		}
	}
}

// watchedAllocator has the disk watched while addresses are written.
type watchedAllocator struct {
	endpoints.Allocator
	writes *writes
}

func (w watchedAllocator) Allocate(container, ifName string) ([]netip.Addr, error) {
	defer w.writes.begin("a pod's addresses")()
	return w.Allocator.Allocate(container, ifName)
}

func (w watchedAllocator) Release(container, ifName string) error {
	defer w.writes.begin("a pod's addresses")()
	return w.Allocator.Release(container, ifName)
}

// diskGuard refuses CNI requests that would wait for a disk, or write to one that does not take it.
type diskGuard struct {
	cni.Manager
	agent *agent
}

// Add refuses while the rule set is not written: after a restart the pod would be without its rules.
func (g diskGuard) Add(ctx context.Context, r endpoints.Request) (*endpoints.Result, error) {
	if err := g.agent.diskProblem(); err != nil {
		return nil, err
	}
	return g.Manager.Add(ctx, r)
}

// Del needs no room on the disk, but one that answers.
func (g diskGuard) Del(ctx context.Context, container, ifName string) error {
	if err := g.agent.disk.writes.problem(); err != nil {
		return err
	}
	return g.Manager.Del(ctx, container, ifName)
}

// GC needs what Del needs.
func (g diskGuard) GC(ctx context.Context, valid []string) error {
	if err := g.agent.disk.writes.problem(); err != nil {
		return err
	}
	return g.Manager.GC(ctx, valid)
}
